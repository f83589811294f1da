"""The language of text, from its letters and its commonest words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bothways.tokenization.languages import recognise, sample

TEXTS = {
    "ko": "한국어 문장은 이렇게 쓴다. BERT is nice.",
    "ja": "これは日本語の文章です。漢字もある",
    "zh": "这是一个中文句子，没有假名",
    "ru": "Это русский текст, и он такой. Мы были там и ещё эта рыба",
    "uk": "Це український текст, який містить ї та є",
    "bg": "Това е български текст и въпросът е дали ще го познае",
    "ar": "الجملة العربية هنا",
    "fa": "این یک جمله فارسی است که پدر گفت",
    "el": "Αυτή είναι μια ελληνική πρόταση",
    "he": "זה משפט בעברית",
    "hi": "यह हिन्दी का वाक्य है",
    "th": "นี่คือประโยคภาษาไทย",
    "en": "The dog is in the house and it was on the sea with his cat but not for that at all.",
    "de": "Der Hund ist nicht im Haus, und die Katze ist auf der Straße mit dem Mann für den Tag.",
    "fr": "Le chat est dans la maison et les chiens sont sur la route pour un jour que je ne sais.",
    "es": "El perro no está en la casa y los gatos se van por la calle con una mujer, pero no más.",
    "it": "Il cane non è nella casa e la gatta è con un uomo che si va per la strada di una sera.",
    "nl": "De hond is niet in het huis en de kat is met een man die op straat van de stad zit aan.",
    "pl": "To jest pies i nie ma go w domu, a na stole jest kot, że się boi z tego co jest jutro.",
}


@pytest.mark.parametrize("language", TEXTS)
def test_languages(language: str) -> None:
    found, why = recognise(TEXTS[language])
    assert found == language, why


def test_what_is_not_recognised_is_english_by_default() -> None:
    for text in ("", "123 45", "xyzzy plugh", "Ba Ba Ba"):
        assert recognise(text)[0] == "en"
    assert recognise("123")[1] == "no letters were found"


def test_a_sample_of_many_files(tmp_path: Path) -> None:
    paths = []
    for number in range(40):
        path = tmp_path / f"{number:02}.txt"
        path.write_text(f"text {number}\n" * 5000)
        paths.append(path)
    found = sample(paths)
    assert len(found) < 2**18 + 2**10
    assert {f"text {n}" for n in (0, 37)} <= set(found.splitlines())
    records = tmp_path / "a.jsonl"
    records.write_text(json.dumps({"body": "한국어"}) + "\n")
    assert sample([records], "body") == "한국어"
    broken = tmp_path / "b.txt"
    broken.write_bytes(b"good\n\xff\xfe bad\n")
    assert sample([broken, records], "body") == "good\n한국어"
