"""The reports of a run: what they show is what the predictions say, and the page is sound HTML."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import shlex
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig
from bothways.io import html
from bothways.tasks.report_panels import (
    ExampleScores,
    Mistake,
    calibration_panel,
    confusion_panel,
    length_panel,
    marked_text,
    panel_from_record,
    panel_record,
    worst,
)
from finetuning_examples import start_model, word_config, word_files

EMPTY = {"meta", "img", "br"}


class Reader(HTMLParser):
    """Texts of a page; every tag closed by its own, nothing from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.links: list[str] = []
        self.pictures: list[bytes] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "iframe", "object")
        own = dict(attrs)
        if tag == "img":
            kind, _, data = str(own["src"]).partition(",")
            assert kind == "data:image/png;base64"
            self.pictures.append(base64.b64decode(data))
        if "href" in own:
            self.links.append(str(own["href"]))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(data)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_texts_are_escaped(text: str) -> None:
    pieces = [
        html.note(text),
        html.folded(
            text, html.marked([(text, "right", text), (text, "wrong", ""), (text, "", "")])
        ),
        html.heading(text),
        html.paragraph(text),
        html.listing([text]),
        html.bars(text, [(text, 1.0, text)]),
        html.table([text], [[text]], links=[text]),
        html.long_text(text),
    ]
    found = Reader(html.page(text, pieces))
    shown, plain = (re.sub(r"\s", "", t) for t in ("".join(found.texts), text))
    assert not plain or shown.count(plain) >= 15


def test_confusions() -> None:
    gold, predicted = np.array([0, 0, 1, 2, 2]), np.array([0, 1, 1, 0, 0])
    found = confusion_panel(predicted, gold, ("x", "y", "z"))
    assert found.header[1:] == ("x", "y", "z")
    assert found.rows == (("x", 1, 1, 0), ("y", 0, 1, 0), ("z", 2, 0, 0))
    labels = tuple(str(i) for i in range(30))
    many = confusion_panel(predicted, gold, labels)
    assert many.rows == (("2", "0", 2), ("0", "1", 1))
    assert panel_from_record(json.loads(json.dumps(panel_record(found)))) == found
    numbers = dataclasses.replace(found, rows=(("x", np.float32(0.5), np.int64(3)),))
    assert json.loads(json.dumps(panel_record(numbers)))["rows"] == [["x", 0.5, 3]]


def test_calibration() -> None:
    sure = np.array([0.95, 0.91, 1.0, 0.55])
    found = calibration_panel(sure, np.array([True, True, False, True]))
    assert [row[:2] for row in found.rows] == [("0.5 to 0.6", 1), ("0.9 to 1.0", 3)]
    assert found.rows[1][2:] == (pytest.approx(2.86 / 3), pytest.approx(2 / 3))
    error = 0.25 * 0.45 + 0.75 * (2.86 / 3 - 2 / 3)
    assert f"error {error:.4f}" in found.note


@given(st.lists(st.integers(3, 60), min_size=1, max_size=80))
def test_length_bins_hold_every_example_once(lengths: list[int]) -> None:
    values = np.array(lengths)
    found = length_panel(values, ExampleScores("accuracy", values.astype(np.float64)))
    assert 1 <= len(found.rows) <= 5
    total = 0
    for shown, count, mean in found.rows:
        least, _, most = str(shown).partition(" to ")
        here = values[(values >= int(least)) & (values <= int(most or least))]
        assert count == len(here)
        assert mean == pytest.approx(here.mean())
        total += len(here)
    assert total == len(lengths)


def test_the_worst_come_first() -> None:
    many = [Mistake(n, (("text", "x" * 2000),), "a", "b", n % 7, "") for n in range(100)]
    found = worst(many, limit=20)
    assert [m["weight"] for m in found] == [6] * 14 + [5] * 6
    assert [m["example"] for m in found[:3]] == [6, 13, 20]
    assert len(found[0]["texts"][0][1]) < 700


def test_gold_and_predicted_places_are_marked() -> None:
    text = "Ann Lee met Bo in Rome"
    gold = [(0, 7, "PER"), (12, 14, "PER"), (18, 22, "LOC")]
    found = marked_text(text, gold, [(0, 3, "PER"), (12, 14, "PER"), (18, 22, "<b>")])
    assert "".join(piece for piece, _, _ in found) == text
    assert [piece for piece in found if piece[1]] == [
        ("Ann", "wrong", "predicted PER"),
        (" Lee", "missed", "gold PER “Ann Lee”"),  # of which a part was predicted
        ("Bo", "right", "PER"),
        ("Rome", "wrong", "predicted <b>, gold LOC"),
    ]
    shown = html.marked(found)
    assert '<mark class="right">Bo<small> ✓ PER</small></mark>' in shown
    assert "<b>" not in shown
    assert marked_text("", [], []) == ()
    assert marked_text("ab", [(1, 1, "x")], []) == (("ab", "", ""),)  # nothing in it


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> FinetuneConfig:
    folder = tmp_path_factory.mktemp("page")
    found = word_config(start_model(folder), word_files(folder), folder / "run")
    dev = Path(found.task.dev)
    text = dev.read_text().replace("w9", "<b>&amp;</b>")
    dev.write_text(text)
    return found


def words_of(path: Path) -> str:
    return " ".join(Reader(path.read_text()).texts)


def page_of(run: Path) -> str:
    return (run / "report.html").read_text()


def test_page_of_a_classification(config: FinetuneConfig) -> None:
    result = finetune(dataclasses.replace(config, seeds=(0, 1), epochs=2))
    run = Path(config.run)
    found = Reader((run / "report.html").read_text())
    shown = " ".join(found.texts)
    assert len(found.pictures) == 3  # loss, accuracy and F1
    assert all(picture.startswith(b"\x89PNG") for picture in found.pictures)
    for words in ("seed 0", "seed 1", "Confusion matrix", "Calibration", "Accuracy by length"):
        assert words in shown
    assert f"{result.mean():.4f}" in shown
    assert "input.train" in shown

    report = json.loads((run / "report.json").read_text())
    best = report["best_run"]
    assert best["name"] == result.best.name
    lines = (result.best.folder / "dev_predictions.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines][1:]
    wrong = {int(row[0]): row for row in rows if row[1] != row[2]}
    assert best["errors_total"] == len(wrong)
    assert len(best["errors"]) == min(50, len(wrong))
    surest = sorted((max(float(p) for p in row[3:]) for row in wrong.values()), reverse=True)
    assert [e["weight"] for e in best["errors"]] == pytest.approx(surest[:50], abs=1e-5)
    dev = Path(config.task.dev).read_text().splitlines()[1:]
    for error in best["errors"]:
        row = wrong[error["example"]]
        assert (error["predicted"], error["gold"]) == (row[1], row[2])
        assert error["texts"] == [["sentence", dev[error["example"]].split("\t")[0]]]
        assert error["texts"][0][1] in shown
    for label, *shares, predicted, support in best["panels"][0]["rows"]:
        assert all(0 <= share <= 1 for share in shares)
        assert predicted == sum(row[1] == label for row in rows)
        assert support == sum(row[2] == label for row in rows)
    matrix = best["panels"][1]
    for label, *counts in matrix["rows"]:
        for other, count in zip(matrix["header"][1:], counts, strict=True):
            assert count == sum(row[1:3] == [other, label] for row in rows)
    lengths = best["panels"][3]["rows"]
    assert sum(count for _, count, _ in lengths) == 64
    mean = sum(count * value for _, count, value in lengths) / 64
    assert mean == pytest.approx(result.best.measurement.scores["accuracy"])
    steps, scores = result.curves()["accuracy on dev"]["seed 1"]
    assert steps == [4, 8]
    assert scores[1] == result.seeds[1].measurement.scores["accuracy"]
    assert len(result.curves()["training loss"]["seed 1"][0]) == 8

    assert "The best run is chosen on dev" in shown

    # How it was made, from the record.
    record = json.loads((run / "run.json").read_text())
    assert f"Begun {record['started'][:16].replace('T', ' ')} UTC" in shown
    (command,) = re.findall(r'<pre class="command">(.*?)</pre>', page_of(run))
    parts = shlex.split(unescape(re.sub("<[^>]+>", "", command)))
    assert parts[:2] == ["bothways", "finetune"]
    assert parts[parts.index("--seeds") + 1 :][:2] == ["0", "1"]
    assert parts[parts.index("--train") + 1] == config.task.train
    for path, count in [(config.task.train, "192"), (config.task.dev, "64")]:
        assert re.search(rf">{re.escape(path)}</td><td[^>]*>{count}<", page_of(run))
    (whose,) = [text for text in found.texts if "f1 is that of the class" in text]
    assert repr(best["panels"][0]["rows"][1][0]) in whose
    assert f"bothways {record['versions']['bothways']}" in shown

    # Written again from what the folder holds.
    before = (run / "report.html").read_bytes()
    finetune(dataclasses.replace(config, seeds=(0, 1), epochs=2))
    assert (run / "report.html").read_bytes() == before
