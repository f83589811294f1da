"""Lines, tables and progress: in a terminal, in a script and in a notebook."""

from __future__ import annotations

import builtins
import contextlib
import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import rich.jupyter

from bothways import cli
from bothways.io import html
from bothways.io import terminal as console
from bothways.io.streams import visible
from bothways.io.terminal import (
    line_printer,
    print_report,
    progress_of,
    progress_of_stages,
    table_text,
    text_console,
    training_console,
)
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.runtime.ensemble import load_ensemble
from bothways.runtime.pipeline import outputs_of
from bothways.tasks.examples import encode_examples
from bothways.tasks.kinds import task_of
from bothways.training.monitor import Monitor
from model_examples import small_config, small_tokenizer


def test_a_line_a_minute_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: now))
    with progress_of("predicting") as show:
        for done in range(100, 2001, 100):  # of 10 seconds each
            now += 10
            show(done, 2000)
    shown = capsys.readouterr()
    assert not shown.out
    assert shown.err.splitlines() == [
        "predicting: 35%, 2 minutes left",
        "predicting: 65%, 1 minutes left",
        "predicting: 95%, 0 minutes left",
    ]


def test_stages_have_such_lines_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: now))
    with progress_of_stages() as show:
        for done in range(0, 101, 10):  # of 8 seconds each
            show("reading", done, 100)
            now += 8
        show("merging", 1, 2)
    shown = capsys.readouterr()
    assert not shown.out
    assert shown.err.splitlines() == ["reading: 80%, 0 minutes left"]


def test_short_work_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_of("predicting") as show:
        show(1, 2)
        show(2, 2)
    assert capsys.readouterr() == ("", "")


def test_an_ensemble_counts_the_sequences_of_all_its_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bothways.runtime.engine.PREDICT_TOKENS", 16)
    about = {"kind": "classification", "labels": ["a", "b"], "pair": False, "length": 8}
    for seed in (0, 1):
        model = EncoderModel(small_config(), classes=2, seed=seed)
        save_model(tmp_path / str(seed), model, small_tokenizer(97), about)
    loaded = load_ensemble([tmp_path / "0", tmp_path / "1"])
    counts: list[tuple[int, int]] = []
    outputs_of(
        loaded,
        task_of(loaded),
        encode_examples(loaded.tokenizer, ["w1 w2 w3"] * 6, None, length=8),
        progress=lambda done, total: counts.append((done, total)),
    )
    assert {total for _, total in counts} == {12}
    done = [done for done, _ in counts]
    assert done == sorted(set(done))
    assert len(done) > 2
    assert done[-1] == 12


class ZMQInteractiveShell:
    """Has the name by which rich knows a notebook."""


@pytest.fixture
def shown_in_notebook(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What rich shows of its own accord in the simulated notebook that the test runs in."""
    shown: list[str] = []
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    monkeypatch.setattr(rich.jupyter, "display", lambda _, text: shown.append(text))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    return shown


ROWS = [["score", "mean"], ["accuracy", "0.9"], ["[bold]f1 :smile:", "±0.1"]]


def test_a_table_is_text_in_a_notebook_too(shown_in_notebook: list[str]) -> None:
    """It was shown by itself there, and the text that was returned lacked it."""
    text = table_text(ROWS, "task", [["all", "1.0"]])
    assert not shown_in_notebook
    for cell in ("task", "score", "accuracy", "0.9", "[bold]f1 :smile:", "±0.1", "all", "1.0"):
        assert cell in text
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(builtins, "get_ipython")
        assert table_text(ROWS, "task", [["all", "1.0"]]) == text


@pytest.mark.parametrize("name", ["FORCE_COLOR", "TTY_INTERACTIVE", "COLUMNS"])
def test_no_setting_of_the_terminal_changes_a_table(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = table_text(ROWS)
    monkeypatch.setenv(name, "1")
    assert table_text(ROWS) == plain


def test_everything_printed_in_a_notebook_goes_to_its_streams(
    shown_in_notebook: list[str], tmp_path: Path
) -> None:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        line_printer()("a line " * 30)
        print_report({"words": 3})
        with Monitor(tmp_path, 10, "run") as monitor:
            monitor.say("epoch 1")
            monitor.log(10, {"loss": 1.0})
        with progress_of("work") as show, progress_of_stages() as stage:
            show(1, 2)
            stage("reading", 1, 2)
    assert not shown_in_notebook
    assert out.getvalue().splitlines()[0] == "a line " * 30
    assert "words" in out.getvalue()
    assert "epoch 1" in out.getvalue()
    assert "\x1b" not in out.getvalue() + err.getvalue()


def test_a_notebooks_streams_are_no_terminals(
    shown_in_notebook: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They say they are, for colours; a bar that is drawn again and again would fill the page."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert not training_console().is_terminal
    assert not text_console(stderr=True).is_terminal
    assert not shown_in_notebook


RAW = "a\x1b[31mred\x07\x9b\r\u202egnp\x00\tb\n\x1b]0;title"


def test_what_a_terminal_would_obey_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    shown = visible(RAW)
    assert shown == "a\\x1b[31mred\\x07\\x9b\\r\\u202egnp\\x00\tb\n\\x1b]0;title"
    assert visible("Ł → 한국 e\u0301 \u200d👨‍👩‍👧") == "Ł → 한국 e\u0301 \u200d👨‍👩‍👧"
    line_printer()(RAW)
    console.print_note(RAW)
    print_report({"name": RAW, RAW: 3})
    print(table_text([["name", "value"], [RAW, "1"]]))
    out, err = capsys.readouterr()
    for text in (out, err):
        assert not any(c in text for c in "\x1b\x07\x9b\r\u202e\x00")
        assert "\\x1b[31mred" in text


def test_errors_and_labels_never_reach_a_terminal_raw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = str(tmp_path / "x\x1b[2J")
    for argv in (
        ["info", name, "--check"],
        ["embed", name, "w1", "--out", "v.npz"],
        ["predict", name, "a"],
    ):
        assert cli.main(argv) == 1
        out, err = capsys.readouterr()
        assert "\x1b" not in out + err
        assert "x\\x1b[2J" in out + err
    about = {
        "kind": "classification",
        "labels": ["a\x1b[31m", "b\x1b[32m"],
        "pair": False,
        "length": 8,
    }
    save_model(tmp_path / "m", EncoderModel(small_config(), classes=2), small_tokenizer(97), about)
    assert cli.main(["predict", str(tmp_path / "m"), "w1"]) == 0
    assert "\x1b[3" in capsys.readouterr().out, "a program gets the label as it is"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert cli.main(["predict", str(tmp_path / "m"), "w1"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_numbers_of_things_are_english() -> None:
    shown = [console.counted(number, "layer") for number in (0, 1, 2, 1200)]
    assert shown == ["0 layers", "1 layer", "2 layers", "1,200 layers"]


def test_a_notebook_does_not_realign_cells() -> None:
    """JupyterLab's rule for cells, ``.jp-RenderedHTMLCommon:not(.jp-RenderedMarkdown) td``, is of
    two classes and an element."""
    style = html.fragment("", html.table(["", "f1"], [["mean", "0.5"]]))
    assert "div.bothways.bothways :is(td,th){" in style
    assert "div.bothways.bothways .n.n{" in style


def test_wide_text_can_be_scrolled_by_keyboard() -> None:
    assert html.preformatted("wide").startswith('<pre tabindex="0"')
