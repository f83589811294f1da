"""What the lines of a text file hold that is not its text: other formats, marks, names, times.

A file of which nearly all is the syntax of another format is not read as text. What stands beside
the text of its lines is said, with the command that takes it out. Everything is decided by the
beginning of a file.
"""

from __future__ import annotations

import ast
import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from bothways.errors import InputError
from bothways.io.text_columns import OF_R, TEXT_NAMES, table_in

_LOOKED_AT = 1000  # lines with text, at most
_PARSED = 50  # of them, where each is parsed
_NEARLY_ALL, _MOST, _MANY, _SOME = 0.95, 0.8, 0.6, 0.05  # shares of the lines
_FEW = 5  # at least so many lines that look alike
_EXAMPLE = 24  # characters
OPTION = "--text_field"
"""That which names the text of records."""


@dataclass(frozen=True)
class Forms:
    """What the lines of a file hold besides text.

    Attributes:
        other: the format that the file has in place of text, and what to do; empty if none.
        notes: sentences on what stands beside the text, by what they are about.
    """

    other: str = ""
    notes: dict[str, str] = field(default_factory=dict)

    def refuse(self, source: str | Path) -> None:
        """Refuse another format; ``source`` names the file.

        Raises:
            InputError: it is one.
        """
        if self.other:
            raise InputError(self.other, path=source)


def look_at_forms(lines: Sequence[str], option: str = OPTION) -> Forms:
    """What the first lines of a file hold besides text.

    Args:
        lines: without line ends.
        option: that which names the text of JSON lines, for the message; empty if there is none, as
            where one text is read.
    """
    full = [text for line in lines if (text := line.strip("\ufeff\r\n\x1a ")).strip()][:_LOOKED_AT]
    if not full:
        return Forms()
    for other in _OTHERS:
        if message := other(full):
            return Forms(other=message.replace(OPTION, option) if option else _alone(message))
    return Forms(notes={name: said for name, note in _NOTES.items() if (said := note(full))})


_AS_TEXT = "whose syntax would be read as text; "


def _alone(message: str) -> str:
    """A message where no records are read: what the file is, and that its text is needed alone."""
    what, found, _ = message.partition(_AS_TEXT)
    return f"{what}{found}write the text alone to a .txt file." if found else message


def _share(pattern: re.Pattern[str], lines: Sequence[str]) -> float:
    return sum(pattern.search(line) is not None for line in lines) / len(lines)


def _shown(text: str) -> str:
    return repr(text[:_EXAMPLE])


def _of_first(count: int, lines: Sequence[str]) -> str:
    return f"{count:,} of its first {len(lines):,} lines with text"


# ------------------------------------------------------------------------------- other formats

_TO_JSON_LINES = (
    "write an object on each line of a .jsonl file: python -c 'import json, sys; "
    "d = json.load(sys.stdin); [print(json.dumps(x if isinstance(x, dict) else "
    '{"text": x})) for x in (d.values() if isinstance(d, dict) else d)]\' < OLD > NEW.jsonl'
)
_NOTEBOOK = (
    "this is a notebook of Jupyter, not plain text; take the text of its cells: python -c 'import "
    'json, sys; [print("".join(c["source"]), end="\\n\\n") for c in json.load(sys.stdin)["cells"] '
    'if c["cell_type"] == "markdown"]\' < OLD > NEW.'
)
# The beginning of an object or a list, and a line within one that is laid out over several.
_JSON_BEGINS = re.compile(r'(?:\[\s*)*(?:\{\s*"(?:[^"\\]|\\.)*"\s*:|\[\s*"(?:[^"\\]|\\.)*"\s*,)')
_JSON_LINE = re.compile(
    r'(?:[{}\[\]],?|"(?:[^"\\]|\\.)*"\s*:.*|"(?:[^"\\]|\\.)*",?|-?\d[\d.eE+-]*,?|(?:true|false'
    r"|null),?|\{.*|\}, ?\{|\[.*)\s*"
)


def _json(lines: Sequence[str]) -> str:
    if not _JSON_BEGINS.match("\n".join(lines[:3])):
        return ""
    objects = [found for line in lines[:_PARSED] if isinstance(found := _parsed(line), dict | list)]
    keyed = [found for found in objects if isinstance(found, dict)]
    several = len(lines) > 1 or (keyed and not isinstance(next(iter(keyed[0].values()), 0), dict))
    if keyed and several and len(objects) >= _NEARLY_ALL * len(lines[:_PARSED]):
        if "cells" in keyed[0] and "nbformat" in keyed[0]:
            return _NOTEBOOK
        keys = ", ".join(repr(key[:_EXAMPLE]) for key in [*keyed[0]][:8])
        return (
            f"its lines are JSON, {_AS_TEXT}let the file's name end in "
            f".jsonl, and give {OPTION} NAME for the key of the text. The first line has {keys}."
        )
    whole = len(lines) == 1 or sum(_JSON_LINE.fullmatch(line) is not None for line in lines) >= (
        _NEARLY_ALL * len(lines)
    )
    if not whole:
        return ""
    if '"cells"' in "".join(lines[:3])[:200]:
        return _NOTEBOOK
    return f"this is JSON, {_AS_TEXT}{_TO_JSON_LINES}."


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _python(lines: Sequence[str]) -> str:
    looked_at = lines[:_PARSED]
    starts = all(line.startswith(("{'", '{"')) for line in looked_at)
    if not starts or all(isinstance(_parsed(line), dict) for line in looked_at):
        return ""
    keys: list[str] = []
    for line in looked_at:
        try:
            found = ast.literal_eval(line)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return ""
        if not isinstance(found, dict):
            return ""
        keys = keys or [repr(key) for key in found][:8]
    return (
        f"its lines are objects as Python writes them, {_AS_TEXT}write "
        "them as JSON lines: python -c 'import ast, json, sys; [print(json.dumps("
        "ast.literal_eval(s))) for s in sys.stdin if s.strip()]' < OLD > NEW.jsonl, and give "
        f"{OPTION} NAME for the key of the text. The first line has {', '.join(keys)}."
    )


_WARC = re.compile(r"WARC/[01]\.\d")


def _web_archive(lines: Sequence[str]) -> str:
    if not _WARC.fullmatch(lines[0]):
        return ""
    if any(line.startswith("HTTP/1.") or line == "WARC-Type: response" for line in lines):
        return (
            "this is a web archive (WARC) with pages as servers sent them; take their text out, "
            "such as by trafilatura or resiliparse, or take the files of text (.warc.wet.gz)."
        )
    return (
        "this is a web archive (WARC), whose headers would be read as text; take them out: "
        "awk '/^WARC\\/[01]/ {h = 1} !h; /^\\r?$/ {h = 0}' OLD > NEW."
    )


_SBV = re.compile(r"\d+:\d\d:\d\d\.\d{3},\d+:\d\d:\d\d\.\d{3}")
_FRAMES = re.compile(r"\{\d+\}\{\d*\}")


def _subtitles(lines: Sequence[str]) -> str:
    command = ""
    if lines[0] == "[Script Info]":
        command = (
            r"grep ^Dialogue: OLD | cut -d, -f10- | sed -E 's/\{[^}]*\}//g; s/\\[Nnh]/ /g' > NEW"
        )
    elif _SBV.fullmatch(lines[0]):
        command = r"sed -E '/^[0-9:.]+,[0-9:.]+\r?$/d' OLD > NEW"
    elif _share(_FRAMES, lines) >= _NEARLY_ALL:
        command = r"sed -E 's/^(\{[0-9]*\})+//; s/\|/ /g' OLD > NEW"
    return command and (
        f"these are subtitles, whose times would be read as text; take them out: {command}."
    )


_TAG_LINE = re.compile(r"<(?!s>|/s>|\|)[!?/]?([a-zA-Z][\w:.-]*)[^<>]*>(?:.*>)?\Z")
_NAMES = 3  # of tags that lines begin with; text that is marked has one or two


def _xml(lines: Sequence[str]) -> str:
    tagged = [match[1] for line in lines if (match := _TAG_LINE.match(line.strip()))]
    few = len(tagged) < max(_FEW, 0.9 * len(lines))
    if few or not _TAG_LINE.match(lines[0].strip()) or len({*tagged}) < _NAMES:
        return ""
    return (
        f"{_of_first(len(tagged), lines)} are tags of HTML or XML, such as "
        f"{_shown(lines[0].strip())}, "
        "which would be read as text; take them out: python -c 'import html, re, sys; "
        'print(html.unescape(re.sub("<[^>]*>", "", sys.stdin.read())))\' < OLD > NEW.'
    )


_ALIKE = 0.98  # share of the rows that have equally many columns
_NAME = re.compile(r"[^\W\d][\w.#()/ -]{0,39}|")
_KNOWN_NAMES = frozenset(
    "id text sentence sentence1 sentence2 label labels document title review content body category "
    "class url date author source target question answer context message tweet comment rating name "
    "language lang score description abstract summary topic sentiment".split()
)


def _table(lines: Sequence[str]) -> str:
    if (table := table_in(lines)) is not None:
        return (
            f"{table.shown}: it is a table, whose other columns would be read as text, too. Write "
            'its texts alone: python3 -c "import csv, sys; [print(*row['
            f"{table.columns.index(table.text)}].split()) for row in [*csv.reader(sys.stdin, "
            f'delimiter={table.separator!r})][1:]]" < OLD > NEW.txt'
        )
    if OF_R.fullmatch(lines[0]) and len(lines) > 1 and (message := _of_r(lines)):
        return message
    rows = [line.split("\t") for line in lines]
    columns = len(rows[0])
    if columns > 1 and len(rows) >= _FEW:
        alike = [row for row in rows if len(row) == columns]
        if len(alike) < _ALIKE * len(rows):
            return ""
        text, header = _text_column(alike), _has_names(alike)
        if not header and not any(_is_about(alike, n, text) for n in range(columns) if n != text):
            return ""
        first = "tail -n +2 OLD | cut" if header else "cut"
        command = f"{first} -f {text + 1}{'' if header else ' OLD'} > NEW"
        named = f" ({rows[0][text].strip()!r})" if header else ""
        return (
            f"this is a table of {columns} columns with tabs between them, which would be read as "
            f"text; take that of the text, such as column {text + 1}{named}: {command}."
        )
    return _separated(lines) if len(lines) >= _FEW else ""


def _of_r(lines: Sequence[str]) -> str:
    """:func:`_table` of columns as R's write.table has them."""
    try:
        names, *rows = csv.reader(lines, delimiter=" ", escapechar="\\", strict=True)
    except csv.Error:
        return ""
    if len({len(row) for row in rows}) > 1 or len(rows[0]) - len(names) not in (0, 1):
        return ""
    sizes = [sum(len(row[n - len(names)]) for row in rows) for n in range(len(names))]
    text = sizes.index(max(sizes))
    return (
        f"this is a table of {len(names)} columns as R's write.table has it, which would be read "
        f"as text; take that of the text, such as {names[text]!r}: python3 -c "
        f'"import csv, sys; [print(*row[{text - len(names)}].split()) for row in '
        "[*csv.reader(sys.stdin, delimiter=' ', escapechar=chr(92))][1:]]\" < OLD > NEW.txt."
    )


def _separated(lines: Sequence[str]) -> str:
    """:func:`_table` of columns with commas or other signs between them and names above."""
    for separator in ",;|":
        if separator not in lines[0]:
            continue
        try:
            rows = [*csv.reader(lines, delimiter=separator)]
        except csv.Error:
            continue
        columns = len(rows[0])
        alike = [row for row in rows if len(row) == columns]
        if columns < 2 or len(alike) < max(_FEW - 1, 0.9 * len(rows)) or not _has_names(alike):
            continue
        text = _text_column(alike)
        name = alike[0][text]
        given = "" if separator == "," else f', delimiter="{separator}"'
        return (
            f"this is a table of {columns} columns with {separator!r} between them, which would be "
            f"read as text; take that of the text, such as {name!r}: python -c 'import csv, sys; "
            f'[print(" ".join(r["{name}"].split())) for r in csv.DictReader(sys.stdin{given})]\' '
            "< OLD > NEW."
        )
    return ""


def _text_column(rows: Sequence[Sequence[str]]) -> int:
    """The column with the longest texts."""
    sizes = [sum(map(len, column)) for column in zip(*rows[1:], strict=True)]
    return sizes.index(max(sizes))


def _has_names(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names the columns: short words, one of which is a usual name or all of
    which are far shorter than what stands below."""
    first = [cell.strip().strip('"') for cell in rows[0]]
    if len(set(first)) < len(first) or not all(_NAME.fullmatch(cell) for cell in first):
        return False
    if {cell.lower() for cell in first} & _KNOWN_NAMES:
        return True
    text = _text_column(rows)
    below = sum(len(row[text]) for row in rows[1:]) / len(rows[1:])
    return all(cell and " " not in cell for cell in first) and below > 4 * max(map(len, first))


def _is_about(rows: Sequence[Sequence[str]], column: int, text: int) -> bool:
    """Whether a column holds numbers, labels or codes about the texts in another."""
    cells = [row[column].strip() for row in rows]
    if sum(map(len, cells)) > 0.5 * sum(len(row[text]) for row in rows):
        return False
    numbers = sum(cell.isdigit() for cell in cells)
    return numbers >= _NEARLY_ALL * len(cells) or len(set(cells)) <= max(1, 0.1 * len(cells))


_WORD_LINES = 20
_TAG = re.compile(r"[A-Z]{1,5}\$?|[A-Z]{1,5}-\S+|O|[.,:;'`\"#$()_-]{1,3}|[A-Z]+[|:]\S+|_|-?\d{1,3}")
_BREAK = re.compile(r"<[^<>]+>|-DOCSTART-|# ")


def _tagged_words(lines: Sequence[str]) -> str:
    lines = [line for line in lines if not _BREAK.match(line)]
    if len(lines) < _WORD_LINES:
        return ""
    separator = "\t" if "\t" in lines[0] else " "
    rows = [[cell for cell in line.strip().split(separator) if cell] for line in lines]
    (columns, times), *_ = Counter(map(len, rows)).most_common(1)
    rows = [row for row in rows if len(row) == columns]
    if times < _NEARLY_ALL * len(lines) or not 2 <= columns <= 14:
        return ""
    numbered = columns >= 8 and sum(row[0][:1].isdigit() for row in rows) >= _MOST * len(rows)
    words = [row[1 if numbered else 0] for row in rows]
    if sum(map(len, words)) > 15 * len(words) or any(" " in word for word in words[:_PARSED]):
        return ""
    if sum(word[0].isalpha() for word in words) < 0.5 * len(words) or len({*words}) < 10:
        return ""
    is_tagged = numbered or any(_are_tags([row[n] for row in rows]) for n in range(1, columns))
    if not is_tagged:
        return ""
    word = "$2" if numbered else "$1"
    between = "-F '\\t' " if separator == "\t" else ""
    return (
        f"its lines hold a word each, with tags in {columns} columns as in CoNLL's files, which "
        f"would be read as text; write its sentences on a line each: awk {between}'{{e = !NF || "
        f'/^<|^#|^-DOCSTART/}} !e {{printf "%s%s", (n++ ? " " : ""), {word}}} e && n {{print ""; '
        'n = 0} END {if (n) print ""}\' OLD > NEW.'
    )


def _are_tags(cells: Sequence[str]) -> bool:
    known = set(cells)
    letters = any(cell.isalpha() or "-" in cell[:6] for cell in known)
    fit = sum(_TAG.fullmatch(cell) is not None for cell in cells)
    return letters and len(known) <= max(2, 0.2 * len(cells)) and fit >= 0.9 * len(cells)


_OTHERS: tuple[Callable[[Sequence[str]], str], ...] = (
    _web_archive,
    _subtitles,
    _python,
    _json,
    _tagged_words,
    _table,
    _xml,
)


# ---------------------------------------------------------------------- beside the text of lines


# What lines begin with. The expressions mean the same to sed -E.
_TIME = r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?"
_DATE = r"[0-9]{1,4}[-./][0-9]{1,2}[-./][0-9]{1,4}"
_BEGINNINGS = (
    ("times and names, as in a chat,", rf"^\[?{_TIME}\]? *<[^>]+> *"),
    ("names and times, as in a chat,", rf"^\[[^]]+\] \[[^]]*{_TIME}[^]]*\] *"),
    (
        "dates and times, as in a chat,",
        rf"^[^0-9a-zA-Z]{{0,2}}{_DATE},? {_TIME}( ?[aApP]\.?[mM]\.?)?\]?( -)? [^:]{{1,40}}: ",
    ),
    ("times", r"^\[[0-9]+:[0-9:., >-]+\] *"),
    ("dates and times, as in a log,", rf"^\[?{_DATE}[T ,]+{_TIME}[^ ]* *"),
    ("dates and times, as in a log,", rf"^[A-Z][a-z]{{2}} +[0-9]+ {_TIME} "),
    (
        "addresses and times, as in a log,",
        r"^[^ ]+ [^ ]+ [^ ]+ \[[0-9]+/[A-Z][a-z]+/[0-9]+:[^]]*\] *",
    ),
    ("times", rf"^\(?{_TIME}\)?( -)? "),
)
_TIME_ALONE = re.compile(_TIME)


def _times(lines: Sequence[str]) -> str:
    for what, expression in _BEGINNINGS:
        begins = re.compile(expression)
        found = [match[0] for line in lines if (match := begins.match(line))]
        if len(found) >= max(_FEW, _MANY * len(lines)):
            return (
                f"{_of_first(len(found), lines)} begin with {what} such as {_shown(found[0])}, "
                f"which are text here; take them out: sed -E 's#{expression}##' OLD > NEW"
            )
    alone = sum(_TIME_ALONE.fullmatch(line) is not None for line in lines)
    if alone >= max(_FEW, 0.25 * len(lines)):
        return (
            f"{_of_first(alone, lines)} are times, which are text here; take them out: "
            f"sed -E '/^{_TIME}\\r?$/d' OLD > NEW"
        )
    return ""


_NUMBER = re.compile(r"\s*(\d+)[.:)]?(?:\s+|(?<=:)(?=\S))")


def _numbers(lines: Sequence[str]) -> str:
    found = [match for line in lines if (match := _NUMBER.match(line))]
    numbers = [int(match[1]) for match in found]
    steps = sum(b - a == 1 for a, b in pairwise(numbers))
    if len(found) < max(2 * _FEW, _NEARLY_ALL * len(lines)) or steps < 0.9 * (len(numbers) - 1):
        return ""
    return (
        f"{_of_first(len(found), lines)} begin with their numbers, such as {_shown(found[0][0])}, "
        "which are text here; take them out: "
        "sed -E 's/^[ \\t]*[0-9]+[.:)]?[ \\t]*//' OLD > NEW"
    )


_SPEAKER = re.compile(r"([^\W\d_][\w .'’()-]{0,30}?) ?: +(?=\S)")
_NAMED = 12


def _speakers(lines: Sequence[str]) -> str:
    names = Counter(match[1] for line in lines if (match := _SPEAKER.match(line)))
    total = names.total()
    often = [name for name, count in names.most_common() if count >= 3]
    if len(often) < 2:  # a word as it comes
        return ""
    if total < max(2 * _FEW, _MANY * len(lines)) or sum(names[n] for n in often) < 0.9 * total:
        return ""
    said = (
        f"{_of_first(total, lines)} begin with the name of a speaker, such as {_shown(often[0])}, "
        "which is text here"
    )
    if len(often) > _NAMED:
        return said
    either = "|".join(map(_for_sed, often))
    quoted = either.replace("'", "'\\''")
    return f"{said}; take them out: sed -E 's#^({quoted}) ?: +##' OLD > NEW"


def _for_sed(text: str) -> str:
    return re.sub(r"([][().*+?{}^$|\\#])", r"\\\1", text)


_MBOX = re.compile(r"From \S+ .*\d\d:\d\d")
_HEADER = re.compile(
    r"(?:From|To|Cc|Bcc|Subject|Date|Sent|Reply-To|In-Reply-To|References|Message-I[Dd]|Newsgroups"
    r"|Organization|Received|MIME-Version|Content-[A-Za-z-]+|X-[A-Za-z-]+|Lines|Path|Sender"
    r"|NNTP-Posting-Host): "
)


def _mails(lines: Sequence[str]) -> str:
    headers = sum(_HEADER.match(line) is not None for line in lines)
    if headers < 3:
        return ""
    said = f"{_of_first(headers, lines)} look like headers of mails, which are text here; take them"
    if any(_MBOX.match(line) for line in lines):
        return f"{said} out: awk '/^From / {{h = 1}} !h; /^\\r?$/ {{h = 0}}' OLD > NEW"
    if all(_HEADER.match(line) for line in lines[:2]) and headers < 40:
        return f"{said} out, to the first blank line: awk 'b; /^\\r?$/ {{b = 1}}' OLD > NEW"
    if headers >= max(_FEW, _SOME * len(lines)):
        return f"{said} out: grep -vE '^(From|To|Cc|Subject|Date|Sent): ' OLD > NEW"
    return ""


def _quotes(lines: Sequence[str]) -> str:
    quoted = sum(line.startswith(">") for line in lines)
    if quoted < max(_FEW, 2 * _SOME * len(lines)):
        return ""
    return (
        f"{_of_first(quoted, lines)} are quoted with '>', as in mails, so that text may stand "
        "in it twice; take them out: grep -v '^>' OLD > NEW"
    )


_TEX = re.compile(
    r"\\(?:begin|end|(?:sub)*section|chapter|paragraph|cite[a-z]*|ref|label|emph|text[a-z]{2}|item"
    r"|documentclass|usepackage|footnote|frac)\b[*\[{ ]?"
)
_MARKDOWN = (  # and a part of each that is found fast
    ("#", re.compile(r"#{1,6} +\S")),
    ("](", re.compile(r"!?\[[^\]]*\]\([^)\s]+\)")),
    ("```", re.compile(r"```")),
    ("**", re.compile(r"\*\*[^\s*][^*]*\*\*")),
    ("---", re.compile(r"\|?(?: ?:?-{3,}:? ?\|)+")),
)


def _tex(lines: Sequence[str]) -> str:
    found = [match[0] for line in lines if (match := _TEX.search(line))]
    if len(found) < max(_FEW, _SOME * len(lines)):
        return ""
    return (
        f"{_of_first(len(found), lines)} hold commands of TeX, such as {_shown(found[0])}, which "
        "are text here; take them out: pandoc -f latex -t plain --wrap none OLD -o NEW"
    )


def _markdown(lines: Sequence[str]) -> str:
    (_, heading), *inside = _MARKDOWN
    kinds = [[line for line in lines if heading.match(line)]]
    kinds += [[line for line in lines if s in line and kind.search(line)] for s, kind in inside]
    found = {line for kind in kinds for line in kind}
    several = sum(len(kind) > 1 for kind in kinds) > 1
    if not several or len(found) < max(_FEW, _SOME * len(lines)):
        return ""
    return (
        f"{_of_first(len(found), lines)} hold marks of Markdown, such as "
        f"{_shown(next(line for kind in kinds for line in kind))}, which are text here; take them "
        "out: pandoc -f markdown -t plain --wrap none OLD -o NEW"
    )


_TAGGED_WORD = re.compile(r"\S+([_/|])(?:[A-Z]{1,6}\$?|[^\w\s]{1,3})\Z")


def _tags(lines: Sequence[str]) -> str:
    marks: Counter[str] = Counter()
    example = ""
    for line in lines:
        spaces = line.count(" ")
        if max(map(line.count, "_/|")) < 0.5 * spaces:
            continue
        words = line.split()
        found = [match for word in words if (match := _TAGGED_WORD.match(word))]
        if len(words) > 2 and len(found) >= _MOST * len(words):
            marks[found[0][1]] += 1
            example = example or found[0][0]
    if marks.total() < max(_FEW, _MANY * len(lines)):
        return ""
    mark = marks.most_common(1)[0][0]
    return (
        f"{_of_first(marks.total(), lines)} have a tag behind each word, such as "
        f"{_shown(example)}, which is text here; take them out: "
        f"sed -E 's#([^ ])[{mark}][^ {mark}]+( |$)#\\1\\2#g' OLD > NEW"
    )


# Marks of pieces, in which share of the lines they stand, and what joins the pieces again.
_PIECES = (
    ("@@", re.compile(r"\S@@(?: |\Z)"), 0.2, "sed -E 's/@@( |$)//g' OLD > NEW"),
    ("##", re.compile(r"\S ##[^\s#]"), 0.2, "sed 's/ ##//g' OLD > NEW"),
    (
        "\u2581",
        re.compile("(?:\\A|\\s)\u2581\\w"),
        0.5,
        "sed 's/ //g; s/\u2581/ /g; s/^ //' OLD > NEW",
    ),
    (
        "\u0120",
        re.compile("(?:\\s\u0120\\w.*){2}"),
        0.5,
        "sed 's/ //g; s/\u0120/ /g; s/^ //' OLD > NEW",
    ),
    (" @", re.compile(r"\S @[-,.]@ \S"), 0.02, "sed -E 's/ @([-,.])@ /\\1/g' OLD > NEW"),
)


def _pieces(lines: Sequence[str]) -> str:
    for mark, pattern, share, command in _PIECES:
        found = sum(mark in line and pattern.search(line) is not None for line in lines)
        if found >= max(_FEW, share * len(lines)):
            return (
                f"{_of_first(found, lines)} are split into pieces or words with {mark.strip()}, as "
                f"tokenizers write them, and the marks are text here; join them: {command}"
            )
    return ""


_STOP = re.compile(r"(\S?)([ ]?)[,.](?= |\Z)")
_STOPS = 20


def _spaces(lines: Sequence[str]) -> str:
    text = "\n".join(lines)
    if text.count(" ,") + text.count(" .") < 0.5 * (text.count(",") + text.count(". ")):
        return ""
    found = [match[2] for line in lines for match in _STOP.finditer(line) if match[1] or match[2]]
    apart = sum(map(bool, found))
    if apart < max(_STOPS, _MOST * len(found)):
        return ""
    return (
        f"{apart:,} of {len(found):,} commas and full stops at its beginning have a space before "
        "them, as words that were told apart by a tokenizer; to write them as other text has them: "
        "sed -E 's/ ([.,])/\\1/g' OLD > NEW"
    )


def _bars(lines: Sequence[str]) -> str:
    for sign in "|_":
        divided = sum(
            line.count(sign) >= 3 and line.count(sign) > 3 * line.count(" ") for line in lines
        )
        if divided >= max(_FEW, _MOST * len(lines)):
            return (
                f"{_of_first(divided, lines)} have {sign!r} between their words in place of "
                f"spaces, which is text here; write spaces: tr '{sign}' ' ' < OLD > NEW"
            )
    return ""


def _letters(lines: Sequence[str]) -> str:
    apart = 0
    for line in lines:
        if line.count(" ") < 0.3 * len(line):
            continue
        words = line.split()
        single = sum(len(word) == 1 and word < "\u2e80" for word in words)
        apart += len(words) >= 8 and single >= _MOST * len(words)
    if apart < max(_FEW, _MANY * len(lines)):
        return ""
    return (
        f"{_of_first(apart, lines)} have a space behind each letter, so that each is a word; where "
        "words have more of them between, this joins the letters: "
        "sed -E 's/(.) /\\1/g' OLD > NEW"
    )


_MARKS = re.compile(
    r"</?s>|<(?:pad|bos|eos|cls|sep)>|\[(?:CLS|SEP|PAD|BOS|EOS)\]|<\|(?:endoftext|im_start|im_end|begin_of_text"
    r"|end_of_text|startoftext|user|assistant|system)\|>"
)


def _marks(lines: Sequence[str]) -> str:
    found: Counter[str] = Counter(mark for line in lines for mark in set(_MARKS.findall(line)))
    if not found or max(found.values()) < max(3, 0.01 * len(lines)):
        return ""
    marks = [mark for mark, _ in found.most_common()]
    either = "|".join(map(_for_sed, marks))
    return (
        f"{_of_first(max(found.values()), lines)} hold {', '.join(marks)}, as if it were prepared "
        "for a model before; it is prepared here, so take these out (where one alone on a line "
        f"divides documents, a blank line is left): sed -E 's#{either}##g' OLD > NEW"
    )


_SIDES = " ||| "


def _sides(lines: Sequence[str]) -> str:
    tabs = [line.count("\t") for line in lines]
    if len(lines) >= _FEW and sum(_SIDES in line for line in lines) >= 0.9 * len(lines):
        return (
            "its lines hold several texts with ||| between them, as translations have, and each "
            "line is one text here; take one of them: awk -F ' [|][|][|] ' '{print $1}' OLD > NEW"
        )
    if len(lines) >= _FEW and tabs[0] and sum(tab == tabs[0] for tab in tabs) >= _ALIKE * len(tabs):
        return (
            f"its lines hold {tabs[0] + 1} texts with tabs between them, and each line is one text "
            "here; take one of them: cut -f 1 OLD > NEW"
        )
    return ""


def _front_matter(lines: Sequence[str]) -> str:
    end = next((n for n, line in enumerate(lines[1:40], 1) if line == "---"), 0)
    keys = [line for line in lines[1:end] if re.match(r"[\w-]+:(?: |\Z)", line)]
    if lines[0] != "---" or not keys:
        return ""
    return (
        f"it begins with {end - 1} lines of settings (YAML front matter) between lines of ---, "
        "which are text here; take them out: sed '1,/^---\\r*$/d' OLD > NEW"
    )


_EQUALS = re.compile(r"(?:= )+\S.*?(?: =)+\Z")


def _headings(lines: Sequence[str]) -> str:
    found = [line for line in lines if _EQUALS.match(line)]
    if len(found) < max(3, 0.01 * len(lines)):
        return ""
    return (
        f"{_of_first(len(found), lines)} are headings between equals signs, such as "
        f"{_shown(found[0])}, which are text here; take them out: "
        "sed -E '/^ *(= )+.*( =)+ *\\r?$/d' OLD > NEW"
    )


def _dividers(lines: Sequence[str]) -> str:
    alone = Counter(line for line in lines if len(line) < 100 and not re.search(r"\w", line))
    if not alone:
        return ""
    line, count = alone.most_common(1)[0]
    if count < max(_FEW, 0.01 * len(lines)) or len(line) < 2:
        return ""
    return (
        f"{_of_first(count, lines)} are {_shown(line)}, which is text here; if it stands between "
        f"documents, make it blank: sed -E 's#^{_for_sed(line)}\\r?$##' OLD > NEW"
    )


_ONLY_NUMBERS = re.compile(r"[\d\s,;.\[\]-]*\d[\d\s,;.\[\]-]*")


def _only_numbers(lines: Sequence[str]) -> str:
    found = sum(_ONLY_NUMBERS.fullmatch(line) is not None for line in lines)
    if found < max(2 * _FEW, 0.9 * len(lines)):
        return ""
    return (
        f"{_of_first(found, lines)} are nothing but numbers, such as ids of tokens; text is needed "
        "here, so take the file that they were made from"
    )


def _name(lines: Sequence[str]) -> str:
    if len(lines) < 2 or lines[0].strip(' "').casefold() not in TEXT_NAMES:
        return ""
    return (
        f"its first line, {_shown(lines[0])}, may be the name of a column, which is text here; if "
        "it is, take it out: sed 1d OLD > NEW"
    )


_NOTES: dict[str, Callable[[Sequence[str]], str]] = {
    "a name": _name,
    "times": _times,
    "numbers": _numbers,
    "speakers": _speakers,
    "mails": _mails,
    "quotes": _quotes,
    "TeX": _tex,
    "Markdown": _markdown,
    "tags": _tags,
    "pieces": _pieces,
    "spaces": _spaces,
    "bars": _bars,
    "letters": _letters,
    "special tokens": _marks,
    "several texts": _sides,
    "front matter": _front_matter,
    "headings": _headings,
    "dividers": _dividers,
    "only numbers": _only_numbers,
}
