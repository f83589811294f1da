"""Compare ways of learning a vocabulary, on text that none of them has seen.

    python scripts/compare_vocabularies.py --files 'classics-*.txt.xz' --heldout novels.txt.xz

Learns from the same words, counted once, with each algorithm and score, and with the WordPiece
trainer of the ``tokenizers`` library from the same text. Prints, for each, the seconds and
processor seconds of learning, and on the held-out files: pieces per word, the share of whole words
and the share of words with [UNK]. Counting is timed separately.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer

from bothways.io.records import ParagraphReader
from bothways.io.text import list_files
from bothways.tokenization.build import count_file_words, measure, read_all
from bothways.tokenization.learning import learn_from_words
from bothways.tokenization.normalization import Rules, count_letters, normalizer, word_splitter
from bothways.tokenization.options import LearningOptions
from bothways.tokenization.pieces import SPECIAL_PIECES, UNK
from bothways.tokenization.tokenizer import Tokenizer

WAYS: dict[str, dict[str, Any]] = {
    "wordpiece, likelihood": {"score": "likelihood"},
    "wordpiece, frequency": {"score": "frequency"},
    "wordpiece, ratio, pairs seen 100 times": {"score": "ratio", "min_pair_count": 100},
    "wordpiece, ratio, pairs seen 1000 times": {"score": "ratio", "min_pair_count": 1000},
    "bpe": {"algorithm": "bpe"},
    "byte-bpe": {"algorithm": "byte-bpe"},
}


@dataclass(frozen=True)
class Timed:
    """A result and the time it took."""

    value: Any
    seconds: float
    cpu_seconds: float


def timed(function: Callable[[], Any]) -> Timed:
    """Run a function and measure its time."""
    clock, cpu = time.perf_counter(), time.process_time()
    value = function()
    return Timed(value, time.perf_counter() - clock, time.process_time() - cpu)


def learn_words(words: dict[str, int], options: LearningOptions) -> Tokenizer:
    """Learn a vocabulary with bothways, uncased, with the original's rules."""
    letters = count_letters([words])
    rules: Rules = {"lowercase": True, "normalization": "bert"}
    return learn_from_words(words, letters, rules, options).tokenizer


def library_vocabulary(files: list[Path], size: int) -> Tokenizer:
    """Learn one with the library, with BERT's rules and the defaults of its documentation."""
    library = tokenizers.Tokenizer(WordPiece(unk_token=UNK))
    library.normalizer, library.pre_tokenizer = normalizer(lowercase=True), word_splitter()
    trainer = WordPieceTrainer(
        vocab_size=size, special_tokens=list(SPECIAL_PIECES), min_frequency=2, show_progress=False
    )
    library.train_from_iterator(read_all(files, ParagraphReader()), trainer)
    return Tokenizer(library)


def main() -> None:
    """Learn, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--files", nargs="+", required=True)
    parser.add_argument("--heldout", nargs="+", required=True)
    parser.add_argument("--size", type=int, default=30522)
    parser.add_argument("--workers", type=int, default=-1)
    parser.add_argument("--skip_library", action="store_true")
    chosen = parser.parse_args()
    files, heldout = list_files(chosen.files), list_files(chosen.heldout)
    rules = Tokenizer.from_pieces(SPECIAL_PIECES)
    counted = timed(lambda: count_file_words(files, rules, chosen.workers))
    unseen = count_file_words(heldout, rules, chosen.workers)
    print(f"counting: {counted.seconds:.0f} s, {len(counted.value):,} distinct words", flush=True)
    print("| way | s | CPU s | pieces | pieces per word | whole words | unknown |")
    print("|---|---|---|---|---|---|---|", flush=True)
    ways: dict[str, Callable[[], Tokenizer]] = {
        name: partial(learn_words, counted.value, LearningOptions(size=chosen.size, **options))
        for name, options in WAYS.items()
    }
    if not chosen.skip_library:
        ways["library's WordPieceTrainer (counting included)"] = lambda: library_vocabulary(
            files, chosen.size
        )
    for name, way in ways.items():
        learned = timed(way)
        found = measure(learned.value, unseen)
        print(
            f"| {name} | {learned.seconds:.0f} | {learned.cpu_seconds:.0f} "
            f"| {learned.value.vocab_size:,} | {found['pieces_a_word']:.4f} "
            f"| {found['whole']:.2%} | {found['unknown']:.4%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
