"""A search over settings: every combination once, what is finished is kept, the choice is right."""

from __future__ import annotations

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bothways.errors import ConfigError, DivergenceError, RunError
from bothways.finetuning import finetune as jobs
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig, SearchOptions
from bothways.finetuning.results import FinetuneResult, SearchResult, SeedResult
from bothways.model.engine import load_network
from bothways.tasks.catalogue import task_recipe
from bothways.tasks.metrics import Measurement
from bothways.tasks.options import GridOptions
from bothways.training import fit
from bothways.training.trainer import Trainer
from finetuning_examples import FAST, start_model, word_config, word_files

SIX = SearchOptions(lr=(3e-3, 1e-3, 1e-4), epochs=(1, 2))


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> FinetuneConfig:
    folder = tmp_path_factory.mktemp("search")
    found = word_config(start_model(folder), word_files(folder), folder / "none")
    task = dataclasses.replace(found.task, test=None)
    return dataclasses.replace(found, task=task, batch_size=96)


def at(config: FinetuneConfig, run: Path, **changes: Any) -> FinetuneConfig:
    return dataclasses.replace(config, run=str(run), **changes)


def finished(run: Path) -> dict[str, int]:
    """When each run under a folder was finished."""
    return {
        path.parent.relative_to(run).as_posix(): path.stat().st_mtime_ns
        for path in run.rglob("seed-*/metrics.json")
    }


def report(run: Path) -> dict[str, Any]:
    """report.json without times."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: timeless(v) for k, v in value.items() if k != "seconds"}
        return [timeless(v) for v in value] if isinstance(value, list) else value

    found: dict[str, Any] = timeless(json.loads((run / "report.json").read_text()))
    return found


@pytest.fixture(scope="module")
def unbroken(config: FinetuneConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("unbroken") / "run"
    finetune(at(config, run, search=SIX))
    return run


def test_every_combination_is_a_run_of_its_own(unbroken: Path) -> None:
    names = [f"lr-{lr}-batch-96-epochs-{n}" for lr in (0.003, 0.001, 0.0001) for n in (1, 2)]
    assert sorted(finished(unbroken)) == sorted(f"{name}/seed-0" for name in names)
    prints = set()
    for name in names:
        record = json.loads((unbroken / name / "run.json").read_text())
        epochs = int(name[-1])
        assert record["verb"] == "finetune"
        assert record["recipe"]["epochs"] == epochs
        assert f"lr-{record['recipe']['lr']}-" in name
        scores = json.loads((unbroken / name / "seed-0" / "metrics.json").read_text())
        assert len(scores["epochs"]) == epochs
        prints.add(scores["fingerprint"])
    assert len(prints) == 6
    # The rate falls to 0 over a run's own length: the first epoch of two is not a run of one.
    one, two = (
        json.loads((unbroken / f"lr-0.003-batch-96-epochs-{n}/seed-0/metrics.jsonl").read_text()
        .splitlines()[1])
        for n in (1, 2)
    )  # fmt: skip
    assert one["step"] == two["step"] == 2
    assert one["lr"] != two["lr"]


@pytest.mark.parametrize(("last", "done"), [(7, 2), (10, 3)])
def test_an_interrupted_search_continues_without_repeating(
    config: FinetuneConfig,
    unbroken: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    last: int,
    done: int,
) -> None:
    """Six runs of 2, 4, 2, 4, 2 and 4 steps; stopped inside the third or the fourth."""
    asked = at(config, tmp_path / "run", search=SIX)
    step, steps = Trainer.step, []

    def interrupted(*args: Any) -> dict[str, float]:
        steps.append(args)
        if len(steps) > last:
            raise KeyboardInterrupt
        return step(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            finetune(asked)
    before = finished(tmp_path / "run")
    assert len(before) == done

    trained = []
    train_seed = jobs.train_seed

    def watched(*args: Any) -> SeedResult:
        trained.append(args)
        return train_seed(*args)

    monkeypatch.setattr(jobs, "train_seed", watched)
    finetune(asked)
    assert len(trained) == 6 - done
    after = finished(tmp_path / "run")
    assert {name: after[name] for name in before} == before
    assert len(after) == 6
    assert report(tmp_path / "run") == report(unbroken)
    again = finetune(asked)
    assert len(trained) == 6 - done
    assert again.search is not None
    assert finished(tmp_path / "run") == after


def test_values_and_seeds_and_options_may_be_added(
    config: FinetuneConfig, unbroken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = SearchOptions(epochs=(1,))
    finetune(at(config, tmp_path / "run", search=small))
    before = finished(tmp_path / "run")
    assert "not part of this result" not in capsys.readouterr().out
    result = finetune(at(config, tmp_path / "run", search=SIX, seeds=(0, 4)))
    after = finished(tmp_path / "run")
    assert {name: after[name] for name in before} == before
    assert len(after) == 12
    assert result.search is not None
    theirs = {s["name"]: s["seeds"][0]["scores"] for s in report(unbroken)["search"]["settings"]}
    ours = {s.name: s.seeds[0].measurement.scores for s in result.search.settings}
    assert ours == theirs
    corrected = dataclasses.replace(small, bias_correction=(True, False))
    result = finetune(at(config, tmp_path / "run", search=corrected))
    assert {name: finished(tmp_path / "run")[name] for name in after} == after
    assert result.search is not None
    assert [s.name[-11:] for s in result.search.settings][1] == "uncorrected"
    assert set(result.search.options()["bias_correction"]) == {"true", "false"}
    left_out = capsys.readouterr().out.split("not part of this result: ")
    assert "epochs-2" in left_out[-1]


def test_a_search_keeps_other_commands_out_until_its_result_is_collected(
    config: FinetuneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = at(config, tmp_path / "run", search=SearchOptions(lr=(3e-3,)))
    other_values = dataclasses.replace(one, search=SearchOptions(lr=(1e-3,)))
    train_seed = jobs.train_seed

    def meanwhile(*args: Any) -> SeedResult:
        other = ThreadPoolExecutor(1)  # a thread is kept out as a process is
        with other, pytest.raises(RunError, match=r"is using .*run; two would"):
            other.submit(finetune, other_values).result()
        return train_seed(*args)

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "train_seed", meanwhile)
        assert finetune(one).scores
    assert finetune(other_values).scores


def result_of(run: Path, name: str, *scores: float, collapsed: int | None = None) -> FinetuneResult:
    seeds = tuple(
        SeedResult(i, Measurement({"f1": s}, collapsed=i == collapsed), run / name / f"seed-{i}", 1)
        for i, s in enumerate(scores)
    )
    setting = {"lr": 5e-5 if name[0] == "a" else 2e-5, "batch_size": 16}
    return FinetuneResult(run / name, "t", ("f1",), seeds, {"f1": 0.4}, 10, setting=setting)


def test_choice_by_mean_or_by_best_run(tmp_path: Path) -> None:
    steady = result_of(tmp_path, "b", 0.8, 0.82)
    lucky = result_of(tmp_path, "a", 0.9, 0.0, collapsed=1)
    by_mean = SearchResult(tmp_path, (lucky, steady), "mean")
    assert by_mean.chosen is steady
    assert dataclasses.replace(by_mean, select="best").chosen is lucky
    assert by_mean.ranked == [steady, lucky]
    assert by_mean.collapsed == ["a seed 1"]
    assert by_mean.options() == {
        "lr": {
            "5e-05": {"runs": 2, "mean": 0.45, "best": 0.9, "collapsed": 1},
            "2e-05": {"runs": 2, "mean": pytest.approx(0.81), "best": 0.82, "collapsed": 0},
        }
    }
    rows = by_mean.cells()
    assert rows[0] == ["lr", "mean f1", "deviation", "best", "runs", "collapsed", "chosen by"]
    assert rows[1] == ["2e-05", "0.8100", "0.0141", "0.8200", "2", "", "mean"]
    assert rows[2] == ["5e-05", "0.4500", "0.6364", "0.9000", "2", "seed 1", "best"]
    found = by_mean.report()
    assert found["models"] == ["b/seed-0/model", "b/seed-1/model"]
    assert (found["search"]["by_mean"], found["search"]["by_best"]) == ("b", "a")
    table = dataclasses.replace(steady, search=by_mean).table()
    assert "chosen on dev by the mean over seeds: b" in table
    assert "collapsed: a seed 1" in table
    own = lucky.table()
    assert "collapsed, 1 of 2: seed 1" in own
    assert "mean of the 1 not collapsed" in own


def test_a_setting_that_diverges_is_left_out_by_name(
    config: FinetuneConfig, tmp_path: Path
) -> None:
    wild = dataclasses.replace(FAST, clip=1e30, warmup=0.0)
    asked = at(
        config, tmp_path / "run", optimizer=wild, epochs=3, search=SearchOptions(lr=(1e30, 1e-3))
    )
    result = finetune(asked)
    assert result.search is not None
    assert [name for name, _ in result.search.diverged] == ["lr-1e+30-batch-96-epochs-3"]
    assert "seed 0: " in result.search.diverged[0][1]
    assert "lr-1e+30-batch-96-epochs-3 has no result" in result.table()
    alone = dataclasses.replace(asked, search=SearchOptions(lr=(1e30,)), run=str(tmp_path / "b"))
    with pytest.raises(DivergenceError, match="none of the 1 settings"):
        finetune(alone)


def test_order_and_head_have_seeds_of_their_own(
    config: FinetuneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[tuple[int, ...]] = []
    step_batches = fit.step_batches

    def watched(*args: Any, **key: Any) -> list[np.ndarray]:
        found = step_batches(*args, **key)
        orders.append(tuple(np.concatenate(found).tolist()))
        return found

    monkeypatch.setattr(fit, "step_batches", watched)
    still = dataclasses.replace(FAST, lr=1e-30)
    asked = at(
        config, tmp_path / "run", optimizer=still, seeds=(3,), order_seeds=(3, 8), head_seeds=(3, 9)
    )
    assert [r.folder for r in asked.seeds_of_runs] == [
        f"seed-3-order-{order}-head-{head}" for order in (3, 8) for head in (3, 9)
    ]
    result = finetune(asked)
    assert len(orders) == 4
    assert orders[0] == orders[1] != orders[2] == orders[3]
    # At a rate of next to nothing a run ends with the head it drew.
    heads = [load_network(s.model).classifier.output.weight for s in result.seeds]  # type: ignore[union-attr]
    assert (heads[0] == heads[2]).all()
    assert (heads[1] == heads[3]).all()
    assert not (heads[0] == heads[1]).any()
    # With one key for all three, the run is that of the plain seed.
    plain = finetune(at(config, tmp_path / "plain", optimizer=still, seeds=(3,)))
    assert plain.seeds[0].measurement == result.seeds[0].measurement
    assert plain.spread() == {}
    assert set(result.spread()) == {"order", "head"}
    assert "between the means of 2 new heads" in result.table()
    assert [s.run_seeds for s in finetune(asked).seeds] == list(asked.seeds_of_runs)


def test_spread_is_between_means(tmp_path: Path) -> None:
    scores = {(0, 0): 0.5, (0, 1): 0.7, (1, 0): 0.6, (1, 1): 0.9}
    seeds = tuple(
        SeedResult(0, Measurement({"f1": s}), tmp_path, 1.0, order=o, head=h)
        for (o, h), s in scores.items()
    )
    result = FinetuneResult(tmp_path, "t", ("f1",), seeds, {"f1": 0.4}, 10)
    assert result.spread() == {
        "order": {"values": 2, "std": pytest.approx(0.15 / 2**0.5)},
        "head": {"values": 2, "std": pytest.approx(0.25 / 2**0.5)},
    }


def test_the_grid_of_the_paper(config: FinetuneConfig) -> None:
    asked = dataclasses.replace(config, search=SearchOptions(paper=True, batch_size=(8,)))
    found = [(c.optimizer.lr, c.batch_size, c.epochs) for c in asked.settings()]
    assert found == [(lr, 8, n) for lr in (5e-5, 3e-5, 2e-5) for n in (2, 3, 4)]
    full = dataclasses.replace(config, search=SearchOptions(paper=True))
    assert len(list(full.settings())) == 18
    assert not any(c.search.enabled for c in full.settings())
    assert not config.search.enabled


def test_the_grid_of_a_task(config: FinetuneConfig) -> None:
    """The one it declares; the paper's if it declares none."""
    search = SearchOptions(default=True, epochs=(1, 2))
    found = dataclasses.replace(config, search=search)
    assert found.searched == SearchOptions(
        lr=(5e-5, 3e-5, 2e-5), batch_size=(16, 32), epochs=(1, 2)
    )
    own = dataclasses.replace(config.task, grid=GridOptions(lr=(1e-3, 1e-4)))
    found = dataclasses.replace(config, task=own, search=SearchOptions(default=True))
    settings = [(c.optimizer.lr, c.batch_size, c.epochs) for c in found.settings()]
    assert settings == [
        (1e-3, config.batch_size, config.epochs),
        (1e-4, config.batch_size, config.epochs),
    ]
    assert task_recipe("sst2", **{"search_default": True}).searched.values == {
        "lr": (5e-5, 4e-5, 3e-5, 2e-5),
        "batch_size": (),
        "epochs": (),
        "bias_correction": (),
        "examples": (),
    }
    assert not task_recipe("sst2").search.enabled
    with pytest.raises(ConfigError, match=r"give one of search_paper, search_default; got s"):
        SearchOptions(paper=True, default=True)
