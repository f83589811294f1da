"""Tokenizers of other families against transformers' fast classes and the sentencepiece package."""

from __future__ import annotations

import json
import pickle
import re
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, processors

from bothways.corpus.cached_encoder import pack, splits_at_spaces, unpack
from bothways.errors import LengthError, ModelError
from bothways.objectives.masking import Vocabulary
from bothways.tokenization.tokenizer import Tokenizer
from tokenizer_examples import (
    ANGLED,
    KOREAN,
    LINES,
    MAKERS,
    klue_files,
    roberta_files,
    sentencepiece_files,
    write_json,
)

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

KINDS = pytest.mark.parametrize("kind", list(MAKERS))
SPECIAL = (
    "[MASK]",
    "<mask>",
    "<s>",
    "</s>",
    "[CLS]",
    "[SEP]",
    "<unk>",
    "[UNK]",
    "<pad>",
    " <mask> ",
)
TRICKY = st.sampled_from(
    [
        *(*LINES[:6], *SPECIAL, "[mask]", "##s", "Ġ", "▁", "▁▁", "x" * 101, "``", "''"),
        *("\x00", "\u200b", "\ufeff", "\u00ad", "\ufffd", "\U000e0001", "\ue000", "👍🏽", "👩‍👩‍👧"),
        *("\t\r\n", "\n\n", "\u3000", "\x1c", "\x85", "\u2028", "e\u0301\u0301", "\u0301", "  "),
        *("가\u11a8", "각", "İ", "ẞ", "漢字", "\U0002f800", unicodedata.normalize("NFD", "한국")),
    ]
)
ANYTHING = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
TEXTS = st.lists(TRICKY | ANYTHING | st.sampled_from(["cat", "the", " ", " "]), max_size=8).map(
    "".join
)
WORDS = st.lists(st.sampled_from([*" ".join(LINES).split(), KOREAN]), max_size=12).map(" ".join)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: make(tmp_path_factory.mktemp(kind)) for kind, make in MAKERS.items()}


@cache
def pair_of(folder: Path) -> tuple[Tokenizer, Any]:
    return Tokenizer.from_folder(folder), transformers.AutoTokenizer.from_pretrained(folder)


def assert_same(ours: Tokenizer, theirs: Any, a: str, b: str | None) -> None:
    encoding = ours.encode(a, b)
    expected = theirs(
        [a],
        None if b is None else [b],
        return_offsets_mapping=True,
        return_token_type_ids=True,
    )
    assert encoding.ids == expected["input_ids"][0]
    assert encoding.segments == expected["token_type_ids"][0]
    assert encoding.offsets == expected["offset_mapping"][0]
    assert encoding.words == expected.word_ids(0)
    plain = theirs(a, add_special_tokens=False)["input_ids"]
    assert ours.encode_plain([a]) == [plain] == [encoding.ids[encoding.parts[0]]]


@KINDS
@settings(max_examples=200, deadline=None)
@given(a=TEXTS, b=st.none() | TEXTS)
@example(a="", b="")
@example(a=" <mask> a  <mask>b[MASK]", b=None)
def test_same_as_the_fast_class(folders: dict[str, Path], kind: str, a: str, b: str | None) -> None:
    if kind == "albert":  # where transformers is not followed, see below
        a, b = (text and re.sub(r"(?<=\d)\D*,|\s+(?=\[MASK\])", "", text) for text in (a, b))
        apart = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()])
        bare = [apart.normalize_str(text) for text in (a, b) if text]
        assume(all(unicodedata.is_normalized("NFC", text) for text in bare))
        assume(not any(re.search(r"\d,", text) for text in bare))
    assert_same(*pair_of(folders[kind]), a or "", b)


@KINDS
@settings(max_examples=50, deadline=None)
@given(a=TEXTS, b=st.none() | TEXTS)
def test_same_as_what_transformers_saves(
    folders: dict[str, Path], kind: str, a: str, b: str | None
) -> None:
    """A tokenizer.json, whose class is the one that it was."""
    saved = folders[kind] / "saved"
    if not saved.exists():
        transformers.AutoTokenizer.from_pretrained(folders[kind]).save_pretrained(saved)
        (saved / "config.json").write_text((folders[kind] / "config.json").read_text())
    assert_same(*pair_of(saved), a, b)


@KINDS
def test_saved_and_read_again_it_is_the_same(
    folders: dict[str, Path], kind: str, tmp_path: Path
) -> None:
    ours = Tokenizer.from_folder(folders[kind])
    ours.save(tmp_path, max_length=128)
    again = Tokenizer.from_folder(tmp_path)
    others = [
        again,
        pickle.loads(pickle.dumps(ours)),
        unpack(pack(ours)).tokenizer,
    ]
    text = "  He counted 9,99 houses <mask>, [MASK]. ``" + KOREAN
    for other in others:
        assert other.pieces == ours.pieces
        assert (other.roles, other.template) == (ours.roles, ours.template)
        assert other.fingerprint == ours.fingerprint
        assert other.encode(text, "the cat") == ours.encode(text, "the cat")
        assert other.starts_word.tolist() == ours.starts_word.tolist()
    config = (folders[kind] / "config.json").read_text()
    for content in (config, json.dumps({"model_type": "bert"})):
        (tmp_path / "config.json").write_text(content)
        assert_same(ours, transformers.AutoTokenizer.from_pretrained(tmp_path), text, "the cat")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.mask_token == ours.roles.mask
    assert theirs.model_max_length == 128
    assert ("token_type_ids" in theirs("a")) == (ours.template.segments > 1)
    for original in folders[kind].glob("*"):
        if original.suffix == ".model" or original.name in ("vocab.json", "merges.txt"):
            assert (tmp_path / original.name).read_bytes() == original.read_bytes()


def test_templates_and_roles(folders: dict[str, Path]) -> None:
    found = {kind: Tokenizer.from_folder(folder) for kind, folder in folders.items()}
    doubled = ["<s>", "</s>", "</s>", "</s>"]
    for kind, expected in {
        "roberta": doubled,
        "xlm-roberta": doubled,
        "modernbert": ["[CLS]", "[SEP]", "[SEP]"],
        "albert": ["[CLS]", "[SEP]", "[SEP]"],
        "klue": ["[CLS]", "[SEP]", "[SEP]"],
    }.items():
        tokenizer = found[kind]
        encoding = tokenizer.encode("", "")
        assert [tokenizer.piece(i) for i in encoding.ids] == expected
        assert tokenizer.template.cost(2) == len(expected)
        assert tokenizer.template.segments == (2 if kind in ("albert", "klue") else 1)
    assert [found["xlm-roberta"].id(piece) for piece in ANGLED] == [
        *(0, 1, 2, 3),
        found["xlm-roberta"].vocab_size - 1,
    ]
    assert found["klue"].special_ids.tolist() == [0, 1, 2, 3, 4]
    assert found["albert"].roles.pad == "<pad>"
    assert len({tokenizer.fingerprint for tokenizer in found.values()}) == len(found)


def test_one_segment_for_encoders_that_have_one(folders: dict[str, Path], tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(folders["klue"])
    one = tokenizer.in_one_segment()
    assert one.encode("the", "cat").segments == [0] * 5
    assert tokenizer.encode("the", "cat").segments == [0, 0, 0, 1, 1]
    assert one.encode("the", "cat").ids == tokenizer.encode("the", "cat").ids
    one.save(tmp_path)  # beside settings whose inputs lack token_type_ids, as ModernBERT's do
    read = Tokenizer.from_folder(tmp_path)
    assert read.template == one.template
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)("the", "cat")
    assert {**theirs} == {"input_ids": one.encode("the", "cat").ids, "attention_mask": [1] * 5}
    packed = unpack(pack(read)).tokenizer
    assert len({each.fingerprint for each in (one, tokenizer, read, packed)}) == 1
    assert Tokenizer.from_folder(folders["roberta"]).in_one_segment().template.segments == 1


def test_pieces_that_start_words(folders: dict[str, Path]) -> None:
    for kind, mark in (
        ("roberta", "Ġ"),
        ("modernbert", "Ġ"),
        ("albert", "▁"),
        ("xlm-roberta", "▁"),
    ):
        tokenizer = Tokenizer.from_folder(folders[kind])
        for number, piece in enumerate(tokenizer.pieces):
            special = number in tokenizer.special_ids
            assert tokenizer.starts_word[number] == (special or piece.startswith(mark))
        (ids,) = tokenizer.encode_plain([" the houses"])
        assert "".join(tokenizer.text_of(i) for i in ids) == "thehouses"


@KINDS
def test_corpora_are_encoded_exactly(folders: dict[str, Path], kind: str) -> None:
    tokenizer = Tokenizer.from_folder(folders[kind])
    assert splits_at_spaces(json.loads(tokenizer.to_json())) == (kind == "klue")
    lines = [*LINES, "", "a [SEP] b", "x</s>y <mask>", "  two  spaces "]
    ids, lengths = unpack(pack(tokenizer)).encode(lines)
    expected = tokenizer.encode_plain(lines)
    assert ids.tolist() == [i for part in expected for i in part]
    assert lengths.tolist() == [*map(len, expected)]


def test_cutting_pairs_leaves_room_for_every_special_token(folders: dict[str, Path]) -> None:
    for kind in MAKERS:
        ours, theirs = pair_of(folders[kind])
        a, b = "the cat and the dog " * 3, "the mat " * 9
        for limit in (ours.template.cost(2) + 1, 12, 19):
            expected = theirs([a], [b], max_length=limit, truncation="longest_first")
            assert ours.encode(a, b, max_length=limit).ids == expected["input_ids"][0]
    roberta = Tokenizer.from_folder(folders["roberta"])
    with pytest.raises(LengthError, match="no room for <s> and </s>"):
        roberta.encode("the cat", "the", max_length=3)


# ---------------------------------------------------------------------------------- SentencePiece


@settings(max_examples=200, deadline=None)
@given(text=WORDS | TEXTS)
def test_same_ids_as_the_sentencepiece_package(folders: dict[str, Path], text: str) -> None:
    """Text without special pieces, which the package does not know, and without the characters that
    the library's copy of the character map treats in groups (see below)."""
    package = pytest.importorskip("sentencepiece")
    if any(piece in text for piece in SPECIAL) or not text.isprintable():
        return
    if any(unicodedata.category(c)[0] in "MC" or "\u1100" <= c <= "\u11ff" for c in text):
        return
    path = folders["xlm-roberta"] / "sentencepiece.bpe.model"
    ours = Tokenizer.from_folder(path)
    ids = package.SentencePieceProcessor(model_file=str(path)).encode(text)
    expected = [ours.roles.unk if i == 0 else i for i in ids]
    assert ours.encode_plain([text])[0] == [3 if i == ours.roles.unk else i + 1 for i in expected]


def test_numbers_before_commas_are_pieces_of_their_own(folders: dict[str, Path]) -> None:
    """As in Google's code, transformers 4 and the tokenizer.json that it released for ALBERT;
    transformers 5 makes "9," one piece if it reads a spiece.model."""
    ours, theirs = pair_of(folders["albert"])
    found = [ours.piece(i) for i in ours.encode_plain(["9,99 and 12,000 people"])[0]]
    assert not any(re.search(r"\d,", piece) for piece in found)
    others = theirs.tokenize("9,99 and 12,000 people")
    assert any(re.search(r"\d,", piece) for piece in others)
    assert "".join(found) == "".join(others)


def test_korean_stays_whole_in_alberts_model_file(folders: dict[str, Path]) -> None:
    """As in Google's code; transformers' fast class leaves it in the parts that accents are
    stripped from, and knows none of its words."""
    package = pytest.importorskip("sentencepiece")
    ours, theirs = pair_of(folders["albert"])
    model = package.SentencePieceProcessor(model_file=str(folders["albert"] / "spiece.model"))
    assert ours.encode_plain([KOREAN]) == [model.encode(KOREAN)]
    assert ours.unk_id not in ours.encode_plain([KOREAN])[0]
    assert theirs(KOREAN)["input_ids"].count(ours.unk_id) > 3
    offsets = ours.encode(KOREAN).offsets
    assert all(start < end <= len(KOREAN) for start, end in offsets[1:-1])


def test_the_mask_of_a_model_file_takes_the_space_before_it(folders: dict[str, Path]) -> None:
    """As transformers 4 does it, and the settings say; transformers 5 does not for ALBERT."""
    ours, theirs = pair_of(folders["albert"])
    text = "the \t[MASK] cat"
    assert ours.encode(text).ids == theirs(text)["input_ids"]
    assert ours.encode(text).offsets[2:4] == [(3, 11), (12, 13)]


@pytest.mark.parametrize(
    "options",
    [
        {"do_lower_case": False},
        {"keep_accents": True},
        {"do_lower_case": False, "keep_accents": True},
    ],
)
def test_alberts_settings(tmp_path: Path, options: dict[str, bool]) -> None:
    sentencepiece_files(tmp_path, "albert")
    path = tmp_path / "tokenizer_config.json"
    write_json(path, {**json.loads(path.read_text()), **options})
    for text in ("Café ÀÉÎÕÜ The", "İstanbul ``naïve''"):
        assert_same(*pair_of(tmp_path), text, None)


def test_pieces_of_several_words_and_spaces_that_count(tmp_path: Path) -> None:
    package = pytest.importorskip("sentencepiece")
    for name, options in {
        "phrases": {"split_by_whitespace": False},
        "spaces": {"remove_extra_whitespaces": False},
        "spaces, first": {"remove_extra_whitespaces": False, "add_dummy_prefix": False},
        "spaces, phrases": {"remove_extra_whitespaces": False, "split_by_whitespace": False},
        "first": {"add_dummy_prefix": False},
        "first phrase": {"add_dummy_prefix": False, "split_by_whitespace": False},
    }.items():
        folder = sentencepiece_files(tmp_path / name, "xlm-roberta", **options)
        path = folder / "sentencepiece.bpe.model"
        model = package.SentencePieceProcessor(model_file=str(path))
        ours = Tokenizer.from_folder(path)
        for line in [
            "He counted 7 houses",
            "the cat  sat ",
            " the mat",
            "",
            "  ",
            "\u3000the a\tb",
        ]:
            expected = [i + 1 if i else 3 for i in model.encode(line)]
            assert ours.encode_plain([line])[0] == expected


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("rules", ["nmt_nfkc", "identity"])
@pytest.mark.parametrize("phrases", [True, False])
def test_albert_makes_spaces_one_whatever_its_model_says(
    first: bool, rules: str, phrases: bool, tmp_path: Path
) -> None:
    """``remove_space``, which is true unless the settings say otherwise."""
    package = pytest.importorskip("sentencepiece")
    folder = sentencepiece_files(
        *(tmp_path, "albert"),
        remove_extra_whitespaces=False,
        add_dummy_prefix=first,
        normalization_rule_name=rules,
        split_by_whitespace=not phrases,
    )
    model = package.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    ours = Tokenizer.from_folder(folder)
    lines = [
        "He counted 7 houses",
        "the cat  sat ",
        " the mat",
        "a\tb  c",
        "",
        "  ",
        "the \n cat",
    ]
    for line in [*lines, "\u00a0the\u00a0\u00a0cat", "\u3000the cat"]:
        cleaned = " ".join(line.lower().split())
        assert ours.encode_plain([line])[0] == model.encode(cleaned), repr(line)
        assert all(0 <= i <= j <= len(line) for i, j in ours.encode(line).offsets)
    path = folder / "tokenizer_config.json"
    write_json(path, {**json.loads(path.read_text()), "remove_space": False})
    for line in ("the cat  sat ", " the mat"):
        assert Tokenizer.from_folder(folder).encode_plain([line])[0] == model.encode(line)


def test_damaged_and_other_models_are_refused(tmp_path: Path) -> None:
    path = sentencepiece_files(tmp_path, "xlm-roberta") / "sentencepiece.bpe.model"
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"not a model of any kind", whole[3:]):
        path.write_bytes(damaged)
        with pytest.raises(ModelError, match=r"\.model: "):
            Tokenizer.from_folder(tmp_path)
    sentencepiece_files(tmp_path, "xlm-roberta", model_type="bpe")
    with pytest.raises(ModelError, match="not a Unigram model"):
        Tokenizer.from_folder(tmp_path)
    sentencepiece_files(tmp_path, "xlm-roberta", unk_id=3, pad_id=0)
    with pytest.raises(ModelError, match="begins with <pad>, <s>, </s> and not"):
        Tokenizer.from_folder(tmp_path)
    sentencepiece_files(tmp_path, "xlm-roberta", treat_whitespace_as_suffix=True)
    with pytest.raises(ModelError, match="not a Unigram model whose pieces begin with spaces"):
        Tokenizer.from_folder(tmp_path)


# ------------------------------------------------------------------------- files that are refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"config.json": {"model_type": "gpt2"}}, r"model_type is gpt2, which is not a tokenizer"),
        (
            {"tokenizer_config.json": {"tokenizer_class": "GPT2TokenizerFast"}},
            "tokenizer_class is GPT2",
        ),
        ({"tokenizer_config.json": {"tokenizer_class": "BertTokenizer"}}, "is BertTokenizer"),
        ({"tokenizer_config.json": {"mask_token": "<hidden>"}}, "mask_token is '<hidden>'"),
        ({"special_tokens_map.json": ["<s>"]}, "special_tokens_map.json: a JSON object"),
        ({"vocab.json": {"a": 0, "b": 2}}, "vocab.json with .*merges.txt: cannot be read"),
        ({"vocab.json": ["a", "b"]}, "vocab.json with .*merges.txt: cannot be read"),
        ({"vocab.json": {"<s>": 0, "</s>": 1}}, "vocab.json with .*merges.txt: cannot be read"),
    ],
)
def test_byte_pairs_that_cannot_be_read(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    roberta_files(tmp_path, mask_takes_space=False)
    (tmp_path / "tokenizer_config.json").unlink()
    for name, content in settings.items():
        write_json(tmp_path / name, content)
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_folder(tmp_path)


def test_without_settings_the_files_decide(tmp_path: Path) -> None:
    """Then the hidden token takes the space before it, as in the released tokenizer.json; in
    transformers 5 it does not."""
    folder = roberta_files(tmp_path)
    known = Tokenizer.from_folder(folder)
    (folder / "tokenizer_config.json").unlink()
    for name in (".", "vocab.json", "merges.txt"):
        found = Tokenizer.from_folder(folder / name)
        assert found.encode("the <mask> cat").ids == known.encode("the <mask> cat").ids
        assert found.template == known.template
    (folder / "config.json").unlink()
    assert Tokenizer.from_folder(folder).roles == known.roles
    write_json(folder / "tokenizer_config.json", {"add_prefix_space": True})
    spaced = Tokenizer.from_folder(folder)
    assert spaced.encode_plain(["the cat"]) == known.encode_plain([" the cat"])


def processor_file(folder: Path, step: Any, pieces: list[str], **model: Any) -> Path:
    ids = {piece: i for i, piece in enumerate(pieces)}
    library = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=model.get("unk", "[UNK]")))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.post_processor = step
    folder.mkdir(parents=True, exist_ok=True)
    library.save(str(folder / "tokenizer.json"))
    return folder


ANGLED_PIECES = [*ANGLED, "a", "b"]


@pytest.mark.parametrize(
    "step",
    [
        processors.BertProcessing(("</s>", 2), ("<s>", 0)),
        processors.RobertaProcessing(("</s>", 2), ("<s>", 0)),
        processors.TemplateProcessing(
            single="<s> $A </s>",
            pair="<s> $A:0 </s> $B:1",
            special_tokens=[("<s>", 0), ("</s>", 2)],
        ),
        processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=True),
                processors.TemplateProcessing(
                    single="$A </s>", pair="$A $B </s> </s>", special_tokens=[("</s>", 2)]
                ),
            ]
        ),
    ],
    ids=["bert", "roberta", "template", "sequence"],
)
def test_post_processors_are_templates(tmp_path: Path, step: Any) -> None:
    ours = Tokenizer.from_folder(processor_file(tmp_path, step, ANGLED_PIECES, unk="<unk>"))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for a, b in (("a b", None), ("a b", "b"), ("", "")):
        assert_same(ours, theirs, a, b)
    assert ours.roles.sep == "</s>"
    ours.save(tmp_path / "again")
    assert Tokenizer.from_folder(tmp_path / "again").encode("a", "b") == ours.encode("a", "b")


def test_texts_without_special_tokens(tmp_path: Path) -> None:
    folder = processor_file(tmp_path, processors.ByteLevel(), ["a", "b", "<u>"], unk="<u>")
    ours = Tokenizer.from_folder(folder)
    assert ours.encode("a b").ids == [0, 1]
    assert ours.encode("a b", max_length=1).ids == [0]
    assert ours.template.cost() == 0
    with pytest.raises(ModelError, match="no pad token"):
        _ = ours.pad_id
    with pytest.raises(ModelError, match="no mask token"):
        Vocabulary.of(ours)
    ours.save(tmp_path / "again")
    assert Tokenizer.from_folder(tmp_path / "again").roles == ours.roles


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            processors.TemplateProcessing(
                single="<s> $A", pair="$B $A", special_tokens=[("<s>", 0)]
            ),
            "repeats or exchanges texts",
        ),
        (
            processors.TemplateProcessing(single="<s> $A $A", special_tokens=[("<s>", 0)]),
            "repeats or exchanges texts",
        ),
        (processors.BertProcessing(("</s>", 9), ("<s>", 0)), "'</s>' with id 9, but its id"),
    ],
)
def test_post_processors_that_are_no_template(tmp_path: Path, step: Any, message: str) -> None:
    processor_file(tmp_path, step, ANGLED_PIECES, unk="<unk>")
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_folder(tmp_path)


def test_a_file_that_does_not_say_how_sequences_begin(tmp_path: Path) -> None:
    folder = processor_file(tmp_path, processors.ByteLevel(), ANGLED_PIECES, unk="<unk>")
    with pytest.raises(ModelError, match=r"\[PAD\], .* not among the 7 pieces"):
        Tokenizer.from_folder(folder)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "RobertaTokenizerFast"})
    assert Tokenizer.from_folder(folder).encode("a", "b").ids == [0, 5, 2, 2, 6, 2]


def test_a_vocabulary_without_a_mask_piece_may_say_so(tmp_path: Path) -> None:
    klue_files(tmp_path)
    pieces = (tmp_path / "vocab.txt").read_text().replace("[MASK]\n", "")
    (tmp_path / "vocab.txt").write_text(pieces)
    with pytest.raises(ModelError, match=r"\[MASK\] not among the"):
        Tokenizer.from_folder(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    write_json(path, {**json.loads(path.read_text()), "mask_token": None})
    ours = Tokenizer.from_folder(tmp_path)
    assert ours.roles.mask is None
    with pytest.raises(ModelError, match="no mask token"):
        _ = ours.mask_id
    ours.save(tmp_path / "again")
    assert Tokenizer.from_folder(tmp_path / "again").roles == ours.roles
