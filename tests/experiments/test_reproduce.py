"""Recomputed tables: how they go on and what they show."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bothways.config import parsing as options
from bothways.errors import ConfigError, DivergenceError, RunError
from bothways.experiments.options import ReproduceConfig
from bothways.experiments.reproduce import execute, run, steps
from bothways.experiments.reproduce.execute import Ledger, arguments, compute_all
from bothways.experiments.reproduce.grid import make_grid
from bothways.experiments.reproduce.run import reproduce
from bothways.experiments.reproduce.steps import Step
from bothways.experiments.reproduce.tables import SCALES, TABLES
from bothways.families.options import SizeOptions
from bothways.finetuning.options import LAYER_CHOICES, FeaturesConfig, FinetuneConfig
from bothways.finetuning.seed import SCORES
from bothways.io.files import sha256
from bothways.pretraining.options import EvaluateOptions, PretrainConfig
from bothways.runtime.stored import WEIGHTS
from bothways.training.options import ClockOptions, Phase
from reproduce_examples import grid_of, kinds, make_world, pretend


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options that give every kind of data."""
    return make_world(tmp_path, monkeypatch)


# -------------------------------------------------------------------------------------- computing


def test_a_table_is_computed_once_and_shared(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = pretend(monkeypatch)
    config = ReproduceConfig("table8", scale="cpu", **world)
    reproduce(config)
    first = list(done.done)
    assert sorted(first) == sorted(grid_of("table8", "cpu", **world).steps)
    reproduce(config)
    assert done.done == first, "nothing is computed again"
    reproduce(ReproduceConfig("table7", scale="cpu", **world))
    again = done.done[len(first) :]
    assert [name.split("-")[0] for name in again] == ["features"], "the other layers alone"


def test_more_seeds_are_added_and_shown_as_asked(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = pretend(monkeypatch)
    config = ReproduceConfig("whole-words", scale="cpu", **world)
    reproduce(config)
    done.done.clear()
    more = dataclasses.replace(config, seeds=(0, 1, 2, 3))
    reproduce(more)
    assert {name.split("-")[0] for name in done.done} == {"finetune"}
    ledger, found = (
        Ledger(Path(config.out)),
        make_grid(TABLES["whole-words"], SCALES["cpu"], config),
    )
    assert ledger.record(kinds(found, "finetune")[0])["parts"] == ["0", "1", "2", "3"]  # type: ignore[index]
    done.done.clear()
    reproduce(config)
    assert not done.done
    told = json.loads((Path(config.out) / "whole-words-cpu/table.json").read_text())
    assert [r["seed"] for r in told["rows"][0]["cells"][0]["runs"]] == [0, 1, 2]


def test_an_interrupted_table_goes_on_and_shows_what_is_missing(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = pretend(monkeypatch, stop_at="finetune-sick-pairs-full-masking")
    config = ReproduceConfig("table5", scale="cpu", **world)
    with pytest.raises(KeyboardInterrupt):
        reproduce(config)
    folder = Path(config.out) / "table5-cpu"
    rows = [line for line in (folder / "table.md").read_text().splitlines() if "LTR" in line]
    assert "| LTR & no NSP | – | 82.1 | – | 84.3 |" in rows[0]
    assert "- LTR & no NSP: not finished: MNLI-m (SICK-E), " in "\n".join(rows)
    told = json.loads((folder / "table.json").read_text())
    assert not told["complete"]
    assert told["rows"][2]["cells"][0]["mean"] is None
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")
    attempts = [s["attempts"] for s in told["steps"] if s["name"].startswith("finetune-sick-pairs")]
    assert attempts[1][0]["seconds"] is not None, "the attempt is on record"
    rest = pretend(monkeypatch)
    reproduce(config)
    assert not set(rest.done) & set(stopped.done)
    assert len(rest.done) + len(stopped.done) == len(grid_of("table5", "cpu", **world).steps)
    assert json.loads((folder / "table.json").read_text())["complete"]


def test_data_that_change_on_the_way_are_not_mixed_in(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = pretend(monkeypatch)
    config = ReproduceConfig("table5", scale="cpu", **world)

    def compute(step: Step, folder: Path, parts: list[str], *, keep: bool) -> dict[str, Any]:
        if step.kind == "finetune":
            (Path(world["glue"]) / "MRPC/dev.tsv").write_text("other\n")
        return computed(step, folder, parts, keep=keep)

    monkeypatch.setattr(Step, "compute", compute)
    with pytest.raises(
        RunError, match=r"finetune-mrpc-.*: the corpus or a task's files have changed"
    ):
        reproduce(config)
    assert not any("mrpc" in name for name in computed.done)


def test_records_outlive_the_files(world: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished table needs no run folder; what is added to it later makes again what it reads."""
    done = pretend(monkeypatch)
    config = ReproduceConfig("whole-words", scale="cpu", **world)
    reproduce(config)
    shutil.rmtree(Path(config.out) / "runs")
    done.done.clear()
    reproduce(config)
    assert not done.done
    asked = {"seeds": (0, 1, 2, 3), "tasks": ("mrpc", "qnli-part")}
    more = dataclasses.replace(config, **asked)  # type: ignore[arg-type]
    found = grid_of("whole-words", "cpu", **world, **asked)
    first = kinds(found, "finetune")[0]
    ledger = Ledger(Path(config.out))
    before = ledger.result(first)
    plan = reproduce(dataclasses.replace(more, plan=True))
    assert plan.count("again: its files are gone") == len(kinds(found, "pretrain"))
    with pytest.raises(RunError, match="which is not computed, or whose files are gone"):
        reproduce(dataclasses.replace(more, step=first.name))
    reproduce(more)
    assert sorted(done.done) == sorted(found.steps), "each once"
    assert done.parts[first.name] == ["3"], "seeds on record are not trained again"
    after = ledger.result(first)
    assert before is not None
    assert after is not None
    assert {**after["runs"], **before["runs"]} == after["runs"]
    assert list(after["runs"]) == ["0", "1", "2", "3"]
    done.done.clear()
    reproduce(more)
    shutil.rmtree(Path(config.out) / "runs")
    assert "finished" in reproduce(dataclasses.replace(more, step=first.name))
    assert not done.done, "nobody reads what it left"


def test_lost_snapshots_matter_to_those_who_read_them(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = pretend(monkeypatch)
    figure, table = (
        ReproduceConfig(name, scale="cpu", **world, tasks=("mrpc",))
        for name in ("figure5", "masks")
    )
    reproduce(figure)
    reproduce(table)
    for folder in Path(figure.out).glob("runs/pretrain-*/snapshots"):
        shutil.rmtree(folder)
    more = (0, 1, 2, 3)
    done.done.clear()
    reproduce(dataclasses.replace(table, seeds=more))
    assert {name.split("-")[0] for name in done.done} == {"finetune"}, "it reads the models"
    reproduce(dataclasses.replace(figure, seeds=more))
    assert [n for n in done.done if n.startswith("pretrain-")] == [
        s.name for s in kinds(grid_of("figure5", "cpu", **world), "pretrain")
    ]


def test_a_run_that_lost_its_snapshots_starts_again(tmp_path: Path, tiny_corpus: Path) -> None:
    """Its checkpoints come after them; the models are the same bits."""
    config = PretrainConfig(
        corpus=str(tiny_corpus),
        model=SizeOptions(layers=1, hidden=16, heads=2, intermediate=32, positions=64),
        clock=ClockOptions(steps=4),
        phases=(Phase(length=24, batch=4, micro_batch=4),),
        evaluate=EvaluateOptions(every=4, sequences=8),
        precision="fp32",
        threads=1,
        snapshots=(2,),
    )
    step, run = Step("pretrain", "", config), tmp_path / "run"

    def computed() -> list[str]:
        step.compute(run, (), keep=False)
        return [sha256(run / name / WEIGHTS) for name in ("model", "snapshots/2")]

    first = computed()
    shutil.rmtree(run / "snapshots")
    assert computed() == first
    before = (run / "snapshots/2").stat().st_mtime_ns
    shutil.rmtree(run / "model")
    assert computed() == first
    assert (run / "snapshots/2").stat().st_mtime_ns == before, "only the model was made again"


def test_what_is_made_again_must_not_replace_its_record_by_a_failure(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    config = ReproduceConfig("masks", scale="cpu", **world)
    reproduce(config)
    shutil.rmtree(Path(config.out) / "runs")
    found = grid_of("masks", "cpu", **world)
    pretend(monkeypatch, diverges="pretrain-")
    with pytest.raises(RunError, match="is on record, but diverged when it was computed again"):
        reproduce(dataclasses.replace(config, seeds=(0, 1, 2, 3)))
    ledger = Ledger(Path(config.out))
    assert all(ledger.result(step) == {"steps": 1} for step in kinds(found, "pretrain"))


def test_held_out_text_needs_the_corpus_that_a_step_makes(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    config = ReproduceConfig("vocabulary", scale="cpu", **world)
    reproduce(config)
    found = grid_of("vocabulary", "cpu", **world)
    ledger = Ledger(Path(config.out))
    for step in kinds(found, "heldout"):
        ledger.path(step).unlink()
    for step in kinds(found, "corpus"):
        shutil.rmtree(Path(config.out) / "runs" / step.name)
    wanted = execute.to_compute(found.steps, ledger)
    assert {found.steps[name].kind for name in wanted} == {"heldout", "corpus"}


def test_what_diverged_is_shown_and_the_rest_computed(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = pretend(monkeypatch, diverges="pretrain-random-0.2")
    config = ReproduceConfig("table8", scale="cpu", **world, seeds=(0, 7))
    text = reproduce(config)
    assert "| 80% | 0% | 20% | – | 84.1 | – | 95.2 | – | 94.6 |" in text
    name = next(s for s in grid_of("table8", "cpu", **world).steps if "pretrain-random-0.2" in s)
    assert f"- 80% / 0% / 20%: {name} diverged: MNLI-m, fine-tuned (SICK-E)" in text
    assert "80.0 (1 of 2)" in text, "a seed that diverged leaves the others"
    assert "on pre-training 0, diverged: seed 7: step 2" in text
    assert not any("random-0.2-" in n and not n.startswith("pretrain") for n in done.done)
    before = len(done.done)
    reproduce(config)
    assert len(done.done) == before, "the same would diverge again"


def test_one_tagger_that_diverges_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, Any]] = []

    def tag(config: FeaturesConfig) -> Any:
        asked.append((config.layers, config.seeds))
        if "last" in config.layers and 1 in config.seeds:
            raise DivergenceError("step 4: the gradient is inf")
        scores = {choice: [0.5] * len(config.seeds) for choice in config.layers}
        return SimpleNamespace(dev=scores, test={})

    monkeypatch.setattr(steps, "tag_by_features", tag)
    parts = ("last:0", "last:1", "sum-all:0", "sum-all:1")
    step = Step("features", "", FeaturesConfig())
    found = step.compute(tmp_path, parts, keep=True)
    assert found == {
        "runs": {part: {"dev": 0.5} for part in parts if part != "last:1"},
        "diverged": {"last:1": "step 4: the gradient is inf"},
    }
    assert asked[0] == (("last", "sum-all"), (0, 1)), "together first"


def test_each_tagger_has_the_score_of_its_layers_and_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tag(config: FeaturesConfig) -> Any:
        def scores(base: float) -> dict[str, list[float]]:
            return {
                choice: [base + LAYER_CHOICES.index(choice) / 10 + s / 100 for s in config.seeds]
                for choice in config.layers
            }

        return SimpleNamespace(dev=scores(0), test=scores(1))

    monkeypatch.setattr(steps, "tag_by_features", tag)
    parts = ("last:3", "last:1", "sum-all:3", "sum-all:1")
    runs = Step("features", "", FeaturesConfig()).compute(tmp_path, parts, keep=True)["runs"]
    for choice, seed in (part.split(":") for part in parts):
        expected = LAYER_CHOICES.index(choice) / 10 + int(seed) / 100  # type: ignore[arg-type]
        assert runs[f"{choice}:{seed}"] == pytest.approx({"dev": expected, "test": 1 + expected})


def test_the_seed_that_diverged_is_the_one_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tune(config: FinetuneConfig) -> Any:
        for seed in config.seeds:
            if seed == 1:
                raise DivergenceError("seed 1: step 3")
            (Path(config.run) / f"seed-{seed}").mkdir(parents=True, exist_ok=True)
            (Path(config.run) / f"seed-{seed}" / SCORES).write_text("{}")
        runs = [SimpleNamespace(seed=s, record=lambda s=s: {"seed": s}) for s in config.seeds]
        return SimpleNamespace(seeds=runs, metrics=(), baseline={}, dev_examples=1, notes=())

    monkeypatch.setattr(steps, "finetune", tune)
    step = Step("finetune", "", FinetuneConfig())
    found = step.compute(tmp_path, ("0", "1", "2"), keep=True)
    assert found["diverged"] == {"1": "seed 1: step 3"}
    assert found["runs"] == {"0": {"seed": 0}, "2": {"seed": 2}}


@pytest.mark.parametrize("keep", [False, True])
def test_models_are_kept_where_asked(
    keep: bool, world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = pretend(monkeypatch)
    reproduce(ReproduceConfig("masks", scale="cpu", **world, keep_models=keep))
    assert set(done.kept) == {keep}


def test_two_sums_of_the_same_four_layers_are_one_tagger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def tag(config: FeaturesConfig) -> Any:
        asked.append(config.layers)
        if 1 in config.seeds:
            raise DivergenceError("step 4: the gradient is inf")
        return SimpleNamespace(dev={c: [0.5] * len(config.seeds) for c in config.layers}, test={})

    monkeypatch.setattr(steps, "tag_by_features", tag)
    step = Step("features", "", FeaturesConfig(model="mini-en"))
    parts = ("sum-last-four:0", "sum-all:0", "last:0")
    found = step.compute(tmp_path, parts, keep=True)
    assert found == {"runs": {part: {"dev": 0.5} for part in parts}, "diverged": {}}
    assert asked == [("last", "sum-last-four")]
    found = step.compute(tmp_path, ("sum-last-four:1", "sum-all:1"), keep=True)
    assert list(found["diverged"]) == ["sum-last-four:1", "sum-all:1"]
    assert steps.first_alike(["sum-last-four", "sum-all"], 5)["sum-all"] == "sum-all"


def test_a_step_alone_and_its_refusals(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = pretend(monkeypatch)
    first, second, *_ = grid_of("masks", "cpu", **world).steps
    config = ReproduceConfig("masks", scale="cpu", **world, step=second)
    with pytest.raises(RunError, match=f"it needs {first}, which is not computed"):
        reproduce(config)
    assert reproduce(dataclasses.replace(config, step=first)) == f"{first}: finished"
    assert done.done == [first]
    with pytest.raises(ConfigError, match=f"did you mean {first}"):
        reproduce(dataclasses.replace(config, step=first[:-1]))
    assert not (Path(config.out) / "masks-cpu").exists()


def test_two_processes_do_not_compute_one_step(world: dict[str, Any], tmp_path: Path) -> None:
    """The second waits until the first, which holds the lock, is gone, however it went."""
    step = kinds(grid_of("masks", "cpu", **world), "pretrain")[0]
    ledger = Ledger(tmp_path / "out")
    path = tmp_path / "out/steps" / f"{step.name}.lock"
    path.parent.mkdir(parents=True)
    script = (
        "import fcntl, sys, time\nfile = open(sys.argv[1], 'w')\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\nprint('held', flush=True)\ntime.sleep(60)\n"
    )
    said: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"

        def say(text: str) -> None:
            said.append(text)
            other.kill()

        with ledger.locked(step.name, say):
            assert said == [f"{step.name}: another process is computing it; waiting"]


def test_jobs_run_at_once_in_the_order_of_needs(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = grid_of("masking-rate", "cpu", **world)
    ledger = Ledger(tmp_path / "out")
    log = tmp_path / "log"
    log.touch()
    script = (
        "import json, sys, time\nlog, path, record, name = sys.argv[1:]\n"
        "open(log, 'a').write(f'begin {name}\\n')\ntime.sleep(0.05)\n"
        "open(path, 'w').write(record)\nopen(log, 'a').write(f'end {name}\\n')\n"
    )

    def start(step: Step, _: ReproduceConfig) -> subprocess.Popen[bytes]:
        told = {"key": step.key, "parts": list(step.wanted), "result": {"runs": {}}}
        path = ledger.path(step)
        path.parent.mkdir(parents=True, exist_ok=True)
        words = [str(log), str(path), json.dumps(told), step.name]
        return subprocess.Popen([sys.executable, "-c", script, *words])

    monkeypatch.setattr(execute, "start_job", start)
    config = ReproduceConfig("masking-rate", scale="cpu", **world, jobs=3)
    calls: list[int] = []
    compute_all(
        found.steps, ledger, config, lambda _: None, lambda _: None, lambda: calls.append(1)
    )
    lines = [tuple(line.split()) for line in log.read_text().splitlines()]
    assert sorted(n for w, n in lines if w == "begin") == sorted(found.steps)
    assert len(calls) == len(found.steps)
    for step in found.steps.values():
        for need in step.needs:
            assert lines.index(("end", need)) < lines.index(("begin", step.name))


def test_sigterm_stops_the_jobs(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*_: object) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        if len(started) == 2:
            threading.Timer(0.2, end).start()
        return started[-1]

    def end() -> None:
        # Where nothing heeds it any more, the signal would end the process of the tests.
        if signal.getsignal(signal.SIGTERM) != before:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(execute, "start_job", start)
    found = grid_of("masks", "cpu", **world)
    config = ReproduceConfig("masks", scale="cpu", **world, jobs=2)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        compute_all(found.steps, Ledger(tmp_path), config, print, print, print)
    assert [process.poll() for process in started] == [-signal.SIGTERM] * 2
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_table_is_written_by_one_process_at_a_time(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[str] = []

    @contextlib.contextmanager
    def locked(self: Ledger, name: str, say: Any) -> Iterator[None]:  # noqa: ARG001
        held.append(name)
        yield
        held.remove(name)

    def written(path: Path, _: object) -> None:
        assert held == ["masks-cpu"], path

    monkeypatch.setattr(Ledger, "locked", locked)
    monkeypatch.setattr(run, "write_text", written)
    monkeypatch.setattr(run, "write_json", written)
    config = ReproduceConfig("masks", scale="cpu", **world)
    run._write(grid_of("masks", "cpu", **world), Ledger(Path(config.out)), config)


def test_what_most_others_wait_for_goes_first(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = grid_of("table5", "cpu", **world)
    started: list[Step] = []

    def start(step: Step, _: ReproduceConfig) -> subprocess.Popen[bytes]:
        started.append(step)
        if len(started) == 3:
            raise KeyboardInterrupt
        return subprocess.Popen([sys.executable, "-c", ""])

    monkeypatch.setattr(execute, "start_job", start)
    config = ReproduceConfig("table5", scale="cpu", **world, jobs=3)
    with pytest.raises(KeyboardInterrupt):
        compute_all(found.steps, Ledger(tmp_path), config, print, print, print)
    first, *others = started
    assert "left_to_right" in first.name  # of two rows
    assert [step.kind for step in others] == ["pretrain", "pretrain"]


def test_a_job_that_fails_is_told_with_its_log(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "arguments", lambda _: ["no-such-table"])
    config = ReproduceConfig("masks", scale="cpu", **world, jobs=2)
    with pytest.raises(RunError, match=r"step \S+ failed .*\.log\):\n.*no-such-table"):
        compute_all(grid_of("masks", "cpu", **world).steps, Ledger(Path(config.out)), config,
                    lambda _: None, lambda _: None, lambda: None)  # fmt: skip


def test_jobs_on_a_gpu_are_refused(world: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = ReproduceConfig("masks", scale="cpu", **world, jobs=2)
    with pytest.raises(ConfigError, match="jobs is 2, but a GPU computes one step at a time"):
        reproduce(config)


def test_a_jobs_command_line_gives_its_options(world: dict[str, Any]) -> None:
    config = ReproduceConfig(
        "table5", scale="cpu", **world, seeds=(3, 4), jobs=1, keep_models=True, step="a-b"
    )
    read = options.parse(
        ReproduceConfig, arguments(config), prog="x", description="", positional=("name",)
    )
    assert read == config
