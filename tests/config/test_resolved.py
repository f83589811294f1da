"""Options that follow from others: unset in recipes, filled in where they are used and recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bothways.config.fields import recipe_fields
from bothways.config.parsing import CommandLine, load_recipe
from bothways.families.options import SizeOptions
from bothways.finetuning.options import PAPER_GRID, FinetuneConfig, SearchOptions
from bothways.pretraining.options import PretrainConfig
from bothways.tasks.options import GridOptions, TaskOptions
from bothways.training.runfolder import open_run


def printed(cls: type[Any], folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> Path:
    """What ``--print-config`` prints, as a file."""
    with pytest.raises(SystemExit):
        CommandLine(cls, "bothways x").parse([*words, "--print-config"])
    path = folder / "recipe.yaml"
    path.write_text(capsys.readouterr().out)
    return path


def test_a_recipe_printed_for_one_kind_of_task_serves_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = printed(FinetuneConfig, tmp_path, capsys)
    assert load_recipe(FinetuneConfig, path).sequence_length == 128
    assert load_recipe(FinetuneConfig, path, {"kind": "spans"}).sequence_length == 384
    assert load_recipe(FinetuneConfig, path, {"max_length": 64}).sequence_length == 64
    assert load_recipe(FinetuneConfig, path, {"max_length": 0}).sequence_length == 128


def test_a_config_made_for_one_kind_of_task_serves_another() -> None:
    spans = replace(FinetuneConfig(), task=TaskOptions(kind="spans"))
    assert spans.sequence_length == 384
    assert replace(spans, task=TaskOptions()).sequence_length == 128


def test_a_default_search_is_that_of_the_task_it_is_used_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = printed(FinetuneConfig, tmp_path, capsys, "--set", "search_default=true")
    papers = load_recipe(FinetuneConfig, path)
    assert papers.searched.values == {**PAPER_GRID, "bias_correction": (), "examples": ()}
    own = load_recipe(FinetuneConfig, path, {"grid": {"lr": [1e-3]}, "search_batch_size": [8]})
    values = {
        "lr": (1e-3,),
        "batch_size": (8,),
        "epochs": (),
        "bias_correction": (),
        "examples": (),
    }
    assert own.searched.values == values
    assert [setting.setting["lr"] for setting in own.settings()] == [1e-3]


def test_a_recipe_printed_for_new_weights_leaves_the_dropout_of_a_start_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = printed(PretrainConfig, tmp_path, capsys)
    assert load_recipe(PretrainConfig, path).shape(100).dropout == 0.1
    started = load_recipe(PretrainConfig, path, {"start": "model"})
    assert (started.model.dropout, started.model.attention_dropout) == (None, None)


def test_values_that_are_equal_when_resolved_are_one_recipe() -> None:
    task = TaskOptions(kind="spans", grid=GridOptions(lr=(1e-3,)))
    unset, given = FinetuneConfig(task=task), FinetuneConfig(task=task, max_length=384)
    assert unset.resolved() == given
    assert recipe_fields(unset) == recipe_fields(given)
    assert recipe_fields(unset)["max_length"] == 384
    assert recipe_fields(unset) != recipe_fields(replace(given, max_length=128))
    searching = FinetuneConfig(task=task, search=SearchOptions(default=True)).resolved()
    assert searching.search == SearchOptions(lr=(1e-3,))
    new = PretrainConfig(model=SizeOptions(dropout=0.1, attention_dropout=0.1))
    assert recipe_fields(PretrainConfig()) == recipe_fields(new)


def test_a_run_folder_records_what_was_resolved(tmp_path: Path) -> None:
    def opened(config: FinetuneConfig) -> dict[str, Any]:
        run = open_run(tmp_path / "run", config, verb="finetune", inputs={}, resolve=dict)
        return run.record

    before = FinetuneConfig(max_length=128)
    assert opened(before) == opened(FinetuneConfig())
    assert opened(before)["config"]["max_length"] == 128
