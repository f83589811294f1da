"""Options of `bothways convert` and `bothways doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ConvertConfig:
    """Convert a model, for example one saved by transformers, to a bothways model folder."""

    source: str
    """Folder with config.json and weights (.safetensors or .bin)."""
    out: str
    """Model folder to write."""
    vocab: str | None = None
    """vocab.txt or tokenizer folder, if the source has none."""


@dataclass(frozen=True)
class DoctorConfig:
    """Check a model, run or corpus folder for damage."""

    folder: str
    """Folder to check."""
