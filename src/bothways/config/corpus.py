"""Options of the verbs that make corpora."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bothways.config.fields import free
from bothways.errors import ConfigError


@dataclass(frozen=True)
class CorpusConfig:
    """Turn text files into a token store: sentences -> ids -> memory-mapped Arrow shards."""

    files: tuple[str, ...]
    """Text files, folders or globs (.txt, .txt.gz, .txt.xz)."""
    tokenizer: str
    """Folder (or vocab.txt) with the vocabulary."""
    out: str
    """Folder to write the store to."""
    documents: Literal["blank", "file"] = "blank"
    """Where a document ends: at blank lines, or at the end of the file."""
    sentences: Literal["split", "line"] = "split"
    """Split lines into sentences, or take each line as one sentence."""
    language: str = "en"
    """Language code for sentence splitting."""
    single_sentence: Literal["join", "drop"] = "join"
    """A document of one sentence (a heading) always gets a random next segment and would give the
    next-sentence task away: join it to the document after it in the same file, or drop it."""
    heldout: float = 0.01
    """Share of the documents kept out of training, chosen by a hash of their text."""
    shard_tokens: int = 16_000_000
    """Tokens per shard file, about."""
    max_line_mib: float = 10.0
    """A line longer than this many MiB is an error (most likely not text)."""
    workers: int = free(1)
    """Processes that encode. The result does not depend on it."""

    def __post_init__(self) -> None:
        if not 0 <= self.heldout < 1:
            raise ConfigError(f"heldout is {self.heldout}; it is a share in [0, 1).")
