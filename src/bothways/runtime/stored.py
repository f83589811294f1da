"""The tensors of a file of weights: of safetensors, mapped, or what torch has pickled.

Nothing is executed: of pickles, plain tensors are read and no more.
"""

from __future__ import annotations

import math
import mmap
import pickle
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
# The keys under which trainers keep a model's weights, and those of other tensors beside them.
_NESTED = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights")
_NO_WEIGHTS = (
    *("optimizer", "optimizer_state_dict", "optimizer_states", "optim", "opt", "scheduler"),
    *("exp_avg", "exp_avg_sq", "momentum_buffer", "scaler", "amp"),
)
_MOST_HEADER, _MOST_TENSORS = 2**22, 2**14  # bytes; of a file, where large encoders have 1,000


@dataclass(frozen=True, eq=False)
class Mapped:
    """A file in memory, as long as it is there.

    Attributes:
        path: of the file.
        content: its bytes.
        size: how many there were when it was opened.
    """

    path: Path
    content: mmap.mmap
    size: int

    def check(self) -> None:
        """Refuse a file that another program has shortened since: to read beyond its end would end
        this process without a word. (One that was replaced stays as it was.)

        Raises:
            ModelError: naming it.
        """
        if self.content.size() < self.size:
            raise ModelError(
                f"{self.path} was changed by another program while it was read; wait until that "
                "has saved it, and open the model again."
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


def map_safetensors(path: Path) -> dict[str, Stored]:
    """The tensors of a file, mapped; its header is read, no value.

    The library opens only paths in UTF-8, and has no bfloat16 without torch.
    """
    _refuse_other_form(path)
    try:
        source = map_file(path)
        content = np.frombuffer(source, np.uint8)
        mapped = Mapped(path, source, len(content))
        _refuse_pickled(path, content[:4].tobytes())
        header, data = _header_and_data(content)
        found = {name: _tensor(name, entry, data, mapped) for name, entry in header.items()}
        _check_places([entry["data_offsets"] for entry in header.values()], len(data))
    except RecursionError:
        raise damaged(path, ValueError("its header is nested too deeply")) from None
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise damaged(path, error) from None
    return found


def _header_and_data(content: NDArray[np.uint8]) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    size = int(content[:8].view("<u8")[0])
    if size > len(content) - 8:
        raise ValueError("the header ends after the file")
    if size > _MOST_HEADER:
        raise ValueError(f"a header of {size:,} bytes; it has at most {_MOST_HEADER:,}")
    header = parse_json(content[8 : 8 + size].tobytes().decode())
    header.pop("__metadata__", None)
    _refuse_many(len(header))
    return header, content[8 + size :]


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
    for begin, stop in sorted(places):
        if begin != end:
            raise ValueError("its weights overlap, or have bytes between them")
        end = stop
    if end != size:
        raise ValueError("the file ends before or after its weights")


_FORMS = (
    (b"\x89HDF", "a file of HDF5, such as TensorFlow and Keras write"),
    (b"GGUF", "a file of GGUF, of llama.cpp"),
    (b"\x93NUMPY", "an array of NumPy"),
)
"""The first bytes of files that hold weights in another form."""


def _refuse_other_form(path: Path) -> None:
    """Refuse a file of weights that is none by its first bytes.

    Raises:
        ModelError: naming what it is.
    """
    head = first_bytes(path, 8)
    what = next((what for start, what in _FORMS if head.startswith(start)), "")
    if head.startswith(b"PK\x03\x04") and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        if names and all(name.endswith(".npy") for name in names):
            what = "arrays of NumPy (.npz)"
        elif not any(name.endswith(("data.pkl", "constants.pkl")) for name in names):
            what = f"a zip (of {names[0] if names else 'nothing'})"
    if what:
        raise ModelError(
            f"{path} is {what}, which is not read here under this name; get the {WEIGHTS} that it "
            "was made from, or save the model with transformers."
        )


def _refuse_pickled(path: Path, head: bytes) -> None:
    if head.startswith((b"PK\x03\x04", b"\x80\x02")):
        raise ModelError(
            f"{path} is no file of safetensors but what torch.save writes; name it {OLD_WEIGHTS}, "
            "or save the weights as safetensors."
        )


def read_pickled(path: Path, notes: list[str]) -> dict[str, Stored]:
    """The tensors of a file that torch has pickled, which it alone can read."""
    try:
        import torch
    except ImportError as error:
        raise ModelError(
            f"{path} can be read only with {not_installed(error.name or '')}; or save the model as "
            f"{WEIGHTS} (`bothways convert` where torch is installed)."
        ) from None
    if first_bytes(path, 9)[8:] == b"{":  # behind the size of the header
        raise ModelError(f"{path} is a file of safetensors; name it {WEIGHTS}.")
    _refuse_other_form(path)
    _check_records(path)
    if _is_program(path):
        raise ModelError(
            f"{path} is a program of TorchScript (torch.jit.save), not weights; save the model's "
            "state_dict()."
        )
    try:
        # weights_only: nothing is unpickled but tensors, and numbers as NumPy's.
        with torch.serialization.safe_globals(_numbers()):
            content: Any = torch.load(path, map_location="cpu", weights_only=True)
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
        kind, value = str(value.dtype).removeprefix("torch."), value.detach()
        if value.is_meta:
            raise ModelError(
                f"{path}: {name} has a shape and no values, as of a model that was saved while its "
                "weights were elsewhere (the device meta); load it whole, and save it again."
            )
        if value.layout is not torch.strided:
            raise ModelError(
                f"{path}: {name} is stored sparsely ({value.layout}), which is not read here; save "
                "it as .to_dense()."
            )
        try:
            bits = value.view(torch.uint16) if kind == "bfloat16" else value
            found[name] = Stored(bits.numpy(), kind)
        except (TypeError, RuntimeError):
            raise ModelError(
                f"{path}: {name} has the type {kind}, which is not read here; save the model in "
                "float32."
            ) from None
    return found


def _is_program(path: Path) -> bool:
    """Whether an archive of torch holds code, too."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _check_records(path: Path) -> None:
    """Compare the checksums of a file that is an archive, which torch does not."""
    if not zipfile.is_zipfile(path):
        return  # of torch before 1.6, without checksums
    try:
        with zipfile.ZipFile(path) as archive:
            _refuse_many(len(archive.namelist()))
            bad = archive.testzip()
    except (OSError, ValueError, NotImplementedError, RuntimeError, zipfile.BadZipFile) as error:
        raise damaged(path, error) from None
    if bad is not None:
        raise damaged(path, ValueError(f"{bad} does not match its checksum"))


def _numbers() -> list[Any]:
    """The constructors of NumPy's numbers, which trainers leave beside weights (a best loss)."""
    scalar = np.float64(0).__reduce__()[0]
    kinds = [type(np.dtype(kind)) for kind in ("f4", "f8", "i4", "i8", "?")]
    return [scalar, (scalar, "numpy.core.multiarray.scalar"), np.dtype, *kinds]


def _tensors_in(
    content: Any, path: Path, tensor: type, notes: list[str], at: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The weights of a file that torch wrote: its tensors by name, or those under a key of it.

    Raises:
        ModelError: it holds none, or several sets of them of which none is named as the model's.
    """
    if not isinstance(content, Mapping):
        raise ModelError(
            f"{path} does not hold a dictionary of weights by name; save only the model's "
            "state_dict()."
        )
    own = {n: v for n, v in content.items() if isinstance(n, str) and isinstance(v, tensor)}
    below = {
        key: value
        for key, value in content.items()
        if isinstance(value, Mapping) and key not in _NO_WEIGHTS and _holds(value, tensor)
    }
    named = [key for key in _NESTED if key in below]
    if len(own) > 1 or (own and not below):
        _note_other_sets(own, below, path, tensor, notes, at)
        return own
    if len(below) == 1 or named:
        key = named[0] if named else next(iter(below))
        chosen = below.pop(key)
        _note_other_sets(chosen, below, path, tensor, notes, (*at, key))
        return _tensors_in(chosen, path, tensor, notes, (*at, key))
    keys = ", ".join(map(str, list(content)[:8]))
    if below:
        raise ModelError(
            f"{path} holds several sets of weights ({', '.join(map(str, below))}); save only the "
            "model's state_dict()."
        )
    raise ModelError(
        f"{path} does not hold a dictionary of weights by name, but {keys or 'nothing'}; save only "
        "the model's state_dict()."
    )


def _note_other_sets(
    chosen: Mapping[Any, Any],
    others: Mapping[Any, Any],
    path: Path,
    tensor: type,
    notes: list[str],
    at: tuple[str, ...],
) -> None:
    """Say which other sets of the same weights a file holds, such as their moving averages."""
    used = _name_ends(chosen, tensor)
    alike = [
        str(key)
        for key, other in others.items()
        if 2 * len(used & _name_ends(other, tensor)) > len(used)
    ]
    if alike:
        place = f"those under {'.'.join(map(str, at))}" if at else "those under no key"
        notes.append(
            f"{path} holds the weights more than once; {place} are used, and those under "
            f"{', '.join(alike)} are not. To use others, save them alone as {path.name}"
        )


def _name_ends(content: Mapping[Any, Any], tensor: type, depth: int = 3) -> set[str]:
    """The ends of the names of all tensors in a mapping, which wrappers do not change."""
    ends = set()
    for name, value in content.items():
        if isinstance(value, tensor):
            ends.add(".".join(str(name).split(".")[-4:]))
        elif isinstance(value, Mapping) and depth and name not in _NO_WEIGHTS:
            ends |= _name_ends(value, tensor, depth - 1)
    return ends


def _holds(content: Mapping[Any, Any], tensor: type, depth: int = 3) -> bool:
    """Whether there are tensors by name in a mapping, or in one inside it."""
    if any(isinstance(n, str) and isinstance(v, tensor) for n, v in content.items()):
        return True
    inside = (v for v in content.values() if isinstance(v, Mapping))
    return depth > 0 and any(_holds(value, tensor, depth - 1) for value in inside)


def damaged(path: Path, error: Exception) -> ModelError:
    """The error for a file of weights that cannot be read as one."""
    return ModelError(
        f"{path} is damaged or truncated ({error}); copy it again, or use an earlier checkpoint."
    )
