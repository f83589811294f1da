"""Options of the verbs that make vocabularies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bothways.config.fields import free, require
from bothways.errors import ConfigError


@dataclass(frozen=True)
class LearningOptions:
    """What a vocabulary is, besides the text it is learned from."""

    size: int = 30522
    """Number of pieces, special tokens included."""
    algorithm: Literal["wordpiece", "bpe", "byte-bpe"] = "wordpiece"
    """WordPiece, BPE on characters, or BPE on bytes (nothing is ever [UNK])."""
    score: Literal["likelihood", "ratio", "frequency"] | None = None
    """By what WordPiece merges: likelihood if not given. BPE always merges by frequency."""
    lowercase: bool = True
    """Lower-case and strip accents, as BERT uncased does."""
    normalization: Literal["auto", "bert", "composed"] = "auto"
    """Text cleaning: bert (the original's) or composed (safe outside English: NFC, Hangul and
    voicing marks stay whole). auto: composed where a third or more of the letters are Hangul or
    kana."""
    min_count: int = 2
    """Pairs of pieces seen less often are not merged."""
    min_pair_count: int = 100
    """The same with --score ratio, which prefers rare pairs."""
    alphabet: int | None = None
    """Number of distinct characters kept; rarer ones become [UNK]. If not given, 1,000, or 4,000
    where a third or more of the letters are East Asian."""
    unused: int = 0
    """Number of pieces [unused0], [unused1], ... to take in for later."""
    workers: int = free(-1)
    """Processes that count; -1: one for each core. The result does not depend on it."""

    def __post_init__(self) -> None:
        require("size", self.size, 1)
        for name in ("min_count", "min_pair_count"):
            require(name, getattr(self, name), 1)
        require("unused", self.unused, 0)
        if self.alphabet is not None:
            require("alphabet", self.alphabet, 1)
        if self.workers != -1:
            require("workers", self.workers, 1)
        if self.algorithm != "wordpiece" and self.score not in (None, "frequency"):
            raise ConfigError(
                f"score is {self.score}, but {self.algorithm} merges by frequency, always. Leave "
                "score out, or choose the algorithm wordpiece."
            )


@dataclass(frozen=True, kw_only=True)
class VocabularyConfig(LearningOptions):
    """Learn a vocabulary from text files."""

    files: tuple[str, ...]
    """Text files, folders or globs (.txt, .txt.gz, .txt.xz)."""
    out: str
    """Folder to write vocab.txt, tokenizer.json and vocabulary-report.json to."""
    heldout: tuple[str, ...] = ()
    """Text files, folders or globs to measure the vocabulary on; nothing is learned from them."""


@dataclass(frozen=True)
class ExtendConfig:
    """Add whole words to a WordPiece vocabulary, and rows for them to a model that uses it."""

    source: str
    """Folder with the vocabulary, or the name of a model that comes with bothways; of a model the
    embeddings grow too."""
    out: str
    """Folder to write to: a vocabulary, or a model where the source is one."""
    words: str | None = None
    """Text file with words to add, one a line."""
    files: tuple[str, ...] = ()
    """Text files, folders or globs: their most frequent words of many pieces are added."""
    most: int = 1000
    """Words added from --files at most."""
    min_pieces: int = 3
    """Words of --files that have fewer pieces now are not added."""
    min_count: int = 10
    """Words of --files seen less often are not added."""
    workers: int = free(-1)
    """Processes that count; -1: one for each core. The result does not depend on it."""

    def __post_init__(self) -> None:
        if self.words is None and not self.files:
            raise ConfigError("nothing to add: give --words, --files, or both.")
        require("most", self.most, 1)
        require("min_pieces", self.min_pieces, 2)
        require("min_count", self.min_count, 1)
        if self.workers != -1:
            require("workers", self.workers, 1)
