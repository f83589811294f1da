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
    """A progress bar in the output of a notebook's cell, which needs no widgets."""

    def __init__(self, title: str):
        from IPython.display import HTML, display

        self._title, self._html, self._last = escape(title, quote=True), HTML, 0.0
        self._handle = display(HTML(self._title), display_id=True)

    def update(self, done: int, total: int, note: str = "") -> None:
        """Show how far it is; at most four times a second."""
        now = time.monotonic()
        if self._handle is not None and (now - self._last > 0.25 or done >= total):
            self._last = now
            bar = f'<progress aria-label="{self._title}" value="{done}" max="{total}"></progress>'
            text = f"{self._title} {bar} {done:,} of {total:,} {escape(note)}"
            self._handle.update(self._html(f"<div>{text}</div>"))


def notebook_bar(title: str) -> NotebookBar | None:
    """A bar where this runs in a notebook, and bars are to be shown."""
    return NotebookBar(title) if in_notebook() and is_shown() else None


def line_printer() -> Callable[[str], None]:
    """A function that prints lines as they are: no markup, no highlighting, no wrapping."""
    return functools.partial(
        training_console().print, markup=False, highlight=False, soft_wrap=True
    )


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
        _say(f"note: {visible(text)}")


def _say(text: str) -> None:
    """Print to stderr; what it cannot take, as its terminal or disk is gone, is lost."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress_of(what: str) -> Iterator[ShowProgress]:
    """:func:`progress_of_stages` for work of one stage."""
    with progress_of_stages() as show:
        yield functools.partial(show, what)


@contextlib.contextmanager
def progress_of_stages() -> Iterator[StageProgress]:
    """Show on stderr how far each stage of the work is: bars on a terminal and in the cell of a
    notebook, elsewhere a line a minute. A total of 0 is unknown."""
    if not is_shown():
        yield lambda *_: None
    elif in_notebook():
        yield _of_each(lambda stage: NotebookBar(stage).update)
    elif not (console := text_console(stderr=True)).is_terminal:
        yield _of_each(_a_line_a_minute)
    else:
        from rich.progress import Progress

        with Progress(console=console, transient=True) as bar:

            def begin(stage: str) -> ShowProgress:
                task = bar.add_task(stage, total=None)
                return lambda done, total: bar.update(task, completed=done, total=total or None)

            yield _of_each(begin)


def _of_each(begin: Callable[[str], ShowProgress]) -> StageProgress:
    """The progress of stages, each of which begins when it is first named."""
    begun = functools.cache(begin)
    return lambda stage, done, total: begun(stage)(done, total)


def _a_line_a_minute(what: str) -> ShowProgress:
    """Print a stage's progress, and the time left at the speed since the first call."""
    start = last = time.monotonic()
    first: int | None = None

    def show(done: int, total: int) -> None:
        nonlocal last, first
        now, first = time.monotonic(), done if first is None else first
        if now - last < _LINE_EVERY or done >= total > 0:
            return
        last = now
        minutes = (now - start) / max(1, done - first) * (total - done) / 60
        left = f"{done / total:.0%}, {minutes:,.0f} minutes left" if total else f"{done:,}"
        _say(f"{what}: {left}")

    return show


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
