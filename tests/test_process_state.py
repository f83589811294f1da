"""What a call from Python finds set in its process is set so afterwards, also after an error."""

from __future__ import annotations

import csv
import faulthandler
import gc
import locale
import logging
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numba
import numpy as np
import pytest
import torch

import bothways
from bothways.api.verbs import evaluate, predict
from bothways.errors import ConfigError
from bothways.experiments.options import PlanConfig
from bothways.experiments.plan import plan
from bothways.finetuning.features import tag_by_features
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FeaturesConfig, FinetuneConfig
from bothways.io.csv_files import csv_records
from bothways.model import device
from bothways.pretraining.pretrain import pretrain
from bothways.runtime.options import EvaluateConfig, PredictConfig
from bothways.tasks.options import TaskOptions
from bothways.training.options import ClockOptions, Phase
from finetuning_examples import start_model, word_config, word_files
from pretrain_runs import Make, StoppedError, after_step, short_recipe, stop

State = dict[str, Any]

# When these are first imported they set filters of warnings and variables of the environment, which
# others may rely on by then. That is theirs.
for name in ("sklearn.metrics", "torch._dynamo", "scipy.linalg", "scipy.sparse", "scipy.stats"):
    import_module(name)


def process_state() -> State:
    """What library code may change in a process, of what can be asked for."""
    threads = numba.get_num_threads(), torch.get_num_threads()
    return {
        "numba's and torch's threads": threads,
        "tf32": (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32),
        "determinism": torch.get_deterministic_debug_mode(),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "dtype": torch.get_default_dtype(),
        "torch's generator": torch.get_rng_state().numpy().tobytes(),
        "numpy's generator": str(np.random.get_state()),
        "generator": random.getstate(),
        "numpy": (np.geterr(), np.get_printoptions()),
        "signals": {n: signal.getsignal(n) for n in signal.valid_signals()},
        "environment": dict(os.environ),
        "locale": locale.setlocale(locale.LC_ALL),
        "warnings": list(warnings.filters),
        "csv": csv.field_size_limit(),
        "logging": (logging.root.level, list(logging.root.handlers), logging.root.disabled),
        "matplotlib": {k: v for k, v in mpl.rcParams.items() if k != "backend"},
        "streams": [(id(s), s.encoding, s.errors) for s in (sys.stdin, sys.stdout, sys.stderr)],
        "hooks": (sys.excepthook, sys.displayhook, threading.excepthook, sys.unraisablehook),
        "folder": Path.cwd(),
        "limits": (sys.getrecursionlimit(), sys.getswitchinterval(), gc.get_threshold()),
        "faults": faulthandler.is_enabled(),
        "processes": multiprocessing.get_start_method(allow_none=True),
    }


@pytest.fixture(autouse=True)
def unusual() -> Iterator[None]:
    """Settings of a caller that none of ours are by chance."""
    threads, numbas = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(3)
    numba.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = True
    yield
    torch.set_num_threads(threads)
    numba.set_num_threads(numbas)


@pytest.fixture
def make(tiny_corpus: Path) -> Make:
    return short_recipe(tiny_corpus)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_model(tmp_path_factory.mktemp("start"))


@pytest.fixture
def tuning(start: Path, tmp_path: Path) -> FinetuneConfig:
    return word_config(start, word_files(tmp_path), tmp_path / "tuned")


def unchanged(action: Callable[[], object]) -> Any:
    before = process_state()
    try:
        return action()
    finally:
        after = process_state()
        changed = {k: (before[k], after[k]) for k in before if before[k] != after[k]}
        assert not changed


def in_thread(action: Callable[[], Any]) -> Any:
    """An action in a thread with its own state, as the caller's other threads have."""

    def run() -> Any:
        torch.set_num_threads(3)
        numba.set_num_threads(1)
        return unchanged(action)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result(timeout=300)


@pytest.mark.parametrize("run", [unchanged, in_thread])
def test_pretraining(run: Callable[[Callable[[], Any]], Any], make: Make, tmp_path: Path) -> None:
    config = make(tmp_path / "run", clock=ClockOptions(steps=2))
    assert run(lambda: pretrain(config)).steps == 2
    with pytest.raises(StoppedError), after_step(0, stop):
        run(lambda: pretrain(make(tmp_path / "stopped", clock=ClockOptions(steps=2))))
    with pytest.raises(ConfigError):
        run(lambda: pretrain(make(tmp_path / "none", clock=ClockOptions())))


@pytest.mark.parametrize("run", [unchanged, in_thread])
def test_finetuning_and_using_the_result(
    run: Callable[[Callable[[], Any]], Any], tuning: FinetuneConfig
) -> None:
    run(lambda: finetune(tuning))
    model = run(lambda: bothways.load(tuning.run, device="cpu"))
    run(lambda: model.predict(["w8 w7"]))
    run(lambda: model.embed(["w8 w7"]))
    run(lambda: predict(PredictConfig(model=tuning.run, texts=("w8 w7",))))
    run(lambda: evaluate(EvaluateConfig(model=tuning.run, file=tuning.task.dev)))


def test_other_calls(
    start: Path, tiny_text_file: Path, tiny_tokenizer_folder: Path, tiny_corpus: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    files, out = (str(tiny_text_file),), str(tmp_path / "vocabulary")
    unchanged(
        lambda: bothways.build_vocabulary(bothways.VocabularyConfig(files=files, size=150, out=out))
    )
    built = bothways.CorpusConfig(
        files=files, tokenizer=str(tiny_tokenizer_folder), out=str(tmp_path / "corpus")
    )
    unchanged(lambda: bothways.build_corpus(built))
    unchanged(lambda: bothways.Corpus(tiny_corpus))
    unchanged(lambda: bothways.task_recipe("mrpc"))
    unchanged(lambda: bothways.load_recipe(bothways.PretrainConfig, "tiny"))
    unchanged(lambda: bothways.diagnose(start))
    model = unchanged(lambda: bothways.load(start, device="cpu"))
    unchanged(lambda: model.fill_mask("w8 [MASK]"))
    unchanged(lambda: model.next_sentence("w8", "w9"))


def test_planning(make: Make, tmp_path: Path) -> None:
    recipe = make(tmp_path / "run")
    phases = (Phase(length=24, batch=4, micro_batch=4),)
    small = PlanConfig(
        corpus=recipe.corpus,
        model=recipe.model,
        clock=recipe.clock,
        phases=phases,
        precision="fp32",
    )
    unchanged(lambda: plan(small))


def test_features(start: Path, tmp_path: Path) -> None:
    for name in ("train", "dev"):
        lines = ["w8 O", "w9 B-X", "", "w10 O", "w11 B-X", ""] * 3
        (tmp_path / f"{name}.conll").write_text("\n".join(lines))
    config = FeaturesConfig(
        task=TaskOptions(kind="tagging", train="train.conll", dev="dev.conll"),
        data=str(tmp_path), model=str(start), run=str(tmp_path / "run"), layers=("last",),
        hidden=8, epochs=1, max_length=12, precision="fp32", threads=1,
    )  # fmt: skip
    unchanged(lambda: tag_by_features(config))


# ------------------------------------------------------------------------------ signals and files


def test_signals_that_cannot_be_put_back_are_left_alone(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``getsignal`` is None for a handler that C code installed."""
    real = signal.getsignal

    def by_c_code(number: int) -> Any:
        return None if number == signal.SIGTERM else real(number)

    monkeypatch.setattr(signal, "getsignal", by_c_code)
    before = real(signal.SIGTERM)
    seen: list[object] = []
    with after_step(0, lambda: seen.append(real(signal.SIGTERM))):
        pretrain(make(tmp_path / "run", clock=ClockOptions(steps=1)))
    assert seen == [before]


def test_csv_files_may_be_left_unread_and_read_in_turns() -> None:
    limit, path = csv.field_size_limit(), Path("x.csv")
    lines = [(1, "a,b"), (2, f"{'x' * (limit + 1)},c"), (3, "d,e")]
    one, two = csv_records(lines, ",", path), csv_records(lines, ",", path)
    assert next(iter(one))[1] == ["a", "b"]
    assert csv.field_size_limit() == limit
    assert len(list(two)) == 3
    assert [values[-1] for _, values in one] == ["c", "e"]
    assert csv.field_size_limit() == limit


# ------------------------------------------------------------------------------ the allocator


def test_memory_is_kept_until_the_last_call_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if "MALLOC" in name or name == "GLIBC_TUNABLES"]:
        monkeypatch.delenv(name)
    calls: list[tuple[Any, ...]] = []

    def libc(*call: Any) -> int:
        calls.append(call)
        return 1

    monkeypatch.setattr(device, "_libc", libc)
    allocator = device._Allocator()
    allocator.enter()
    allocator.keep_freed_memory()
    allocator.enter()
    allocator.leave()
    assert [call[:2] for call in calls] == [("mallopt", -3), ("mallopt", -1)]
    calls.clear()
    allocator.leave()
    assert calls == [("mallopt", -3, 2**25), ("mallopt", -1, 2**26), ("malloc_trim", 0)]
    calls.clear()
    allocator.keep_freed_memory()  # by a process of our own
    allocator.enter()
    allocator.leave()
    assert [call[:2] for call in calls] == [("mallopt", -3), ("mallopt", -1)]


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_thresholds_of_the_environment_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "glibc.malloc.trim_threshold=131072")
    monkeypatch.setattr(device, "_libc", lambda *_: pytest.fail("changed"))
    allocator = device._Allocator()
    allocator.enter()
    allocator.keep_freed_memory()
    allocator.leave()


@pytest.mark.skipif(sys.platform != "linux", reason="the allocator is glibc's")
def test_memory_goes_back_to_the_system_after_a_call() -> None:
    """What was kept goes back when the call ends, and blocks too large for the holes that it left
    go back when they are freed. (Smaller ones may be taken from a hole, and stay.)"""
    code = (
        "import os, torch\n"
        "from bothways.model.device import borrowed_process, set_threads\n"
        "page = os.sysconf('SC_PAGE_SIZE')\n"
        "rss = lambda: int(open('/proc/self/statm').read().split()[1]) * page // 2**20\n"
        "with borrowed_process():\n"
        "    set_threads(1)\n"  # imports what it needs
        "torch.ones(2**20)\n"
        "before = rss()\n"
        "with borrowed_process():\n"
        "    set_threads(1)\n"
        "    blocks = [torch.ones(10 * 2**20) for _ in range(3)]\n"
        "    del blocks\n"
        "    within = rss() - before\n"
        "after = rss() - before\n"
        "torch.ones(100 * 2**20)\n"
        "later = rss() - before\n"
        "assert within > 100 and after < 10 and later < 10, (within, after, later)\n"
    )
    own = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    own.pop("GLIBC_TUNABLES", None)  # thresholds in the environment are respected
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env=own)


def test_numbas_threads_are_as_before() -> None:
    """In a process with two of them, however few cores the tests have."""
    code = (
        "import numba, torch, bothways\n"
        "torch.set_num_threads(2)\n"
        "numba.set_num_threads(1)\n"
        "torch.set_num_threads(2)\n"
        "bothways.load('mini-en', engine='torch', device='cpu').embed(['a text'])\n"
        "assert (numba.get_num_threads(), torch.get_num_threads()) == (1, 2)\n"
    )
    own = {**os.environ, "NUMBA_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env=own)
