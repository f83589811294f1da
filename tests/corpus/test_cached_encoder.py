"""corpus/cached_encoder.py: a cache of chunks gives exactly the ids of the library."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers

from bothways.corpus import cached_encoder as module
from bothways.corpus.cached_encoder import SentenceEncoder, pack, splits_at_spaces, unpack
from bothways.tokenization.learning import learn_vocabulary
from bothways.tokenization.normalization import normalizer
from bothways.tokenization.tokenizer import Tokenizer

# What normalisation and word splitting look at: spaces of all kinds, controls, marks, case, CJK,
# special tokens whole and in parts.
PARTS = [
    *(" ", "  ", "\t", "\x85", "\xa0", "\u2003", "\u3000", "\u200b", "\u200d", "\ufeff", "\x01"),
    *("a", "B", "é", "e\u0301", "\u0301", "Σ", "ς", "İ", "ß", "ﬁ", "안녕", "녕", "ᄒ", "ᅡ", "中文"),
    *(
        "か\u3099",
        "が",
        "!",
        "'s",
        "...",
        "[MASK]",
        "[SEP]",
        "[CLS",
        "]",
        "[sep]",
        "😀",
        "\U00020000",
    ),
    *("word", "wordy", "x" * 101, "x" * 100, "1,000.5", "\ufffd", "­", "\u2028"),
]
texts = st.lists(st.sampled_from(PARTS), max_size=12).map("".join)
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def settings_of(library: tokenizers.Tokenizer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(library.to_str())
    return found


@pytest.fixture(
    scope="module",
    params=[(case, rules) for case in (True, False) for rules in ("bert", "composed")],
    ids=["uncased", "uncased-composed", "cased", "cased-composed"],
)
def encoder(request: pytest.FixtureRequest) -> SentenceEncoder:
    """An encoder with a cache and a vocabulary of the parts above."""
    lines = [" ".join(PARTS) * 3]
    lowercase, rules = request.param
    tokenizer = learn_vocabulary(
        lines, size=200, lowercase=lowercase, normalization=rules, min_count=1
    )
    found = unpack(pack(tokenizer))
    assert found._cache is not None
    return found


@settings(max_examples=300)
@given(sentences=st.lists(texts | any_text, max_size=5))
@example(sentences=["a [SEP] b", "x[SEP]y", "[SEP]"])
@example(sentences=["", " ", "\u0301 a", "a \u0301"])
def test_ids_are_those_of_the_library(sentences: list[str], encoder: SentenceEncoder) -> None:
    expected = encoder.tokenizer.encode_plain(sentences)
    for _ in range(2):  # learnt, then remembered
        ids, lengths = encoder.encode(sentences)
        assert lengths.tolist() == [len(found) for found in expected]
        assert ids.tolist() == [i for found in expected for i in found]


@given(lots=st.lists(st.lists(texts, min_size=1, max_size=3), min_size=2, max_size=6))
def test_forgetting_changes_nothing(lots: list[list[str]], encoder: SentenceEncoder) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_CHUNKS", 2)
        for sentences in lots:
            ids, _ = encoder.encode(sentences)
            expected = encoder.tokenizer.encode_plain(sentences)
            assert ids.tolist() == [i for found in expected for i in found]
            assert encoder._cache is not None
            assert len(encoder._cache._numbers) <= 2


def test_real_text_gives_the_ids_of_the_library(
    encoder: SentenceEncoder, shared_data: Callable[[str], Path]
) -> None:
    import lzma

    for name in ("text_en/wikipedia-leads.txt.xz", "ko/text/prose.txt.xz"):
        with lzma.open(shared_data(name), "rt", encoding="utf-8") as file:
            lines = file.read(400_000).splitlines()
        ids, lengths = encoder.encode(lines)
        expected = encoder.tokenizer.encode_plain(lines)
        assert lengths.tolist() == [len(found) for found in expected]
        assert ids.tolist() == [i for found in expected for i in found]


def library(
    normalizer: Any = None, splitter: Any = None, model: Any = None, **token: Any
) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(model or models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    if normalizer:
        made.normalizer = normalizer
    made.pre_tokenizer = splitter or pre_tokenizers.BertPreTokenizer()
    if token:
        made.add_special_tokens([tokenizers.AddedToken(token.pop("content", "[X]"), **token)])
    return made


BERT = normalizers.BertNormalizer()


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (library(BERT), True),
        (library(normalizers.Sequence([normalizers.NFC(), BERT])), True),
        (library(BERT, pre_tokenizers.WhitespaceSplit(), models.BPE()), True),
        (library(BERT, model=models.BPE(dropout=0.1)), False),
        (library(BERT, pre_tokenizers.ByteLevel()), False),
        (library(BERT, pre_tokenizers.Metaspace()), False),
        (library(normalizers.Replace("a b", "c")), False),
        (library(normalizer(lowercase=True, normalization="composed")), True),
        (library(normalizers.Sequence([normalizers.Strip(), BERT])), False),
        (library(BERT, content="[A B]"), False),
        (library(BERT, lstrip=True), False),
        (library(BERT, rstrip=True), False),
        (library(BERT, single_word=True), False),
        (library(BERT, content="[Y]"), True),
    ],
)
def test_which_tokenizers_split_at_spaces(made: tokenizers.Tokenizer, expected: bool) -> None:
    assert splits_at_spaces(settings_of(made)) is expected


@pytest.mark.parametrize("change", [{"pre_tokenizer": None}, {"model": {"type": "Unigram"}}])
def test_rules_that_may_cross_spaces(change: dict[str, Any]) -> None:
    assert not splits_at_spaces({**settings_of(library(BERT)), **change})


def test_the_others_go_to_the_library(tiny_tokenizer: Tokenizer) -> None:
    settings = json.loads(tiny_tokenizer.to_json())
    settings["pre_tokenizer"] = {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": "always",
    }
    other = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(settings)))
    encoder = unpack(pack(other))
    assert encoder._cache is None
    ids, lengths = encoder.encode(["the king", ""])
    assert ids.tolist() == [i for ids in other.encode_plain(["the king", ""]) for i in ids]
    assert lengths[1] == 0
