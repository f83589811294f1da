"""How a file is written, as far as its user says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Quoting = Literal["auto", "csv", "none"]


@dataclass(frozen=True)
class Format:
    r"""How a file is written, as far as the user says it.

    Attributes:
        encoding: of text files. Default: that of the byte order mark, else UTF-8.
        delimiter: between the fields of TSV and CSV; ``\t`` is a tab. Default: found out.
        sheet: of a workbook. Default: the only one with cells.
        quoting: whether quotation marks enclose fields (``csv``) or are text (``none``); ``auto``:
            found out.
        header: whether TSV and CSV files begin with a line of column names; columns are numbered
            from 0 if not.
        columns: the names, for files without such a line. A file that has it all the same is read
            by it.
    """

    encoding: str = ""
    delimiter: str = ""
    sheet: str = ""
    quoting: Quoting = "auto"
    header: bool = True
    columns: tuple[str, ...] = ()
