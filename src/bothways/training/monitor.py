"""What is seen of a training: metrics on disk, progress, plots, TensorBoard."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from bothways.io import html
from bothways.io.files import explain_disk_errors, write_bytes, write_text
from bothways.io.terminal import notebook_bar, training_console

if TYPE_CHECKING:  # it brings torch
    from bothways.training.ranks import Ranks

# --------------------------------------------------------------------------------
# TensorBoard event files, written synchronously.
#
# The usual writer hands events to a background thread, where an error such as a full disk only
# prints a traceback and does not reach the program.


class EventFile:
    """An event file of scalars for TensorBoard.

    Args:
        folder: created if necessary; every writer creates a new file in it.
        done: steps already done. TensorBoard then hides later records of earlier files, which an
            interrupted run left.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, folder: Path, done: int):
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns()}.{os.getpid()}"
        # Unbuffered, so that records survive a kill.
        self._file = (folder / name).open("xb", buffering=0)
        self._records = RecordWriter(self)
        self._write(Event(file_version="brain.Event:2"))
        self._write(Event(step=done + 1, session_log=SessionLog(status=SessionLog.START)))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Record the values of a step."""
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(Event(step=step, summary=Summary(value=scalars)))

    def write(self, data: bytes) -> None:
        """Write bytes, all or with an error: the writer of records does not look."""
        if self._file.write(data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())


# --------------------------------------------------------------------------------
# Curves as PNG files.

SMOOTHED_FROM = 20
"""A curve of as many values is smoothed."""
# The curves of one panel: name -> (x values, y values).
Curves = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def plot_panels(path: Path, panels: Mapping[str, Curves]) -> None:
    """Draw panels side by side, each with its own y axis, and write them as one PNG.

    Args:
        path: the PNG file.
        panels: as for :func:`draw_panels`.
    """
    write_bytes(path, draw_panels(panels))


def smoothed(values: Sequence[float]) -> list[float]:
    """The mean of each value and its neighbours, a tenth of all values, as many before it as after
    it; the values themselves if they are few."""
    reach, means = len(values) // SMOOTHED_FROM, []
    for place in range(len(values)):
        near = min(reach, place, len(values) - 1 - place)
        inside = values[place - near : place + near + 1]
        means.append(sum(inside) / len(inside))
    return means


def draw_panels(panels: Mapping[str, Curves]) -> bytes:
    """Draw panels side by side, each with its own y axis; returns the bytes of a PNG. A curve of
    many points is drawn smoothed (:func:`smoothed`), with the values themselves thin beside it.

    Args:
        panels: title -> curves; a curve with a single point is drawn as a dashed horizontal line.
    """
    from matplotlib.figure import Figure  # slow import
    from matplotlib.ticker import MaxNLocator

    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.4 * rows), layout="constrained")
    for index, (title, curves) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(rows, columns, index)
        for name, (x, y) in curves.items():
            if len(x) == 1:
                axes.axhline(y[0], linestyle="--", linewidth=1, color="0.5", label=name)
                continue
            (drawn,) = axes.plot(x, smoothed(y), linewidth=1.4, label=name)
            if len(y) >= SMOOTHED_FROM:
                axes.plot(x, y, linewidth=0.6, alpha=0.35, color=drawn.get_color(), zorder=1)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
        axes.grid(alpha=0.3)
        if len(curves) > 1:
            axes.legend(fontsize=8)
    return _png(figure)


def curve_section(panels: Mapping[str, Curves]) -> list[str]:
    """The curves on a page, side by side where there is room; nothing without any."""
    if not panels:
        return []
    longest = max((len(x) for curves in panels.values() for x, _ in curves.values()), default=0)
    smooth = "The thick line is smoothed, the thin one as it was recorded."
    return [
        html.heading("Curves"),
        html.pictures([(draw_panels({t: curves}), f"{t} by step") for t, curves in panels.items()]),
        *([html.note(smooth)] if longest >= SMOOTHED_FROM else []),
    ]


def draw_scatter(x: Sequence[float], y: Sequence[float], *, x_label: str, y_label: str) -> bytes:
    """Draw points and the diagonal; returns the bytes of a PNG."""
    from matplotlib.figure import Figure  # slow import

    figure = Figure(figsize=(4.6, 4.6), layout="constrained")
    axes = figure.add_subplot()
    ends = [min([*x, *y]), max([*x, *y])]
    axes.plot(ends, ends, linestyle="--", linewidth=1, color="0.5")
    axes.scatter(x, y, s=8, alpha=0.5)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    return _png(figure)


def _png(figure: Any) -> bytes:
    data = io.BytesIO()
    figure.savefig(data, dpi=110, format="png")
    return data.getvalue()


# --------------------------------------------------------------------------------
# Progress and metrics of a run: progress bar or log lines, metrics.jsonl, TensorBoard.

METRICS = "metrics.jsonl"
# Seconds between log lines without a terminal.
_PLAIN_INTERVAL = 20.0
# The metrics shown on the bar, with shorter names.
_ON_BAR = {
    "loss": "loss",
    "accuracy": "acc",
    "tokens_per_second": "tok/s",
    "loader_wait": "waits",
}


class Monitor:
    """Writes a run's records to ``metrics.jsonl`` and TensorBoard, and shows its progress.

    On a terminal and in a notebook it shows a progress bar, elsewhere it prints an occasional line,
    so that log files stay short.

    Args:
        folder: the run folder.
        total: steps of the run.
        title: name of the run on the bar.
        done: steps already done; later records of an interrupted run are dropped.
        tensorboard: also write event files.
        bar: whether a bar may be shown.
    """

    def __init__(
        self,
        folder: Path,
        total: int,
        title: str,
        *,
        done: int = 0,
        tensorboard: bool = False,
        bar: bool = True,
    ):
        self._path, self._total, self._title = folder / METRICS, total, title
        self._console = training_console()
        self._start, self._start_step, self._last_line = time.monotonic(), done, 0.0
        folder.mkdir(parents=True, exist_ok=True)
        self._cut_records(done)
        # Unbuffered: a line that failed on a full disk is not written again on closing.
        self._file = self._path.open("ab", buffering=0)
        self._events: EventFile | None = None
        if tensorboard:
            with explain_disk_errors(folder):
                self._events = EventFile(folder / "tensorboard", done)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._notebook = notebook_bar(title) if bar else None
        if bar and self._console.is_terminal:
            # Two threads would put each other's streams back.
            alone = threading.current_thread() is threading.main_thread()
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=10),
                TextColumn("{task.completed}/{task.total}"),
                TextColumn("{task.fields[note]}"),
                console=self._console,
                redirect_stdout=alone,
                redirect_stderr=alone,
            )
            self._task = self._bar.add_task(title, total=total, completed=done, note="")
            self._bar.start()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def say(self, text: str) -> None:
        """Print a line, above the bar."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record the metrics of a step (1 = after the first), and show them."""
        self.record(step, values)
        self.show(step, values)

    def record(self, step: int, values: Mapping[str, float]) -> None:
        """Write the metrics of a step to the files."""
        record = {"step": step, **{k: _plain(v) for k, v in values.items()}}
        with explain_disk_errors(self._path):
            line = json.dumps(record).encode() + b"\n"
            if self._file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self._events is not None:
                self._events.add(step, values)

    def show(self, step: int, values: Mapping[str, float]) -> None:
        """Move the bar to a step; without a bar, print a line if the last one is a while ago."""
        left = self._time_left(step)
        names = {key: _ON_BAR.get(key, key.removesuffix("_accuracy")) for key in values}
        shown = [f"{n} {_short(values[k])}" for k, n in names.items() if n != k or n == "loss"]
        if self._bar is not None:
            self._bar.update(self._task, completed=step, note=" ".join([*shown, left, "left"]))
            return
        if self._notebook is not None:
            self._notebook.update(step, self._total, " ".join([*shown, left, "left"]))
            return
        note = "  ".join([*(f"{k} {_short(v)}" for k, v in values.items()), f"left {left}"])
        now = time.monotonic()
        if now - self._last_line >= _PLAIN_INTERVAL or step == self._total:
            self._last_line = now
            self.say(f"{self._title} {step}/{self._total}  {note}")

    def close(self) -> None:
        """Stop the bar and close the files."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._file.close()
        if self._events is not None:
            self._events.close()

    def _time_left(self, step: int) -> str:
        done = step - self._start_step
        if done <= 0:
            return "?"
        seconds = (time.monotonic() - self._start) / done * (self._total - step)
        return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"

    def _cut_records(self, done: int) -> None:
        """Drop records after the step that a continued run starts from, and lines that are damaged.
        A run that starts from the beginning drops all: it measures step 0 again."""
        if self._path.exists():
            found, damaged = _read_records(self._path)
            if damaged and done:
                self.say(f"{self._path}: {damaged} damaged lines are left out")
            records = [r for r in found if done and r["step"] <= done]
            write_text(self._path, "".join(json.dumps(r) + "\n" for r in records))


class SilentMonitor(Monitor):
    """The monitor of all processes but rank 0: discards everything."""

    def __init__(self) -> None:
        pass

    def say(self, text: str) -> None:
        """Discard the line."""

    def record(self, step: int, values: Mapping[str, float]) -> None:
        """Discard the metrics."""

    def show(self, step: int, values: Mapping[str, float]) -> None:
        """Show nothing."""

    def close(self) -> None:
        """There is nothing to close."""


def open_monitor(folder: Path, total: int, title: str, done: int, ranks: Ranks) -> Monitor:
    """The monitor of a run of several processes, with event files."""
    if not ranks.is_rank0:
        return SilentMonitor()
    return Monitor(folder, total, title, done=done, tensorboard=True)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics file; damaged lines are left out, such as a last one truncated by a
    kill."""
    return _read_records(path)[0] if path.exists() else []


def _read_records(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The records of a metrics file, and the number of damaged lines besides a truncated last."""
    *lines, last = path.read_text(encoding="utf-8", errors="replace").split("\n")
    records, damaged = [], 0
    for line in [*lines, last] if last else lines:
        try:
            record = json.loads(line)
            records.append({**record, "step": int(record["step"])})
        except (ValueError, TypeError, KeyError):
            damaged += line is not last
    return records, damaged


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _short(value: float) -> str:
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2e}" if 0 < abs(value) < 0.01 else f"{value:.3f}"
