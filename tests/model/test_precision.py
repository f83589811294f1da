"""The choice of precision, and the number of threads."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bothways.errors import ConfigError
from bothways.io.processes import usable_cores
from bothways.model import device as precision
from bothways.model import inference
from bothways.model.device import (
    DTYPES,
    ChosenPrecision,
    borrowed_process,
    choose_for_training,
    choose_precision,
    set_threads,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "bothways" / "speed.jsonl"


@pytest.mark.parametrize("name", ["bf16", "fp32"])
def test_what_is_asked_for_is_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_product", lambda _: pytest.fail("nothing to probe"))
    choice = choose_precision(name)  # type: ignore[arg-type]
    assert choice.name == name
    assert choice.dtype is DTYPES[name]
    assert choice.reason == f"{name}: requested"


@pytest.mark.parametrize(
    ("speed", "name", "reason"),
    [
        (3.0, "bf16", "bf16: matrix products are 3.0 times as fast as in fp32 here"),
        (1.1, "fp32", "fp32: bf16 matrix products are only 1.1 times as fast here"),
        (0.2, "fp32", "fp32: bf16 matrix products are only 0.2 times as fast here"),
    ],
)
def test_auto_takes_what_is_faster(
    speed: float, name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "least_seconds", lambda *_: [speed, 1.0])
    choice = choose_precision("auto")
    assert (choice.name, choice.reason) == (name, reason)


def test_what_is_chosen_by_is_measured_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine would decide otherwise the next time. Threads and versions make another."""
    measured = []

    def seconds(*actions: Callable[[], object]) -> list[float]:
        for action in actions:
            action()
        measured.append(torch.get_num_threads())
        return [3.0, 1.0] if len(measured) < 3 else [1.0, 3.0]

    monkeypatch.setattr(precision, "least_seconds", seconds)
    monkeypatch.setattr(inference, "least_seconds", seconds)
    with borrowed_process():
        set_threads(1)
        first = choose_for_training("auto")
        assert (first.name, first.transposes) == ("bf16", True)
        assert first.reason.endswith("with gradients of weights from transposed arrays")
        for _ in range(3):
            assert choose_for_training("auto") == first
            assert not inference.onednn_pays.__wrapped__()
        assert measured == [1, 1, 1]
        set_threads(2)
        assert choose_for_training("auto").name == "fp32"
        assert measured == [1, 1, 1, 2]
    text = cache.read_text()
    assert f"torch {torch.__version__}" in text
    assert f"numpy {np.__version__}" in text
    # A file that another machine, or a person, wrote decides.
    cache.write_text(text.replace('"bf16": 3.0', '"bf16": 0.1'))
    with borrowed_process():
        set_threads(2)
        assert choose_precision("auto").name == "bf16"
    assert len(measured) == 4


def test_fp32_where_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for module in (precision, inference):
        monkeypatch.setattr(module, "least_seconds", lambda *_: pytest.fail("measured in vain"))
    choice = choose_for_training("auto")
    assert (choice.name, choice.transposes) == ("fp32", False)
    assert choice.reason == (
        f"fp32: no measurement can be kept in {tmp_path}/file/bothways/speed.jsonl; --precision "
        "chooses another"
    )
    assert choose_for_training("bf16") == ChosenPrecision("bf16", "bf16: requested")
    assert not inference.onednn_pays.__wrapped__()


@pytest.mark.parametrize(("transposed", "pays"), [(0.5, True), (0.95, False), (2.0, False)])
def test_gradients_are_transposed_where_that_is_faster(
    transposed: float, pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds(*actions: Callable[[], object]) -> list[float]:
        for action in actions:
            action()
        return [1.0, transposed]

    monkeypatch.setattr(precision, "least_seconds", seconds)
    assert choose_for_training("bf16").transposes is pays
    assert not choose_for_training("fp32").transposes


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    try:
        assert set_threads(3) == 3
        assert torch.get_num_threads() == 3
        with pytest.raises(ConfigError, match="threads is -1"):
            set_threads(-1)
        assert set_threads(0) == len(os.sched_getaffinity(0))
        assert torch.get_num_threads() == len(os.sched_getaffinity(0))
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        assert (set_threads(0), set_threads(2)) == (1, 2), "a habit, unless more is asked for"
        for nothing in ("", "x", "0", "2,1"):
            monkeypatch.setenv("OMP_NUM_THREADS", nothing)
            assert set_threads(0) == len(os.sched_getaffinity(0))
    finally:
        torch.set_num_threads(before)


def test_cores_where_the_system_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_cores() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores() == os.cpu_count()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc's allocator")
def test_memory_that_is_freed_is_kept() -> None:
    """Blocks that went back to the system take a page fault for each of their 49,152 pages: nearly
    every time, as the allocator's own limits move; kept ones only until they have found their
    places. (Above 32 MiB, older releases return a block whatever is set.)"""
    code = """\
import resource, torch
from bothways.model.device import set_threads
set_threads(1)
for _ in range(8):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.empty(24 * 2**20, dtype=torch.uint8) for _ in range(8)]
    for block in blocks:
        block[::4096] = 1
    del block, blocks
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    # Thresholds in the environment are respected; distributed sets them in its processes' parent.
    own = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    own.pop("GLIBC_TUNABLES", None)
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=own
    )
    faults = [int(word) for word in shown.stdout.split()]
    assert statistics.median(faults[2:]) < 1000, faults


@pytest.mark.parametrize(
    ("small", "asked", "pays"),
    [
        ((1e-4, 1e-4), [256, 2048], True),
        ((4e-4, 1e-2), [256], False),  # no units for bf16: the larger products take half a minute
        ((1e-2, 4e-4), [256], True),
    ],
)
def test_the_layout_of_gradients_is_measured_in_moments(
    small: tuple[float, float], asked: list[int], pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def seconds(rows: int, _: torch.dtype) -> list[float]:
        seen.append(rows)
        return [*small] if rows == 256 else [2.0, 1.0]

    monkeypatch.setattr(precision, "_gradient_seconds", seconds)
    monkeypatch.setattr(precision, "compiles", lambda _: True)
    assert precision.transposing_pays(torch.bfloat16) is pays
    assert seen == asked
    assert precision.transposing_pays(torch.bfloat16) is pays
    assert seen == asked, "it is kept"
    assert not precision.transposing_pays(torch.float32)
