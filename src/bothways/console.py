"""Lines and tables for the terminal.

rich is imported by the functions, because `bothways finetune --help` imports this module.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterator, Sequence

ShowProgress = Callable[[int, int], None]
"""Called with the number of items done, and of all."""

_LINE_EVERY = 60.0  # seconds


def line_printer() -> Callable[[str], None]:
    """A function that prints lines as they are: no markup, no highlighting, no wrapping."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False, soft_wrap=True).print


@contextlib.contextmanager
def progress_of(what: str) -> Iterator[ShowProgress]:
    """Show on stderr how far long work is: a bar on a terminal, elsewhere a line a minute."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    start = last = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _LINE_EVERY and 0 < done < total:
            last = now
            minutes = (now - start) / done * (total - done) / 60
            print(
                f"{what}: {done:,} of {total:,}, {minutes:,.0f} minutes left",
                file=sys.stderr,
                flush=True,
            )

    yield show


def table_text(
    rows: Sequence[Sequence[str]],
    title: str | None = None,
    summary: Sequence[Sequence[str]] = (),
    *,
    left_columns: int = 1,
    width: int = 100,
) -> str:
    """A table as text.

    Args:
        rows: the header first.
        title: above the table.
        summary: rows below a line at the end.
        left_columns: how many columns, from the first, are aligned left; the others are aligned
            right.
        width: of the terminal; longer cells are wrapped.
    """
    from rich.console import Console
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
    Console(file=text, width=width, markup=False, emoji=False, highlight=False).print(table)
    return text.getvalue().rstrip("\n")
