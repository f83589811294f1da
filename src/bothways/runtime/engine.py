"""Engines, which compute a model's outputs: the protocol, those that there are, and the choice.

An engine is an entry point of the group :data:`GROUP`. The package's own are listed in
``entry_points.txt`` beside its modules, which also works from a source tree; another package adds
one by an entry point of its own, and nothing here names any. Those that are in the group
:data:`FEW` too start fast; of a command that computes a few texts, that is most of the time.

T tokens of a batch, R tokens that a head reads, C outputs of it, H hidden size, L layers, A heads
of attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from configparser import ConfigParser
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bothways.batch import Batch
from bothways.errors import ConfigError, not_installed
from bothways.io.processes import uninterrupted
from bothways.tasks.examples import PREDICT_TOKENS, length_batches
from bothways.training.options import DeviceName, PredictPrecision

GROUP = "bothways.engines"
FEW = "bothways.engines.few"
AUTO = "auto"
NONE: Mapping[str, NDArray[np.int64]] = MappingProxyType({})


@dataclass(frozen=True)
class EngineOptions:
    """How a model is computed.

    Attributes:
        name: of an engine; ``auto`` takes the first that is installed and has the precision.
        device: where; ``auto`` uses a GPU if the engine finds one.
        precision: of the layers' arithmetic; ``auto`` takes the fastest of fp32 and bf16
            (:func:`bothways.runtime.speed.settled`).
        reason: why it is this precision, as a sentence; empty if it was asked for.
        timed: whether that was found out just now, and not known from an earlier time.
        few: whether all that will be computed is little; ``auto`` then takes the first engine that
            starts fast.
    """

    name: str = AUTO
    device: DeviceName = "cpu"
    precision: PredictPrecision = "fp32"
    reason: str = ""
    timed: bool = field(default=False, compare=False)
    few: bool = False


class Engine(Protocol):
    """Computes the outputs of one model, dropout off. Threads may use it at the same time.

    Its class may have ``product_seconds(device)``, seconds of a product of matrices by precision:
    by these, ``auto`` chooses (:mod:`bothways.runtime.speed`); ``graphs``, true if it computes
    folders with a graph alone; ``batch_tokens``, the tokens of a batch beyond which it takes
    longer per token; and ``pads``, true if its rows are as long as the longest. An engine may have
    ``inspect(batch)``, which gives for a batch of one sequence the states of all layers, float32
    [L + 1, T, H], and the probabilities of all heads, float32 [L, A, T, T]; without it, attention
    is refused (:func:`inspecting`).
    """

    @property
    def name(self) -> str:
        """As registered."""

    @property
    def precision(self) -> str:
        """``fp32``, ``bf16`` or ``int8``: the arithmetic of the layers."""

    def compute(
        self,
        batch: Batch,
        heads: Mapping[str, NDArray[np.int64]] = NONE,
        layers: Sequence[int] = (),
    ) -> dict[str, NDArray[np.float32]]:
        """Outputs of heads and hidden states, by name.

        Args:
            batch: the sequences.
            heads: the heads wanted -> int64 [R], the flat positions of the tokens read; for a head
                that reads sequences, the first token of each.
            layers: the layers wanted; 0 is the embeddings, 1 the first layer.

        Returns:
            float32 [R, C] under each head's name, one column per piece for masked tokens, before
            any softmax; float32 [at least T, H] under :func:`layer_name`, of which rows of the
            batch's tail are meaningless.

        Raises:
            LengthError, ModelError: sequences that are too long, ids that the model does not have.
        """

    def working(self) -> AbstractContextManager[None]:
        """A block in which the process is the engine's, as for a command: its threads and memory
        are set up for computing, and put back afterwards."""


def batch_limit(engine: Engine, limit: int) -> int:
    """Tokens of a batch for an engine, at most ``limit``."""
    return min(limit, getattr(engine, "batch_tokens", limit))


def batches_for(engine: Engine, lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """All items by length, longest first, in batches that suit an engine: of as many tokens, and
    of similar length where rows are padded.

    Args:
        engine: which will compute them.
        lengths: of all items in tokens, int64 [N].
    """
    padded = bool(getattr(engine, "pads", False))
    return length_batches(lengths, batch_limit(engine, PREDICT_TOKENS), padded=padded)


Inside = tuple[NDArray[np.float32], NDArray[np.float32]]
"""States and attention of a sequence."""


def inspecting(engine: Engine) -> Callable[[Batch], Inside]:
    """What gives an engine's states and attention.

    Raises:
        ConfigError: it does not give them.
    """
    found: Callable[[Batch], Inside] | None = getattr(engine, "inspect", None)
    if found is None:
        raise ConfigError(
            f"the engine {engine.name} does not give states and attention; choose another."
        )
    return found


class UnsuitedError(ConfigError):
    """An engine does not compute this folder, or not as its options want it; another may. Its
    message has no final stop."""


def layer_name(layer: int) -> str:
    """The name of a layer's states among an engine's outputs."""
    return f"layer {layer}"


def engines(*, few: bool = False) -> dict[str, EntryPoint]:
    """The engines by name, in the order in which ``auto`` tries them: ours, then others'; for a few
    texts those that start fast before the others."""
    table = ConfigParser(delimiters="=", interpolation=None)
    table.read_string(files("bothways").joinpath("entry_points.txt").read_text(encoding="utf-8"))
    found: dict[str, EntryPoint] = {}
    for group in (FEW, GROUP) if few else (GROUP,):
        own = [EntryPoint(name, value, group) for name, value in table[group].items()]
        for entry in (*own, *entry_points(group=group)):
            found.setdefault(entry.name, entry)
    return found


def check_engine(name: str) -> None:
    """Refuse an engine that there is not.

    Raises:
        ConfigError: naming those that there are.
    """
    if name != AUTO and name not in (known := engines()):
        raise ConfigError(f"engine is {name!r}; there are {AUTO}, {', '.join(known)}.")


def open_engine(loaded: Any) -> Engine:
    """The engine for a model folder, by its options.

    Args:
        loaded: a :class:`bothways.runtime.folder.LoadedModel`, with which the entry point is
            called.

    Raises:
        ConfigError: no such engine, what it needs is not installed, it does not compute the folder
            or not in the precision, or no such device.
        ModelError: a network that it does not compute.
    """
    missing: list[str] = []
    for _, opener in openers(loaded.options.name, missing, few=loaded.options.few):
        try:
            return opener(loaded)
        except UnsuitedError as error:
            missing.append(str(error))
    raise ConfigError("; ".join(missing) + ".")


def openers(
    name: str, missing: list[str], *, few: bool = False
) -> Iterator[tuple[str, Callable[[Any], Engine]]]:
    """What opens the engine of this name, or with :data:`AUTO` each that can be opened, with its
    name; why others cannot is added to ``missing``. Each is imported when it is its turn.

    Raises:
        ConfigError: there is no such engine.
    """
    check_engine(name)
    for entry in engines(few=few).values():
        if name in (AUTO, entry.name):
            try:
                yield entry.name, _opener(entry)
            except _MissingError as error:
                missing.append(str(error))


def check_precision(engine: str, has: Sequence[str], wanted: str) -> None:
    """Refuse a precision that an engine does not have.

    Args:
        engine: its name.
        has: its precisions.
        wanted: one of all.

    Raises:
        UnsuitedError: naming those that it has.
    """
    if wanted not in has:
        raise UnsuitedError(
            f"the engine {engine} computes in {' or '.join(has)}, not in {wanted}; choose another "
            "precision, or another engine"
        )


class _MissingError(Exception):
    """What an engine needs is not installed."""


def _opener(entry: EntryPoint) -> Callable[[Any], Engine]:
    try:
        with uninterrupted():
            opener: Callable[[Any], Engine] = entry.load()
    except ModuleNotFoundError as error:
        needed = (error.name or "").partition(".")[0]
        package = entry.dist.name if entry.dist else "bothways"
        if not needed or needed == package:
            raise
        missing = not_installed(needed)
        if entry.extras:
            missing = (
                f"{needed}, which is not installed: pip install "
                f"'{package}[{','.join(entry.extras)}]'"
            )
        raise _MissingError(f"the engine {entry.name} needs {missing}") from None
    return opener
