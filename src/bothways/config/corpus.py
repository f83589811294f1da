"""Options of the verbs that make corpora."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bothways.config.fields import free, require
from bothways.errors import ConfigError


@dataclass(frozen=True)
class CorpusConfig:
    """Turn text files into a token store: sentences -> ids -> memory-mapped Arrow shards. A build
    that was interrupted is continued by the same command."""

    files: tuple[str, ...]
    """Text (.txt), JSON lines (.jsonl) or Parquet (.parquet) files, text and JSON also compressed
    (.gz, .xz, .zst); folders or globs; - for text on standard input."""
    tokenizer: str
    """Folder (or vocab.txt) with the vocabulary, or the name of a model that comes with
    bothways."""
    out: str
    """Folder to write the store to."""
    documents: Literal["blank", "file"] = "blank"
    """Where a document of a text file ends: at blank lines, or at the end of the file. A JSON line
    and a Parquet row are a document each."""
    text_field: str = "text"
    """Field of a JSON line, or column of a Parquet file, that holds the text."""
    sentences: Literal["split", "line"] = "split"
    """Split lines into sentences, or take each line as one sentence."""
    language: str = "en"
    """Language code for sentence splitting."""
    broken: Literal["stop", "replace"] = "stop"
    """Bytes that are not UTF-8, and NUL characters: stop at the first, or replace each by U+FFFD. A
    broken JSON line or a row without text: stop, or leave it out. Each is counted and reported."""
    duplicates: Literal["keep", "documents", "paragraphs", "both"] = "keep"
    """Remove exact repetitions of documents, of paragraphs (lines), or both; the first stays."""
    single_sentence: Literal["join", "drop"] = "join"
    """A document of one sentence (a heading) always gets a random next segment and would give the
    next-sentence task away: join it to the document after it in the same file, or drop it."""
    min_sentences: int = 0
    """Drop documents with fewer sentences, after joining."""
    min_tokens: int = 0
    """Drop documents with fewer tokens, after joining."""
    min_characters: int = 0
    """Drop documents with fewer characters, after joining."""
    heldout: float = 0.01
    """Share of the documents kept out of training, chosen by a hash of their text."""
    shard_tokens: int = 16_000_000
    """Tokens per shard file, about."""
    max_line_mib: float = 10.0
    """A line (or row) longer than this many MiB is an error (most likely not text)."""
    workers: int = free(1)
    """Processes that encode. The result does not depend on it."""
    cluster: str | None = free(None)
    """Address of a Dask scheduler (tcp://host:8786) whose workers encode instead of processes on
    this machine; needs the extra `cluster`. The result does not depend on it."""

    def __post_init__(self) -> None:
        if not 0 <= self.heldout < 1:
            raise ConfigError(f"heldout is {self.heldout}; it is a share in [0, 1).")
        for name in ("workers", "shard_tokens"):
            require(name, getattr(self, name), 1)
        for name in ("min_sentences", "min_tokens", "min_characters"):
            require(name, getattr(self, name), 0)
        if not self.max_line_mib > 0:
            raise ConfigError(f"max_line_mib is {self.max_line_mib}; it must be above 0.")
