"""Tokenizers and options that the tests of tagging share."""

from __future__ import annotations

from bothways.tasks.options import TaggingOptions, TaskOptions
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


def tagging(**options: object) -> TaskOptions:
    return TaskOptions(kind="tagging", tagging=TaggingOptions(**options))  # type: ignore[arg-type]
