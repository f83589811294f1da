"""What the terminal shows: progress, notes and tables.

rich is imported by the functions, because `bothways finetune --help` imports this module.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from html import escape
from typing import TYPE_CHECKING, Any

from bothways.io.streams import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

ShowProgress = Callable[[int, int], None]
"""Called with the number of items done, and of all."""

StageProgress = Callable[[str, int, int], None]
"""Called with a stage's name, the number of its items done, and of all."""

_LINE_EVERY = 60.0  # seconds


def text_console(kind: type[Console] | None = None, **settings: Any) -> Console:
    """A console of rich that prints text to its file, whatever Python runs in.

    In a notebook, rich shows HTML of its own accord: nothing reaches the file, or a
    ``redirect_stdout``, and long lines are cut at the edge of the page.

    Args:
        kind: the class.
        settings: its arguments.
    """
    from rich.console import Console
    from rich.segment import Segment

    class VisibleConsole(kind or Console):  # type: ignore[misc]
        """Shows what a terminal would obey; its own control codes are segments of their own."""

        def render(self, *args: Any, **options: Any) -> Iterator[Segment]:
            for segment in super().render(*args, **options):
                legible = Segment(visible(segment.text), segment.style)
                yield segment if segment.control else legible

    console: Console = VisibleConsole(**settings)
    if console.is_jupyter:  # whose streams say that they are terminals, but draw no bars
        console = VisibleConsole(**settings, force_jupyter=False, force_terminal=False)
    return console


_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)


@contextlib.contextmanager
def shown(verbose: bool) -> Iterator[None]:
    """Whether lines, notes and bars are shown in the block; errors and results always are."""
    token = _QUIET.set(not verbose)
    try:
        yield
    finally:
        _QUIET.reset(token)


def is_shown() -> bool:
    """Whether lines are shown here; a worker process asks the one that starts it."""
    return not _QUIET.get()


def show_lines(verbose: bool) -> None:
    """Whether lines are shown, from now on: for worker processes."""
    _QUIET.set(not verbose)


def in_notebook() -> bool:
    """Whether this runs in a cell of a notebook, which shows HTML."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)


class NotebookBar:
    """A progress bar in the output of a notebook's cell, which needs no widgets.

    Args:
        title: what it is the progress of.
    """

    def __init__(self, title: str):
        from IPython.display import HTML, display

        self._title, self._html, self._last = title, HTML, 0.0
        self._handle = display(HTML(self._drawn(0, 0, "")), display_id=True)

    def update(self, done: int, total: int, note: str = "") -> None:
        """Show how far it is; at most four times a second."""
        now = time.monotonic()
        if self._handle is not None and (now - self._last > 0.25 or done >= total):
            self._last = now
            self._handle.update(self._html(self._drawn(done, total, note)))

    def _drawn(self, done: int, total: int, note: str) -> str:
        of_all = f'value="{done}" max="{total}"' if total else ""
        count = f"{done:,} of {total:,}" if total else ""
        text = escape(" ".join(filter(None, [count, note])))
        return (
            f"<div>{escape(self._title)} "
            f'<progress aria-label="{escape(self._title, quote=True)}" {of_all}></progress> '
            f"{text}</div>"
        )


def notebook_bar(title: str) -> NotebookBar | None:
    """A bar where this runs in a notebook, and bars are to be shown."""
    return NotebookBar(title) if in_notebook() and is_shown() else None


def line_printer() -> Callable[[str], None]:
    """A function that prints lines as they are: no markup, no highlighting, no wrapping."""
    console = training_console()

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    return say


def training_console() -> Console:
    """A console whose reader may go away: what is printed after that is lost, and nothing else.

    Ctrl-C also ends the ``tee`` that a training prints to; the training still has to save. The
    terminal that it was started in may be closed, or the disk with its log be full.
    """
    from rich.console import Console

    class TrainingConsole(Console):
        def on_broken_pipe(self) -> None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())

        def _check_buffer(self) -> None:
            try:
                super()._check_buffer()
            except OSError:  # the terminal is gone, or the disk of a log is full
                del self._buffer[:]

    return text_console(TrainingConsole, emoji=False, quiet=not is_shown())


def print_note(text: str) -> None:
    """Print a remark on the result to stderr, so that it does not end up in piped output."""
    if is_shown():
        print(f"note: {visible(text)}", file=sys.stderr)


@contextlib.contextmanager
def progress_of(what: str, *, in_bytes: bool = False) -> Iterator[ShowProgress]:
    """Show on stderr how far long work is: a bar on a terminal, elsewhere a line a minute; in a
    notebook a bar in the cell."""
    if not is_shown():
        yield lambda *_: None
    elif notebook := notebook_bar(what):
        yield notebook.update
    elif (console := text_console(stderr=True)).is_terminal:
        from rich.progress import DownloadColumn, MofNCompleteColumn

        done_of_all = DownloadColumn() if in_bytes else MofNCompleteColumn()
        with _bar(console, what, done_of_all) as update:
            yield lambda done, total: update(completed=done, total=total)
    else:
        yield _a_line_a_minute(what, in_bytes)


@contextlib.contextmanager
def _bar(console: Console, what: str, *columns: ProgressColumn) -> Iterator[Callable[..., None]]:
    """A bar on a terminal with these columns among the usual ones: called with what changes."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    every = (TextColumn(what), BarColumn(), *columns, TimeRemainingColumn())
    with Progress(*every, console=console, transient=True) as bar:
        yield functools.partial(bar.update, bar.add_task(what, total=None, rate=""))


def _once_a_minute() -> Callable[[], bool]:
    """Whether a line is due."""
    last = time.monotonic()

    def is_due() -> bool:
        nonlocal last
        now = time.monotonic()
        if now - last < _LINE_EVERY:
            return False
        last = now
        return True

    return is_due


def _a_line_a_minute(what: str, in_bytes: bool) -> ShowProgress:
    """Shows progress where there is no terminal."""
    start, is_due = time.monotonic(), _once_a_minute()

    def show(done: int, total: int) -> None:
        if 0 < done < total and is_due():
            minutes = (time.monotonic() - start) / done * (total - done) / 60
            count = f"{done / total:.0%}" if in_bytes else f"{done:,} of {total:,}"
            print(f"{what}: {count}, {minutes:,.0f} minutes left", file=sys.stderr, flush=True)

    return show


@contextlib.contextmanager
def progress_of_rows(what: str) -> Iterator[Callable[[int, int, int], None]]:
    """As :func:`progress_of` for the rows of a file: called with the row reached, the rows in all
    (0 if that is not known), and how many were computed now."""
    start, is_due = time.monotonic(), _once_a_minute()

    def rate(computed: int) -> float:
        return computed / max(time.monotonic() - start, 1e-3)

    def show(done: int, total: int, computed: int) -> None:
        if computed and is_due():
            a_second = rate(computed)
            left = f", {(total - done) / a_second / 60:,.0f} minutes left" if total > done else ""
            count = f"{done:,} of {total:,}" if total else f"{done:,}"
            said = f"{what}: {count} rows, {a_second:,.0f} a second{left}"
            print(said, file=sys.stderr, flush=True)

    if not is_shown():
        yield lambda *_: None
    elif notebook := notebook_bar(what):
        yield lambda done, total, computed: notebook.update(
            done, total, f"{rate(computed):,.0f} a second"
        )
    elif (console := text_console(stderr=True)).is_terminal:
        from rich.progress import MofNCompleteColumn, TextColumn

        speed = TextColumn("{task.fields[rate]} a second")
        with _bar(console, what, MofNCompleteColumn(), speed) as update:
            yield lambda done, total, computed: update(
                completed=done, total=total or None, rate=f"{rate(computed):,.0f}"
            )
    else:
        yield show


@contextlib.contextmanager
def progress_of_stages() -> Iterator[StageProgress]:
    """A progress bar per stage of the work on stderr, elsewhere a line a minute; call it with a
    stage's name, items done and total. In a notebook the bars stand in the cell."""
    if not is_shown():
        yield lambda *_: None
    elif in_notebook():
        yield _of_each(lambda stage: NotebookBar(stage).update)
    elif not (console := text_console(stderr=True)).is_terminal:
        yield _of_each(lambda stage: _a_line_a_minute(stage, in_bytes=True))
    else:
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        text = TextColumn("{task.description}")
        columns = (text, BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as bar:

            def begin(stage: str) -> ShowProgress:
                task = bar.add_task(stage)
                return lambda done, total: bar.update(task, completed=done, total=total)

            yield _of_each(begin)


def _of_each(begin: Callable[[str], ShowProgress]) -> StageProgress:
    """The progress of stages, each of which begins when it is first named."""
    begun = functools.cache(begin)
    return lambda stage, done, total: begun(stage)(done, total)


def counted(number: int, noun: str) -> str:
    """A number and what it counts: "1 layer", "12 layers"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def table_text(
    rows: Sequence[Sequence[str]],
    title: str | None = None,
    summary: Sequence[Sequence[str]] = (),
    *,
    left_columns: int = 1,
    width: int = 100,
) -> str:
    """A table as text, the same in a terminal, a script and a notebook.

    Args:
        rows: the header first.
        title: above the table.
        summary: rows below a line at the end.
        left_columns: how many columns, from the first, are aligned left; the others are aligned
            right.
        width: of the terminal; longer cells are wrapped.
    """
    from rich.table import Table

    table = Table(title=title, title_style="")
    for column, name in enumerate(rows[0]):
        table.add_column(name, justify="left" if column < left_columns else "right")
    for row in rows[1:]:
        table.add_row(*row)
    table.add_section()
    for row in summary:
        table.add_row(*row)
    text = io.StringIO()
    console = text_console(
        file=text, width=width, markup=False, emoji=False, highlight=False, color_system=None
    )
    console.print(table)
    return text.getvalue().rstrip("\n")


def print_report(report: Mapping[str, Any]) -> None:
    """Print names and values as a table; those of a group follow its name."""
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False)
    for name, value in _rows(report):
        table.add_row(Text(name), Text(value))
    text_console().print(table)


def _rows(report: Mapping[str, Any], group: str = "") -> Iterator[tuple[str, str]]:
    """The rows of a table as name and value; a mapping inside a group becomes one row."""
    for name, value in report.items():
        label = f"{group}{name}".replace("_", " ")
        if isinstance(value, Mapping) and not group:
            yield from _rows(value, f"{name} ")
        elif isinstance(value, Mapping) and value:
            yield label, ", ".join(f"{key} {_figure(item)}" for key, item in value.items())
        elif value is not None and value != {}:
            yield label, _figure(value)


def _figure(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
