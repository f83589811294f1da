"""The scripts a text is written in: letters counted by Unicode block."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

SCRIPTS = (
    "other",
    "Latin",
    "Greek",
    "Cyrillic",
    "Armenian",
    "Hebrew",
    "Arabic",
    "Devanagari",
    "other Indic",
    "Thai",
    "Georgian",
    "Hangul",
    "kana",
    "Han",
)
"""Names of the scripts, in the order of :func:`count_scripts`."""

# First and last code point of the blocks (Unicode, Blocks.txt) of each script. Letters elsewhere
# are "other"; only letters are counted.
_BLOCKS = {
    "Latin": [
        *((0x41, 0x5A), (0x61, 0x7A), (0xAA, 0xAA), (0xB5, 0xB5), (0xBA, 0xBA), (0xC0, 0x24F)),
        *((0x250, 0x2AF), (0x1E00, 0x1EFF), (0x2C60, 0x2C7F), (0xA720, 0xA7FF), (0xFB00, 0xFB06)),
        *((0xFF21, 0xFF3A), (0xFF41, 0xFF5A)),
    ],
    "Greek": [(0x370, 0x3FF), (0x1F00, 0x1FFF)],
    "Cyrillic": [(0x400, 0x52F), (0x1C80, 0x1C8F), (0x2DE0, 0x2DFF), (0xA640, 0xA69F)],
    "Armenian": [(0x530, 0x58F), (0xFB13, 0xFB17)],
    "Hebrew": [(0x590, 0x5FF), (0xFB1D, 0xFB4F)],
    "Arabic": [(0x600, 0x6FF), (0x750, 0x77F), (0x8A0, 0x8FF), (0xFB50, 0xFDFF), (0xFE70, 0xFEFF)],
    "Devanagari": [(0x900, 0x97F), (0xA8E0, 0xA8FF)],
    "other Indic": [(0x980, 0xDFF)],
    "Thai": [(0xE00, 0xE7F)],
    "Georgian": [(0x10A0, 0x10FF), (0x1C90, 0x1CBF), (0x2D00, 0x2D2F)],
    "Hangul": [
        *((0x1100, 0x11FF), (0x3130, 0x318F), (0xA960, 0xA97F), (0xAC00, 0xD7FF)),
        (0xFFA0, 0xFFDC),
    ],
    "kana": [
        *((0x3041, 0x3096), (0x309D, 0x309F), (0x30A1, 0x30FA), (0x30FC, 0x30FF)),
        *((0x31F0, 0x31FF), (0xFF66, 0xFF9D)),
    ],
    "Han": [(0x3005, 0x3007), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF)],
}
_BASIC_PLANE = 2**16
_NOT_A_LETTER = len(SCRIPTS)


def count_scripts(text: str) -> NDArray[np.int64]:
    """Number of letters of each script in :data:`SCRIPTS`, int64 [14]."""
    codes = np.frombuffer(text.encode("utf-32-le", "replace"), dtype=np.uint32)
    wide = codes[codes >= _BASIC_PLANE]
    counts = np.bincount(
        _table()[codes[codes < _BASIC_PLANE] if wide.size else codes], minlength=_NOT_A_LETTER + 1
    )
    han = (wide >= 0x20000) & (wide < 0x33480)
    counts[SCRIPTS.index("Han")] += int(han.sum())
    counts[SCRIPTS.index("other")] += sum(chr(code).isalpha() for code in wide[~han].tolist())
    return counts[:_NOT_A_LETTER].astype(np.int64)


@lru_cache(maxsize=1)
def _table() -> NDArray[np.uint8]:
    """Index in ``SCRIPTS`` of each code point of the basic plane."""
    letters = np.array([chr(code).isalpha() for code in range(_BASIC_PLANE)])
    scripts = np.zeros(_BASIC_PLANE, dtype=np.uint8)
    for name, blocks in _BLOCKS.items():
        for first, last in blocks:
            scripts[first : last + 1] = SCRIPTS.index(name)
    return np.where(letters, scripts, _NOT_A_LETTER).astype(np.uint8)
