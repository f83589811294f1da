"""Options of `bothways corpus build`."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from bothways.config.fields import Options, free, require
from bothways.errors import ConfigError


@dataclass(frozen=True)
class CorpusConfig(Options):
    """Tokenize text files into a corpus folder of memory-mapped Arrow shards. To resume an
    interrupted build, run the same command again."""

    listed = MappingProxyType(
        {
            "options": (
                *("files", "tokenizer", "out", "documents", "sentences", "language", "encoding"),
                *("text_field", "lines", "duplicates", "single_sentence", "heldout", "broken"),
                "workers",
            )
        }
    )

    files: tuple[str, ...]
    """Files, folders or globs to read: text (.txt), JSON lines (.jsonl) or Parquet (.parquet); text
    and JSON also compressed (.gz, .xz, .zst). '-' reads text from standard input."""
    tokenizer: str
    """Vocabulary: a tokenizer or model folder, a vocab.txt, mini-en (bundled), or the name of a
    model on the Hugging Face Hub."""
    out: str
    """Corpus folder to write."""
    documents: Literal["blank", "line", "file"] = "blank"
    """What separates the documents of a text file: blank lines, line ends (each line is a
    document), or nothing (one document per file). Each JSON line and each Parquet row is a
    document."""
    lines: Literal["auto", "keep", "join"] = "auto"
    """Lines of text files, and of texts in records. keep: each line is a paragraph. join: lines up
    to a blank one are a paragraph, but for short lines, lists and indented lines. auto: join those
    of files that are plainly hard-wrapped (nearly all lines end below one limit, so that the next
    word would not have fitted), and report it. A text file that looks like JSON, HTML or a table
    is taken only with keep."""
    encoding: str = free("")
    """Encoding of text files, such as cp949. Default: that of the byte order mark, else UTF-8."""
    text_field: str = "text"
    """JSON field or Parquet column that holds the text."""
    sentences: Literal["split", "line"] = "split"
    """Split each line into sentences, or treat it as one sentence (already split text)."""
    language: str = "auto"
    """Language of the text, as a two-letter code such as ko, by whose rules it is split into
    sentences. auto: recognised from the text, and reported; en if it is not."""
    broken: Literal["stop", "replace"] = "stop"
    """Invalid input. stop: report the first invalid UTF-8 byte, NUL character, JSON line or row
    without text as an error. replace: put U+FFFD for bad bytes and NULs, skip bad lines and rows,
    and report how many there were."""
    duplicates: Literal["keep", "documents", "paragraphs", "both"] = "keep"
    """Keep exact duplicates, or remove all but the first copy of documents, paragraphs (lines), or
    both. This comes before --single-sentence and --min_...,
    which may drop the first copy as well."""
    single_sentence: Literal["join", "drop", "keep"] = "join"
    """One-sentence documents, such as headings, can only be paired with a random segment, which
    gives the next-sentence label away: join each to the next document of its file, or drop it.
    keep: for unrelated short texts, such as titles, and `bothways pretrain --pairs-kind single`."""
    min_sentences: int = 0
    """Drop documents with fewer sentences, after joining."""
    min_tokens: int = 0
    """Drop documents with fewer tokens, after joining."""
    min_characters: int = 0
    """Drop documents with fewer characters, after joining."""
    heldout: float = 0.01
    """Fraction of the documents held out from training, selected by a hash of their text."""
    shard_tokens: int = 16_000_000
    """Approximate number of tokens per shard file."""
    max_line_mib: float = 10.0
    """Maximum size of a line or row in MiB; a longer one is an error, because it is rarely text."""
    workers: int = free(-1)
    """Tokenizer processes; -1: one per core, or a single one for files of a few MB. Does not affect
    the result."""
    cluster: str | None = free(None)
    """Address of a Dask scheduler (tcp://host:8786) whose workers tokenize instead of local
    processes; requires the extra `cluster`. Does not affect the result."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.heldout < 1:
            raise ConfigError(f"heldout is {self.heldout}; it must be in [0, 1).")
        if self.workers != -1:
            require("workers", self.workers, 1)
        require("shard_tokens", self.shard_tokens, 1)
        for name in ("min_sentences", "min_tokens", "min_characters"):
            require(name, getattr(self, name), 0)
        if not self.max_line_mib > 0:
            raise ConfigError(f"max_line_mib is {self.max_line_mib}; it must be above 0.")
