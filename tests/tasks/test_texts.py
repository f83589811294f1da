"""What makes a task of texts, and what does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bothways.errors import ConfigError, InputError
from bothways.tasks.examples import Examples
from bothways.tasks.kinds import KINDS
from bothways.tasks.options import TaskOptions
from bothways.tasks.readers import Texts
from bothways.tasks.task import EncodedFile
from bothways.tasks.texts import TextTask, check_columns

REGRESSION = TaskOptions(kind="regression")


def rows(*labels: str) -> Texts:
    count = len(labels)
    return Texts(
        Path("x.tsv"), list(range(2, count + 2)), ["text"] * count, None, [(x,) for x in labels]
    )


def define_task(options: TaskOptions, train: Texts) -> TextTask:
    check_columns(options)
    task = KINDS[options.kind].define(options, train)
    assert isinstance(task, TextTask)
    return task


def part(task: TextTask, *labels: str) -> EncodedFile[Texts]:
    """Labelled examples of one token each."""
    own, count = rows(*labels), len(labels)
    tokens, segments = np.zeros(count, np.int32), np.zeros(count, np.int8)
    examples = Examples.of_sequences(tokens, segments, np.arange(count + 1))
    return EncodedFile(own, examples.with_targets(task.targets(own)))


def test_labels_are_found_and_sorted() -> None:
    assert define_task(TaskOptions(), rows("b", "a", "b", "c", "a", "c")).options.labels == (
        "a",
        "b",
        "c",
    )
    # As numbers where they are: "10" comes after "2".
    assert define_task(TaskOptions(), rows("10", "2", "2", "1", "10", "1")).options.labels == (
        "1",
        "2",
        "10",
    )


def test_labels_given_keep_their_order() -> None:
    task = define_task(TaskOptions(labels=("yes", "no")), rows("no", "no"))
    assert task.options.labels == ("yes", "no")
    assert task.outputs == 2
    assert task.targets(rows("no", "yes")).tolist() == [1, 0]
    assert task.metrics == ("accuracy", "f1", "matthews")


def test_an_unknown_label_is_named_with_its_line() -> None:
    task = define_task(TaskOptions(), rows("neutral", "entails"))
    with pytest.raises(InputError, match=r"x\.tsv:3: unknown label 'entail'; the labels are"):
        task.targets(rows("neutral", "entail"))


@pytest.mark.parametrize("score", ["nan", "inf", "-inf", "3,5", "high", "true", "1e999"])
def test_a_score_must_be_a_finite_number(score: str) -> None:
    task = define_task(REGRESSION, rows("1"))
    assert task.outputs == 1
    assert task.targets(rows("1", "-2.5")).tolist() == [1.0, -2.5]
    with pytest.raises(InputError, match=r"x\.tsv:3: the score .* is not a finite number"):
        task.targets(rows("1.0", score))


def test_training_labels_that_are_no_classification() -> None:
    with pytest.raises(InputError, match="every example has the label 'a'"):
        define_task(TaskOptions(), rows("a", "a"))
    with pytest.raises(InputError, match=r"4 different labels for 5 .*kind to regression"):
        define_task(TaskOptions(), rows("1.2", "3.4", "0.5", "2.2", "1.2"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TaskOptions(labels=("a",)), "at least two"),
        (TaskOptions(labels=("a", "a")), "each once"),
        (TaskOptions(labels=("a", "b"), kind="regression"), "regression has scores"),
        (TaskOptions(text_b="label"), "'label' is named for 2"),
        (TaskOptions(text_b="text"), "'text' is named for 2"),
        (TaskOptions(metrics=("pearson",)), "not a metric for classification"),
    ],
)
def test_options_that_make_no_task(options: TaskOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        define_task(options, rows("1", "0"))


def test_baselines() -> None:
    task = define_task(TaskOptions(), rows("0", "1"))
    found = task.baseline(part(task, "1", "1", "0"), part(task, "1", "0", "0", "0"))
    assert found.scores["accuracy"] == 0.25
    regression = define_task(REGRESSION, rows("0"))
    train, dev = part(regression, "1", "1", "1"), part(regression, "0", "1", "2")
    assert regression.baseline(train, dev).scores["pearson"] == 0
