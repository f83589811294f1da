"""Rows of TSV and CSV files.

In CSV, quotation marks enclose fields, which may hold delimiters, line breaks and doubled quotation
marks. In TSV they are text, as in GLUE's files (MRPC has unbalanced ones), or enclose fields, as
pandas and csv.writer have them: the 64 KB from the first mark on decide. Lines end at line feeds
alone, so that other Unicode line separators stay inside a text.
"""

from __future__ import annotations

import contextlib
import csv
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from bothways.errors import InputError, Place
from bothways.io.broken import Broken, Limit
from bothways.io.diagnostics import damage_notes, damaged_characters, other_format
from bothways.io.lines import Line, column_name, listed
from bothways.io.rows import Format
from bothways.io.text import read_lines

Record = tuple[int, list[str]]
"""The line on which a row starts, and its fields."""
DELIMITERS = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar"}
_SAMPLE = 2**16  # characters
_LONGEST = Limit(16.0, ", so this is most likely no table.")
_NAMED = re.compile(r'"?sep=(\\t|.)"?[,;\t|]*', re.IGNORECASE)
_ENCLOSED = re.compile(r'(?<![^\t\n])"((?:[^"]|"")*)(?:"(?![^\t\n])|\Z)')
_HEADER = re.compile(r'"[^"\t\n]+"(\t"[^"\t\n]*")*$', re.MULTILINE)
_BATCH = 256


def delimited_table(
    path: Path, default: str, form: Format, broken: Broken
) -> tuple[list[str], Iterator[Record]]:
    """The column names of a TSV or CSV file, and its records, each with as many fields.

    Args:
        path: the file.
        default: its usual delimiter, by its name.
        form: how it is written.
        broken: what to do with rows that cannot be read.

    Raises:
        InputError: with the line: no table, two columns of one name, a quotation mark in the wrong
            place; or a row has another number of fields than the line of names.
    """
    lines = read_lines(path, encoding=form.encoding, limit=_LONGEST, broken=broken, escape=True)
    head, lines = _peek(lines)
    delimiter = form.delimiter.replace("\\t", "\t")
    if head and (named := _NAMED.fullmatch(head[0][1].strip(" "))):
        delimiter = delimiter or named[1].replace("\\t", "\t")
        head, _ = head[1:], next(lines)
    if not any(line.strip(" ,;|") for _, line in head):
        raise InputError("is empty; it needs one example per line.", place=Place(path))
    if not delimiter and (found := other_format(head[0][1])) is not None:
        raise InputError(f"this is {found}, not a table of columns.", place=Place(path, head[0][0]))
    for note in damage_notes(damaged_characters(line for _, line in head)).values():
        broken.remark(note)
    delimiter = delimiter or sniff([line for _, line in head], default, form.columns)
    if form.quoting == "auto" and delimiter == "\t":
        records = _tab_records(lines, path)
    elif form.quoting == "none":
        records = ((number, line.split(delimiter)) for number, line in lines)
    else:
        records = csv_records(lines, delimiter, path)
    start, first = next(record for record in records if _is_filled(record[1], delimiter))
    names = [column_name(name) for name in first]
    if form.columns and not {*form.columns} & {*names}:
        records, names, first = chain([(start, first)], records), [*form.columns], []
    elif not form.header and not form.columns:
        names = [str(number) for number in range(len(first))]
        records, first = chain([(start, first)], records), []
    if twice := next((name for name in names if name and names.count(name) > 1), None):
        raise InputError(f"two columns are named {twice!r}.", place=Place(path, start))
    return names, _checked(records, names, first, start, delimiter, path, broken)


def _peek(lines: Iterator[Line]) -> tuple[list[Line], Iterator[Line]]:
    """The lines of the first 64 KB, and all lines."""
    head, size = [], 0
    for line in lines:
        head.append(line)
        size += len(line[1]) + 1
        if size >= _SAMPLE:
            break
    return head, chain(head, lines)


def _is_filled(values: Sequence[str], delimiter: str) -> bool:
    """Whether a record is more than a blank line, or the delimiters that spreadsheets leave behind
    their tables; in TSV these are empty texts."""
    return (delimiter == "\t" and len(values) > 1) or any(map(str.strip, values))


def _checked(
    records: Iterable[Record],
    names: Sequence[str],
    first: Sequence[str],
    start: int,
    delimiter: str,
    path: Path,
    broken: Broken,
) -> Iterator[Record]:
    """The records that have a value for each column, and none beside them.

    Args:
        records: of the table.
        names: of its columns.
        first: the record of these names, on line ``start``.
        start, delimiter, path, broken: as in :func:`delimited_table`.
    """
    width, again, is_tab = len(names), first if len(first) > 1 else None, delimiter == "\t"
    index = next((place for place, name in enumerate(names) if name), width)  # without a name
    unnamed = [place for place, name in enumerate(names) if not name and place > index]
    for record in records:
        number, values = record
        fits = len(values) == width and values != again
        if fits and unnamed and (stray := "".join(values[place] for place in unnamed)):
            problem, option = f"holds {stray[:40]!r} in a column without a name.", "delimiter"
        elif fits:
            if (is_tab and width > 1) or _is_filled(values, delimiter):
                yield record
            continue
        elif not _is_filled(values, delimiter):
            continue
        elif values == again:
            problem = f"repeats the column names of line {start}; were two files joined?"
            option = ""
        else:
            unit = DELIMITERS.get(delimiter, repr(delimiter))
            problem = f"expected {width} {unit}-separated fields ({listed(names, 6)}), found "
            problem += f"{len(values)}."
            option = "quoting" if is_tab else "delimiter"
        broken.leave_out(InputError(problem, place=Place(path, number), option=option or None))


def sniff(head: Sequence[str], default: str, columns: Sequence[str] = ()) -> str:
    """The delimiter that gives all lines of a sample the width of the first, at least two.

    Args:
        head: the lines.
        default: what it is if none does, unless line 1 lacks it and has another.
        columns: if given, all lines have as many fields.
    """
    candidates = sorted(DELIMITERS, key=lambda mark: mark != default)
    for mark in candidates:
        widths = _widths(head, mark)
        if len(widths) == 1 and (len(columns) in widths if columns else min(widths) > 1):
            return mark
    counts = {mark: head[0].count(mark) for mark in candidates}
    if counts[default] or not any(counts.values()):
        return default
    return max(counts, key=counts.__getitem__)


def _widths(head: Sequence[str], delimiter: str) -> set[int]:
    """The numbers of fields of the records in lines of a sample."""
    found = set()
    with contextlib.suppress(csv.Error):  # the sample ends within a field, or quotes are text
        reader = csv.reader((line + "\n" for line in head), delimiter=delimiter, strict=True)
        for values in reader:
            found |= {len(values)} if any(values) else set()
    return found


# ---------------------------------------------------------------------------------- quotation marks


def encloses_fields(head: Sequence[str]) -> bool:
    """Whether quotation marks in tab-separated lines enclose fields, or are text.

    They enclose fields if none stands elsewhere, and if only so all records have one width. Where
    both readings give one width, a field must hold a doubled one, or the first line enclose all
    its fields; and no field be a single mark, which is a word in CoNLL files.
    """
    text = "\n".join(head)
    bodies = [found[1] for found in _ENCLOSED.finditer(text)]
    if '"' in _ENCLOSED.sub("", text):
        return False
    if len({line.count("\t") for line in head if line.strip()}) > 1:
        return len(_widths(head, "\t")) == 1
    inline = (body for body in bodies if not {"\n", "\t"} & {*body})
    doubled = any('""' in body for body in inline) or _HEADER.match(text) is not None
    return doubled and not any('"' in line.split("\t") for line in head)


def _tab_records(lines: Iterator[Line], path: Path) -> Iterator[Record]:
    """Tab-separated records; from the first quotation mark on, 64 KB decide what they are."""
    first: list[str] = []
    for number, line in lines:
        if '"' in line:
            head, lines = _peek(chain([(number, line)], lines))
            if encloses_fields(first + [text for _, text in head]):
                yield from csv_records(lines, "\t", path, checked=True)
            else:
                yield from ((n, text.split("\t")) for n, text in lines)
            return
        first = first or [line]
        yield number, line.split("\t")


_FIELD_LIMIT = threading.Lock()


def csv_records(
    lines: Iterable[Line], delimiter: str, path: Path, *, checked: bool = False
) -> Iterator[Record]:
    """The records of CSV, each with the line it starts on.

    Args:
        lines: of the file.
        delimiter: between fields.
        path: named in messages.
        checked: refuse quotation marks in fields that are not enclosed.

    Raises:
        InputError: a quotation mark stands in the wrong place.
    """
    lines = iter(lines)
    first = next(lines, (1, ""))
    before, start, batch = first[0] - 1, 1, _BATCH
    marks: list[int] = []  # of the lines of a record

    def texts() -> Iterator[str]:
        for _, line in chain([first], lines):
            if checked and '"' in line:
                marks.append(line.count('"'))
            yield line + "\n"

    reader = csv.reader(texts(), delimiter=delimiter, strict=True)
    while True:
        records: list[Record] = []
        failed = ""
        # The limit is the process's: it is put back after each batch, by one thread at a time.
        with _FIELD_LIMIT:
            limit = csv.field_size_limit(_LONGEST.bytes)
            try:
                while len(records) < batch:
                    values = next(reader)
                    if marks and sum(marks) < 2 * (inside := "".join(values).count('"')) + 2 * (
                        inside > 0
                    ):
                        raise csv.Error("the fields around it are enclosed")
                    marks.clear()
                    records.append((before + start, values))
                    start = reader.line_num + 1
            except StopIteration:
                batch = 0
            except csv.Error as error:
                failed = str(error)
            finally:
                csv.field_size_limit(limit)
        yield from records
        if failed:
            raise InputError(
                f"a quotation mark opens or closes a field where none should ({failed}); inside an "
                'enclosed field it is written "".',
                place=Place(path, before + start),
                option="quoting",
            )
        if not batch:
            return
