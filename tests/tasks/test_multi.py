"""Several labels and several scores per text: what files may hold, thresholds, measures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as oracle

from bothways.errors import InputError
from bothways.tasks.examples import Examples
from bothways.tasks.metrics import tuned_threshold
from bothways.tasks.options import MultiLabelOptions, TaskOptions
from bothways.tasks.readers import Texts, read_rows
from bothways.tasks.task import EncodedFile
from bothways.tasks.texts import LabelTask, ScoreTask

LABELS = TaskOptions(kind="multilabel")


SCORES = TaskOptions(kind="multiregression")


def read(folder: Path, name: str, content: str, options: TaskOptions) -> Texts:
    (folder / name).write_text(content, encoding="utf-8")
    return read_rows(folder / name, options, labelled=True)


def labels_in(folder: Path, name: str, content: str, **options: Any) -> list[tuple[str, ...]]:
    found = read(folder, name, content, replace(LABELS, **options)).labels
    assert found is not None
    return found


def several(*sets: tuple[str, ...]) -> Texts:
    count = len(sets)
    path, lines = Path("x.tsv"), list(range(2, count + 2))
    return Texts(path, lines, ["text"] * count, labels=list(sets))


def encoded(task: Any, *sets: tuple[str, ...]) -> EncodedFile[Texts]:
    rows, count = several(*sets), len(sets)
    tokens, segments = np.zeros(count, np.int32), np.zeros(count, np.int8)
    examples = Examples.of_sequences(tokens, segments, np.arange(count + 1))
    return EncodedFile(rows, examples.with_targets(task.targets(rows)))


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.jsonl", '{"sentence": "x", "label": ["a", "b"]}\n{"sentence": "y", "label": []}', {}),
        ("a.json", '[{"sentence": "x", "label": ["a", "b"]}, {"sentence": "y", "label": []}]', {}),
        ("a.tsv", 'sentence\tlabel\nx\t["a", "b"]\ny\t', {}),
        ("a.csv", 'sentence,label\nx,"[""a"", ""b""]"\ny,[]', {}),
        ("a.tsv", "sentence\tlabel\nx\ta|b\ny\t", {"label_separator": "|"}),
        ("a.csv", 'sentence,label\nx,"a, b, a"\ny,', {"label_separator": ","}),
        ("a.csv", "sentence,label\nx,a  b\ny,", {"label_separator": " "}),
        ("a.jsonl", '{"sentence": "x", "label": "a;b"}\n{"sentence": "y", "label": ""}',
         {"label_separator": ";"}),
        ("a.jsonl", '{"sentence": "x", "label": ["a", "b"]}\n{"sentence": "y", "label": []}',
         {"label_separator": ";"}),
        ("a.tsv", "sentence\ta\tb\tc\nx\t1\tyes\t0\ny\t0\tNo\tfalse",
         {"label_columns": tuple("abc")}),
        ("a.jsonl", '{"sentence": "x", "a": true, "b": 1, "c": 0.0}\n'
         '{"sentence": "y", "a": false, "b": "no", "c": 0}', {"label_columns": tuple("abc")}),
        ("a.tsv", "x\t1\t1\ny\t0\t0",
         {"label_columns": ("1", "2"), "labels": ("a", "b"), "header": False, "text": "0"}),
    ],
)  # fmt: skip
def test_labels_as_lists_joined_and_in_columns(
    name: str, content: str, options: dict[str, Any], tmp_path: Path
) -> None:
    assert labels_in(tmp_path, name, content, **options) == [("a", "b"), ()]


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.tsv", "sentence\tlabel\nx\ta|b", {},
         r"a\.tsv:2: column 'label' holds 'a\|b', which is not a list.*label_separator"),
        ("a.jsonl", '{"sentence": "x", "label": "a"}', {}, r"a\.jsonl:1: .*which is not a list"),
        ("a.jsonl", '{"sentence": "x", "label": null}', {}, "has no label"),
        ("a.jsonl", '{"sentence": "x", "label": {"a": 1}}', {}, "not one label"),
        ("a.jsonl", '{"sentence": "x", "label": [["a"]]}', {}, r"a\.jsonl:1: the list in 'label'"),
        ("a.jsonl", '{"sentence": "x", "label": [null]}', {}, r"the list in 'label' holds null"),
        ("a.jsonl", '{"sentence": "x", "label": [NaN]}', {}, r"the list in 'label' holds NaN"),
        ("a.jsonl", '{"sentence": "x", "label": [""]}', {}, r"a\.jsonl:1: the label is empty"),
        ("a.tsv", "sentence\tlabel\nx\ta||b", {"label_separator": "|"}, "the label is empty"),
        ("a.jsonl", '{"sentence": "x", "label": ["a|b"]}', {"label_separator": "|"},
         "the label 'a|b' holds label_separator"),
        ("a.tsv", "sentence\tlabel\nx\t['a' 'b']", {}, r"a\.tsv:2: .*, not a list of labels"),
        ("a.tsv", "sentence\ta\nx\tmaybe", {"label_columns": ("a",)},
         r"a\.tsv:2: column 'a' holds 'maybe'; .*0, false or no"),
        ("a.tsv", "sentence\ta\nx\t", {"label_columns": ("a",)}, r"a\.tsv:2: column 'a' holds ''"),
        ("a.tsv", "sentence\ta\nx\t1", {"label_columns": ("b",)}, "no column 'b'"),
    ],
)  # fmt: skip
def test_what_is_no_list_of_labels(
    name: str, content: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        labels_in(tmp_path, name, content, **options)


NAMES = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=8
).map(str.strip)


SETS = st.lists(st.lists(NAMES.filter(bool), max_size=4, unique=True), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(SETS, st.sampled_from(["", "|", ", ", ";", "#"]))
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, sets: list[list[str]], separator: str
) -> None:
    folder = tmp_path_factory.mktemp("sets")
    if separator:
        drop = str.maketrans(dict.fromkeys(separator, "_"))
        sets = [list(dict.fromkeys(n.translate(drop) for n in names)) for names in sets]
    options = replace(LABELS, label_separator=separator)
    names = tuple({name for found in sets for name in found}) or ("a",)
    task = LabelTask(replace(options, labels=names))
    lines = [f"x\t{task.shown(found)}" for found in sets]
    content = "\n".join(["sentence\tlabel", *lines]) + "\n"
    assert read(folder, "a.tsv", content, task.options).labels == [tuple(s) for s in sets]


def test_scores_of_several_columns_and_lists(tmp_path: Path) -> None:
    columns = replace(SCORES, label_columns=("p", "q"))
    rows = read(tmp_path, "a.tsv", "sentence\tp\tq\nx\t1.5\t-2\ny\t0\t-100", columns)
    task = ScoreTask.define(columns, rows)
    assert task.options.labels == ("p", "q")
    assert task.targets(rows).tolist() == [[1.5, -2], [0, -100]]
    # -100 is a score, not a target to be ignored.
    examples = Examples.of_sequences(np.zeros(2, np.int32), np.zeros(2, np.int8), np.arange(3))
    assert examples.with_targets(task.targets(rows)).trainable.tolist() == [0, 1]
    content = '{"sentence": "x", "label": [1.5, -2]}\n{"sentence": "y", "label": [1]}'
    rows = read(tmp_path, "a.jsonl", content, SCORES)
    task = ScoreTask.define(SCORES, rows)
    assert task.options.labels == ("label_0", "label_1")
    with pytest.raises(InputError, match=r"a\.jsonl:2: has 1 scores; the task has 2"):
        task.targets(rows)
    with pytest.raises(InputError, match=r"a\.jsonl:1: the list in 'label' holds NaN"):
        read(tmp_path, "a.jsonl", '{"sentence": "x", "label": [NaN, 1]}', SCORES)
    rows = read(tmp_path, "a.tsv", "sentence\tp\tq\nx\tnan\t-2", columns)
    with pytest.raises(InputError, match=r"a\.tsv:2: the score 'p' 'nan' is not a finite number"):
        ScoreTask.define(columns, rows).targets(rows)


def f1(gold: np.ndarray, given: np.ndarray) -> float:
    """Some labels are right, so it is defined."""
    return float(2 * (gold & given).sum() / (gold.sum() + given.sum()))


def test_the_threshold_has_the_highest_f1_of_all() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        count = int(rng.integers(1, 12))
        probabilities = rng.integers(0, 6, count) / 5
        gold = rng.random(count) < 0.5
        found = tuned_threshold("f1", probabilities, gold, 0.5)
        if not gold.any():
            assert found == 0.5
            continue
        reached = f1(gold, probabilities >= found)
        assert reached == oracle.f1_score(gold, probabilities >= found, zero_division=0)
        for other in np.linspace(0, 1, 21):
            assert reached >= f1(gold, probabilities >= other)


def test_tuning_each_one_or_none() -> None:
    task = LabelTask.define(LABELS, several(("a",), ("b",)))
    dev = encoded(task, ("a",), ("a",), ("b",), ())
    logits = np.array([[-1, -3], [-2, -4], [-3, -2.5], [-4, -5]], dtype=np.float32)
    tuned = task.tuned(dev, logits)
    assert tuned.measure(dev, logits).scores["f1_macro"] == 1
    assert len(set(tuned.options.multilabel.thresholds)) == 2
    none = LabelTask(replace(task.options, multilabel=MultiLabelOptions(tune="none")))
    assert none.tuned(dev, logits) is none
    assert none.measure(dev, logits).scores["f1_micro"] == 0
    one = LabelTask(replace(task.options, multilabel=MultiLabelOptions(tune="one")))
    assert len(set(one.tuned(dev, logits).options.multilabel.thresholds)) == 1
    # They are said, and so is one that is set; the usual half is not.
    a, b = tuned.options.multilabel.thresholds
    (said,) = tuned.measure(dev, logits).notes
    assert said == f"labels are given from these probabilities: a {a:.4g}, b {b:.4g}; tuned on dev"
    given = MultiLabelOptions(tune="none", threshold=0.3)
    fixed = LabelTask(replace(task.options, multilabel=given))
    assert fixed.threshold_note == "labels are given from a probability of 0.3"
    assert not none.threshold_note
    # A file with the labels in another order has the thresholds in that order.
    other, _ = tuned.for_file(replace(LABELS, labels=("b", "a")), learned=True)
    assert other.options.multilabel.thresholds == tuned.options.multilabel.thresholds[::-1]


def test_baselines_are_constant() -> None:
    task = LabelTask.define(LABELS, several(("a",), ("a", "b"), ("a",), ("c",)))
    train = encoded(task, ("a",), ("a", "b"), ("a",), ("c",))
    found = task.baseline(train, encoded(task, ("a",), ("b",)))
    assert found.parts["a"]["recall"] == 1
    assert found.parts["b"]["recall"] == found.parts["c"]["recall"] == 0
    assert found.collapsed
