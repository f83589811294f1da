"""The tensors of a file of weights: of safetensors, mapped, or pickled by torch.

Nothing is executed: of pickles, plain tensors are read and no more.
"""

from __future__ import annotations

import math
import mmap
import pickle
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.errors import ModelError, not_installed
from bothways.families.family import Part
from bothways.io.folder_files import first_bytes, map_file
from bothways.io.json_files import parse_json

Floats = NDArray[np.float32]

WEIGHTS, OLD_WEIGHTS = "model.safetensors", "pytorch_model.bin"
_PICKLED = (b"PK\x03\x04", b"\x80\x02")  # a file of torch.save begins so
# The keys under which trainers keep a model's weights, and the state of an optimizer.
_NESTED = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights")
_OPTIMIZER = re.compile("optim|opt$|scheduler|exp_avg|momentum|scaler|amp$")
_MOST_HEADER, _MOST_TENSORS = 2**22, 2**14  # bytes; of a file, where large encoders have 1,000


@dataclass(frozen=True, eq=False)
class Mapped:
    """A file in memory, with the bytes that it had when it was opened."""

    path: Path
    content: mmap.mmap
    size: int

    def check(self) -> None:
        """Refuse a file that another program has shortened since: reading beyond its end would end
        this process without a word.

        Raises:
            ModelError: naming it.
        """
        if self.content.size() < self.size:
            raise ModelError(
                f"{self.path} was changed by another program while it was read; open the model "
                "again once that has saved it."
            )


@dataclass(frozen=True)
class Stored:
    """A weight in a file.

    Attributes:
        data: mapped from the file, of the file's type; bfloat16, which NumPy lacks, as uint16.
        dtype: the type's name, such as ``float16``.
        source: the file, if it is mapped.
    """

    data: NDArray[Any]
    dtype: str
    source: Mapped | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weight."""
        return self.data.shape

    def whole(self) -> NDArray[Any]:
        """:attr:`data`, which can be read to its end.

        Raises:
            ModelError: as :meth:`Mapped.check`.
        """
        if self.source is not None:
            self.source.check()
        return self.data

    def formed(self, place: Part) -> Stored:
        """The same in our form."""
        return replace(self, data=place.formed(self.data))

    def values(self) -> Floats:
        """A copy in memory, contiguous, in fp32.

        Raises:
            ModelError: as :meth:`Mapped.check`.
        """
        if self.dtype == "bfloat16":
            return (self.whole().astype(np.uint32, order="C") << 16).view(np.float32)
        return np.array(self.whole(), dtype=np.float32, order="C")


# safetensors' names of types -> NumPy's, and the usual name where that differs.
_DTYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"},
    **{"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1"},
    **{"U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "<u1", "BOOL": "?"},
}


def read_tensors(path: Path, notes: list[str]) -> dict[str, Stored]:
    """The tensors of a file of weights by name, in whichever of the two forms it is.

    Args:
        path: of the file.
        notes: takes which further tensors a pickled file holds.

    Raises:
        ModelError: it is damaged or neither, or holds no plain tensors by name.
    """
    if first_bytes(path, 4).startswith(_PICKLED):
        return _read_pickled(path, notes)
    return _map_safetensors(path)


def _map_safetensors(path: Path) -> dict[str, Stored]:
    """The tensors, mapped; the header is read, no value. (The library opens only paths in UTF-8,
    and has no bfloat16 without torch.)"""
    try:
        source = map_file(path)
        content = np.frombuffer(source, np.uint8)
        mapped = Mapped(path, source, len(content))
        size = int(content[:8].view("<u8")[0])
        if size > min(len(content) - 8, _MOST_HEADER):
            raise ValueError(f"no file of safetensors has a header of {size:,} bytes here")
        header = parse_json(content[8 : 8 + size].tobytes().decode())
        header.pop("__metadata__", None)
        _refuse_many(len(header))
        data = content[8 + size :]
        found = {name: _tensor(name, entry, data, mapped) for name, entry in header.items()}
        _check_places([entry["data_offsets"] for entry in header.values()], len(data))
    except RecursionError:
        raise damaged(path, ValueError("its header is nested too deeply")) from None
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise damaged(path, error) from None
    return found


def _refuse_many(tensors: int) -> None:
    if tensors > _MOST_TENSORS:
        raise ValueError(f"{tensors:,} tensors; a file has at most {_MOST_TENSORS:,}")


def _tensor(name: str, entry: Mapping[str, Any], data: NDArray[np.uint8], source: Mapped) -> Stored:
    """A tensor by its entry in the header."""
    if entry["dtype"] not in _DTYPES:
        raise ModelError(
            f"{source.path}: {name} has the type {entry['dtype']}, which is not read here; save "
            "the model in float32."
        )
    begin, stop = entry["data_offsets"]
    dtype = np.dtype(_DTYPES[entry["dtype"]])
    if not 0 <= begin <= stop <= len(data):
        raise ValueError(f"{name} ends after the file")
    if stop - begin != dtype.itemsize * math.prod(entry["shape"]):
        raise ValueError(f"{name} has another size than its shape")
    values = data[begin:stop].view(dtype).reshape(entry["shape"])
    return Stored(values, "bfloat16" if entry["dtype"] == "BF16" else dtype.name, source)


def _check_places(places: Iterable[tuple[int, int]], size: int) -> None:
    """Refuse tensors that overlap, or bytes that are of none."""
    end = 0
    for begin, stop in [*sorted(places), (size, size)]:
        if begin != end:
            raise ValueError("its weights overlap, or have bytes between them")
        end = stop


def _read_pickled(path: Path, notes: list[str]) -> dict[str, Stored]:
    """The tensors of a file that torch has pickled, which it alone can read."""
    try:
        import torch
    except ImportError as error:
        raise ModelError(
            f"{path} can be read only with {not_installed(error.name or '')}; or save the model as "
            f"{WEIGHTS} (`bothways convert` where torch is installed)."
        ) from None
    try:
        if zipfile.is_zipfile(path):  # of torch before 1.6 it is none, and has no checksums
            with zipfile.ZipFile(path) as archive:  # torch does not compare its checksums
                _refuse_many(len(archive.namelist()))
                if bad := archive.testzip():
                    raise ValueError(f"{bad} does not match its checksum")
        # weights_only: nothing is unpickled but tensors, and numbers as NumPy's.
        with path.open("rb") as file, torch.serialization.safe_globals(_numbers()):
            content: Any = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        # torch's own message recommends unpickling it anyway.
        raise ModelError(
            f"{path} is damaged or holds more than plain weights, and loading it could execute "
            f"arbitrary code; ask whoever made it for a {WEIGHTS}."
        ) from None
    except Exception as error:  # of many types: a damaged file is a wrong program for the unpickler
        raise damaged(path, error) from None
    found = {}
    for name, value in _tensors_in(content, path, torch.Tensor, notes).items():
        kind = str(value.dtype).removeprefix("torch.")
        try:
            value = value.detach()
            bits = value.view(torch.uint16) if kind == "bfloat16" else value
            found[name] = Stored(bits.numpy(), kind)
        except (TypeError, RuntimeError, NotImplementedError) as error:
            # Of another type, sparse, or without values (on the device "meta").
            raise ModelError(
                f"{path}: {name} cannot be read ({str(error).splitlines()[0]}); save the model in "
                "float32 from the CPU."
            ) from None
    return found


def _numbers() -> list[Any]:
    """The constructors of NumPy's numbers, which trainers leave beside weights (a best loss)."""
    scalar = np.float64(0).__reduce__()[0]
    kinds = [type(np.dtype(kind)) for kind in ("f4", "f8", "i4", "i8", "?")]
    return [scalar, (scalar, "numpy.core.multiarray.scalar"), np.dtype, *kinds]


def _tensors_in(content: Any, path: Path, tensor: type, notes: list[str]) -> dict[str, Any]:
    """The tensors by name in what torch has read, or those under a key of it.

    Raises:
        ModelError: there are none, or several sets of which none is named as the model's.
    """
    if not isinstance(content, Mapping):
        content = {}
    own = {n: v for n, v in content.items() if isinstance(n, str) and isinstance(v, tensor)}
    below = {
        str(key): value
        for key, value in content.items()
        if not _OPTIMIZER.search(str(key)) and _holds(value, tensor)
    }
    use_own = len(own) > 1 or (own and not below)
    named = [key for key in (*_NESTED, *(below if len(below) == 1 else ())) if key in below]
    if not use_own and not named:
        keys = ", ".join(map(str, list(content)[:8])) or "none"
        raise ModelError(
            f"{path} holds no weights by name, or several sets of them (its keys: {keys}); save "
            "only the model's state_dict()."
        )
    chosen = own if use_own else below.pop(named[0])
    if below:
        place = "those under no key" if use_own else f"those under {named[0]}"
        notes.append(
            f"{path} holds several sets of tensors; {place} are used, and those under "
            f"{', '.join(below)} are not"
        )
    return own if use_own else _tensors_in(chosen, path, tensor, notes)


def _holds(content: Any, tensor: type, depth: int = 3) -> bool:
    """Whether there are tensors by name in a mapping, or in one inside it."""
    return isinstance(content, Mapping) and any(
        (isinstance(name, str) and isinstance(value, tensor))
        or (depth > 0 and _holds(value, tensor, depth - 1))
        for name, value in content.items()
    )


def damaged(path: Path, error: Exception) -> ModelError:
    """The error for a file of weights that cannot be read."""
    return ModelError(
        f"{path} is damaged or truncated ({error}); copy it again, or use an earlier checkpoint."
    )
