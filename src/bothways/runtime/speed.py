"""What is fastest on this machine, where the choice changes bits: measured once, and kept.

Flags of a processor do not tell: the same instructions take half or twice the time of fp32 on
processors that both have them. A second measurement may come out otherwise on a busy machine, and
the same command would then give other bits. So the figures are kept in the user's cache folder, a
line each, of which the first of its kind holds for all processes; what cannot be kept there is not
chosen by.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bothways.io.files import expanded
from bothways.io.processes import usual_threads
from bothways.runtime.engine import AUTO, EngineOptions, engines, openers

PRODUCT = (512, 512, 2048)
"""Rows, inner size and columns of the product that is timed."""
_MIN_SPEEDUP = 1.3  # of bf16, to be worth its rounding
_MIN_GAIN = 1.25  # of another engine, over one that is listed before it: products are not all
_LONGEST = 0.5  # seconds for the actions that are compared, but for each at least twice
_SETTINGS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")

Seconds = dict[str, float]
"""By what took them."""


def settled(options: EngineOptions, *, graph: bool = False) -> EngineOptions:
    """Options that name an engine and a precision where they leave the precision open; others as
    they are.

    What they choose can be handed to other processes, so that all compute alike. It is never int8,
    which needs files of its own and is asked for by name.

    Args:
        options: how a model is computed.
        graph: of a folder with a graph alone, which not every engine computes.

    Raises:
        ConfigError: no such engine, or no such device.
    """
    if options.precision != AUTO:
        return options
    found: Seconds = {}

    def measure() -> Seconds:
        for name, opener in openers(options.name, []):
            product_seconds = getattr(_class(opener), "product_seconds", None)
            own = product_seconds(options.device) if product_seconds else {}
            found.update({f"{name} {precision}": taken for precision, taken in own.items()})
        return found

    what = f"products of engine {options.name} on {options.device}"
    seconds = measured_once(what, measure, usual_threads(), engines())
    if seconds is None:
        return replace(options, precision="fp32", reason=not_kept(), timed=True)
    parts = ((name.rpartition(" "), taken) for name, taken in seconds.items())
    timed = [(engine, precision, taken) for (engine, _, precision), taken in parts]
    if graph:
        of_graphs = [
            name for name, opener in openers(options.name, []) if hasattr(_class(opener), "graphs")
        ]
        timed = [one for one in timed if one[0] in of_graphs]
    if not timed:  # an engine of another package that says nothing of its speed
        return replace(options, precision="fp32", reason="fp32: no other precision was timed")
    best = timed[0]
    for other in timed[1:]:
        rounds_more = other[1] != "fp32" and best[1] == "fp32"
        if other[2] * (_MIN_SPEEDUP if rounds_more else _MIN_GAIN) < best[2]:
            best = other
    told = ", ".join(f"{engine} {name} {1e3 * own:.2f} ms" for engine, name, own in timed)
    reason = f"{best[1]} with {best[0]}, which is fastest here: of a product, {told}"
    return replace(
        options,
        name=best[0],
        precision=best[1],  # type: ignore[arg-type]
        reason=reason,
        timed=bool(found),
    )


def measured_once(
    what: str, measure: Callable[[], Seconds], threads: int, packages: Collection[str]
) -> Seconds | None:
    """What was measured on this machine, now or earlier; None where it cannot be kept.

    Args:
        what: is measured; with the processor, threads, versions and settings the key.
        measure: gives the seconds; called if none are kept and they can be.
        threads: of the computation.
        packages: that compute, beside this one and numpy.
    """
    path, key = _file(), f"{what}; {_machine(threads, packages)}"
    if (kept := _kept(path, key)) is not None:
        return kept
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()  # before anything is measured in vain
    except OSError:
        return None
    line = json.dumps({"key": key, "seconds": measure()})
    with suppress(OSError), path.open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")  # apart from one that was cut
    return _kept(path, key)


def not_kept() -> str:
    """The note where nothing is measured."""
    return f"fp32: no measurement can be kept in {_file()}; --precision chooses another"


def _file() -> Path:
    return cache_folder() / "speed.jsonl"


def _kept(path: Path, key: str) -> Seconds | None:
    """The first intact figures under a key: of two processes that measure at once, all take those
    of one."""
    with suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(AttributeError, KeyError, TypeError, ValueError):
                own = json.loads(line)
                if own["key"] == key:
                    return {str(name): float(taken) for name, taken in own["seconds"].items()}
    return None


def _class(opener: Callable[..., object]) -> object:
    """Of the engine that a method of it opens."""
    return getattr(opener, "__self__", opener)


def _machine(threads: int, packages: Collection[str]) -> str:
    """What figures depend on."""
    versions = []
    for name in ("bothways", "numpy", *packages):  # our engines have the names of their packages
        with suppress(PackageNotFoundError):
            versions.append(f"{name} {version(name)}")
    settings = [f"{name}={os.environ[name]}" for name in _SETTINGS if name in os.environ]
    return "; ".join([_processor(), f"{threads} threads", *versions, *settings])


def _processor() -> str:
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        told = [line for line in lines if line.startswith(("model name", "model\t", "flags"))]
        return hashlib.sha256("\n".join(sorted(set(told))).encode()).hexdigest()[:16]
    return platform.processor()


def cache_folder() -> Path:
    """The user's folder for what can be computed again: of XDG_CACHE_HOME, which counts if it is
    absolute, or ~/.cache."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else expanded("~/.cache")) / "bothways"


def least_seconds(*actions: Callable[[], object]) -> list[float]:
    """The shortest time of each action, in turns: other programs only ever make one longer, and
    so decide the order of two that are close less often than by medians. The first calls are not
    counted."""
    for action in actions:
        action()
    rounds: list[list[float]] = []
    while len(rounds) < 15 and sum(map(sum, rounds)) < _LONGEST:
        rounds.append([_seconds(action) for action in actions])
    return [min(column) for column in zip(*rounds, strict=True)]


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
