"""The presets: the original's against Hugging Face's, and the composed one on every script."""

from __future__ import annotations

import json
import random
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from bothways.io.text import read_lines
from bothways.tokenization.learning import learn_vocabulary
from bothways.tokenization.normalization import (
    count_decomposed,
    count_letters,
    normalizer,
    word_splitter,
)
from bothways.tokenization.offsets import fit_to_characters
from bothways.tokenization.pieces import SPECIAL_PIECES
from bothways.tokenization.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

CASES = pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])
ANYTHING = st.text(st.characters(exclude_categories=("Cs", "Cn")), max_size=30)
COMPOSED = {case: normalizer(lowercase=case, normalization="composed") for case in (True, False)}
INTERESTING = [
    *(range(0x20, 0x250), range(0x300, 0x370), range(0x370, 0x530), range(0x590, 0x700)),
    *(range(0x900, 0xE80), range(0x1100, 0x1200), range(0x1E00, 0x2070), range(0x2190, 0x2200)),
    *(range(0x3000, 0x3200), range(0x4E00, 0x4F00), range(0xAC00, 0xB000), range(0xF900, 0xFB00)),
    *(range(0xFE00, 0xFFF0), range(0x1F300, 0x1F700), range(0x2F800, 0x2F900)),
]


def forms(text: str) -> list[str]:
    return [unicodedata.normalize(form, text) for form in ("NFC", "NFD")]


def random_text(generator: random.Random) -> str:
    length = generator.randrange(1, 12)
    codes = (generator.choice(generator.choice(INTERESTING)) for _ in range(length))
    return "".join(map(chr, codes))


def words_by_hugging_face(case: bool) -> Callable[[str], list[str]]:
    """What transformers' own tokenizer class does before WordPiece."""
    backend = transformers.BertTokenizer(
        vocab={piece: i for i, piece in enumerate(SPECIAL_PIECES)}, do_lower_case=case
    ).backend_tokenizer
    return lambda text: [
        word
        for word, _ in backend.pre_tokenizer.pre_tokenize_str(
            backend.normalizer.normalize_str(text)
        )
    ]


def assert_same_words(case: bool, texts: list[str]) -> None:
    theirs = words_by_hugging_face(case)
    clean, split = normalizer(lowercase=case), word_splitter()
    for text in texts:
        ours = [word for word, _ in split.pre_tokenize_str(clean.normalize_str(text))]
        assert ours == theirs(text), repr(text)


@CASES
def test_bert_is_hugging_faces_on_random_text(lowercase: bool) -> None:
    generator = random.Random(3)
    assert_same_words(lowercase, [random_text(generator) for _ in range(5_000)])


@pytest.mark.slow
@CASES
def test_bert_is_hugging_faces_on_a_million_strings(
    lowercase: bool, shared_data: Callable[[str], Path]
) -> None:
    generator = random.Random(4)
    assert_same_words(lowercase, [random_text(generator) for _ in range(800_000)])
    names = ("text_en/heldout-novels.txt.xz", "text_en/news.txt.xz", "ko/text/prose.txt.xz")
    lines = [line for name in names for _, line in read_lines(shared_data(name))]
    assert len(lines) > 100_000
    assert_same_words(lowercase, lines[:200_000])


# ---------------------------------------------------------------------------------------- composed


@CASES
@settings(max_examples=500)
@given(text=ANYTHING)
def test_composed_text_is_one_whatever_form_it_came_in(lowercase: bool, text: str) -> None:
    composed, decomposed = forms(text)
    found = COMPOSED[lowercase].normalize_str(composed)
    assert COMPOSED[lowercase].normalize_str(decomposed) == found


@pytest.mark.parametrize(
    ("text", "uncased", "cased"),
    [
        ("안녕하세요", "안녕하세요", "안녕하세요"),
        ("がぎぐ ぱぴ ヴァ", "がぎぐ ぱぴ ヴァ", "がぎぐ ぱぴ ヴァ"),
        ("Café Ångström Ñandú", "cafe angstrom nandu", "Café Ångström Ñandú"),
        ("İstanbul ĞÜŞ", "istanbul gus", "İstanbul ĞÜŞ"),
        ("Việt Nam", "viet nam", "Việt Nam"),
        ("Ἀθῆναι Ώ", "αθηναι ω", "Ἀθῆναι Ώ"),
        ("Йод її ёлка", "йод її ёлка", "Йод її ёлка"),
        ("नमस्ते कि", "नमस्ते कि", "नमस्ते कि"),
        ("ภาษาไทยนี้", "ภาษาไทยนี้", "ภาษาไทยนี้"),
        ("مُحَمَّد שָׁלוֹם", "مُحَمَّد שָׁלוֹם", "مُحَمَّد שָׁלוֹם"),
        ("東京タワー", " 東  京 タワー", " 東  京 タワー"),
        ("a\u0300\u0323b", "ab", "ạ̀b"),
        ("ㅋㅋㅋ ㅠㅠ", "ㅋㅋㅋ ㅠㅠ", "ㅋㅋㅋ ㅠㅠ"),
        ("one\u200bword\u00ad\x00\x07\ufeff", "oneword", "oneword"),
        ("\u1112\u200b\u1161\u11ab", "한", "한"),
        ("a\u3000b\tc\u00a0d\u2028e", "a b c d e", "a b c d e"),
        ("👩\u200d👧 👍🏽 ☺\ufe0f", "👩👧 👍🏽 ☺\ufe0f", "👩👧 👍🏽 ☺\ufe0f"),
    ],
)
def test_what_composed_does_to_each_script(text: str, uncased: str, cased: str) -> None:
    for form in forms(text):
        assert COMPOSED[True].normalize_str(form) == unicodedata.normalize("NFC", uncased)
        assert COMPOSED[False].normalize_str(form) == unicodedata.normalize("NFC", cased)


def test_every_hangul_syllable_and_kana_stays_whole() -> None:
    kana = [chr(c) for c in range(0x3041, 0x30FB) if unicodedata.category(chr(c)) == "Lo"]
    syllables = [chr(c) for c in range(0xAC00, 0xD7A4)]
    text = "".join(kana + syllables)
    for form in forms(text):
        for rules in COMPOSED.values():
            assert rules.normalize_str(form) == text


def test_latin_is_stripped_as_by_bert() -> None:
    """All letters of the Latin script, alone: the presets differ in no word."""
    bert = normalizer(lowercase=True)
    letters = [
        chr(c)
        for c in range(sys.maxunicode + 1)
        if unicodedata.name(chr(c), "").startswith("LATIN ") and chr(c).isalpha()
    ]
    assert len(letters) > 1000
    for letter in letters:
        expected = bert.normalize_str(letter)
        assert COMPOSED[True].normalize_str(letter) == unicodedata.normalize("NFC", expected)


# ------------------------------------------------------------------------------------------- choice

KOREAN = ["오늘은 날씨가 참 좋아서 공원에 나갔다.", "나는 영화를 BERT 로 봤다 ㅋㅋㅋ"] * 3
JAPANESE = ["今日はとても天気がいいので、公園へ行きました。", "カタカナも使う。"] * 3
ENGLISH = ["It was a fine day, and we went to the park; a 공원.", "Café 東京"] * 3


@pytest.mark.parametrize(
    ("lines", "preset", "wide"),
    [
        (KOREAN, "composed", True),
        ([unicodedata.normalize("NFD", line) for line in KOREAN], "composed", True),
        (JAPANESE, "composed", True),
        (ENGLISH, "bert", False),
        (["今天天气很好我们去公园"], "bert", True),
        (["123 ..."], "bert", False),
        (["में हैं और क्या"], "composed", False),
        (["กี่คนไปที่นั่น"], "composed", False),
        (["東京都議会議員選挙の結果が確定"], "composed", True),
        (["가나다 abcdefg"], "bert", False),  # in either form: 3 letters of 10
        ([unicodedata.normalize("NFD", "가나다 abcdefg")], "bert", False),
    ],
)
def test_the_preset_follows_the_script(lines: list[str], preset: str, wide: bool) -> None:
    letters = count_letters([dict.fromkeys(lines, 1)])
    assert (letters.normalization, letters.mainly_east_asian) == (preset, wide)


def test_letters_are_counted_by_how_often_their_letters_stand() -> None:
    letters = count_letters([{"abc": 1, "가나1": 5}, {"漢": 2, "か\u3099": 1}])
    assert (letters.letters, letters.hangul_and_kana, letters.ideographs) == (3 + 10 + 2 + 1, 11, 2)


@CASES
def test_decomposed_korean_gives_the_ids_of_composed_here_and_in_transformers(
    tmp_path: Path, lowercase: bool
) -> None:
    decomposed = [unicodedata.normalize("NFD", line) for line in KOREAN]
    tokenizer = learn_vocabulary(KOREAN, size=90, lowercase=lowercase)
    assert learn_vocabulary(decomposed, size=90, lowercase=lowercase).pieces == tokenizer.pieces
    assert tokenizer.normalization == "composed"
    assert not any("\u1100" <= c <= "\u11ff" for piece in tokenizer.pieces for c in piece)
    tokenizer.save(tmp_path)
    expected = tokenizer.encode_plain(KOREAN)
    assert tokenizer.unk_id not in expected[0]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    vocabulary_alone = Tokenizer.from_folder(tmp_path / "vocab.txt")
    assert vocabulary_alone.fingerprint == tokenizer.fingerprint
    for lines in (KOREAN, decomposed):
        assert tokenizer.encode_plain(lines) == expected
        assert vocabulary_alone.encode_plain(lines) == expected
        assert theirs(lines, add_special_tokens=False)["input_ids"] == expected


TYPED = [
    "Tiếng Việt rất hay, Phở và Đường",
    "Schöne Grüße aus Köln",
    "Żółta łódź, gęś i miś",
    "한국어 문장",
]


@pytest.mark.parametrize(
    ("algorithm", "family"),
    [
        *(("wordpiece", "bert"), ("bpe", "bert"), ("byte-bpe", "bert")),
        *(("gpt2-bpe", "roberta"), ("unigram", "albert")),
    ],
)
def test_cased_text_has_the_ids_of_either_form(tmp_path: Path, algorithm: str, family: str) -> None:
    """Here, in tokenizers and in transformers, with offsets of the text as given."""
    options: dict[str, Any] = {"algorithm": algorithm, "lowercase": False}
    size = {"gpt2-bpe": 400, "byte-bpe": 400, "unigram": 53}.get(algorithm, 150)
    tokenizer = learn_vocabulary(TYPED * 3, size=size, **options)
    decomposed = [unicodedata.normalize("NFD", text) for text in TYPED]
    assert learn_vocabulary(decomposed * 3, size=size, **options).pieces == tokenizer.pieces
    tokenizer.save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    again = Tokenizer.from_folder(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint
    expected = [encoding.ids for encoding in tokenizer.encode_batch(TYPED)]
    assert not any(tokenizer.unk_id in ids for ids in expected)
    for texts in (TYPED, decomposed):
        assert [encoding.ids for encoding in again.encode_batch(texts)] == expected
        assert [encoding.ids for encoding in library.encode_batch(texts)] == expected
        assert theirs(texts)["input_ids"] == expected
        assert count_decomposed(texts, again.normalize) == 0
    for text, other in zip(TYPED, decomposed, strict=True):
        found = np.array([again.encode(form).offsets[1:-1] for form in (text, other)])
        if algorithm in ("gpt2-bpe", "unigram"):  # the library's, until answers are made of them
            for form, (starts, ends) in zip((text, other), found.transpose(0, 2, 1), strict=True):
                fit_to_characters(form, starts, ends)
        places = [len(unicodedata.normalize("NFD", text[:i])) for i in range(len(text) + 1)]
        if algorithm != "gpt2-bpe" or text != TYPED[-1]:  # whose pieces divide syllables
            assert found[1].tolist() == np.array(places)[found[0]].tolist()
    if algorithm == "unigram":
        return
    plain = learn_vocabulary(TYPED * 3, size=size, normalization="bert", **options)
    assert plain.encode_plain(decomposed) != plain.encode_plain(TYPED)
    assert count_decomposed([*TYPED, ("a", decomposed[0])], plain.normalize) == 1


@CASES
@settings(max_examples=100)
@given(text=ANYTHING)
def test_offsets_of_composed_text_point_into_the_text_given(lowercase: bool, text: str) -> None:
    characters = list(SPECIAL_PIECES) + sorted(set("abc가한がかй"))
    tokenizer = Tokenizer.from_pieces(characters, lowercase=lowercase, normalization="composed")
    text = unicodedata.normalize("NFD", f"한 {text} が b")
    encoding = tokenizer.encode(text)
    ends = [tokenizer.id(piece) for piece in "한がb"]
    found = [o for t, o in zip(encoding.ids, encoding.offsets, strict=True) if t in ends]
    assert unicodedata.normalize("NFC", text[slice(*found[0])]) == "한"
    assert unicodedata.normalize("NFC", text[slice(*found[-2])]) == "が"
