"""Rows of TSV and CSV files.

TSV is read as GLUE writes it: only tabs and line feeds are special. Quotation marks are text (MRPC
has unbalanced ones), there is no escaping, and lines end only at line feeds, so that other Unicode
line separators stay inside a text. But where all quotation marks of a file are those of a CSV
writer, as pandas has them, they are read as such (:func:`quoted_as_csv`). CSV has real quoting: a
field in quotation marks may hold separators, line breaks and doubled quotation marks. It is
separated by commas, semicolons, tabs or bars: whichever gives line 1 the columns that are needed.

A first line such as ``sep=;`` names the separator. Blank lines are no rows where rows have several
columns, and lines of ``#`` before the line of column names are comments.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, dropwhile, islice
from pathlib import Path

from bothways.errors import ConfigError, InputError, Place
from bothways.io.broken import Broken
from bothways.io.fields import (
    ESCAPED,
    LOOKED_AT,
    QUOTED,
    SEPARATORS,
    Dialect,
    Record,
    csv_records,
    decimal_commas,
    divides,
    doubled,
    fields_of,
    has_escaped_quotes,
    quoted_as_csv,
    tsv_records,
)
from bothways.io.lines import (
    Layout,
    Line,
    MissingColumnError,
    Values,
    column_name,
    did_you_mean,
    listed,
    python_spelling,
    stream_lines,
)
from bothways.io.terminal import counted
from bothways.io.text_columns import OF_R, TEXT_NAMES, text_column

_RULE = re.compile(r"\|?(?:\s*:?-{3,}:?\s*[|+])+(?:\s*:?-{3,}:?\s*)?")
_NAMED_SEPARATOR = re.compile(r'"?sep=(\\t|.)"?[,;\t|]*', re.IGNORECASE)
_OTHER_SEPARATORS = re.compile(r"[^\w\s'\"-]|\s+|[\x00-\x1f]")
# What is kept at most while it is found out how a file is written: lines, characters.
_BEGINNING, _KEPT = 2000, 2**24
_LONGEST_NAME = 100  # characters


def table_rows(path: Path, names: list[str], layout: Layout, broken: Broken) -> Values:
    """:func:`bothways.io.tables.read_table` for a TSV or CSV file."""
    dialect, records = delimited_records(path, names, layout, broken)
    if path.suffix.lower() != ".csv" and dialect.quoted and dialect.separator == "\t":
        broken.remark("its quotation marks are those of a CSV writer and are read as such")
    expected = {",", ";", "|"} if path.suffix.lower() == ".csv" else {"\t"}
    if dialect.separator not in expected:
        though = f", though its name ends in {path.suffix}" if path.suffix else ""
        broken.remark(f"its columns are separated by {dialect.name}s{though}")
    start, first, raw = next(records)
    if layout.columns and not has_header(first, names):
        columns = _columns_declared(path, names, layout.columns, len(first))
        records = chain([(start, first, raw)], records)
        header = None
    elif layout.header or layout.columns:
        header = first
        own = [column_name(name) for name in first]
        columns = _columns_by_name(path, names, own, (start, first, raw), records)
    else:
        columns = _columns_by_number(path, names, (start, first, raw))
        records = chain([(start, first, raw)], records)
        header = None
    named = len(first)
    while named and not first[named - 1].strip():
        named -= 1  # separators at the end of the line of names
    ends, again = _RowEnds(len(first)), _names_alone(header or ())
    for row, (number, values, raw) in enumerate(records):
        if header is not None and row < _ABOUT_COLUMNS:
            _refuse_line_about_columns(values, path, number + raw.count("\n"))
        ends.take_off(values, path, number)
        if header is not None and named <= len(values) < len(first):
            values += [""] * (len(first) - len(values))
        if len(values) != len(first):
            problem = ragged_row(values, len(first), start, dialect, number)
        elif again and _is_name(values[columns[0]], again) and _names_alone(values) == again:
            problem = (
                f"repeats the column names of line {start}; were two files joined? Remove the line."
            )
        elif header is not None and (beyond := "".join(values[named:]).strip()):
            problem = (
                f"holds {beyond[:40]!r} behind the last column with a name; a text with "
                f"{dialect.name}s must be in quotation marks (or name the column in line {start}, "
                "if it is one)."
            )
        else:
            yield number, [values[i] for i in columns]
            continue
        broken.leave_out(InputError(problem, place=Place(path, number)))


def _names_alone(names: Sequence[str]) -> list[str]:
    """The names in a line of several columns, whatever their order, case and spaces."""
    found = sorted(name for cell in names if (name := column_name(cell).casefold()))
    return found if len(names) > 1 else []


def _is_name(cell: str, names: Sequence[str]) -> bool:
    return len(cell) < _LONGEST_NAME and column_name(cell).casefold() in names


@dataclass
class _RowEnds:
    """Separators behind the last column, which some programs write in each row, but not of names.

    A row alone that has them may as well be one whose text holds a separator.

    Attributes:
        width: how many columns a row has.
        line: of the first row; 0 before it.
        behind: how many that has, if any.
    """

    width: int
    line: int = 0
    behind: int = 0

    def take_off(self, values: list[str], path: Path, number: int) -> None:
        """Take them off a row, if the first one has them.

        Raises:
            InputError: this row has none, but the first one.
        """
        more = "".join(values[self.width :]).strip()
        if not self.line:
            self.line, self.behind = number, 0 if more else len(values) - self.width
        alone = len(values) == self.width > 1 and (self.behind == 1 or not values[-1].strip())
        if self.behind > 0 and alone:
            raise InputError(
                f"has {self.width} columns, and line {self.line} has more, which are empty; give "
                "all rows as many (a text with separators must be in quotation marks).",
                place=Place(path, number),
            )
        if self.behind > 0 and not more:
            del values[self.width :]


def table_items(
    path: Path, broken: Broken, *needed: Sequence[str]
) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a TSV or CSV file with a line of column names, in any case, as objects.

    Args:
        path: the file.
        broken: remarks on how it was read.
        needed: for each column that is needed, the names that it may have, in lower case.

    Yields:
        The line of the row, and its values by column.

    Raises:
        InputError: the file cannot be read as requested, or a column is missing.
    """
    dialect, records = delimited_records(path, (), Layout(header=True), broken)
    start, first, raw = next(records)
    written = header = [column_name(name) for name in first]
    if len(lower := [name.casefold() for name in header]) == len({*lower}):
        header = lower
    for names in needed:
        if not any(name in header for name in names):
            begun = [(start, raw), *((n, line) for n, _, line in islice(records, LOOKED_AT))]
            if (line := title_above(begun)) is not None:
                raise InputError(remove_above(line), place=Place(path, start))
            raise MissingColumnError(
                f"the header lacks a column {names[0]!r} (or {', '.join(names[1:])}); the columns "
                f"are {listed(written)}. Rename the one that holds it in line {start}.",
                written,
                place=Place(path, start),
            )
    empty = 0
    for number, values, _ in records:
        if len(values) > 1 and not any(map(str.strip, values)):
            empty += 1
        elif len(values) != len(header):
            problem = ragged_row(values, len(header), start, dialect, number)
            broken.leave_out(InputError(problem, place=Place(path, number)))
        else:
            yield number, dict(zip(header, values, strict=True))
    if empty:
        broken.remark(without_values(empty))


def delimited_records(
    path: Path, names: Sequence[str], layout: Layout, broken: Broken
) -> tuple[Dialect, Iterator[Record]]:
    """Take a TSV or CSV file apart.

    Args:
        path: by its suffix ``.csv``, or else TSV.
        names: of the columns that are needed.
        layout: whether line 1 has the names.
        broken: what to do with a line that cannot be read.

    Returns:
        How fields are told apart, and all rows that are not blank, the line of names included.

    Raises:
        InputError: the file cannot be read; with the line, a quotation mark that does not fit.
    """
    is_csv = path.suffix.lower() == ".csv"
    ahead = _ReadAhead(broken.action, broken.remedy)
    coming = stream_lines(path, tabs=not is_csv, broken=ahead)
    is_pipe = not path.is_file()  # which is read but once, so as a whole
    lines, goes_on = ([*coming], False) if is_pipe else _beginning(coming)
    separator, lines = _without_preamble(lines, names, layout, path, broken)
    if not separator and _of_r([line for _, line in lines]):
        separator = " "
    if not separator and is_csv:
        separator = _separator(lines, names, layout)
    if not separator and (found := _of_csv(lines, names, layout)):
        is_csv, separator = True, found
    separator = separator or "\t"
    _refuse_other_notation(lines, separator, names, path)
    quoted = is_csv or separator != "\t"
    escaped = quoted and has_escaped_quotes(lines, path, separator)

    def whole() -> Iterable[str]:
        again: Iterable[Line] = lines
        if goes_on:
            again = stream_lines(path, tabs=True, broken=Broken(ahead.action))
            again = dropwhile(lambda line: line[0] < lines[0][0], again)
        return (line for _, line in again)

    if not quoted:
        quoted = quoted_as_csv(whole())
        if not quoted and any(ESCAPED in line for _, line in lines):
            quoted = escaped = quoted_as_csv(map(doubled, whole()), everywhere=True)
    every = ahead.told(chain(lines, coming), broken)
    if escaped:
        broken.remark('quotation marks within its texts stand behind backslashes (\\"), left out')
        every = ((number, doubled(line)) for number, line in every)
    records = csv_records(every, path, separator, ahead.passed) if quoted else tsv_records(every)
    if separator == " ":
        records = _with_row_names(records, broken)
    if names and is_csv:
        records = _with_values(records, broken)
    return Dialect(separator, quoted), records


def _of_r(lines: Sequence[str]) -> bool:
    """Whether columns are separated by spaces, names and texts in quotation marks, as R's
    write.table has them."""
    return bool(lines) and OF_R.fullmatch(lines[0]) is not None


def _with_row_names(records: Iterator[Record], broken: Broken) -> Iterator[Record]:
    """The rows, with a name for the first column where R gives none to that of the rows' names."""
    number, names, raw = next(records)
    begun = [*islice(records, 1)]
    if begun and len(begun[0][1]) == len(names) + 1:
        broken.remark("its first column has names of rows, as R's write.table leaves them")
        names = ["", *names]
    yield number, names, raw
    yield from chain(begun, records)


def _with_values(records: Iterator[Record], broken: Broken) -> Iterator[Record]:
    """The rows without those of separators alone, which spreadsheets leave behind their tables."""
    empty = 0
    for row in records:
        if len(row[1]) < 2 or any(map(str.strip, row[1])):
            yield row
        else:
            empty += 1
    if empty:
        broken.remark(without_values(empty))


def without_values(rows: int) -> str:
    """The remark on rows that were left out."""
    return f"{rows:,} rows without any value are left out"


def _beginning(coming: Iterator[Line]) -> tuple[list[Line], bool]:
    """The first lines, and whether others may follow."""
    lines, size = [], 0
    for line in coming:
        lines.append(line)
        size += len(line[1])
        if len(lines) == _BEGINNING or size > _KEPT:
            return lines, True
    return lines, False


@dataclass
class _ReadAhead(Broken):
    """Keeps the errors of lines that are read before their turn, so that rows before them are not
    counted as if they came after."""

    errors: deque[InputError] = field(default_factory=deque)
    passed: list[InputError] = field(default_factory=list)
    """Of lines that were left out since somebody took note of them."""

    def leave_out(self, error: InputError, place: Place | None = None) -> None:
        """Raise the error, or keep it."""
        error.place = error.place or place
        if self.action == "stop":
            raise self.with_remedy(error)
        self.errors.append(error)

    def told(self, lines: Iterable[Line], broken: Broken) -> Iterator[Line]:
        """The lines, each after what is to be said of lines before it."""
        for line in lines:
            self._tell(broken, line[0])
            yield line
        self._tell(broken, math.inf)

    def _tell(self, broken: Broken, before: float) -> None:
        while self.errors and _row(self.errors[0]) < before:
            self.passed.append(self.errors.popleft())
            broken.leave_out(self.passed[-1])


def _row(error: InputError) -> int:
    return error.place.row or 0 if error.place else 0


def _without_preamble(
    lines: list[Line], names: Sequence[str], layout: Layout, path: Path, broken: Broken
) -> tuple[str, list[Line]]:
    """The separator that a first line such as ``sep=;`` names, or nothing; and the lines from that
    of the names on."""
    separator = ""
    if named := _NAMED_SEPARATOR.fullmatch(lines[0][1].strip(" ")):
        separator, lines = named[1].replace("\\t", "\t"), lines[1:]
        if not lines:
            raise InputError("is empty; it needs one example per line.", place=Place(path))
    while len(lines) > 1 and not lines[0][1].strip() and "\t" not in lines[0][1]:
        lines = lines[1:]
    if comments := _comments(lines, names, layout):
        broken.remark(f"{counted(comments, 'line')} of comments above the columns: left out")
    return separator, lines[comments:]


def _refuse_other_notation(
    lines: Sequence[Line], separator: str, names: Sequence[str], path: Path
) -> None:
    """Refuse JSON, and tables whose lines are drawn."""
    if names and _is_json(lines[0][1]):
        raise InputError("this is JSON; name the file .json or .jsonl.", place=Place(path, 1))
    if (
        names
        and lines[0][1].startswith("{")
        and (hint := python_spelling(lines[0][1], whole=False))
    ):
        raise InputError(f"this is no table.{hint}", place=Place(path, 1))
    if separator == "|" and len(lines) > 1 and _RULE.fullmatch(lines[1][1].strip()):
        raise InputError(
            "this is a line of dashes, as below the names of a table in Markdown; remove it, and "
            "the bars at both ends of lines (of psql's table: have it written by psql --csv).",
            place=Place(path, lines[1][0]),
        )


def _of_csv(lines: Sequence[Line], names: Sequence[str], layout: Layout) -> str:
    """What separates the columns of a file that is CSV, whatever its name says; empty: tabs."""
    if not names or "\t" in lines[0][1]:
        return ""
    if not layout.header or layout.columns:
        several = len(layout.columns or names) > 1 or "0" not in names
        found = _separator(lines, names, layout) if several and len(lines) > 1 else ""
        return found if found and divides(lines, found, 2) else ""
    separator = _separator(lines, names, layout)
    first = fields_of(lines[0][1], separator)
    return separator if len(first) > 1 and _may_be_header(first, names) else ""


def _is_json(line: str) -> bool:
    """Whether the first line of a file is JSON, or begins a list or object over several lines."""
    if not line.lstrip().startswith(("[", "{")):
        return False
    if line.strip() in ("[", "{", "[{"):
        return True
    try:
        return isinstance(json.loads(line), dict | list)
    except (ValueError, RecursionError):
        return False


def ragged_row(
    values: Sequence[str], width: int, header: int, dialect: Dialect, number: int
) -> str:
    """What is wrong with a row that has not as many columns as line 1."""
    separator, row = dialect.separator.replace("\t", "\\t"), '"row"' if dialect.quoted else "row"
    of_r = (
        "the first column has the {} of the rows and no name, as R's write.table leaves it; give "
        f"it one: sed '{header}s/^/{row}{separator}/' OLD > NEW"
    )
    first_has_more = len(values) == width + 1 and number == header + 1
    if first_has_more and values[0].isdecimal():
        hint = of_r.format("numbers")
    elif dialect.quoted and len(values) < width:
        hint = (
            f"a row has as many as line {header}, empty ones included, and a text with line breaks "
            "stands in quotation marks"
        )
    elif dialect.quoted and any(
        value.startswith(" ") and value.lstrip()[:1] == '"' for value in values
    ):
        hint = (
            f"a quotation mark opens a text only directly behind the {dialect.name}; remove the "
            "spaces before it"
        )
    elif dialect.quoted and any(
        value.lstrip()[:1] in "'“”„«‘" for value in values if value.strip()
    ):
        hint = (
            f"a text with {dialect.name}s or line breaks must be in quotation marks of the form "
            '"..."'
        )
    elif dialect.quoted and width == 1:
        hint = (
            f"a text with {dialect.name}s must be in quotation marks; or name the file .tsv, where "
            "a line is one text"
        )
    elif dialect.quoted:
        hint = f"a text with {dialect.name}s or line breaks must be in quotation marks"
        hint += f" (or {of_r.format('names')})" if first_has_more else ""
    else:
        hint = (
            "a text may not hold tabs or line breaks, and quotation marks do not protect them in "
            "a file that also has others (a .csv file may)"
        )
    whole = dialect.separator.join(values)
    others = [n for s, n in SEPARATORS.items() if s != dialect.separator]
    for separator, name in SEPARATORS.items():
        if name in others and width > 1 and len(whole.split(separator)) == width:
            hint = f"with {name}s between columns it would have {width}; separate all lines alike"
    return (
        f"has {len(values)} {dialect.name}-separated column{'s' * (len(values) != 1)} where line "
        f"{header} has {width}: {listed(values, 6)}; {hint}."
    )


def _comments(lines: Sequence[Line], names: Sequence[str], layout: Layout) -> int:
    """How many lines of ``#`` stand before the line with the column names."""
    if not layout.header:
        return 0
    if not names:
        return _narrower_comments([line for _, line in lines[:LOOKED_AT]])
    for number, (_, line) in enumerate(lines[:LOOKED_AT]):
        fields = [field.strip(' "') for field in re.split("[,;|\t]", line)]
        if _may_be_header(fields, names):
            return number
        if line.strip() and not line.startswith("#"):
            break
    return 0


def _narrower_comments(lines: Sequence[str]) -> int:
    """How many lines of ``#`` begin a file, where the line after them has several columns and none
    of them as many."""
    number = next((n for n, line in enumerate(lines) if not line.startswith("#")), 0)
    first = QUOTED.sub("", lines[number])
    counts = {s: first.count(s) for s in SEPARATORS if s in first}
    apart = all(line.count(s) != count for line in lines[:number] for s, count in counts.items())
    return number if counts and apart else 0


def title_above(begun: Sequence[Line]) -> int | None:
    """The line of the columns' names, if what is above it in a file has one value in each line, as
    a title has; None if the names stand in the first line, or it cannot be told."""
    if begun and OF_R.fullmatch(begun[0][1]):
        return None
    for separator in SEPARATORS:
        rows = [(number, fields_of(line, separator)) for number, line in begun if line.strip()]
        width = len(rows[-1][1]) if rows else 0
        alone = [sum(map(bool, map(str.strip, row))) < 2 for _, row in rows]
        first = alone.index(False) if False in alone else 0
        if (
            0 < first < len(rows) - 1
            and all(len(row) == width for _, row in rows[first:])
            and not any(alone[first:])
            and all(len(row) > 1 or " " in row[0].strip() for _, row in rows[:first])
        ):
            return rows[first][0]
    return None


def remove_above(line: int) -> str:
    """What to do with what is above the line with the columns' names."""
    return (
        f"the names of the columns seem to stand on line {line}; remove what is above: "
        f"tail -n +{line} OLD > NEW."
    )


def _separator(lines: Sequence[Line], names: Sequence[str], layout: Layout) -> str:
    """What separates the fields of a CSV file.

    With a line of names, what gives it the names that are needed; or else what it has, commas
    first. Without, what divides the first records into equally many columns, at least as many as
    are needed; commas do not count if each could be a decimal one.
    """
    if layout.header and not layout.columns:
        for holds in (has_header, _may_be_header):
            for separator in SEPARATORS:
                first = fields_of(lines[0][1], separator)
                if names and holds(first, names) and len(first) > 1:
                    return separator
        first_line = QUOTED.sub("", lines[0][1])
        return next((s for s in SEPARATORS if s in first_line), ",")
    numbers = [int(name) for name in names if name.isascii() and name.isdigit()]
    width = len(layout.columns) or 1 + max(numbers, default=max(len(names), 2) - 1)
    dividing = [s for s in SEPARATORS if divides(lines, s, width)]
    if "," in dividing and len(dividing) > 1 and decimal_commas(lines):
        dividing.remove(",")
    return dividing[0] if dividing else ","


def has_header(first: Sequence[str], names: Sequence[str]) -> bool:
    """Whether the first line of a file holds all the column names needed."""
    return set(names) <= {column_name(cell) for cell in first}


def _may_be_header(first: Sequence[str], names: Sequence[str]) -> bool:
    """The same, where the texts may stand under another of the usual names."""
    own = {column_name(cell) for cell in first}
    missing = {*names} - own
    return not missing or (missing == {TEXT_NAMES[0]} and text_column(own) is not None)


def _columns_declared(
    path: Path, names: list[str], columns: Sequence[str], width: int
) -> list[int]:
    for name in names:
        if columns.count(name) != 1:
            raise ConfigError(
                f"task.columns is {listed(columns)}; it must name column {name!r} once."
                f"{did_you_mean(name, columns)}"
            )
    if len(columns) != width:
        raise InputError(
            f"has {width} columns, but task.columns names {len(columns)}: {listed(columns)}.",
            place=Place(path, 1),
        )
    return [columns.index(name) for name in names]


def _columns_by_name(
    path: Path, names: list[str], header: list[str], first: Record, rows: Iterator[Record]
) -> list[int]:
    """The places of columns.

    Args:
        path: the file.
        names: that are needed.
        header: all names.
        first: the line of names as it is.
        rows: that follow.
    """
    for name in names:
        if header.count(name) != 1:
            error = _no_column(name, names, header, first, rows)
            error.place = Place(path, first[0])
            raise error
    return [header.index(name) for name in names]


def _no_column(
    name: str, names: list[str], header: list[str], first: Record, rows: Iterator[Record]
) -> InputError:
    """What is wrong where a column is not there once."""
    if name in header:
        return InputError(
            f"the header names twice the column {name!r}; the columns are {listed(header)}. "
            "Rename or remove all but one."
        )
    if other := _other_form(first, rows, names):
        return InputError(other)
    if len(header) == 1 and set(names) & set(header[0].split(r"\t")):
        return MissingColumnError(
            f"the line of column names is {listed(header)}, with a backslash and a letter in "
            r"place of tabs; write tabs: sed 's/\\t/\t/g' OLD > NEW.tsv.",
            header,
        )
    cells = _OTHER_SEPARATORS.split(header[0].replace('"', ""))
    if len(header) == 1 and set(names) <= set(cells):
        return MissingColumnError(
            f"the line of column names is {listed(header)}: what stands between its names "
            f"separates no columns here. {_to_tabs(header[0], cells)}",
            header,
        )
    return MissingColumnError(
        f"the header lacks the column {name!r}; the columns are {listed(header)}."
        f"{did_you_mean(name, header)} Name yours: `finetune`, `predict`, `evaluate` and `export` "
        "take --text COLUMN and --label COLUMN, Python text= and label=, the file of a --task "
        "text_a and label. If line 1 is already an example, task.header false names columns by "
        "number, from 0; `predict` and `embed` take plain texts, one per line, from standard "
        "input.",
        header,
        missing=name,
    )


def _to_tabs(line: str, names: Sequence[str]) -> str:
    """How to write tabs in place of what stands between names."""
    rest = line
    for name in names:
        rest = rest.replace(name, "\n", 1)
    marks = {mark.replace('"', "") for mark in rest.strip("\n").split("\n") if mark.strip('"')}
    if len(marks) != 1 or not (mark := marks.pop()).strip(" '"):
        return "Separate all lines alike, by commas (.csv) or tabs (.tsv)."
    shown = ascii(mark)
    return (
        'Write tabs: python3 -c "import sys; sys.stdout.writelines(s.replace('
        f"{shown}, '\\t') for s in sys.stdin)\" < OLD > NEW.tsv."
    )


_FASTTEXT = re.compile(r"(__label__\S+ +)+\S")
_TO_COLUMNS = (
    r"(printf 'label\tsentence\n'; sed -E 's/ +__label__/,/g; s/^__label__([^ ]*) +/\1\t/' OLD)"
    " > NEW.tsv (commas then separate several labels of a text: --kind multilabel "
    "--task.label_separator ,)"
)
# What other files look like, line for line.
_NO_TABLES = (
    (
        re.compile(r"INSERT INTO|CREATE TABLE|\(|--|BEGIN|COMMIT|DROP TABLE|PRAGMA|SET |/\*", re.I),
        "these are statements of SQL; have the table written as CSV (sqlite3 -header -csv, psql "
        "--csv) or with tabs (mysql --batch).",
    ),
    (
        re.compile(r"- [\w-]+:(?: |$)|  |---|#"),
        'this is YAML; write it as JSON: python3 -c "import json, sys, yaml; '
        'print(json.dumps(yaml.safe_load(sys.stdin)))" < OLD > NEW.json.',
    ),
    (
        re.compile(r"\S+(?: \d+:[-+.\deE]+)+\s*(?:#.*)?$"),
        "these are numbers of features, as libsvm has them, without any text; take the texts that "
        "they were made from.",
    ),
)
_HTML = re.compile(r"\s*<(?:table|thead|tr|div|style|meta)\b", re.I)
_ARFF = re.compile(r"@relation\b|%", re.I)
_BOX = re.compile(r"[+|]?[-=+|]{3,}")
_ABOUT_COLUMNS = 3  # rows


def _other_form(first: Record, rows: Iterator[Record], names: Sequence[str]) -> str:
    """What a file without its names in the first line is, and what to do; empty: not known."""
    begun = [first]
    with contextlib.suppress(InputError):
        begun.extend(islice(rows, LOOKED_AT))
    cells = [cell.strip() for cell in first[1]]
    if len(cells) > 1 and all(re.fullmatch("'.+'", cell) for cell in cells):
        return (
            "the names stand in single quotation marks, which are text here; have the program that "
            "wrote the file put double ones around names and values, or none."
        )
    if all(_FASTTEXT.match(raw) for *_, raw in begun):
        return f"this is fastText's format; make columns of it: {_TO_COLUMNS}."
    if _HTML.match(first[2]):
        return (
            "this is a page of HTML; its first table becomes CSV (pip install pandas lxml): "
            "python3 -c \"import pandas; pandas.read_html('OLD')[0].to_csv('NEW.csv', "
            'index=False)".'
        )
    if _ARFF.match(first[2]) and any("@attribute" in raw.lower() for *_, raw in begun):
        return (
            "this is ARFF, as Weka has it; have it written as CSV there (CSVSaver), or take the "
            "lines below @data and write the names of the attributes above them."
        )
    if _BOX.fullmatch(first[2].strip()):
        return (
            "this is a table drawn with lines, as databases show it; have it written as CSV (psql "
            "--csv) or with tabs (mysql --batch)."
        )
    for expression, what in _NO_TABLES:
        if all(expression.match(raw) for *_, raw in begun if raw.strip()):
            return what
    for number, _, raw in begun[1:]:
        if _may_be_header([cell.strip(' "') for cell in re.split("[,;|\t]", raw)], names):
            return (
                f"the names of the columns stand on line {number}, not here; remove what is above: "
                f"tail -n +{number} OLD > NEW."
            )
    line = title_above([(number, raw) for number, _, raw in begun])
    return "" if line is None else remove_above(line)


def _refuse_line_about_columns(values: Sequence[str], path: Path, last: int) -> None:
    """Refuse a row of a survey that describes the columns once more, and ends on a line."""
    filled = [value.strip() for value in values if value.strip()]
    if filled and all(re.fullmatch("-{2,}|={2,}", value) for value in filled):
        problem = (
            "is a line of dashes, as SQL Server and others write it below the names; remove it: "
            f"sed '{last}d' OLD > NEW."
        )
    elif "Open-Ended Response" in filled:
        problem = (
            "has a second line of column names, as SurveyMonkey writes it; remove it: sed "
            f"'{last}d' OLD > NEW."
        )
    elif filled and all('"ImportId"' in value for value in filled):
        problem = (
            "has identifiers of columns, as Qualtrics writes them below the names and the "
            "questions; remove the lines between the names and the first answer: sed "
            f"'2,{last}d' OLD > NEW."
        )
    else:
        return
    raise InputError(problem, place=Place(path, last))


def _columns_by_number(path: Path, names: list[str], first: Record) -> list[int]:
    width = len(first[1])
    undivided = width == 1 and "\t" in first[2]
    as_text = (
        "; where tabs part columns, and quotation marks are text, name the file .tsv" * undivided
    )
    for name in names:
        if not (name.isascii() and name.isdigit()):
            raise ConfigError(
                f"column {name!r}: with task.header false, columns are numbers from 0 (text_a, "
                f"text_b and label of the task); {path} has {width} columns."
            )
        if int(name) >= width:
            raise InputError(
                f"has {width} columns, 0 to {width - 1}; there is no column {name}{as_text}.",
                place=Place(path, first[0]),
            )
    return [int(name) for name in names]
