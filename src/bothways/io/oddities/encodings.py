"""What bytes that are not UTF-8 look like, for the message that says how to convert them."""

from __future__ import annotations

import binascii
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

_LEAST = 0.55  # share of characters that are common ones of the script, to name an encoding
_NEUTRAL = frozenset("\xa0«»„“”‘’‚–—…€°§©®´·•")
_MOSTLY_OTHER_LETTERS = 0.6
_FEW_OTHER_LETTERS = 0.4  # two bytes of which one may be a letter make at least half

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


_OF_PROGRAMS = (
    (b"PK\x03\x04", "a ZIP archive, as .xlsx, .ods, .docx and .odt are", ""),
    (b"PK\x05\x06", "a ZIP archive without files", "take another file"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an Office document (.xls, .doc)", ""),
    (b"%PDF-", "a PDF document", "take its text out, such as by pdftotext"),
    (b"{\\rtf", "an RTF document", ""),
    (b"\x1f\x8b", "compressed by gzip", "decompress it: gzip -dc < OLD > NEW"),
    (b"\xfd7zXZ\0", "compressed by xz", "decompress it: xz -dc < OLD > NEW"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "decompress it: zstd -dc < OLD > NEW"),
    (b"BZh91AY&SY", "compressed by bzip2", "decompress it: bzip2 -dc < OLD > NEW"),
    (b"x\x9c", "compressed by zlib, as spaCy's .spacy files are", "save it in another format"),
    (b"Rar!\x1a", "a RAR archive", "unpack it"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it"),
    (b"\x1f\x9d", "compressed by compress", "decompress it: gzip -dc < OLD > NEW"),
    (b"\x04\x22\x4d\x18", "compressed by lz4", "decompress it: lz4 -dc < OLD > NEW"),
    (b"%!PS", "a PostScript document", "take its text out, such as by ps2ascii"),
    (b"AT&TFORM", "a DjVu document", "take its text out, such as by djvutxt"),
    (b"\xff\xff\xff\xff", "a stream of Arrow tables", "save it as CSV or JSON lines"),
    (b"Obj\x01", "an Avro file", "save it as CSV or JSON lines"),
    (b"GGUF", "a model in GGUF", "take a file of text"),
    (b"\x7fELF", "a program", "take a file of text"),
    (b"PAR1", "a Parquet table", "save it as CSV or JSON lines"),
    (b"ARROW1", "an Arrow table", "save it as CSV or JSON lines"),
    (b"SQLite format 3\0", "a database of SQLite", "export the table as CSV"),
    (b"\x93NUMPY", "an array of NumPy", "save it as CSV or JSON lines"),
    (b"\x89HDF", "an HDF5 file", "save it as CSV or JSON lines"),
    *(
        (start, "a pickle of Python", "save it as CSV or JSON lines")
        for start in (b"\x80\x04\x95", b"\x80\x05\x95", b"\x80\x02}", b"\x80\x02]", b"\x80\x03]")
    ),
    (b"\x89PNG", "a picture", "take its text"),
    (b"\xff\xd8\xff", "a picture", "take its text"),
    (b"GIF8", "a picture", "take its text"),
)
_WITHOUT_TAGS = (
    "take the tags out: python -c 'import html, re, sys; "
    'print(html.unescape(re.sub("<[^>]*>", "", sys.stdin.read())))\' < OLD > NEW'
)
_MARKUP = (
    (
        re.compile(rb"<(?:!doctype\s+html|html|head|body)[\s>]", re.IGNORECASE),
        "a page of HTML",
        "take its text out, such as by html2text or trafilatura",
    ),
    (
        re.compile(rb"<mediawiki[\s>]"),
        "a dump of MediaWiki",
        "take its text out, such as by wikiextractor",
    ),
    (
        re.compile(rb'<doc\s+id="'),
        "what WikiExtractor writes",
        "let it write JSON lines (--json, and name the files .jsonl), or take its own lines out: "
        "sed -E '/^<\\/?doc/d' OLD > NEW",
    ),
    (
        # Not any name: lists of pieces begin with <s> and <pad>.
        re.compile(
            rb"<(?:TEI|teiCorpus|corpus|docs?|documents?|root|dataset|articles?|text)"
            rb"(?:\s[^<>]*)?>\s*<[a-z]",
            re.IGNORECASE,
        ),
        "an XML document",
        _WITHOUT_TAGS,
    ),
)
_SUBTITLES = re.compile(
    rb"(?:\xef\xbb\xbf)?(?:WEBVTT[^\n]*\n)?\s*(?:[^\r\n]*\r?\n)?(?:\d+:)?\d+:\d\d[,.]\d{3} -->"
)
_BEFORE_MARKUP = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?P<declared><\?xml\s[^>]*\?>)?(?:\s+|<!--.*?-->)*", re.DOTALL
)
_SAVE_AS_TEXT = "open it in the program that it is of and save it as plain text or CSV in UTF-8"
_TAR = b"ustar"
_ISO_2022 = re.compile(rb"\x1b(?:\$[@B]|\$\)[AC]|\$\([CD])")


def not_text(head: bytes) -> str:
    """What a file is that begins so and is none of text, and what to do; empty if it may be."""
    for mark, kind, remedy in _OF_PROGRAMS:
        if head.startswith(mark):
            return f"this is {kind}, not text; {remedy or _SAVE_AS_TEXT}."
    if head.startswith(b"ORC") and not head[:64].isascii():
        return "this is an ORC table, not text; save it as CSV or JSON lines."
    if head[60:68] == b"BOOKMOBI":
        return "this is a book for Kindle (MOBI), not text; take its text out, such as by Calibre."
    if head[257:262] == _TAR:
        return "this is a tar archive, not text; unpack it: tar -xf OLD."
    if is_quoted_printable(head):
        return (
            "this is a mail in quoted-printable, where =C3=A9 stands for é; decode it: "
            "python -m quopri -d < OLD > NEW."
        )
    if _SUBTITLES.match(head):
        return (
            "these are subtitles, whose numbers and times would be read as text; take them out: "
            "sed -E '/^\\W*[0-9]*\\r?$/d; /^WEBVTT/d; /-->/d' OLD > NEW."
        )
    if markup := _markup(head):
        kind, remedy = markup
        return f"this is {kind}, not plain text; {remedy}."
    return ""


def _markup(head: bytes) -> tuple[str, str] | None:
    """The kind of markup that a file begins with, and what to do; None if it begins otherwise.

    A text that only mentions a tag does not begin with one, nor does a list of pieces.
    """
    if not (start := _BEFORE_MARKUP.match(head)):
        return None
    kinds = (kind for pattern, *kind in _MARKUP if pattern.match(head, start.end()))
    kind, remedy = next(kinds, ("", ""))
    if kind or not start["declared"]:
        return (kind, remedy) if kind else None
    return "an XML document", _WITHOUT_TAGS


_QUOTED = re.compile(rb"=(?:([0-9A-F]{2})|\r?\n)")
_LEAST_QUOTED = 4


def is_quoted_printable(head: bytes) -> bool:
    """Whether ASCII has all equals signs, and other letters, as mails have them: ``caf=C3=A9``."""
    if b"=" not in head or not head.isascii():
        return False
    head = head[: head.rfind(b"\n") + 1] or head
    codes = _QUOTED.findall(head)
    return len(codes) == head.count(b"=") and sum(code >= b"80" for code in codes) >= _LEAST_QUOTED


_SHIFTED = re.compile(rb"\+([A-Za-z0-9+/]+)-?")
_LEAST_SHIFTED = 3


def is_utf7(head: bytes) -> bool:
    """Whether ASCII has letters of other scripts as UTF-7 writes them: ``caf+AOk-``.

    All runs behind a plus sign must be such letters: one that is not, as in ``+1`` or ``C++x``,
    tells that the plus signs are the text's.
    """
    if b"+" not in head or not head.isascii():
        return False
    runs = _SHIFTED.findall(head[: head.rfind(b" ") + 1] or head)
    return len(runs) >= _LEAST_SHIFTED and all(map(_is_shifted, runs))


def _is_shifted(run: bytes) -> bool:
    """Whether a run is UTF-16BE in base64 without padding, and letters or signs of text."""
    if len(run) % 8 not in (0, 3, 6):  # whole units of 16 bits
        return False
    data = binascii.a2b_base64(run + b"=" * (-len(run) % 4))
    text = data[: len(data) // 2 * 2].decode("utf-16-be", "replace")
    others = [c for c in text if not c.isascii()]
    kinds = {unicodedata.category(c)[0] for c in others}
    return bool(others) and kinds <= set("LMNPSZ") and "\ufffd" not in text


def escaped_encoding(head: bytes) -> str | None:
    """The name for iconv of an encoding that escape sequences switch on, or None."""
    if is_utf7(head):
        return "UTF-7"
    if found := _ISO_2022.search(head):
        return "ISO-2022-KR" if found[0].endswith((b")C", b"(C")) else "ISO-2022-JP"
    return None


_LEAST_TWICE = 3


def encoded_twice(head: bytes) -> str | None:
    """The name for iconv of the encoding as which UTF-8 was read before it was written as UTF-8
    again (``cafÃ©``); None if it was not. All that is not ASCII must be so."""
    if head.isascii():
        return None
    try:
        text = head[: head.rfind(b"\n") + 1 or len(head)].decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    for python, name in (("latin-1", "ISO-8859-1"), ("cp1252", "WINDOWS-1252")):
        try:
            once = text.encode(python).decode("utf-8")
        except UnicodeError:
            continue
        if sum(not c.isascii() for c in once) >= _LEAST_TWICE:
            return name
    return None


def single_byte_or_east_asian(sample: bytes) -> Encoding | None:
    """The encoding that bytes which are not UTF-8 most likely have; None if none is likely."""
    lines = [line for line in sample.split(b"\n") if not line.isascii()]
    sample = b"\n".join(lines)
    if _has_typographic_signs_alone(sample):
        return _LATIN[0]
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


_HALVES = re.compile(rb"\xed[\xa0-\xaf][\x80-\xbf]\xed[\xb0-\xbf][\x80-\xbf]")


def halves_encoded(line: bytes) -> str | None:
    """What is wrong, and the command that mends it, where emoji and the like are written as two
    characters of UTF-8, one for each half of UTF-16; None elsewhere."""
    if not _HALVES.search(line):
        return None
    return (
        "Its emoji and the like are written as halves (CESU-8, as Java and databases do); convert "
        "it: python -c 'import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()"
        '.decode("utf-8", "surrogatepass").encode("utf-16", "surrogatepass")'
        '.decode("utf-16", "replace").encode())\' < OLD > NEW.'
    )


def line_by_line(encoding: str) -> str:
    """The command that converts to UTF-8 those lines of a file that are not in it.

    Args:
        encoding: theirs, as Python names it.
    """
    return (
        "python -c 'import sys; sys.stdout.buffer.writelines("
        's if s.decode("utf-8", "ignore").encode() == s else '
        f's.decode("{encoding}", "replace").encode() for s in sys.stdin.buffer)\' < OLD > NEW'
    )


# In places where a text has them: opening marks before words, closing marks and dots behind, the
# apostrophe of English, dashes between spaces. The same bytes are letters of MacRoman inside words.
_TYPOGRAPHIC = re.compile(
    rb"(?<![A-Za-z])[\x91\x93](?=[A-Za-z0-9])|(?<=[A-Za-z0-9.,!?\x85])[\x92\x94\x85](?![A-Za-z])"
    rb"|(?<=[A-Za-z])\x92(?=(?:s|t|re|ve|ll|d|m)\b)|(?<=\s)[\x96\x97](?=\s)|(?<=\d)\x96(?=\d)"
    rb"|(?<=\d)\x80(?![A-Za-z])|(?<=\d )\x80(?![A-Za-z])|(?<![A-Za-z])\x80(?= ?\d)"  # the euro
)


def _has_typographic_signs_alone(sample: bytes) -> bool:
    """Whether all that is not ASCII are the quotation marks, dashes and dots of Windows-1252."""
    high = sum(byte >= 0x80 for byte in sample)
    return high > 0 and len(_TYPOGRAPHIC.findall(sample)) > 0.9 * high


def _candidates(sample: bytes) -> tuple[Encoding, ...]:
    words = re.findall(rb"[A-Za-z\x80-\xff]*[\x80-\xff][A-Za-z\x80-\xff]*", sample)
    high = sum(byte >= 0x80 for word in words for byte in word)
    several = len({byte for byte in sample if byte >= 0x80}) > 3  # no stray byte or two
    letters = sum(map(len, words))
    of_other_letters = several and high > _MOSTLY_OTHER_LETTERS * letters
    if of_other_letters:
        return (*_EAST_ASIAN, *_OTHER_LETTERS)
    return (*_LATIN, *_EAST_ASIAN) if high > _FEW_OTHER_LETTERS * letters else _LATIN


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


_WESTERN = "áàâäãåæçéèêëíìîïñóòôöõøœúùûüßÉÀÖÜÄÅØ"
_ICELANDIC = "áéíóúýþæöðÁÉÍÓÚÝÞÆÖÐ"
_CENTRAL = (
    "ąćęłńóśźżĄĆĘŁŃÓŚŹŻ",
    "áčďéěíňóřšťúůýžľĺŕôäÁČÉĚÍŇŘŠÚ",
    "áéíóöőúüűÁÉÖŐÜ",
    "ăâîşţ",
    "čćđšžČĆĐŠ",
)


def _vietnamese(text: str) -> float:
    # Tones are characters of their own here; Icelandic's thorn is the sign of the currency.
    tones = sum(c in "\u0300\u0301\u0303\u0309\u0323" for c in text)
    if not tones or "₫" in text or not any(c in "đươ" for c in text):
        return 0.0
    return (tones + sum(c in "ăâđêôơưĂÂĐÊÔƠƯáàãéèíóùú" for c in text)) / len(text)


_EAST_ASIAN = (
    Encoding("cp949", "CP949", "Korean", _hangul),
    Encoding("johab", "JOHAB", "Korean", _hangul),
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
        _common(_WESTERN, _ICELANDIC),
    ),
    Encoding("cp1258", "WINDOWS-1258", "Vietnamese", _vietnamese),
    Encoding("cp1250", "WINDOWS-1250", "Central European", _common(*_CENTRAL)),
    Encoding("iso8859_2", "ISO-8859-2", "Central European", _common(*_CENTRAL)),
    Encoding("cp1254", "WINDOWS-1254", "Turkish", _common("çğıöşüâîûÇĞİÖŞÜ")),
    Encoding("cp1257", "WINDOWS-1257", "Baltic", _common("āčēģīķļņšūžąęėįųõäöü")),
    Encoding("mac_roman", "MACINTOSH", "Western European", _common(_WESTERN)),
    Encoding("cp850", "CP850", "Western European", _common(_WESTERN)),
)
_OTHER_LETTERS = (
    Encoding("cp1251", "WINDOWS-1251", "Cyrillic", _common("оеаинтсрвлкмдпуяы")),
    Encoding("koi8_r", "KOI8-R", "Cyrillic", _common("оеаинтсрвлкмдпуяы")),
    Encoding("cp866", "CP866", "Cyrillic", _common("оеаинтсрвлкмдпуяы")),
    Encoding("iso8859_5", "ISO-8859-5", "Cyrillic", _common("оеаинтсрвлкмдпуяы")),
    Encoding("mac_cyrillic", "MAC-CYRILLIC", "Cyrillic", _common("оеаинтсрвлкмдпуяы")),
    Encoding("koi8_u", "KOI8-U", "Cyrillic", _common("оеаинтсрвлкмдпуяіїє")),
    Encoding("cp1253", "WINDOWS-1253", "Greek", _common("αοιετσνηυρπκμλςάίόέή")),
    Encoding("cp1255", "WINDOWS-1255", "Hebrew", _common("יוהלאתמרבשנםדעח")),
    Encoding("cp1256", "WINDOWS-1256", "Arabic", _common("اليمنرتبوعسدفهة")),
    Encoding("cp874", "CP874", "Thai", _common("านรอกเงมยลวดทส่ตะปบคหแจพชขใไ้ีัิ็")),
)
