"""The language of text, recognised from a sample: by its letters, and where languages share them by
their commonest words or by letters of their own."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np

from bothways.errors import InputError
from bothways.io.broken import Broken
from bothways.io.records import ParagraphReader
from bothways.tokenization.normalization import code_points

DEFAULT = "en"
"""The language of text of which none is recognised."""
_FILES, _CHARACTERS = 16, 2**18  # of a sample
_LARGE, _SOME, _ODD = 1 / 3, 0.02, 0.005
_FEWEST_WORDS, _SHARE, _AHEAD = 12, 0.08, 1.3

# Of scripts that one language has almost alone, by the first word of their letters' Unicode names.
_OF_SCRIPT = {
    "HANGUL": "ko",
    "GREEK": "el",
    "ARMENIAN": "hy",
    "HEBREW": "he",
    "THAI": "th",
    "GEORGIAN": "ka",
    "DEVANAGARI": "hi",
    "BENGALI": "bn",
    "TAMIL": "ta",
    "TELUGU": "te",
    "GUJARATI": "gu",
    "KANNADA": "kn",
    "MALAYALAM": "ml",
    "KHMER": "km",
    "LAO": "lo",
    "MYANMAR": "my",
    "ETHIOPIC": "am",
}
_OWN_LETTERS = {"CYRILLIC": {"uk": "іїєґ", "ru": "ыэё", "bg": "ъ"}, "ARABIC": {"fa": "پچژگ"}}
_OTHERWISE = {"CYRILLIC": "ru", "ARABIC": "ar"}
SCRIPT_NAMES = {"CJK": "Han", "KANA": "kana"} | {
    name: name.capitalize() for name in ("LATIN", *_OF_SCRIPT, *_OTHERWISE)
}
"""Names of scripts for people; letters of others are few, or symbols."""
_COMMON = {
    "en": "the of and to in that is was for it with as his he on be at by had not are but from",
    "de": "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch",
    "fr": "de la le et les des en un une du que est dans qui pour pas au sur ne se par il plus",
    "es": "de la que el en y los se del las por un para con no una su al lo como más o pero",
    "it": "di che e la il un a per in una non è sono si da con del le della al nel gli ma come",
    "pt": "de a que e o do da em um para com não uma os no se na por mais as dos como mas foi",
    "nl": "de het een en van ik te dat die in is niet zijn op aan met als voor er maar om hij",
    "sv": "och i att det som en på är av för med till den har de inte om ett han men var jag",
    "da": "og i at det er en til på af for den som de med ikke der har et jeg han om var men",
    "fi": "ja on ei se että oli hän mutta ovat kun niin myös joka mitä tai minä sen ole kuin",
    "pl": "w i na z się nie do to że jest o jak po co ale przez tego był od za jego są tym",
    "cs": "a se v na je že s z do o to i k ale jako si za by po jsem byl tak jeho které pro",
    "hu": "a az és hogy nem is egy ez volt de meg csak már van mint el ha még azt vagy ki",
    "ro": "de și în a la cu că pe nu un o din este se mai pentru care au o fi ca sunt lui",
    "tr": "bir ve bu da de için ile çok ne o gibi daha kadar olarak ama her olan ben var sonra",
    "id": "yang dan di itu dengan untuk tidak ini dari dalam akan pada juga saya ke karena ada",
    "vi": "và của là có không được cho một người với các những này trong đã tôi để khi từ như",
}


def sample(paths: Sequence[Path], field: str = "text", encoding: str = "") -> str:
    """The beginnings of some files, of all if they are few.

    What cannot be read is left out: whoever reads the files says what is wrong with them.
    """
    chosen = [paths[i * len(paths) // _FILES] for i in range(_FILES)]
    parts: list[str] = []
    for path in dict.fromkeys(chosen if len(paths) > _FILES else paths):
        left = _CHARACTERS // min(len(paths), _FILES)
        with suppress(InputError, OSError):
            reader = ParagraphReader(field, Broken(), keep=True, encoding=encoding)
            for line in reader.read(path, lambda _: None):
                parts.append(line[:left])
                left -= len(line) + 1
                if left <= 0:
                    break
    return "\n".join(parts)


def recognise(text: str) -> tuple[str, str]:
    """The code of a text's language, and by what it was recognised."""
    letters = count_letters(unicodedata.normalize("NFC", text))
    total = sum(letters.values())
    if not total:
        return DEFAULT, "no letters were found"
    shares = {name: count / total for name, count in count_scripts(letters).most_common()}
    return _language(text, letters, shares)


def count_letters(text: str) -> Counter[str]:
    """How often each letter occurs."""
    counts = np.bincount(code_points(text))
    found = np.flatnonzero(counts).tolist()
    return Counter({chr(code): int(counts[code]) for code in found if chr(code).isalpha()})


def count_scripts(letters: Mapping[str, int]) -> Counter[str]:
    """How many letters each script has, by the first word of their Unicode names."""
    scripts: Counter[str] = Counter()
    for letter, count in letters.items():
        scripts[_script(letter)] += count
    return scripts


def _language(text: str, letters: Counter[str], shares: dict[str, float]) -> tuple[str, str]:
    kana = shares.get("KANA", 0)
    if kana + shares.get("CJK", 0) > _LARGE:
        language = "ja" if kana > _SOME else "zh"
        return language, f"kana {kana:.0%}, ideographs {shares.get('CJK', 0):.0%} of the letters"
    for script, share in shares.items():
        if share <= _LARGE:
            break
        why = f"{share:.0%} of the letters are {script.capitalize()}"
        if script in _OF_SCRIPT:
            return _OF_SCRIPT[script], why
        if script in _OTHERWISE:
            total = share * sum(letters.values())
            for language, own in _OWN_LETTERS[script].items():
                if sum(letters[letter] for letter in own) > _ODD * total:
                    return language, f"{why}, with {', '.join(own)}"
            return _OTHERWISE[script], why
        if script == "LATIN":
            return _by_words(text)
    return DEFAULT, "no rule for its letters"


def _by_words(text: str) -> tuple[str, str]:
    words = Counter(re.findall(r"[^\W\d_]+", text.lower()))
    total = sum(words.values())
    found = Counter(
        {
            language: sum(words[word] for word in set(common.split()))
            for language, common in _COMMON.items()
        }
    )
    (best, first), (_, second) = found.most_common(2)
    if total < _FEWEST_WORDS or first < _SHARE * total or first < _AHEAD * second:
        return DEFAULT, "its words are of no language that is known here"
    own = [word for word, _ in words.most_common() if word in _COMMON[best].split()]
    return best, f"its commonest words are {', '.join(own[:4])}"


@cache
def _script(letter: str) -> str:
    name = unicodedata.name(letter, "OTHER").partition(" ")[0]
    return "KANA" if name.startswith(("HIRAGANA", "KATAKANA")) else name
