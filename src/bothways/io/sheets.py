"""Rows of the sheets of workbooks: .xlsx, .xlsm, .xls, .xlsb, .ods."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bothways.errors import InputError, Place, explain_missing
from bothways.io.lines import column_name, listed
from bothways.io.pipes import open_in_any_order
from bothways.io.rows import Item
from bothways.io.text import explain_read_errors


def sheet_items(path: Path, sheet: str = "") -> Iterator[Item]:
    """The rows of a sheet as objects with the numbers that the workbook shows, cells as text; the
    first row with cells names the columns.

    Args:
        path: the workbook.
        sheet: by name. Default: the only visible sheet with cells.

    Raises:
        InputError: no workbook, no such sheet, several to choose from, merged cells, a column
            twice, or a cell in a column without a name.
        ConfigError: python-calamine is not installed.
    """
    with explain_missing("reading a workbook"):
        import python_calamine as calamine
    with explain_read_errors(path), open_in_any_order(path) as file:
        try:
            book = calamine.load_workbook(file)
            found = book.get_sheet_by_name(_choose(book, sheet, path, calamine))
        except calamine.CalamineError as error:
            raise InputError(f"cannot be read as a workbook: {error}.", place=Place(path)) from None
        if merged := found.merged_cell_ranges:
            raise InputError(
                "has merged cells, of which only the first has the value; unmerge them.",
                place=Place(path, merged[0][0][0] + 1),
            )
        yield from _rows(found, path)


def _choose(book: Any, sheet: str, path: Path, calamine: Any) -> str:
    visible = calamine.SheetVisibleEnum.Visible
    names = [one.name for one in book.sheets_metadata if one.visible == visible]
    full = [str(name) for name in names if book.get_sheet_by_name(name).height]
    if sheet in book.sheet_names or (len(full) == 1 and not sheet):
        return sheet or full[0]
    if not full:
        raise InputError("has no rows; it needs one example per row.", place=Place(path))
    problem = f"has no sheet {sheet!r}, but" if sheet else f"has {len(full)} sheets with cells:"
    raise InputError(f"{problem} {listed(full)}.", place=Place(path), option="sheet")


def _rows(sheet: Any, path: Path) -> Iterator[Item]:
    names: list[str] = []
    for number, cells in enumerate(sheet.iter_rows(), sheet.start[0] + 1):
        values = [_text(cell) for cell in cells]
        if not any(map(str.strip, values)):
            continue
        if not names:
            names = [column_name(value) for value in values]
            if twice := next((name for name in names if name and names.count(name) > 1), None):
                raise InputError(f"two columns are named {twice!r}.", place=Place(path, number))
            index = next(place for place, name in enumerate(names) if name)  # without a name
            continue
        pairs = [*zip(names, values, strict=True)][index:]
        if stray := next((value for name, value in pairs if value and not name), None):
            raise InputError(
                f"holds {stray[:40]!r} in a column without a name.", place=Place(path, number)
            )
        yield Place(path, number), dict(pairs)


def _text(cell: Any) -> str:
    """A cell as text; workbooks hold all numbers as floats, so 1.0 is 1."""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, datetime.datetime) and cell.time() == datetime.time():
        return cell.date().isoformat()
    return str(cell)
