"""Formats whose syntax would be read as text: recognised, with the command that gives the text."""

from __future__ import annotations

import ast
import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bothways.io.oddities.alike import ALIKE, FEW, MOST, NEARLY_ALL, of_first, share_of, shown
from bothways.io.text_columns import OF_R, table_in

OPTION = "--text_field"
"""That which names the text of records."""
_PARSED = 50  # lines at most, where each is parsed


@dataclass(frozen=True)
class Syntax:
    """Another format in the place of text.

    Attributes:
        found: what the file is, as the beginning of a sentence.
        remedy: what gives its text, as the end of one.
        part: of it, that would be read as text.
    """

    found: str
    remedy: str
    part: str = "syntax"

    @property
    def problem(self) -> str:
        """Why it is no text, and what to do."""
        return f"{self.found}, whose {self.part} would be read as text; {self.remedy}."

    @property
    def kept(self) -> str:
        """What is said where it is read as text."""
        return f"{self.found}, whose {self.part} is read as text (--lines keep)"


def other_syntax(lines: Sequence[str], option: str = OPTION) -> Syntax | None:
    """The format that a file has in the place of text, by its first lines; None if it is text.

    Args:
        lines: those that are not blank.
        option: that which names the text of JSON lines, for the message.
    """
    if not lines:
        return None
    for recognise in _SYNTAXES:
        if (found := recognise(lines)) is not None:
            return replace(found, remedy=found.remedy.replace(OPTION, option))
    return None


# -------------------------------------------------------------------------------------------- JSON

# The objects of a list, of an object that has only such, or of the longest list within.
_OBJECTS = (
    "f = lambda d: d if isinstance(d, list) else [*d.values()] if all(isinstance(x, dict) for x in "
    "d.values()) else max((f(x) for x in d.values() if isinstance(x, (dict, list)) and x), "
    "key=len, default=[d]); "
    '[print(json.dumps(x if isinstance(x, dict) else {"text": x})) for x in f(LOAD)]'
)
_AS_LINES = (
    "write an object on each line of a .jsonl file: "
    "python -c 'import json, sys{}; {}' < OLD > NEW.jsonl"
)
_TO_JSON_LINES = _AS_LINES.format("", _OBJECTS.replace("LOAD", "json.load(sys.stdin)"))
_KOREAN_CORPUS = _AS_LINES.format(
    "",
    'k = ("paragraph", "sentence", "utterance"); [print(json.dumps({"text": "\\n".join('
    'p["form"] for n in k for p in x.get(n) or [])})) for x in json.load(sys.stdin)["document"]]',
)
_HAS_FORMS = re.compile(r'"document"\s*:\s*\[.*"form"\s*:', re.DOTALL)
_NOTEBOOK = Syntax(
    "this is a notebook of Jupyter",
    "take the text of its cells: python -c 'import "
    'json, sys; [print("".join(c["source"]), end="\\n\\n") for c in json.load(sys.stdin)["cells"] '
    'if c["cell_type"] == "markdown"]\' < OLD > NEW',
)
# The beginning of an object or a list, and a line within one that is laid out over several.
_JSON_BEGINS = re.compile(r'(?:\[\s*)*(?:\{\s*"(?:[^"\\]|\\.)*"\s*:|\[\s*"(?:[^"\\]|\\.)*"\s*,)')
_JSON_LINE = re.compile(
    r'(?:[{}\[\]],?|"(?:[^"\\]|\\.)*"\s*:.*|"(?:[^"\\]|\\.)*",?|-?\d[\d.eE+-]*,?|(?:true|false'
    r"|null),?|\{.*|\}, ?\{|\[.*)\s*"
)


def _json(lines: Sequence[str]) -> Syntax | None:
    if not _JSON_BEGINS.match("\n".join(lines[:3])):
        return None
    objects = [found for line in lines[:_PARSED] if isinstance(found := _parsed(line), dict | list)]
    keyed = [found for found in objects if isinstance(found, dict)]
    several = len(lines) > 1 or (keyed and any(isinstance(x, str) for x in keyed[0].values()))
    if keyed and several and len(objects) >= NEARLY_ALL * len(lines[:_PARSED]):
        if "cells" in keyed[0] and "nbformat" in keyed[0]:
            return _NOTEBOOK
        return Syntax(
            "its lines are JSON",
            f"let the file's name end in .jsonl, and give {_the_key([*keyed[0]])}",
        )
    whole = len(lines) == 1 or sum(_JSON_LINE.fullmatch(line) is not None for line in lines) >= (
        NEARLY_ALL * len(lines)
    )
    if not whole:
        return None
    if '"cells"' in "".join(lines[:3])[:200]:
        return _NOTEBOOK
    if _HAS_FORMS.search("\n".join(lines[:200])):
        return Syntax("this is JSON as Korean corpora have it", _KOREAN_CORPUS)
    return Syntax("this is JSON", _TO_JSON_LINES)


def _the_key(keys: Sequence[str]) -> str:
    """How to name the text's key, of those in the first object."""
    named = ", ".join(map(shown, keys[:8]))
    return f"{OPTION} NAME for the key of the text (the first line has {named})"


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _python(lines: Sequence[str]) -> Syntax | None:
    looked_at = lines[:_PARSED]
    starts = all(line.startswith(("{'", '{"')) for line in looked_at)
    if not starts or all(isinstance(_parsed(line), dict) for line in looked_at):
        return None
    keys: list[str] = []
    for line in looked_at:
        try:
            found = ast.literal_eval(line)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
        if not isinstance(found, dict):
            return None
        keys = keys or [*map(str, found)]
    return Syntax(
        "its lines are objects as Python writes them",
        "write them as JSON lines: python -c 'import ast, json, sys; [print(json.dumps("
        "ast.literal_eval(s))) for s in sys.stdin if s.strip()]' < OLD > NEW.jsonl, and give "
        + _the_key(keys),
    )


# --------------------------------------------------------------------- archives, subtitles, markup

_WARC = re.compile(r"WARC/[01]\.\d")


def _web_archive(lines: Sequence[str]) -> Syntax | None:
    if not _WARC.fullmatch(lines[0]):
        return None
    found, part = "this is a web archive (WARC)", "headers"
    if any(line.startswith("HTTP/1.") or line == "WARC-Type: response" for line in lines):
        return Syntax(
            f"{found} with pages as servers sent them",
            "take their text out, such as by trafilatura or resiliparse, or take the files of text "
            "(.warc.wet.gz)",
            part,
        )
    return Syntax(
        found,
        "take them out: awk '/^WARC\\/[01]/ {h = 1} !h; /^\\r?$/ {h = 0}' OLD > NEW",
        part,
    )


_SBV = re.compile(r"\d+:\d\d:\d\d\.\d{2,3},\d+:\d\d:\d\d\.\d{2,3}")
_FRAMES = re.compile(r"\{\d+\}\{\d*\}")


def _subtitles(lines: Sequence[str]) -> Syntax | None:
    if lines[0] == "[Script Info]":
        command = (
            r"grep ^Dialogue: OLD | cut -d, -f10- | sed -E 's/\{[^}]*\}//g; s/\\[Nnh]/ /g' > NEW"
        )
    elif _SBV.fullmatch(lines[0]):
        command = r"sed -E '/^[0-9:.]+,[0-9:.]+\r?$/d' OLD > NEW"
    elif share_of(_FRAMES, lines) >= NEARLY_ALL:
        command = r"sed -E 's/^(\{[0-9]*\})+//; s/\|/ /g' OLD > NEW"
    else:
        return None
    return Syntax("these are subtitles", f"take them out: {command}", "times")


_TAG_LINE = re.compile(r"<(?!s>|/s>|\|)[!?/]?([a-zA-Z][\w:.-]*)[^<>]*>(?:.*>)?\Z")
_NAMES = 3  # of tags that lines begin with; text that is marked has one or two


def _xml(lines: Sequence[str]) -> Syntax | None:
    if not _TAG_LINE.match(first := lines[0].strip()):
        return None
    tagged = [match[1] for line in lines if (match := _TAG_LINE.match(line.strip()))]
    if len(tagged) < max(FEW, 0.9 * len(lines)) or len({*tagged}) < _NAMES:
        return None
    return Syntax(
        f"{of_first(len(tagged), lines)} are HTML or XML, such as {shown(first)}",
        "take them out: python -c 'import html, re, sys; "
        'print(html.unescape(re.sub("<[^>]*>", "", sys.stdin.read())))\' < OLD > NEW',
        "tags",
    )


# ------------------------------------------------------------------------------------------ tables

_CODE = re.compile(r"\d+|[\w.:/-]*\d[\w.:/-]*")  # a number, or an id with one
_TEXT = 10  # characters, on average, of a column that has texts
_ROWS = 20  # by which a table without names is told
_NAME = re.compile(r"[^\W\d][\w.#()/ -]{0,39}|")
_KNOWN_NAMES = frozenset(
    "id text sentence sentence1 sentence2 label labels document title review content body category "
    "class url date author source target question answer context message tweet comment rating name "
    "language lang score description abstract summary topic sentiment".split()
)


def _table(lines: Sequence[str]) -> Syntax | None:
    if (table := table_in(lines)) is not None:
        names, text = list(table.columns), table.columns.index(table.text)
        told = _of_column(table.separator, names, text, header=True)
        return replace(told, found=f"{table.shown}: it is a table")
    if OF_R.fullmatch(lines[0]) and len(lines) > 1 and (found := _of_r(lines)):
        return found
    if len(lines) < FEW:
        return None
    for separator in "\t,;|":
        if found := _separated(lines, separator):
            return found
    return None


def _of_r(lines: Sequence[str]) -> Syntax | None:
    """A table of columns as R's write.table has them; it may leave the first without a name."""
    try:
        names, *rows = csv.reader(lines, delimiter=" ", escapechar="\\", strict=True)
    except csv.Error:
        return None
    if len({len(row) for row in rows}) > 1 or len(rows[0]) - len(names) not in (0, 1):
        return None
    text = _text_column([names, *(row[len(row) - len(names) :] for row in rows)])
    return Syntax(
        f"this is a table of {len(names)} columns as R's write.table has it",
        f"take that of the text, such as {shown(names[text])}: python3 -c "
        f'"import csv, sys; [print(*row[{text - len(names)}].split()) for row in '
        "[*csv.reader(sys.stdin, delimiter=' ', escapechar=chr(92))][1:]]\" < OLD > NEW.txt",
        "other columns",
    )


def _separated(lines: Sequence[str], separator: str) -> Syntax | None:
    """A table with this separator, by its names or by what stands in its columns."""
    if separator not in lines[0]:
        return None
    if separator == "\t":
        rows, least = [line.split("\t") for line in lines], ALIKE * len(lines)
    else:
        try:
            rows = [*csv.reader(lines, delimiter=separator)]
        except csv.Error:
            return None
        least = max(FEW - 1, 0.9 * len(rows))
    columns = len(rows[0])
    alike = [row for row in rows if len(row) == columns]
    if columns < 2 or len(alike) < least:
        return None
    text, header = _text_column(alike), _has_names(alike)
    spaced = sum(line.count(separator + " ") for line in lines)
    prose = separator in ",;" and 2 * spaced > sum(line.count(separator) for line in lines)
    is_plain = prose or (separator != "\t" and separator * 2 in lines[0])
    many = len(alike) >= (FEW if separator == "\t" else _ROWS)
    texts = [row[text] for row in alike]
    if separator != "\t":
        many &= sum(map(len, texts)) >= _TEXT * len(texts)
        many &= sum(" " in cell or not cell.isascii() for cell in texts) >= MOST * len(texts)
    is_told = many and not is_plain and any(_is_about(alike, n, text) for n in range(columns))
    return _of_column(separator, rows[0], text, header=header) if header or is_told else None


def _of_column(separator: str, first: Sequence[str], text: int, *, header: bool) -> Syntax:
    """A table, and the command that takes a column out.

    Args:
        separator: between the columns.
        first: its first row.
        text: number of the column with the texts, from 0.
        header: whether the first row has names.
    """
    between = "tabs" if separator == "\t" else repr(separator)
    named = f" ({shown(first[text].strip())})" if header else ""
    sign = "\\t" if separator == "\t" else separator
    rows = f'csv.reader(sys.stdin, delimiter="{sign}")'
    return Syntax(
        f"this is a table of {len(first)} columns with {between} between them",
        f"take that of the text, such as column {text + 1}{named}: "
        "python -c 'import csv, sys; csv.field_size_limit(10**9); "
        f'[print(*" ".join(r[{text}:{text + 1}]).split()) for r in '
        f"{f'[*{rows}][1:]' if header else rows}]' < OLD > NEW",
        "other columns",
    )


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
    if sum(cell.count(" ") for cell in cells) > len(cells):
        return False
    if column == text or sum(map(len, cells)) > 0.5 * sum(len(row[text]) for row in rows):
        return False
    codes = sum(_CODE.fullmatch(cell) is not None for cell in cells)
    return codes >= NEARLY_ALL * len(cells) or len(set(cells)) <= max(1, 0.1 * len(cells))


# -------------------------------------------------------------------------------- words with tags

_WORD_LINES = 20
_TAG = re.compile(r"[A-Z]{1,5}\$?|[A-Z]{1,5}-\S+|O|[.,:;'`\"#$()_-]{1,3}|[A-Z]+[|:]\S+|_|-?\d{1,3}")
_BREAK = re.compile(r"<[^<>]+>|-DOCSTART-|# |EOS\Z")
# Morphemes with their tags, and what MeCab writes.
_ANALYSIS = re.compile(r"\S+/[A-Z]{1,5}(?: ?\+ ?\S+/[A-Z]{1,5})*|[^,\s]+(?:,[^,]*){3,}")
_ID = re.compile(r"\w+(?:-\d+)+")


def _tagged_words(lines: Sequence[str]) -> Syntax | None:
    if sum(len(line) > 200 for line in lines) > 0.2 * len(lines):
        return None
    lines = [line for line in lines if not _BREAK.match(line)]
    if len(lines) < _WORD_LINES:
        return None
    separator = "\t" if "\t" in lines[0] else " "
    rows = [[cell for cell in line.strip().split(separator) if cell] for line in lines]
    (columns, times), *_ = Counter(map(len, rows)).most_common(1)
    rows = [row for row in rows if len(row) == columns]
    if times < NEARLY_ALL * len(lines) or not 2 <= columns <= 14:
        return None
    numbered = columns >= 8 and sum(row[0][:1].isdigit() for row in rows) >= MOST * len(rows)
    numbered |= columns > 2 and all(_ID.fullmatch(row[0]) for row in rows)
    words = [row[1 if numbered else 0] for row in rows]
    if sum(map(len, words)) > 15 * len(words) or any(" " in word for word in words[:_PARSED]):
        return None
    if sum(word[0].isalpha() for word in words) < 0.5 * len(words) or len({*words}) < 10:
        return None
    is_tagged = numbered or any(_are_tags([row[n] for row in rows]) for n in range(1, columns))
    if not is_tagged:
        return None
    word = "$2" if numbered else "$1"
    between = "-F '\\t' " if separator == "\t" else ""
    return Syntax(
        f"its lines hold a word each, with tags in {columns} columns as in CoNLL's files",
        f"write its sentences on a line each: awk {between}'{{e = !NF || "
        f'/^<|^#|^-DOCSTART|^EOS$/}} !e {{printf "%s%s", (n++ ? " " : ""), {word}}} e && n '
        '{print ""; n = 0} END {if (n) print ""}\' OLD > NEW',
        "tags",
    )


def _are_tags(cells: Sequence[str]) -> bool:
    if sum(_ANALYSIS.fullmatch(cell) is not None for cell in cells) >= MOST * len(cells):
        return True
    known = set(cells)
    letters = any(cell.isalpha() or "-" in cell[:6] for cell in known)
    fit = sum(_TAG.fullmatch(cell) is not None for cell in cells)
    return letters and len(known) <= max(2, 0.2 * len(cells)) and fit >= 0.9 * len(cells)


# ----------------------------------------------------------------------- lists, records, sequences

_COUNTED = re.compile(r"\s*(?:\d+[\s,;:]+(?P<word>\S+)|(?P<first>\S+?)[\s,;:]+\d+)\s*")
_NUMBERS = re.compile(r"(?:\S+ )?(?:(?:\d+:)?-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?:[ \t]+|\Z)){8,}")


def _counted_words(lines: Sequence[str]) -> Syntax | None:
    rows = [_COUNTED.fullmatch(line) for line in lines]
    found = [row["word"] or row["first"] for row in rows if row]
    words = {word for word in found if not word.isdigit()}
    if len(found) < max(_WORD_LINES, NEARLY_ALL * len(lines)) or len(words) < 0.9 * len(found):
        return None
    behind = rows[-1] is not None and rows[-1]["first"] is not None
    part = (
        r"[[:space:],;:]+[0-9]+[[:space:]]*$" if behind else r"^[[:space:]]*[0-9]+[[:space:],;:]+"
    )
    return Syntax(
        "its lines are words with counts",
        "take the text in which they were counted; or the words alone, each of which is then there "
        f"once: sed -E 's/{part}//' OLD > NEW",
        "counts",
    )


def _vectors(lines: Sequence[str]) -> Syntax | None:
    found = sum(_NUMBERS.match(line) is not None for line in lines)
    if found < max(FEW, NEARLY_ALL * len(lines)):
        return None
    return Syntax(
        "its lines are vectors or features",
        "take the text that they were made from",
        "numbers",
    )


@dataclass(frozen=True)
class _Records:
    """A format of records, that lines tell.

    Attributes:
        found, remedy, part: as of :class:`Syntax`.
        line: an expression that the lines of records match.
        share: of the lines, at least.
        first: an expression that one of the first lines must match.
    """

    found: str
    remedy: str
    line: re.Pattern[str]
    share: float
    first: re.Pattern[str]
    part: str = "keys"


_RECORDS = (
    _Records(
        "these are references as RIS, MEDLINE, EndNote and Web of Science have them",
        "take their abstracts out: awk '/^(AB +- |AB |%X )/ {p = 1; sub(/^(AB +- |AB |%X )/, "
        '""); printf "%s%s", '
        '(n++ ? "\\n" : ""), $0; next} /^ / {if (p) {sub(/^ +/, " "); printf "%s", $0} next} '
        '{p = 0} END {print ""}\' OLD > NEW',
        re.compile(r"[A-Z][A-Z0-9]{1,3} {0,2}-(?: |\Z)|[A-Z][A-Z0-9](?: \S|\Z)|%[0-9A-Z] "),
        0.4,  # texts go on over several lines
        re.compile(r"(?:PMID|TY) {0,2}- |%0 [A-Z]|PT [A-Z]\Z"),
    ),
    _Records(
        "these are references as BibTeX has them",
        "take their abstracts out: "
        """sed -n -E 's/^ *abstract *= *[{"](.*)[}"],? *$/\\1/p' OLD > NEW""",
        re.compile(r"\s*(?:@\w+\{.*|[\w-]+\s*=\s*[{\"\w].*|\})\s*\Z"),
        MOST,
        re.compile(r"@\w+\{"),
    ),
    _Records(
        "these are translations as gettext has them (.po)",
        """take one language out: sed -n -E 's/^msgid "(.+)"$/\\1/p' OLD > NEW (msgstr for the """
        "other)",
        re.compile(r'(?:msg(?:id|str|ctxt|id_plural)(?:\[\d\])? )?"|#'),
        NEARLY_ALL,
        re.compile(r'msgid "'),
    ),
    _Records(
        "this is a TextGrid of Praat",
        """take its texts out: sed -n -E 's/^ *text = "(.*)" *$/\\1/p' OLD > NEW""",
        re.compile(""),
        0,
        re.compile(r'File type = "ooTextFile"'),
    ),
    _Records(
        "these are transcripts of CHAT (CHILDES)",
        "take what is said out: sed -n -E 's/^\\*[A-Z0-9]+:[ \\t]*//p' OLD > NEW",
        re.compile(""),
        0,
        re.compile(r"@UTF8\Z|@Begin\Z"),
        "headers and annotations",
    ),
    _Records(
        "this is a dump of a database (SQL)",
        "let the database write the column of the text (COPY, SELECT ... INTO OUTFILE, .mode list)",
        re.compile(
            r"(?:INSERT INTO|CREATE|DROP|ALTER|LOCK|UNLOCK|SET|COPY|--|/\*|\()[ `!'\d]?|  ?[`\"]|\)"
        ),
        MOST,
        re.compile(r"(?:INSERT INTO|CREATE TABLE|DROP TABLE|COPY \S+ )"),
        "statements",
    ),
    _Records(
        "this is YAML",
        _AS_LINES.format(", yaml", _OBJECTS.replace("LOAD", "yaml.safe_load(sys.stdin)")),
        re.compile(r"\s*(?:- )?[\w-]+:(?: |\Z)|\s*- |---|\s{2,}\S"),
        NEARLY_ALL,
        re.compile(r"\s*- [\w-]+:(?: |\Z)"),
    ),
    _Records(
        "its lines are values with their keys before =",
        "take the keys out: sed -E 's/^[^=]*= ?//' OLD > NEW",
        re.compile(r"[\w.\[\]-]+ ?= ?\S|[#\[]"),
        NEARLY_ALL,
        re.compile(r"[\w.-]*[._][\w.-]* ?= ?\S|\[\[?[\w.-]+\]?\]\Z"),
    ),
    _Records(
        "these are trees of sentences in brackets",
        "take the words out: sed -E 's/\\([^ ()]+ *//g; s/\\)//g; s/ +/ /g' OLD > NEW",
        re.compile(r"\s*\(+(?: |[A-Z][A-Z$|:-]*[ (]).*\)\Z"),
        NEARLY_ALL,
        re.compile(r"\s*\(+(?: ?\(|[A-Z]+ \()"),
        "brackets and tags",
    ),
)
_FIRST = 30  # lines, one of which shows the format


def _records(lines: Sequence[str]) -> Syntax | None:
    for known in _RECORDS:
        if not any(map(known.first.match, lines[:_FIRST])):
            continue
        if sum(known.line.match(line) is not None for line in lines) >= known.share * len(lines):
            return Syntax(known.found, known.remedy, known.part)
    return None


_SYNTAXES: tuple[Callable[[Sequence[str]], Syntax | None], ...] = (
    _web_archive,
    _subtitles,
    _python,
    _json,
    _records,
    _tagged_words,
    _counted_words,
    _vectors,
    _table,
    _xml,
)
"""In this order; the first that recognises the lines says it."""
