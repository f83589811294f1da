"""The fields of lines: what separates them, and the quotation marks around them."""

from __future__ import annotations

import contextlib
import csv
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from bothways.errors import InputError, Place
from bothways.io.broken import TEXT
from bothways.io.lines import Line

Record = tuple[int, list[str], str]
"""The line on which a row starts, its fields, and the line or lines as they are."""
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
"""Those between columns, and what they are called."""
QUOTED = re.compile('"[^"]*"')
"""A stretch in quotation marks, in which nothing separates."""
_FIELD = re.compile(r'(?:"([^"]*(?:""[^"]*)*)"|[^"\t\n]*)(?=[\t\n]|\Z)')
_OPEN = re.compile('"[^"]*(?:""[^"]*)*')  # a field without its end
LOOKED_AT = 20
"""Lines by which a separator is told."""
ESCAPED = '\\"'
"""A quotation mark within a text, as some programs write it."""


@dataclass(frozen=True)
class Dialect:
    """How the fields of a file are told apart.

    Attributes:
        separator: between fields.
        quoted: whether quotation marks may stand around them.
    """

    separator: str
    quoted: bool

    @property
    def name(self) -> str:
        """Of the separator."""
        names = {" ": "space", **SEPARATORS}
        return names.get(self.separator, repr(self.separator))


def doubled(line: str) -> str:
    """A line with doubled quotation marks in place of those behind a backslash."""
    return re.sub(r'(?<!\\)((?:\\\\)*)\\"', r'\1""', line) if ESCAPED in line else line


def has_escaped_quotes(lines: Sequence[Line], path: Path, separator: str) -> bool:
    """Whether lines are those of a CSV file only with doubled quotation marks in place of those
    behind a backslash."""
    if not any(ESCAPED in line for _, line in lines):
        return False

    def fits(mended: bool) -> bool:
        own = ((n, doubled(line) if mended else line) for n, line in lines)
        try:
            rows = islice(csv_records(own, path, separator), 1, None)  # R names not all columns
            return len({len(values) for _, values, _ in rows}) == 1
        except InputError as error:
            return mended and "unexpected end of data" in error.problem  # of the first lines

    return fits(True) and not fits(False)


def quoted_as_csv(lines: Iterable[str], *, everywhere: bool = False) -> bool:
    """Whether the quotation marks in tab-separated lines are those of a CSV writer, not text.

    Such a writer puts a field into quotation marks only if it holds one (which is then doubled), a
    tab or a line break; or it puts all texts into them, the column names too. So one quotation mark
    that is neither says that they are text, and at least one must be doubled.

    Args:
        lines: of the file.
        everywhere: it is known that some texts are in quotation marks for nothing.
    """
    lines = iter(lines)
    first = next(lines, "")
    sure = first.startswith('"') and first.endswith('"') and len(first) > 1
    everywhere |= sure
    begun: list[str] = []  # the lines from the beginning of a field that goes on
    size = 0
    for line in chain([first], lines):
        if begun:
            begun.append(line)
            size += len(line)
        if size > TEXT.bytes:
            return False
        if '"' not in line:
            continue
        text, position = "\n".join(begun) if begun else line, 0
        while position <= len(text):
            found = _FIELD.match(text, position)
            if found is None:
                break
            if body := found[1]:
                sure |= '""' in body
                if not (everywhere or '"' in body or "\t" in body or "\n" in body):
                    return False
            position = found.end() + 1
        begun = [text[position:]] if position <= len(text) else []
        size = sum(map(len, begun))
        if begun and _OPEN.fullmatch(begun[0]) is None:
            return False
    return sure and not begun


def divides(lines: Sequence[Line], separator: str, width: int) -> bool:
    reader = csv.reader((line + "\n" for _, line in lines), delimiter=separator)
    with contextlib.suppress(csv.Error), _long_fields():
        widths = {len(row) for row in islice(filter(None, reader), LOOKED_AT)}
        return len(widths) == 1 and min(widths) >= width
    return False


def decimal_commas(lines: Sequence[Line]) -> bool:
    text = "\n".join(QUOTED.sub("", line) for _, line in lines[:LOOKED_AT])
    return text.count(",") == len(re.findall(r"(?<=\d),(?=\d)", text))


def tsv_records(lines: Iterable[Line]) -> Iterator[Record]:
    several: bool | None = None
    for number, line in lines:
        several = "\t" in line if several is None else several
        if not (several and not line.strip() and "\t" not in line):
            yield number, line.split("\t"), line


def csv_records(
    lines: Iterable[Line], path: Path, separator: str, left_out: list[InputError] | None = None
) -> Iterator[Record]:
    """The rows of a CSV file.

    Args:
        lines: of the file.
        path: named in messages.
        separator: between fields.
        left_out: gets the errors of lines that are left out before the next one; emptied here.

    Raises:
        InputError: a quotation mark does not fit; or a line was left out that may be a part of a
            field, of which nothing else can be told.
    """
    lines, left_out = iter(lines), [] if left_out is None else left_out
    head = next(lines)
    # A writer that puts spaces behind separators has them in the line of names, too.
    count = head[1].count(separator)
    spaced = separator != " " and 0 < count == head[1].count(separator + " ")
    taken: list[Line] = []  # for the record that is read

    def feed() -> Iterator[str]:
        for line in chain([head], lines):
            _refuse_torn(left_out, within=bool(taken))
            left_out.clear()
            taken.append(line)
            yield line[1] + "\n"

    reader = csv.reader(feed(), delimiter=separator, strict=True, skipinitialspace=spaced)
    first = 0
    try:
        while True:
            taken.clear()
            with _long_fields():
                values = next(reader, None)
            if values is None:
                return
            if len(values) > 1 or (values and (values[0].strip() or first == 1)):
                first = first or len(values)
                yield taken[0][0], values, "\n".join(line for _, line in taken)
    except csv.Error as error:
        _refuse_torn(left_out, within=True)
        number = taken[0][0]
        if "field limit" in str(error):
            raise InputError(
                f"holds a field longer than {TEXT.mib:g} MiB{TEXT.remedy} Or close the quotation "
                "mark that opens it.",
                place=Place(path, number),
            ) from None
        if "new-line character" in str(error):
            raise InputError(
                "a line break within a field (a carriage return) is not in quotation marks; put "
                "the field into quotation marks, or remove it. If such lines end there: "
                "tr '\\r' '\\n' < OLD > NEW.",
                place=Place(path, number),
            ) from None
        raise InputError(
            f"a quotation mark opens or closes a field where none should ({error}). A field that "
            "holds one must be in quotation marks, with each quotation mark inside written twice"
            + (_BACKSLASHES if any(r"\"" in line for _, line in taken) else ".")
            + " (Where quotation marks are text, name the file .tsv.)" * (separator == "\t"),
            place=Place(path, number),
        ) from None


def _refuse_torn(left_out: Sequence[InputError], *, within: bool) -> None:
    """Refuse that lines are left out which are, or may be, a part of a field of several lines."""
    for error in left_out:
        if within or error.torn:
            raise InputError(
                "cannot be left out, as it is in a field in quotation marks that has several "
                f"lines; repair it: {error.problem}",
                place=error.place,
            )


_BACKSLASHES = r""": sed 's/\\"/""/g' OLD > NEW (this file has backslashes before them)."""


_FIELD_LIMIT = threading.Lock()


@contextlib.contextmanager
def _long_fields() -> Iterator[None]:
    """Allow fields as long as a text may be; the limit is the process's, so it is put back after
    each record, and one thread changes it at a time."""
    with _FIELD_LIMIT:
        limit = csv.field_size_limit(TEXT.bytes)
        try:
            yield
        finally:
            csv.field_size_limit(limit)


def fields_of(line: str, separator: str) -> list[str]:
    """The fields of a line by itself, as CSV; none if it is no CSV, as with a carriage return."""
    with contextlib.suppress(csv.Error), _long_fields():
        return next(csv.reader([line], delimiter=separator), [])
    return []
