"""What input looks like that cannot be read: another encoding, another format, damaged characters.

All of it is a suggestion for a message or a warning; nothing is converted or repaired here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from bothways.errors import InputError, Place

_BINARY = {
    b"%PDF": "a PDF document",
    b"PK\x03\x04": "a ZIP archive or an office document",
    b"\xd0\xcf\x11\xe0": "an old office document",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\x1f\x8b": "a gzip archive",
    b"\xfd7zXZ": "an xz archive",
    b"\x28\xb5\x2f\xfd": "a Zstandard archive",
    b"SQLite format": "an SQLite database",
    b"\x80\x04\x95": "a pickle",
}
_HTML = re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?<(?:!doctype html|html|head|body)[\s>]", re.IGNORECASE)


def binary_format(head: bytes) -> str | None:
    """The format of a file that is no text, by its first bytes; None if it may be text."""
    if _HTML.match(head):
        return "a page of HTML"
    return next((name for magic, name in _BINARY.items() if head.startswith(magic)), None)


_MARKUP = re.compile(r"\s*<(?:\?xml|!doctype|html|table|[a-z]+(?:\s[^<>]*)?/?>)", re.IGNORECASE)
_JSON = re.compile(r"\s*(?:\{\s*(?:[\"'}]|\Z)|\[\s*(?:[\[{\"]|\Z))")


_COLUMNS = frozenset(("text", "sentence", "label"))


def other_format(line: str) -> str | None:
    """The format of a text file by its first line, if it is JSON or markup; None if not."""
    if _JSON.match(line):
        return "JSON"
    return "HTML or XML" if _MARKUP.match(line) else None


def format_of_lines(lines: Iterable[str]) -> str | None:
    """The format of lines that may be text: JSON, markup, or a table with a usual column; None if
    they are text."""
    first = next((line for line in lines if line.strip("\ufeff \t\r")), "").lstrip("\ufeff")
    for mark in "\t,;|":
        names = {cell.strip(' "').lower() for cell in first.split(mark)}
        if len(names) > 1 and names & _COLUMNS and all(len(name.split()) < 3 for name in names):
            return "a table"
    return other_format(first)


def refuse_other_format(lines: Iterable[str], source: str | Path, remedy: str) -> None:
    """Refuse lines of another format than text.

    Args:
        lines: the first of a file.
        source: named in the message.
        remedy: what to do if the format is meant as text.

    Raises:
        InputError: they are JSON, markup or a table.
    """
    if (found := format_of_lines(lines)) is not None:
        raise InputError(f"this looks like {found}, not like text; {remedy}.", place=Place(source))


# --------------------------------------------------------------------------------------- encodings

_HAN = "\u4e00-\u9fff"
_CHINESE = f"[{_HAN}\u3001\u3002\uff01-\uff1f]"
_KANA = "[\u3040-\u30ff]"
_CYRILLIC = "[\u0410-\u044f\u0401\u0451]"
_LATIN = "[\xc0-\xff\u0152\u0153\u0160\u0161]"
# How a text reads in each encoding: the characters to expect, and which share of all that are not
# ASCII they usually have.
_CANDIDATES: dict[str, tuple[re.Pattern[str], float]] = {
    "cp949": (re.compile("[\uac00-\ud7a3]"), 0.9),
    "cp932": (re.compile(_KANA), 0.4),
    "euc_jp": (re.compile(_KANA), 0.4),
    "windows-1251": (re.compile(f"{_CYRILLIC}(?={_CYRILLIC})|(?<={_CYRILLIC}){_CYRILLIC}"), 0.8),
    "gb18030": (re.compile(_CHINESE), 1.0),
    "big5": (re.compile(_CHINESE), 1.0),
    "windows-1252": (
        re.compile(
            f"(?<=[A-Za-z]){_LATIN}|{_LATIN}(?=[A-Za-z])|[\u2013-\u201e\u2026\u20ac\xa0\xb0\xab\xbb]"
        ),
        1.0,
    ),
}
# First bytes of the frequent characters of each; others are rare in running text.
_FREQUENT = {"gb18030": (0xB0, 0xD7), "big5": (0xA4, 0xC6), "cp949": (0xB0, 0xC8)}
_PLAUSIBLE = 0.3
_MOST = 3


def likely_encodings(sample: bytes) -> list[str]:
    """At most three encodings that bytes may have, the likeliest first.

    Args:
        sample: bytes that are not UTF-8.
    """
    if (zeros := sample.count(0)) > len(sample) / 8:
        return ["utf-16-le" if sample[1::2].count(0) > zeros / 2 else "utf-16-be"]
    scores = {name: _plausibility(sample, name) for name in _CANDIDATES}
    ranked = sorted(scores, key=lambda name: -round(scores[name], 1))
    return [name for name in ranked if scores[name] > _PLAUSIBLE][:_MOST]


def _plausibility(sample: bytes, encoding: str) -> float:
    """How well bytes read in an encoding, from 0 to 1."""
    try:
        text = sample.decode(encoding)
    except UnicodeDecodeError as error:
        if error.start < len(sample) - 4:  # no character that the end of the sample cuts
            return 0.0
        text = sample[: error.start].decode(encoding)
    expected, share = _CANDIDATES[encoding]
    others = sum(not c.isascii() for c in text)
    score = min(1.0, len(expected.findall(text)) / share / max(1, others))
    if encoding in _FREQUENT:
        first, last = _FREQUENT[encoding]
        letters = re.findall(f"[{_HAN}\uac00-\ud7a3]", text)
        frequent = sum(first <= c.encode(encoding)[0] <= last for c in letters)
        score *= frequent / max(1, len(letters))
    return score


# -------------------------------------------------------------------------------------- characters

LEAST = 3
"""Texts that must have damaged characters of a kind for a warning."""
DAMAGED: Mapping[str, tuple[re.Pattern[str], str]] = {
    "wrong encoding": (
        re.compile(
            "[\xc2\xc3][\x80-\xbf]|\xe2\u20ac[\x80-\xbf\u0152-\u2122]"
            "|[\xea-\xed][\x80-\xbf\u0152-\u2122][\x80-\xbf\u0152-\u2122]"
            "|(?:[\xd0\xd1][\x80-\xbf\u0152-\u2122]){3}"
        ),
        "characters look like UTF-8 that was read as Latin-1, such as \xc3\xa9 for \xe9",
    ),
    "entities": (
        re.compile(r"&(?:amp|lt|gt|quot|apos|nbsp|[a-z]{1,6}(?:acute|grave|uml|circ)|#\d{2,6});"),
        "characters are written as HTML entities, such as &eacute; for \xe9",
    ),
    "replaced": (
        re.compile("\ufffd"),
        "characters are U+FFFD, which another program put for what it could not decode",
    ),
}
"""Kind -> its pattern, and a sentence for the warning."""
_MAYBE = re.compile("[&\ufffd\xc2\xc3\xe2\xea-\xed\xd0\xd1]")


def damaged_characters(texts: Iterable[str]) -> Counter[str]:
    """How many texts have damaged characters of each kind of :data:`DAMAGED`."""
    counts: Counter[str] = Counter()
    for text in texts:
        if _MAYBE.search(text):
            counts.update(name for name, (pattern, _) in DAMAGED.items() if pattern.search(text))
    return counts


def damage_notes(counts: Mapping[str, int], texts: str = "lines") -> dict[str, str]:
    """Sentences on what :func:`damaged_characters` counted, by kind."""
    return {
        name: f"{sentence} ({counts[name]:,} such {texts})"
        for name, (_, sentence) in DAMAGED.items()
        if counts.get(name, 0) >= LEAST
    }
