"""Tensors in files: written and read as safetensors only, without code in them."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file
from torch import Tensor


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by their names; safetensors itself opens only paths in UTF-8."""
    tensors: dict[str, Tensor]
    try:
        str(path).encode()
    except UnicodeEncodeError:
        tensors = load(path.read_bytes())
    else:
        tensors = load_file(path)
    return tensors


def write_tensors(
    tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors by name as safetensors.

    Raises:
        OSError: the file could not be written.
    """
    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:  # raised for a failed write
        raise OSError(str(error)) from error
