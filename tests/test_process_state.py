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
from collections.abc import Callable
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
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig
from bothways.pretraining.pretrain import pretrain
from bothways.runtime.options import EvaluateConfig, PredictConfig
from bothways.training.options import ClockOptions
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
