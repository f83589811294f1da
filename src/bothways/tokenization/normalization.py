"""Text normalisation and word splitting: cleaning, case, accents, word boundaries.

``bert`` has the rules of the original BERT (``BasicTokenizer``) and of Hugging Face: control
characters are dropped, all white space becomes plain spaces, each CJK ideograph is a word, and
punctuation is split off. Uncased text is also decomposed, loses all combining marks, and is
lower-cased. Cased text that is decomposed stays so. Outside Europe these rules do damage: in
uncased text, Hangul is broken up into jamo, kana lose their voicing marks (か for が), and vowel
signs of Indic scripts, Arabic and Hebrew points and Thai vowels are lost; cased text from a system
that writes decomposed text gives other pieces than the same text composed.

``composed`` cleans and splits in the same way, and always ends in composed form (NFC), whatever the
form of its input. Uncased, it drops marks only after Latin and Greek letters. (Cyrillic keeps its
marks: й and ї are separate letters.)

``spaced`` is ``composed`` in which U+200B, the space without width between the words of Khmer, Lao,
Thai and Burmese, is a space. (As a control character it would be dropped, and a clause be a word.)

No rule of either preset looks across a plain space.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, normalizers
from tokenizers.pre_tokenizers import BertPreTokenizer

from bothways.errors import BothwaysError, InputError, type_of

Normalization = Literal["bert", "composed", "spaced"]
PRESETS: tuple[Normalization, ...] = ("bert", "composed", "spaced")


class Rules(TypedDict):
    """Arguments of :func:`normalizer`; the last two only differ from their defaults in tokenizers
    that were made elsewhere."""

    lowercase: bool
    normalization: Normalization
    strip_accents: NotRequired[bool]
    split_cjk: NotRequired[bool]


ACCENTS = r"(?<=[\p{Latin}\p{Greek}])\p{Mn}+"
"""Combining marks that ``composed`` drops from uncased text, after decomposing it."""

ZERO_WIDTH_SPACE = "\u200b"
_OFTEN = 1000
"""With one such space for as many letters, it is taken to separate words."""

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
# Scripts in which marks are vowels and tones, which uncased ``bert`` drops: those of India and Sri
# Lanka, Thai, Lao, Tibetan, Burmese, Khmer.
_MARKED = ((0x0900, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF))
# Vowels and final consonants of decomposed Hangul: they are counted with their first consonant.
_JAMO_AFTER_THE_FIRST = ((0x1160, 0x11FF), (0xD7B0, 0xD7FF))
_LARGE_SHARE = 1 / 3


def normalizer(
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    split_cjk: bool = True,
    normalization: Normalization = "bert",
) -> normalizers.Normalizer:
    """One of the presets; ``strip_accents=None`` means the same as ``lowercase``."""
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
    # Cleaning comes first, so that no character it drops is between a letter and its mark.
    if lowercase if strip_accents is None else strip_accents:
        steps += [normalizers.NFD(), normalizers.Replace(Regex(ACCENTS), "")]
    if lowercase:
        steps.append(normalizers.Lowercase())
    if normalization == "spaced":
        steps.insert(0, normalizers.Replace(ZERO_WIDTH_SPACE, " "))
    return normalizers.Sequence([*steps, normalizers.NFC()])


def word_splitter() -> BertPreTokenizer:
    """Splits cleaned text at white space and around every punctuation mark."""
    return BertPreTokenizer()


@dataclass(frozen=True)
class LetterCounts:
    """How many letters a text has, and how many of them are of scripts that need care."""

    letters: int
    """All letters, including ideographs and syllables."""
    hangul_and_kana: int
    """Hangul and kana."""
    ideographs: int
    """CJK ideographs."""
    marked: int = 0
    """Letters of scripts in which marks are vowels or tones, such as Devanagari and Thai."""
    zero_width_spaces: int = 0
    """Spaces without width, U+200B."""

    @property
    def normalization(self) -> Normalization:
        """The preset for the text: ``composed`` if more than a third of the letters is damaged by
        ``bert``, ideographs aside, to which the presets do the same."""
        damaged = self.hangul_and_kana + self.marked
        large = damaged > _LARGE_SHARE * (self.letters - self.ideographs)
        return self.composed if large else "bert"

    @property
    def composed(self) -> Normalization:
        """``composed``, or ``spaced`` if spaces without width separate words."""
        often = self.zero_width_spaces * _OFTEN > self.letters
        return "spaced" if often and self.marked > self.letters / 2 else "composed"

    @property
    def mainly_east_asian(self) -> bool:
        """Whether more than a third is East Asian, so that thousands of characters are needed."""
        return self.hangul_and_kana + self.ideographs > _LARGE_SHARE * self.letters


def count_letters(batches: Iterable[Mapping[str, int]]) -> LetterCounts:
    """Count the letters of strings with counts."""
    letters = hangul_and_kana = ideographs = marked = zero_width = 0
    for batch in batches:
        lengths = np.fromiter(map(len, batch), dtype=np.int64, count=len(batch))
        weights = np.repeat(np.fromiter(batch.values(), np.int64, count=len(batch)), lengths)
        codes = code_points("".join(batch))
        zero_width += int(weights[codes == ord(ZERO_WIDTH_SPACE)].sum())
        is_letter = _alphabetic()[codes] & ~_within(codes, _JAMO_AFTER_THE_FIRST)
        codes, weights = codes[is_letter], weights[is_letter]
        letters += int(weights.sum())
        hangul_and_kana += int(weights[_within(codes, _HANGUL_AND_KANA)].sum())
        ideographs += int(weights[_within(codes, _IDEOGRAPHS)].sum())
        marked += int(weights[_within(codes, _MARKED)].sum())
    return LetterCounts(letters, hangul_and_kana, ideographs, marked, zero_width)


def count_decomposed(contents: Iterable[Any], normalize: Callable[[str], str]) -> int:
    """How many contents a tokenizer reads otherwise than the same text composed (NFC).

    Args:
        contents: texts, or tuples of them.
        normalize: the tokenizer's.
    """

    def changes(content: Any) -> bool:
        if not isinstance(content, str):
            return any(map(changes, content))
        if unicodedata.is_normalized("NFC", content):
            return False
        return normalize(content) != normalize(unicodedata.normalize("NFC", content))

    return sum(map(changes, contents)) if changes(_DECOMPOSED) else 0


_DECOMPOSED = unicodedata.normalize("NFD", "é 각")


def decomposed_notes(count: int, texts: int, what: str = "texts") -> list[str]:
    """A note if some of the texts are decomposed, as counted by :func:`count_decomposed`."""
    if not count:
        return []
    return [
        f"{count:,} of {texts:,} {what} have decomposed characters (Unicode NFD), for which the "
        "vocabulary has other pieces than for composed ones; convert them to NFC"
    ]


def code_points(text: str) -> NDArray[np.uint32]:
    """The code points of a text; half a surrogate pair becomes a question mark."""
    return np.frombuffer(text.encode("utf-32-le", errors="replace"), dtype="<u4")


@cache
def _alphabetic() -> NDArray[np.bool_]:
    return np.array([chr(code).isalpha() for code in range(0x110000)])


def _within(codes: NDArray[np.uint32], ranges: tuple[tuple[int, int], ...]) -> NDArray[np.bool_]:
    within = np.zeros(len(codes), dtype=bool)
    for first, last in ranges:
        within |= (codes >= first) & (codes <= last)
    return within


def not_text_error(texts: Sequence[object], what: str = "text") -> BothwaysError:
    """The error for the first of ``texts`` that is not a string of Unicode characters."""
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            return InputError(
                f"{what} {number} of {len(texts)} is {repr(text)[:80]} ({type(text).__name__}); "
                "a string is needed."
            )
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            return InputError(
                f"text {number} of {len(texts)} has half a character at {error.start}, the "
                f"surrogate U+{ord(text[error.start]):X}: broken UTF-8 or UTF-16."
            )
    return InputError("the texts cannot be read as strings.")


def check_texts(a: Sequence[str], b: Sequence[str] | None = None) -> None:
    """Refuse what is not a list of strings, and pairs that do not match.

    The characters of a single string would be taken for texts, and a tuple of two for a pair whose
    segments are not told apart.

    Args:
        a: the texts, or first segments.
        b: the second segments, if any.

    Raises:
        InputError: a single string, no list, something in it that is not a string, or the numbers
            of A and B differ.
    """
    given = [(a, "text")] if b is None else [(a, "text"), (b, "second text")]
    for texts, what in given:
        if not isinstance(texts, list):
            check_listed(texts)
        if not all(isinstance(text, str) for text in texts):
            raise not_text_error(texts, what)
    if b is not None and len(a) != len(b):
        raise InputError(f"{len(a)} first segments but {len(b)} second segments were given.")


def check_listed(texts: Any) -> None:
    """Refuse what is no list of anything.

    Raises:
        InputError: saying what it is.
    """
    if isinstance(texts, str):
        raise InputError(f"{texts[:40]!r} is a single text; give a list of texts.")
    # Some of these iterate over other things, such as a data frame over the names of its columns.
    no_list = isinstance(texts, bytes | bytearray | Mapping | Set) or hasattr(texts, "columns")
    if no_list or not hasattr(texts, "__len__") or getattr(texts, "ndim", 1) == 0:
        raise InputError(f"a list of texts is needed, not {type_of(texts)}.")
