"""The weights of a model folder, in one file or in parts: safetensors, or plain pickled tensors.

Files of tensors are written as safetensors only.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file
from torch import Tensor

from bothways.errors import InputError, ModelError
from bothways.io.json_files import read_json_file

WEIGHTS, OLD_WEIGHTS = "model.safetensors", "pytorch_model.bin"
_INDEX = ".index.json"  # WEIGHTS + _INDEX says which part holds which weight


def read_weights(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """A folder's weights by name, and the file to name in messages: that of the weights, or of
    parts their index.

    Raises:
        ModelError: a file is missing or damaged, or holds more than weights.
    """
    weights: dict[str, Tensor] = {}
    for file in weight_files(folder):
        weights |= _read_safetensors(file) if file.suffix == ".safetensors" else _read_bin(file)
    return _whole_or_index(folder), weights


def weight_files(folder: Path) -> list[Path]:
    """The files that :func:`read_weights` reads.

    Raises:
        ModelError: there are none, the index is damaged, or a part is missing.
    """
    path = _whole_or_index(folder)
    if path.suffix != ".json":
        return [path]
    names = _listed(path)
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise ModelError(
            f"{path} lists {missing[0]}, which is not in the folder; copy all {len(names)} parts "
            "of the weights into it."
        )
    return [folder / name for name in names]


def _whole_or_index(folder: Path) -> Path:
    for name in (WEIGHTS, WEIGHTS + _INDEX, OLD_WEIGHTS, OLD_WEIGHTS + _INDEX):
        if (folder / name).exists():
            return folder / name
    raise ModelError(
        f"{folder} holds neither {WEIGHTS} nor {OLD_WEIGHTS}; a model folder holds the weights "
        f"in one of these, or in parts with {WEIGHTS}{_INDEX}."
    )


def _listed(index: Path) -> list[str]:
    """The names of the parts, in order."""
    kind = Path(index.name.removesuffix(_INDEX)).suffix
    try:
        names = sorted(set(read_json_file(index)["weight_map"].values()))
        # The parts lie next to the index: a path that leads elsewhere is not followed.
        if wrong := [n for n in names if Path(n).name != n or Path(n).suffix != kind]:
            raise ValueError(f"{wrong[0]!r} is not the name of a {kind} file")
    except (InputError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(index, error) from None
    return names


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


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return read_safetensors(path)
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError) as error:
        raise _damaged(path, error) from None


def _read_bin(path: Path) -> dict[str, Tensor]:
    try:
        # weights_only: nothing is unpickled but tensors.
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        # torch's own message recommends unpickling it anyway.
        raise ModelError(
            f"{path} is damaged or holds more than plain weights, and loading it could execute "
            f"arbitrary code; ask whoever made it for a {WEIGHTS}."
        ) from None
    except Exception as error:  # of many types: a damaged file is a wrong program for the unpickler
        raise _damaged(path, error) from None
    if isinstance(content, dict) and all(isinstance(v, Tensor) for v in content.values()):
        return content
    raise ModelError(
        f"{path} does not hold a dictionary of weights by name; save only the model's state_dict()."
    )


def _damaged(path: Path, error: Exception) -> ModelError:
    return ModelError(
        f"{path} is damaged or truncated ({error}); copy it again, or use an earlier checkpoint."
    )
