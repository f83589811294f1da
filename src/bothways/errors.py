"""The exceptions that a user of bothways can cause.

All are subclasses of :class:`BothwaysError`. The message names what is wrong (file and line, id, or
field), the limit that was exceeded, and the remedy. The command line prints it without a traceback
and exits with status 1; a traceback is therefore always a bug in bothways itself.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple


class BothwaysError(Exception):
    """Base class of all errors that a user can cause and fix."""

    def _render_traceback_(self) -> list[str]:
        """What IPython and Jupyter show: the message, which says what to do, without the calls."""
        return [f"{type(self).__name__}: {self}"]


class ConfigError(BothwaysError):
    """A recipe, option or combination of options is invalid."""


class Place(NamedTuple):
    """Where a record stands.

    Attributes:
        source: a file, or the name of an argument in Python.
        row: line or row, None for the source as a whole.
        unit: what ``row`` counts: lines of a file from 1, or rows of a table in memory from 0.
    """

    source: str | Path
    row: int | None = None
    unit: Literal["line", "row"] = "line"

    def __str__(self) -> str:
        if self.row is None:
            return f"{self.source}"
        return (
            f"{self.source}:{self.row}" if self.unit == "line" else f"{self.source}: row {self.row}"
        )


class InputError(BothwaysError):
    """Text or labelled data cannot be read as requested.

    Attributes:
        problem: what is wrong, and the one obvious remedy if there is one; without the place.
        place: where; None until a reader that knows it sets it.
        option: the option that changes how the input is read, if there is one.
        whole: the file is in another encoding, so that no line is left out or repaired.
    """

    whole = False

    def __init__(self, problem: str, *, place: Place | None = None, option: str | None = None):
        super().__init__(problem)
        self.problem, self.place, self.option = problem, place, option

    def __str__(self) -> str:
        """``file:line: problem (see option)``, or ``train: row 3: ...`` of a table in memory."""
        place = "" if self.place is None else f"{self.place}: "
        return f"{place}{self.problem}" + (
            f" (see the option {self.option})" if self.option else ""
        )


class EncodingError(InputError):
    """A file is text in another encoding than UTF-8; the message names likely ones."""


class StoreError(BothwaysError):
    """A corpus folder is damaged, incomplete, or was built for another purpose."""


class ModelError(BothwaysError):
    """A model folder is damaged, incomplete, or of a network that bothways does not compute."""


class NonFiniteError(ModelError):
    """A model computes infinite or NaN outputs."""


class RunError(BothwaysError):
    """A run folder cannot be continued: another config, or no intact checkpoint."""


class OtherRunError(RunError):
    """A run folder holds a run with other options or on other data than are asked for."""


class OtherProcessError(BothwaysError):
    """Another process of the same run has failed and reported why."""


class DivergenceError(RunError):
    """The gradient became infinite or NaN during training."""


class LengthError(BothwaysError):
    """A sequence is longer than the encoder's positions."""


class DiskError(BothwaysError):
    """A file could not be written; the previous content is intact."""


EXTRAS = {
    **dict.fromkeys(("sklearn", "scipy"), "metrics"),
    **dict.fromkeys(("pyarrow", "sentencex", "joblib", "sentencepiece"), "data"),
    **dict.fromkeys(("torch", "numba", "matplotlib", "tensorboard"), "train"),
    **dict.fromkeys(("starlette", "uvicorn", "msgspec", "prometheus_client"), "serve"),
    **dict.fromkeys(("dask", "distributed"), "cluster"),
    **dict.fromkeys(("pandas", "python_calamine"), "frames"),
    "openvino": "openvino",
    "transformers": "bench",
}
"""The packages that are not in every installation -> the extra of this package that brings them."""
NOT_INTERRUPTED = ("torch",)
"""Packages that abort the process where an exception interrupts their import."""


def not_installed(module: str) -> str:
    """That a package is missing, and the command that brings it; without a final stop."""
    package = module.partition(".")[0]
    wanted = f"'bothways[{EXTRAS[package]}]'" if package in EXTRAS else package
    return f"{package}, which is not installed: pip install {wanted}"


def check_installed(what: str, *packages: str) -> None:
    """Refuse what would need a missing package only at its end, before anything is computed.

    Args:
        what: needs them, for the message.
        packages: as they are imported.

    Raises:
        ConfigError: one is not installed.
    """
    for package in packages:
        if find_spec(package) is None:
            raise ConfigError(f"{what} needs {not_installed(package)}.")


@contextmanager
def explain_missing(what: str) -> Iterator[None]:
    """A block, or a function, that imports what an extra brings.

    Args:
        what: needs it, for the message.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = error.name or ""
        if module.partition(".")[0] not in EXTRAS:
            raise
        raise ConfigError(f"{what} needs {not_installed(module)}.") from None


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says so: numpy's, torch's on a GPU, torch's on the CPU, or that of a library
    which is not loaded for that."""
    kind, text = type(error).__name__, str(error)
    if isinstance(error, MemoryError) or kind == "OutOfMemoryError":
        return True
    # llvmlite's, which leaves out the reason, where memory is limited (ulimit -v).
    unnamed = ["load shared object file"] if _is_memory_limited() else []
    return any(words in text for words in ("allocate memory", "failed to map segment", *unnamed))


def _is_memory_limited() -> bool:
    try:
        from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit
    except ImportError:  # Windows
        return False
    return getrlimit(RLIMIT_AS)[0] != RLIM_INFINITY


def type_of(value: object) -> str:
    """The type of a value as messages name it: ``a dict``, ``an int``, ``None``."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"


def nearest(name: str, candidates: Sequence[str]) -> str | None:
    """The candidate closest to a misspelt name, if need be by the last part of dotted names."""
    close = difflib.get_close_matches(name, candidates, n=1)
    if close:
        return close[0]
    last = {candidate.rpartition(".")[2]: candidate for candidate in reversed(candidates)}
    close = difflib.get_close_matches(name.rpartition(".")[2], last, n=1)
    return last[close[0]] if close else None
