"""What bytes that are not UTF-8 look like, for the message that says how to convert them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

_LEAST = 0.55  # share of characters that are common ones of the script, to name an encoding
_NEUTRAL = frozenset("\xa0«»„“”‘’‚–—…€°§©®´·•")
_MOSTLY_OTHER_LETTERS = 0.6

Test = Callable[[str], float]
"""How much of some characters is usual text of a script, 0 to 1."""


@dataclass(frozen=True)
class Encoding:
    """An encoding that files of one kind have.

    Attributes:
        python, iconv: its name in Python and for iconv.
        script: what is written in it.
        usual: see :data:`Test`.
    """

    python: str
    iconv: str
    script: str
    usual: Test


def wide_encoding(head: bytes) -> str | None:
    """The name for iconv of an encoding of two or four bytes a character that a file begins in:
    with its mark, or without one, by its NULs; None if it is none of them."""
    for mark, name in (
        (b"\xff\xfe\0\0", "UTF-32"),
        (b"\0\0\xfe\xff", "UTF-32"),
        (b"\xff\xfe", "UTF-16"),
        (b"\xfe\xff", "UTF-16"),
    ):
        if head.startswith(mark):
            return name
    head = head[: len(head) // 4 * 4]
    if head.count(0) * 20 < len(head) or len(head) < 4:
        return None
    nuls = [head[place::4].count(0) / (len(head) // 4) for place in range(4)]
    if min(nuls[2], nuls[3]) > 0.95 and nuls[0] < 0.2:
        return "UTF-32LE"
    if min(nuls[0], nuls[1]) > 0.95 and nuls[3] < 0.2:
        return "UTF-32BE"
    even, odd = (nuls[0] + nuls[2]) / 2, (nuls[1] + nuls[3]) / 2
    for name, has_nuls, has_none, high in (
        ("UTF-16LE", odd, even, head[1::2]),
        ("UTF-16BE", even, odd, head[::2]),
    ):
        # The high bytes of letters below U+0800; a stray NUL in ASCII has other neighbours.
        small = not head.isascii() or sum(byte < 8 for byte in high) > 0.8 * len(high)
        if has_nuls > 0.05 and has_none < 0.02 and small and _is_text(head, name):
            return name
    return None


def _is_text(data: bytes, name: str) -> bool:
    text = data.decode(name, "replace")
    kinds = [unicodedata.category(character) for character in text if character not in "\r\n\t"]
    return sum(kind[0] in "LMNPZ" for kind in kinds) > 0.9 * len(kinds)


def single_byte_or_east_asian(sample: bytes) -> Encoding | None:
    """The encoding that bytes which are not UTF-8 most likely have; None if none is likely."""
    lines = [line for line in sample.split(b"\n") if not line.isascii()]
    sample = b"\n".join(lines)
    scores = []
    for rank, encoding in enumerate(_candidates(sample)):
        try:
            text = sample.decode(encoding.python)
        except UnicodeDecodeError:
            continue
        others = "".join(c for c in text if not c.isascii() and c not in _NEUTRAL)
        if others:
            scores.append((encoding.usual(others), -rank, encoding))
    if not scores:
        return None
    score, _, encoding = max(scores, key=lambda found: found[:2])
    return encoding if score >= _LEAST else None


def _candidates(sample: bytes) -> tuple[Encoding, ...]:
    words = re.findall(rb"[A-Za-z\x80-\xff]*[\x80-\xff][A-Za-z\x80-\xff]*", sample)
    high = sum(byte >= 0x80 for word in words for byte in word)
    several = len({byte for byte in sample if byte >= 0x80}) > 3  # no stray byte or two
    of_other_letters = several and high > _MOSTLY_OTHER_LETTERS * sum(map(len, words))
    return (*_EAST_ASIAN, *_OTHER_LETTERS) if of_other_letters else (*_LATIN, *_EAST_ASIAN)


def _common(*alphabets: str) -> Test:
    return lambda text: max(sum(c in known for c in text) for known in alphabets) / len(text)


def _hangul(text: str) -> float:
    # Other text has rare syllables by chance, or few: those of the older standard are in use.
    in_use = sum("가" <= c <= "힣" and len(c.encode("euc_kr", "ignore")) == 2 for c in text)
    return in_use / len(text) if in_use > 0.9 * len(text) else 0.0


def _japanese(text: str) -> float:
    kana = sum("\u3041" <= c <= "\u30ff" for c in text)
    whole = sum("\u3000" <= c <= "\u30ff" or "\u4e00" <= c <= "\u9fff" for c in text)
    return whole / len(text) if kana >= 0.2 * len(text) else 0.0


def _chinese(frequent: str) -> Test:
    known = frozenset(frequent)

    def usual(text: str) -> float:
        ideographs = [c for c in text if "\u4e00" <= c <= "\u9fff"]
        punctuation = sum("\u3000" <= c <= "\u301f" or "\uff00" <= c <= "\uff65" for c in text)
        if sum(c in known for c in ideographs) < 0.08 * max(len(ideographs), 1):
            return 0.0
        return (len(ideographs) + punctuation) / len(text)

    return usual


_EAST_ASIAN = (
    Encoding("cp949", "CP949", "Korean", _hangul),
    Encoding("cp932", "CP932", "Japanese", _japanese),
    Encoding("euc_jp", "EUC-JP", "Japanese", _japanese),
    Encoding(
        "gb18030",
        "GB18030",
        "Chinese",
        _chinese("的一是不了在人有我他这中大来上个国到说们为子和地"),
    ),
    Encoding(
        "big5", "BIG5", "Chinese", _chinese("的一是不了在人有我他這中大來上個國到說們為子和地")
    ),
)
_LATIN = (
    Encoding(
        "cp1252",
        "WINDOWS-1252",
        "Western European",
        _common("áàâäãåæçéèêëíìîïñóòôöõøœúùûüßÉÀÖÜÄÅØ"),
    ),
    Encoding(
        "cp1250",
        "WINDOWS-1250",
        "Central European",
        _common(
            "ąćęłńóśźżĄĆĘŁŃÓŚŹŻ",
            "áčďéěíňóřšťúůýžľĺŕôäÁČĎÉĚÍŇŘŠŤÚŽ",
            "áéíóöőúüűÁÉÖŐÜ",
            "ăâîşţ",
            "čćđšžČĆĐŠŽ",
        ),
    ),
    Encoding("cp1254", "WINDOWS-1254", "Turkish", _common("çğıöşüâîûÇĞİÖŞÜ")),
    Encoding("cp1257", "WINDOWS-1257", "Baltic", _common("āčēģīķļņšūžąęėįųõäöü")),
)
_OTHER_LETTERS = (
    Encoding("cp1251", "WINDOWS-1251", "Cyrillic", _common("оеаинтсрвлкмдпуяы")),
    Encoding("koi8_r", "KOI8-R", "Cyrillic", _common("оеаинтсрвлкмдпуяы")),
    Encoding("cp866", "CP866", "Cyrillic", _common("оеаинтсрвлкмдпуяы")),
    Encoding("cp1253", "WINDOWS-1253", "Greek", _common("αοιετσνηυρπκμλςάίόέή")),
    Encoding("cp1255", "WINDOWS-1255", "Hebrew", _common("יוהלאתמרבשנםדעח")),
    Encoding("cp1256", "WINDOWS-1256", "Arabic", _common("اليمنرتبوعسدفهة")),
    Encoding("cp874", "CP874", "Thai", _common("านรอกเงมยลวดทส่ตะปบคหแจพชขใไ้ีัิ็")),
)
