"""Which engine and precision are fastest on this machine: one product of each, timed once.

Flags of a processor do not tell: the same instructions take half or twice the time of fp32 on
processors that both have them. The figures are kept in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bothways.errors import BothwaysError
from bothways.io.files import expanded, write_json
from bothways.io.processes import usual_threads
from bothways.runtime.engine import AUTO, EngineOptions, engines, openers

PRODUCT = (512, 512, 2048)
"""Rows, inner size and columns of the product that is timed."""
_MIN_SPEEDUP = 1.3  # of bf16, to be worth its rounding
_MIN_GAIN = 1.25  # of another engine, over one that is listed before it: products are not all
_LONGEST = 0.3  # seconds for a product, but for three at least
_SETTINGS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")

Seconds = dict[str, dict[str, float]]
"""By engine and precision."""


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
    seconds, timed_now = _seconds(options)
    if graph:
        of_graphs = [
            name for name, opener in openers(options.name, []) if hasattr(_class(opener), "graphs")
        ]
        seconds = {name: own for name, own in seconds.items() if name in of_graphs}
    timed = [
        (engine, precision, own)
        for engine, of_engine in seconds.items()
        for precision, own in of_engine.items()
    ]
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
        timed=timed_now,
    )


def _seconds(options: EngineOptions) -> tuple[Seconds, bool]:
    """Of the engines that the options leave open, from the cache if they are there; and whether
    they were not."""
    path, key = cache_folder() / "speed.json", _key(options)
    known: dict[str, Seconds] = {}
    with suppress(OSError, ValueError):  # none yet, or damaged: it is made anew
        read = json.loads(path.read_text(encoding="utf-8"))
        known = read if isinstance(read, dict) else {}
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        kept = {
            str(engine): {str(name): float(own) for name, own in of_engine.items()}
            for engine, of_engine in known[key].items()
        }
        return kept, False
    return _measured(options, path, known, key), True


def _measured(options: EngineOptions, path: Path, known: dict[str, Seconds], key: str) -> Seconds:
    found: Seconds = {}
    for name, opener in openers(options.name, []):
        measure = getattr(_class(opener), "product_seconds", None)
        if measure is not None:
            found[name] = measure(options.device)
    with suppress(OSError, BothwaysError):  # a folder that cannot be written to: next time again
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {**known, key: found})
    return found


def _class(opener: Callable[..., object]) -> object:
    """Of the engine that a method of it opens."""
    return getattr(opener, "__self__", opener)


def _key(options: EngineOptions) -> str:
    """What the figures depend on."""
    versions = []
    for name in ("bothways", *engines()):  # ours have the names of their packages
        with suppress(PackageNotFoundError):
            versions.append(f"{name} {version(name)}")
    settings = [f"{name}={os.environ[name]}" for name in _SETTINGS if name in os.environ]
    machine = (_processor(), f"{usual_threads()} threads", platform.node())
    return "; ".join([options.name, options.device, *machine, *versions, *settings])


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


def least_seconds(action: Callable[[], object]) -> float:
    """The shortest time of an action: other programs only ever make one longer. The first call is
    not counted."""
    action()
    taken: list[float] = []
    while len(taken) < 3 or (len(taken) < 100 and sum(taken) < _LONGEST):
        start = time.perf_counter()
        action()
        taken.append(time.perf_counter() - start)
    return min(taken)
