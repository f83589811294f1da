"""Characters that stand in text by mistake: read in the wrong encoding, escaped, invisible.

All are counted, by the text that has them, and said with what mends them. Nothing is changed, as
offsets are those of the text as given.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

LEAST = 3
"""Texts that must have one of a kind for it to be said."""

# What a byte from 0x80 to 0xBF is in Latin-1 and in Windows-1252.
_HIGH = "\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
# These come behind a letter in text, too.
_QUOTES = "‘’“”„–—…»«"
_INNER = "".join(c for c in _HIGH if c not in _QUOTES)
_LETTERS = "ªµºƒŠŒŽšœžŸ"  # of them; two follow each other in text, as in Sami's ášš
_READ_WRONGLY = re.compile(
    "|".join(
        (
            f"[ÂÃ][{_INNER}]",  # é, and the no-break space
            # à and the no-break space, whose second byte became a plain space
            r"(?<!\w)Ã {1,2}[a-z]{2}|[a-z]Ã[ ,.;]|Â {1,2}[:;!?»%€]",
            f"(?:[ÐÑØÙÎÏ×ÄÅ][{_HIGH}])" + "{3}",  # Cyrillic, Arabic, Greek, Hebrew
            f"â[€‚„\x80-\x84][{_HIGH}]",  # quotation marks, dashes
            f"[à-ï](?![{_LETTERS}]{{2}})[{_HIGH}][{_INNER}]",  # East Asian, Indian
            f"ðŸ[{_HIGH}]",
            "ï»¿",
            "(?:[РС][\xa0-\xbbЂ-џ\u0410-\u044f€‚„…†‡‰‹‘-•–—™›]){4}",  # as Windows-1251
            "√[\xa0-\xff©®±≤≥∂∑∏π∫]|‚Ä[ôúùìî¶]",  # as MacRoman
            "├[\u2500-\u25ff⌐¬½¼¡«»á-ú]",  # as CP437
        )
    )
)
_ESCAPED = re.compile(r"\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\U[0-9a-fA-F]{8}")
_ENTITY = re.compile(
    r"&(?:amp|quot|nbsp|lt|gt|apos|[a-zA-Z]{1,8}(?:grave|acute|circ|uml|tilde|cedil|slash|lig|quo"
    r"|dash)|hellip|copy|euro|shy|#\d{2,6}|#x[0-9a-fA-F]{2,5});"
)
_LINE_ENDS = re.compile(r"\\n(?=[A-Z\s\\\"]|\Z)|(?<=[.!?,])\\[nrt]|\\r\\n")
_SOFT = re.compile("\xad")
_LIGATURES = re.compile("[\ufb00-\ufb06]")
_MARK = re.compile("\ufeff")
_DIRECTIONS = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_SEPARATORS = re.compile("\\S\\s*[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]\\s*\\S")
# Where words of these scripts end, nothing else shows it.
_ZERO_WIDTH = re.compile(
    "(?<![\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1a20-\u1b7f\ua980-\ua9df])[\u200b\u2060]"
    "(?![\u0e00-\u0fff])"
)
_PRIVATE = re.compile("[\ue000-\uf8ff]")
_REPLACED = re.compile("\ufffd")
_STRUCK = re.compile(r"([^\s\x08])\x08\1|_\x08\S")
# Letters as they are drawn, but for those of formulas that are a character of their own.
_PRESENTED = re.compile("[\ufb1d-\ufbb1\ufbd3-\ufd3d\ufd50-\ufdef\ufe70-\ufefc]")
_CONTROL = re.compile("[\x01-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f]")

_MEND = "python -c 'import re, sys; sys.stdout.writelines({} for s in sys.stdin)' < OLD > NEW"
_FTFY = "ftfy OLD -o NEW (pip install ftfy) mends what can be"

ODD: Mapping[str, tuple[re.Pattern[str], str]] = {
    "wrong encoding": (
        _READ_WRONGLY,
        "characters look like UTF-8 that was read in another encoding, as Ã© for é; convert the "
        f"text anew from where it came from, or {_FTFY}",
    ),
    "escapes": (
        _ESCAPED,
        "characters are written as escapes, such as \\u00e9 for é; write them as they are: "
        + "python -c 'import json, re, sys; sys.stdout.writelines("
        + 're.sub(r"(?:\\\\u[0-9a-fA-F]{4})+", lambda m: json.loads("\\"" + m[0] + "\\""), s) '
        + "for s in sys.stdin)' < OLD > NEW",
    ),
    "entities": (
        _ENTITY,
        "characters are written as entities of HTML, such as &eacute; for é; write them as they "
        "are: python -c 'import html, sys; sys.stdout.writelines(map(html.unescape, sys.stdin))' "
        "< OLD > NEW",
    ),
    "line ends": (
        _LINE_ENDS,
        "a backslash and a letter, \\n, stand for line ends; write line ends: "
        + _MEND.format('re.sub(r"(\\\\r)?\\\\n(?![a-z])|(?<=[.!?,])\\\\n", "\\n", s)'),
    ),
    "soft hyphens": (
        _SOFT,
        "words have soft hyphens (U+00AD) inside, with which some vocabularies split them; take "
        "them out: " + _MEND.format('s.replace("\\u00ad", "")'),
    ),
    "ligatures": (
        _LIGATURES,
        "there are ligatures, characters such as \ufb01 (U+FB01) for fi, which make other words "
        "for a vocabulary; write letters: "
        + "python -c 'import re, sys, unicodedata; sys.stdout.writelines("
        + 're.sub("[\\ufb00-\\ufb06]", lambda m: unicodedata.normalize("NFKC", m[0]), s) '
        + "for s in sys.stdin)' < OLD > NEW",
    ),
    "byte order marks": (
        _MARK,
        "byte order marks (U+FEFF) stand inside lines; take them out: "
        + _MEND.format('s.replace("\\ufeff", "")'),
    ),
    "directions": (
        _DIRECTIONS,
        "there are marks of writing direction (U+200E, U+202B and others), which some vocabularies "
        "take for parts of words; take them out: "
        + _MEND.format('re.sub("[\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]", "", s)'),
    ),
    "separators": (
        _SEPARATORS,
        "signs for the end of a line or page (form feed U+000C, U+0085, U+2028, U+2029) stand "
        "inside lines, where they end none, and some vocabularies join the words beside them; "
        "write line ends: "
        + _MEND.format('re.sub("[\\x0b\\x0c\\x1c-\\x1e\\x85\\u2028\\u2029]", "\\n", s)'),
    ),
    "zero width": (
        _ZERO_WIDTH,
        "characters that show nothing (U+200B, U+2060) stand in the text, which some vocabularies "
        "take for parts of words; take them out: "
        + _MEND.format('re.sub("[\\u200b\\u2060]", "", s)'),
    ),
    "private use": (
        _PRIVATE,
        "there are characters of private use (U+E000 to U+F8FF), which a font of the source gave "
        "their meaning, as for bullets of PDF; write what they mean, or take them out: "
        + _MEND.format('re.sub("[\\ue000-\\uf8ff]", "", s)'),
    ),
    "replaced": (
        _REPLACED,
        "there are U+FFFD, which another program put for what it could not decode; take the text "
        "from where it came from, in its own encoding",
    ),
    "overstriking": (
        _STRUCK,
        "letters are struck twice for bold type (a backspace, U+0008, between them), as in pages "
        "of manuals; write them once: col -bx < OLD > NEW",
    ),
    "presentation forms": (
        _PRESENTED,
        "there are presentation forms of Arabic or Hebrew letters (U+FB1D to U+FEFC), as in text "
        "copied from a PDF, which make other words for a vocabulary; write letters: "
        + "python -c 'import re, sys, unicodedata; sys.stdout.writelines("
        + 're.sub("[\\ufb1d-\\ufdef\\ufe70-\\ufefc]", lambda m: '
        + """unicodedata.normalize("NFKC", m[0]), s) for s in sys.stdin)' < OLD > NEW""",
    ),
    "control characters": (
        _CONTROL,
        "there are control characters (U+0001 to U+001F, U+007F to U+009F), such as those of "
        "terminals; take them out: "
        + _MEND.format(
            're.sub("\\x1b\\\\[[0-9;]*m|[\\x01-\\x08\\x0e-\\x1f\\x7f-\\x84\\x86-\\x9f]", "", s)'
        ),
    ),
}
"""What is looked for, and what is said of it, by what it is about."""

# One of these stands in a text that has any of the above, and is found fast: letters of many
# languages only before what seldom follows them there.
_BEFORE_ONE, _BEFORE_TWO = "ÂÃ√├", "ÐÑØÙÎÏ×ÄÅà-ð‚"
_ALONE = (
    "\xad\ufb00-\ufb06\ufb1d-\ufdef\ufe70-\ufeff\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\x7f-\x9f\ue000-\uf8ff\ufffd"
    "\\\\&\x01-\x08\x0b\x0c\x0e-\x1f"
)
_MAYBE = re.compile(
    f"[{_BEFORE_ONE}{_BEFORE_TWO}РС{_ALONE}]"
    f"(?:(?<=[{_BEFORE_ONE}])(?=[^\x00-\x7f])|(?<=[{_BEFORE_TWO}])(?=[^\x00-\x7f]{{2}})"
    "|(?<=[ÂÃ])(?=[ ,.;])"
    f"|(?<=[РС])(?=[\xa0-\xbbЂ-џ€‚„…†‡‰‹‘-•–—™›])|(?<=[{_ALONE}]))"
)
_MAYBE_IN_ASCII = re.compile(r"[\\&\x01-\x08\x0b\x0c\x0e-\x1f\x7f]")


def odd_characters(texts: Iterable[str]) -> Counter[str]:
    """How many texts have characters of each kind of :data:`ODD`."""
    counts: Counter[str] = Counter()
    for text in texts:
        if text.isascii() and text.isprintable() and "\\" not in text and "&" not in text:
            continue
        if (_MAYBE_IN_ASCII if text.isascii() else _MAYBE).search(text):
            counts.update(name for name, (pattern, _) in ODD.items() if pattern.search(text))
    return counts


def odd_notes(counts: Mapping[str, int], texts: str = "lines") -> dict[str, str]:
    """Sentences on what :func:`odd_characters` counted, by what they are about."""
    return {
        name: f"{ODD[name][1]} ({counts[name]:,} such {texts})"
        for name in ODD
        if counts.get(name, 0) >= LEAST
    }
