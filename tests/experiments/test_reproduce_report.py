"""What `bothways reproduce` prints and writes: cells, settings, plots, plans and notes."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bothways.experiments.chance import is_clear
from bothways.experiments.options import ReproduceConfig
from bothways.experiments.reproduce import grid as notes
from bothways.experiments.reproduce.execute import Ledger
from bothways.experiments.reproduce.grid import make_grid
from bothways.experiments.reproduce.page import page
from bothways.experiments.reproduce.report import (
    Cell,
    Score,
    as_published,
    cells,
    chance_notes,
    markdown,
    record,
    shown,
)
from bothways.experiments.reproduce.run import reproduce
from bothways.experiments.reproduce.steps import Step
from bothways.experiments.reproduce.tables import SCALES, TABLES
from reproduce_examples import grid_of, kinds, make_world, pretend


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options that give every kind of data."""
    return make_world(tmp_path, monkeypatch)


def test_cells_say_how_many_runs_and_what_became_of_them() -> None:
    scores = (Score(0, 0, 80.0), Score(0, 1, 82.0, collapsed=True), Score(1, 0, 84.0))
    cell = Cell(scores, 4, missing=("not finished",))
    assert shown(cell) == "82.0 ± 2.0 (3 of 4) (1 collapsed)"
    assert cell.pretrain_std == pytest.approx(math.sqrt(4.5))
    assert shown(Cell((), 2, missing=("x",))) == "–"
    assert shown(Cell((), 1, diverged=("x",))) == "diverged"
    assert shown(Cell(scores[:1], 1), "bits_per_character") == "80.000"
    assert [as_published(f) for f in (94.0, 86.05, 5.84, 3.5)] == ["94.0", "86.05", "5.84", "3.5"]


def test_test_scores_and_held_out_text_find_their_places(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    for name, expected in (
        ("table7", [[70.0, 55.0], *[[50.0, 40.0]] * 6]),
        ("masks", [[30.0, 80.0, 80.0]] * 2),
        ("table6", [[9.0, 80.0, 80.0, 80.0]] * 6),
    ):
        config = ReproduceConfig(name, scale="cpu", **world)
        reproduce(config)
        found = make_grid(TABLES[name], SCALES["cpu"], config)
        means = [[cell.mean for cell in row] for row in cells(found, Ledger(Path(config.out)))]
        assert means == [pytest.approx(row) for row in expected], name


def test_the_record_holds_every_run_and_the_fingerprint_what_it_depends_on(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    config = ReproduceConfig("figure5", scale="cpu", **world, pretrain_seeds=(0, 1))
    reproduce(config)
    found, ledger = make_grid(TABLES["figure5"], SCALES["cpu"], config), Ledger(Path(config.out))
    told = record(found, cells(found, ledger), ledger, config)
    assert told["complete"]
    runs = told["rows"][0]["cells"][0]["runs"]
    assert [(r["pretrain_seed"], r["seed"]) for r in runs] == [
        (p, s) for p in (0, 1) for s in (0, 1, 2)
    ]
    assert all(step["attempts"] and step["machine"]["cores"] for step in told["steps"])
    other = make_grid(TABLES["figure5"], SCALES["cpu"], dataclasses.replace(config, seeds=(0, 1)))
    assert told["fingerprint"] != record(other, cells(other, ledger), ledger, config)["fingerprint"]
    text = markdown(found, cells(found, ledger), ledger, config)
    assert "| masked LM | 400 | 80.0 ± 0.0 |" in text
    assert "published |" not in text.split("## ")[0], "the figure prints no numbers"


def test_the_settings_say_what_is_masked_and_paired(world: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("masking: {rate: 0.25, kind: words}\npairs: {kind: order}\n")
    config = ReproduceConfig("table8", scale="cpu", **world, recipe=str(path))
    found, ledger = make_grid(TABLES["table8"], SCALES["cpu"], config), Ledger(Path(config.out))
    text = markdown(found, cells(found, ledger), ledger, config)
    assert "| pairs.kind order; masking.kind words, masking.rate 0.25; unless" in text
    rows = [line for line in text.splitlines() if line.startswith("| CoNLL-2003")]
    assert [row.split(" | ")[0] for row in rows] == ["| CoNLL-2003", "| CoNLL-2003, by features"]
    assert "6 epochs, length 128, BiLSTM of 256 in each direction, context: the" in rows[1]
    assert [row.split("; seeds ")[1] for row in rows] == ["0 1 2 |"] * 2


@pytest.mark.parametrize("name", list(TABLES))
def test_every_table_draws_with_nothing_there(name: str, world: dict[str, Any]) -> None:
    from bothways.experiments.reproduce.report import draw

    found = grid_of(name, "cpu", **world)
    assert draw(found, cells(found, Ledger(Path(world["out"])))).startswith(b"\x89PNG")


def test_the_plan_says_what_is_done_and_what_is_left(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    config = ReproduceConfig("masks", scale="cpu", **world)
    before = reproduce(dataclasses.replace(config, plan=True))
    assert not Path(config.out).exists(), "a plan computes nothing"
    assert "16.4 M" in before
    steps = len(grid_of("masks", "cpu", **world).steps)
    assert f"{steps} steps, 0 done" in before
    reproduce(config)
    after = reproduce(dataclasses.replace(config, plan=True))
    assert f"{steps} steps, {steps} done; about 0.0 minutes left" in after


def test_the_plan_counts_what_a_row_and_a_split_change(world: dict[str, Any]) -> None:
    """Left to right predicts every token; a BiLSTM is slow; a split file is there before its parts.

    Measured with mini: 45.5 minutes instead of 24.9, and 46 instead of 20.
    """
    qnli = Path(world["glue"]) / "QNLI" / "dev.tsv"
    qnli.write_text("1\tWhen was it?\tIt was then.\tentailment\n" * 20_000)
    plan = reproduce(ReproduceConfig("table5", scale="cpu", **world, plan=True, seeds=(0,)))
    rows = [line.split("│")[1:-1] for line in plan.splitlines() if line.startswith("│")]
    table = {row[0].strip().rsplit("-", 1)[0]: (row[2], row[3]) for row in rows}

    def hours(name: str) -> float:
        return float(table[name][1].replace("~", ""))

    causal = "pairs-full-masking-left_to_right"
    assert 1.5 < hours(f"pretrain-{causal}") / hours("pretrain-pairs-full") < 2.5
    qnli_part = f"finetune-qnli-part-{causal}"
    assert 1.8 < hours(f"{qnli_part}-lstm-256") / hours(qnli_part) < 2.8
    tokens = float(table["finetune-qnli-part-base"][0].split()[0])
    assert tokens == pytest.approx(4 * qnli.stat().st_size / 4.5 / 1e6, rel=0.1)


def test_steps_of_another_precision_or_device_are_kept_and_named(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is in a step's name."""
    pretend(monkeypatch)
    config = ReproduceConfig("masking-rate", scale="cpu", **world, tasks=("mrpc",))
    found = grid_of("masking-rate", "cpu", **world, tasks=("mrpc",))
    ledger = Ledger(Path(world["out"]))
    reproduce(config)
    runs = kinds(found, "pretrain")

    def recorded(step: Step, precision: str, device: str) -> None:
        told = {**(ledger.record(step) or {}), "run": {"precision": precision, "device": device}}
        ledger.path(step).write_text(json.dumps(told))

    recorded(runs[0], "fp32", "cpu")
    recorded(runs[1], "fp32", "cpu")

    def shown(**asked: Any) -> str:
        return reproduce(dataclasses.replace(config, plan=True, **asked))

    told = shown(precision="bf16")
    assert "Computed with fp32 on cpu, not with bf16 as requested, and kept" in told
    assert f"(a new --out computes them again): {runs[0].name}, {runs[1].name}" in told
    assert "not with cuda as requested" in shown(device="cuda")
    for same in ({}, {"precision": "fp32", "device": "cpu"}, {"precision": "bf16", "steps": 9}):
        assert "as requested" not in shown(**same)
    assert "Rows differ" not in reproduce(config)
    recorded(runs[1], "bf16", "NVIDIA H100")
    assert "not with cuda as requested" in shown(device="cuda")
    assert (
        "- Rows differ in how they were computed, pre-training: fp32 on cpu for 15%; "
        "bf16 on NVIDIA H100 for 30%.\n"
    ) in reproduce(config)


@pytest.mark.parametrize(("tokens", "same"), [(4000 * 0.9 * 32 * 128 - 1, False), (5e7, True)])
def test_static_masks_that_never_repeat_are_named(
    tokens: float, same: bool, world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At cpu scale masks are repeated after one pass, which the longest phase may not complete."""
    pretend(monkeypatch)
    made = SimpleNamespace(fingerprint="abc", report={"train": {"tokens": int(tokens)}})
    monkeypatch.setattr(notes, "Manifest", SimpleNamespace(read=lambda _: made))
    config = ReproduceConfig("masks", scale="cpu", **world)
    assert ("both rows are the same" in reproduce(dataclasses.replace(config, plan=True))) == same
    assert ("both rows are the same" in reproduce(config)) == same
    rate = dataclasses.replace(config, name="masking-rate", plan=True)
    assert "both rows are the same" not in reproduce(rate), "whose masks are drawn again"


# ------------------------------------------------------------------------------ more than chance


def test_what_is_more_than_chance() -> None:
    assert is_clear([0.60, 0.61, 0.60], [0.69, 0.70, 0.69], examples=600)
    assert not is_clear([0.60, 0.61, 0.60], [0.69, 0.70, 0.69], examples=60)
    assert not is_clear([0.50, 0.70, 0.60], [0.60, 0.80, 0.69], examples=600), "seeds differ more"
    assert not is_clear([0.6], [0.6], examples=10_000)


def test_a_table_for_a_class_says_what_is_more_than_chance(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted difference is named with its size, one that is not there is not."""
    found = grid_of("table5", "class", out=world["out"])
    ledger = Ledger(Path(world["out"]))

    def result(_: Ledger, step: Step) -> dict[str, Any] | None:
        planted = 0.2 if "package" in step.name and "left_to_right" in step.name else 0.0
        runs = {
            part: {"scores": {"accuracy": 0.6 + planted + 0.01 * number}, "collapsed": False}
            for number, part in enumerate(step.wanted)
        }
        return {"runs": runs, "baseline": {"accuracy": 0.5}, "dev_examples": 600}

    monkeypatch.setattr(Ledger, "result", result)
    constant, told = chance_notes(found, ledger)
    assert constant.count("50.0 in") == 2
    assert told.startswith("Above chance, compared with BERT: LTR & no NSP +20.0 in SST-2")
    assert told.count("+20.0") == 2
    assert "600 dev examples" in told
    assert "follows" not in told
    config = ReproduceConfig("table5", scale="class", out=world["out"])
    shown = page(found, cells(found, ledger), ledger, config, b"")
    assert "bothways reproduce table5" in shown
    assert "--scale class" in shown
    assert constant in shown
