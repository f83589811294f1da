"""Options of the verbs that make vocabularies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VocabularyConfig:
    """Learn a WordPiece vocabulary from text files."""

    files: tuple[str, ...]
    """Text files, folders or globs (.txt, .txt.gz, .txt.xz)."""
    out: str
    """Folder to write vocab.txt and tokenizer.json to."""
    size: int = 30522
    """Number of pieces, special tokens included."""
    lowercase: bool = True
    """Lower-case and strip accents, as BERT uncased does."""
    min_count: int = 2
    """Pieces seen less often are not learned."""
    alphabet: int = 1000
    """Number of distinct characters kept; rarer ones become [UNK]."""
