"""Tokenizers and options that the tests of tagging share."""

from __future__ import annotations

from collections.abc import Sequence

from bothways.tasks.options import TaggingOptions, TaskOptions
from bothways.tasks.words import RunningText, join_words
from bothways.tokenization.pieces import SPECIAL_PIECES
from bothways.tokenization.tokenizer import Tokenizer
from model_examples import small_tokenizer

VOCABULARY = 97
SHAPE = (1, 32, 4, 64, VOCABULARY)
TOKENIZER = small_tokenizer(VOCABULARY)
LETTERS = Tokenizer.from_pieces(
    [*SPECIAL_PIECES, "a", "b", "ab", "c", "##b", "##c", "##bc", "서울", "##은"], lowercase=False
)
COMPOSED = Tokenizer.from_pieces(LETTERS.pieces, normalization="composed")


def joined(sentences: Sequence[Sequence[str]], *, spaces: bool = True) -> list[RunningText]:
    """Sentences of words as texts."""
    return [join_words(words, " " * spaces) for words in sentences]


def tagging(**options: object) -> TaskOptions:
    return TaskOptions(kind="tagging", tagging=TaggingOptions(**options))  # type: ignore[arg-type]
