"""Options of `bothways vocab learn` and `bothways vocab extend`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from bothways.config.fields import Options, free, require
from bothways.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ReadingOptions(Options):
    """How text files are read."""

    encoding: str = free("")
    """Encoding of text files, such as cp949. Default: that of the byte order mark, else UTF-8."""
    text_field: str = free("text")
    """JSON field or Parquet column that holds the text."""
    broken: Literal["stop", "replace"] = free("stop")
    """Invalid input. stop: report the first as an error. replace: put U+FFFD for bad bytes and
    NULs, and leave out JSON lines and rows without text."""
    lines: Literal["auto", "keep"] = free("auto")
    """Text files that look like JSON, HTML or a table. auto: refuse them. keep: read them as
    text."""
    max_line_mib: float = free(10.0)
    """Maximum size of a line in MiB; a longer one is an error, because it is rarely text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("max_line_mib", self.max_line_mib, 0.001)


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(Options):
    """The processes that count words."""

    workers: int = free(-1)
    """Counting processes; -1: one per core. Does not affect the result."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workers != -1:
            require("workers", self.workers, 1)


@dataclass(frozen=True)
class LearningOptions(WorkerOptions):
    """How a vocabulary is learned, whatever the text."""

    size: int = 30522
    """Vocabulary size, including special tokens."""
    algorithm: Literal["wordpiece", "bpe", "byte-bpe", "gpt2-bpe", "unigram"] = "wordpiece"
    """WordPiece; BPE on characters; BPE on bytes (which never produces [UNK]) of BERT's words;
    gpt2-bpe: BPE on bytes as GPT-2's and RoBERTa's, with spaces and case kept (--lowercase false);
    unigram: Unigram as ALBERT's, by the package sentencepiece."""
    score: Literal["likelihood", "ratio", "frequency"] | None = None
    """Criterion of WordPiece merges. Default: likelihood. BPE always merges by frequency."""
    lowercase: bool = True
    """Lowercase and strip accents, as uncased BERT does."""
    normalization: Literal["auto", "bert", "composed"] = "auto"
    """Text normalization. bert: as the original BERT's (gpt2-bpe: none). composed: NFC, which gives
    both Unicode forms of a letter one id and keeps Hangul syllables and kana voicing marks whole,
    and Indic and Thai vowels. auto: composed if case is kept, or if more than a third of the
    letters, ideographs aside, are of such scripts, else bert."""
    min_count: int = 2
    """Minimum count of a pair of pieces to be merged."""
    min_pair_count: int = 100
    """Minimum count of a pair with score ratio, which prefers rare pairs."""
    alphabet: int | None = None
    """Number of distinct characters kept; rarer ones become [UNK]. Default: 1,000, or 4,000 if
    more than a third of the letters are East Asian."""
    coverage: float = 0.9995
    """Share of the text's characters that unigram spells; rarer characters become <unk>."""
    byte_fallback: bool = False
    """Whether unigram spells characters without a piece as bytes, instead of <unk>."""
    segmenter: str | None = None
    """MODULE:FUNCTION of a function in Python that takes a text and gives its words, such as
    morphemes; it divides every text before anything else, here and wherever the vocabulary is used;
    there the environment variable BOTHWAYS_SEGMENTER must name it."""
    unused: int = 0
    """Number of placeholder tokens [unused0], [unused1], ... to reserve."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("size", self.size, 1)
        for name in ("min_count", "min_pair_count"):
            require(name, getattr(self, name), 1)
        require("unused", self.unused, 0)
        if self.alphabet is not None:
            require("alphabet", self.alphabet, 1)
        if not 0 < self.coverage <= 1:
            raise ConfigError(f"coverage is {self.coverage}; it must be above 0 and at most 1.")
        self._refuse_what_is_of_other_algorithms()
        if self.algorithm != "wordpiece" and self.score not in (None, "frequency"):
            raise ConfigError(
                f"score is {self.score}, but {self.algorithm} always merges by frequency; leave "
                "out score, or use the algorithm wordpiece."
            )

    def _refuse_what_is_of_other_algorithms(self) -> None:
        own = {
            "unigram": ("coverage", "byte_fallback", "unused"),
            "gpt2-bpe": ("min_count", "normalization"),
        }
        names = {
            *("score", "normalization", "min_count", "min_pair_count", "alphabet", "unused"),
            *("coverage", "byte_fallback"),
        }
        berts = names - {"coverage", "byte_fallback"}
        for field in dataclasses.fields(LearningOptions):
            used = own.get(self.algorithm, berts)
            if field.name in names - {*used} and getattr(self, field.name) != field.default:
                raise ConfigError(
                    f"{field.name} is {getattr(self, field.name)}, which the algorithm "
                    f"{self.algorithm} does not have; leave it out."
                )
        if self.algorithm == "gpt2-bpe" and self.lowercase:
            raise ConfigError("the algorithm gpt2-bpe keeps case; give --lowercase false.")


@dataclass(frozen=True, kw_only=True)
class VocabularyConfig(ReadingOptions, LearningOptions):
    """Learn a vocabulary from text: the pieces (words and parts of words) that an encoder reads."""

    listed = MappingProxyType(
        {
            "options": (
                *("files", "out", "size", "algorithm", "lowercase", "normalization", "segmenter"),
                *("min_count", "heldout", "encoding", "text_field", "workers"),
            )
        }
    )

    files: tuple[str, ...]
    """Files, folders or globs to read: text (.txt), JSON lines (.jsonl) or Parquet (.parquet); text
    and JSON also compressed (.gz, .xz, .zst)."""
    out: str
    """Folder to write vocab.txt, tokenizer.json and vocabulary-report.json to."""
    heldout: tuple[str, ...] = ()
    """Files, folders or globs to evaluate the vocabulary on; not used for learning."""


@dataclass(frozen=True)
class ExtendConfig(ReadingOptions, WorkerOptions):
    """Add whole words to a WordPiece vocabulary, and embeddings for them to its model."""

    listed = MappingProxyType(
        {
            "options": (
                *("source", "out", "words", "files", "most", "min_count", "encoding", "workers"),
            )
        }
    )

    source: str
    """Tokenizer folder, model folder, mini-en (bundled), or the name of a model on the Hugging Face
    Hub. The embeddings of a model are extended too."""
    out: str
    """Folder to write: a tokenizer, or a model if the source is one."""
    words: str | None = None
    """Text file of words to add, one per line."""
    files: tuple[str, ...] = ()
    """Files, folders or globs of text, JSON lines or Parquet; their most frequent words that are
    split into three pieces or more are added."""
    most: int = 1000
    """Maximum number of words added from --files."""
    min_count: int = 10
    """Minimum count of a word of --files."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.words is None and not self.files:
            raise ConfigError("nothing to add: give --words, --files, or both.")
        require("most", self.most, 1)
        require("min_count", self.min_count, 1)
