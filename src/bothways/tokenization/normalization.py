"""What happens to text before it is cut into pieces: cleaning, case, accents, where words end.

``bert`` has the rules of the original BERT (``BasicTokenizer``), equal to Hugging Face's: control
characters are dropped, every kind of white space becomes a space, CJK ideographs stand alone,
punctuation is split off; uncased, text is also decomposed, all combining marks are dropped, and it
is lower-cased. Decomposed text stays decomposed when cased. Outside Europe that does damage:
uncased, Hangul falls apart into jamo, kana lose their voicing marks (か for が), and vowel signs of
Indic scripts, Arabic and Hebrew points and Thai vowels are lost; cased, text from a system that
writes decomposed names and files gives other pieces than the same text composed.

``composed`` cleans and splits alike, and always ends in composed form (NFC), whatever the form of
the text given. Uncased, marks are dropped only after Latin and Greek letters. (Cyrillic keeps its
marks: й and ї are letters of their own.)

No rule of either reaches across a plain space.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, normalizers
from tokenizers.pre_tokenizers import BertPreTokenizer

from bothways.errors import BothwaysError, InputError

Normalization = Literal["bert", "composed"]


class Rules(TypedDict):
    """What :func:`normalizer` is told when a vocabulary is learned."""

    lowercase: bool
    normalization: Normalization


ACCENTS = r"(?<=[\p{Latin}\p{Greek}])\p{Mn}+"
"""Combining marks that ``composed`` drops, uncased, from decomposed text."""

_HANGUL_AND_KANA = (
    (0x1100, 0x11FF),  # conjoining jamo, as in decomposed text
    (0x3040, 0x30FF),  # hiragana, katakana
    (0x3130, 0x318F),  # single jamo, as in chat
    (0x31F0, 0x31FF),
    (0xA960, 0xA97F),
    (0xAC00, 0xD7FF),  # syllables
    (0xFF66, 0xFFDC),  # half-width forms
)
_IDEOGRAPHS = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF))
_MAINLY = 1 / 3


def normalizer(
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    split_cjk: bool = True,
    normalization: Normalization = "bert",
) -> normalizers.Normalizer:
    """One of the two presets; ``strip_accents=None`` means: as ``lowercase``."""
    if normalization == "bert":
        return normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=split_cjk,
            strip_accents=strip_accents,
            lowercase=lowercase,
        )
    clean = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=split_cjk, strip_accents=False, lowercase=False
    )
    steps: list[normalizers.Normalizer] = [clean]
    # Cleaning comes first, so that no character it drops stands between a letter and its mark.
    if lowercase if strip_accents is None else strip_accents:
        steps += [normalizers.NFD(), normalizers.Replace(Regex(ACCENTS), "")]
    if lowercase:
        steps.append(normalizers.Lowercase())
    return normalizers.Sequence([*steps, normalizers.NFC()])


def word_splitter() -> BertPreTokenizer:
    """Splits cleaned text at white space and around every punctuation mark."""
    return BertPreTokenizer()


@dataclass(frozen=True)
class Scripts:
    """What the letters of a text are."""

    letters: int
    """Letters in all, ideographs and syllables included."""
    hangul_and_kana: int
    """Of them Hangul and kana."""
    ideographs: int
    """Of them CJK ideographs."""

    @property
    def normalization(self) -> Normalization:
        """The preset for such a text: ``composed`` if a third or more is Hangul or kana."""
        return "composed" if self.hangul_and_kana > _MAINLY * self.letters else "bert"

    @property
    def wide(self) -> bool:
        """Whether the text needs thousands of characters: a third or more of them East Asian."""
        return self.hangul_and_kana + self.ideographs > _MAINLY * self.letters


def count_scripts(batches: Iterable[Mapping[str, int]]) -> Scripts:
    """Letters by script, of strings with counts."""
    alphabetic = _alphabetic()
    letters = hangul_and_kana = ideographs = 0
    for batch in batches:
        lengths = np.fromiter(map(len, batch), dtype=np.int64, count=len(batch))
        weights = np.repeat(np.fromiter(batch.values(), np.int64, count=len(batch)), lengths)
        codes = code_points("".join(batch))
        letters += int(weights[alphabetic[codes]].sum())
        hangul_and_kana += int(weights[_within(codes, _HANGUL_AND_KANA)].sum())
        ideographs += int(weights[_within(codes, _IDEOGRAPHS)].sum())
    return Scripts(letters, hangul_and_kana, ideographs)


def code_points(text: str) -> NDArray[np.uint32]:
    """The characters of a text as numbers; half a surrogate pair counts as U+FFFD."""
    return np.frombuffer(text.encode("utf-32-le", errors="replace"), dtype="<u4")


@cache
def _alphabetic() -> NDArray[np.bool_]:
    return np.array([chr(code).isalpha() for code in range(0x110000)])


def _within(codes: NDArray[np.uint32], ranges: tuple[tuple[int, int], ...]) -> NDArray[np.bool_]:
    found = np.zeros(len(codes), dtype=bool)
    for first, last in ranges:
        found |= (codes >= first) & (codes <= last)
    return found


def not_text_error(texts: Sequence[object]) -> BothwaysError:
    """The error for the first of ``texts`` that the library cannot take."""
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            return InputError(
                f"text {number} of {len(texts)} is {text!r} ({type(text).__name__}); a string is "
                "needed."
            )
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            return InputError(
                f"text {number} of {len(texts)} has half a character at {error.start}, the "
                f"surrogate U+{ord(text[error.start]):X}: broken UTF-8 or UTF-16. Repair the "
                "text, or replace such characters when reading it."
            )
    return InputError("the texts cannot be read as strings.")
