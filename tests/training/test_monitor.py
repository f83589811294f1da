"""Records of a run: nothing lost, nothing twice, and readable after a kill."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bothways.errors import DiskError
from bothways.training.monitor import METRICS, Monitor, plot_panels, read_metrics
from pretraining_examples import small_disk


def steps(folder: Path) -> list[int]:
    return [record["step"] for record in read_metrics(folder / METRICS)]


def test_records(tmp_path: Path) -> None:
    with Monitor(tmp_path / "run", 10, "test") as watch:
        watch.log(1, {"loss": 2.5, "count": 3})
        assert read_metrics(tmp_path / "run" / METRICS), "records are there at once"
        watch.record(2, {"loss": float("nan"), "other": float("inf")})
    lines = (tmp_path / "run" / METRICS).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 1, "loss": 2.5, "count": 3},
        {"step": 2, "loss": None, "other": None},
    ]


def test_continuing_drops_what_is_done_again(tmp_path: Path) -> None:
    with Monitor(tmp_path, 10, "test") as watch:
        for step in range(8):
            watch.record(step, {"loss": 1.0})
    with (tmp_path / METRICS).open("a") as file:
        file.write('{"step": 8, "lo')  # a kill
    assert steps(tmp_path) == list(range(8))
    with Monitor(tmp_path, 10, "test", done=5) as watch:
        watch.record(6, {"loss": 2.0})
    assert steps(tmp_path) == [0, 1, 2, 3, 4, 5, 6]
    assert read_metrics(tmp_path / METRICS)[-1]["loss"] == 2.0


def test_a_damaged_line_costs_only_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Monitor(tmp_path, 10, "test") as watch:
        for step in range(8):
            watch.record(step, {"loss": 1.0})
    lines = (tmp_path / METRICS).read_text().splitlines()
    lines[2], lines[4], lines[5] = "\0" * 20, "[4]", '{"loss": 1.0}'
    (tmp_path / METRICS).write_text("\n".join([*lines, '{"step": 8, "lo']))
    assert steps(tmp_path) == [0, 1, 3, 6, 7]
    with Monitor(tmp_path, 10, "test", done=7):
        pass
    assert "3 damaged lines are left out" in capsys.readouterr().out.replace("\n", "")
    assert steps(tmp_path) == [0, 1, 3, 6, 7]


def test_plain_lines_are_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Monitor(tmp_path, 500, "training") as watch:
        for step in range(1, 501):
            watch.log(step, {"loss": 2.0, "tokens_per_second": 12345.6, "lr": 1e-5})
        watch.say("a line [with] brackets: 12 %")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3, "the first, the last, and what was said"
    assert lines[0].startswith("training 1/500  loss 2.000  tokens_per_second 12,346  lr 1.00e-05")
    assert lines[1].startswith("training 500/500")
    assert lines[1].endswith("left 0 s")
    assert lines[2] == "a line [with] brackets: 12 %"


def test_a_reader_that_went_away_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C also ends ``tee``; the training still has to save."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed, Monitor(tmp_path, 9, "training") as watch:
        monkeypatch.setattr("sys.stdout", closed)
        watch.log(1, {"loss": 2.0})
        watch.say("a line")
        print("another one", flush=True)
    assert [r["step"] for r in read_metrics(tmp_path / METRICS)] == [1]


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for done in (0, 2):
        with Monitor(tmp_path, 4, "test", done=done, tensorboard=True) as watch:
            for step in range(done + 1, 4):
                watch.record(step, {"loss": step + done / 10})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = [(e.step, round(e.value, 3)) for e in events.Scalars("loss")]
    assert found == [(1, 1.0), (2, 2.0), (3, 3.2)], "later records of the broken run are purged"


def test_a_full_disk(tmp_path: Path) -> None:
    def record(folder: Path) -> None:
        with Monitor(folder, 10**6, "test") as watch:
            for step in range(10**5):
                watch.record(step, {"loss": 1.0})

    with small_disk(tmp_path / "disk", 64) as disk:
        with pytest.raises(DiskError, match="No space left"):
            record(disk / "run")
        whole = steps(disk / "run")
        assert whole == list(range(len(whole)))
        assert len(whole) > 1000


@pytest.mark.usefixtures("drawn")
def test_plots(tmp_path: Path) -> None:
    curves = {"loss": ([1, 2, 3], [3.0, 2.0, 1.0]), "level": ([3], [0.5])}
    plot_panels(
        tmp_path / "curves.png", {"one": curves, "two": {}, "three": curves, "four": curves}
    )
    data = (tmp_path / "curves.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(data[i : i + 4], "big") for i in (16, 20))
    assert width > 1000
    assert height > 600, "two rows"
