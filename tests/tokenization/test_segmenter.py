"""Texts that a function of the user's divides first: the same in vocabulary, corpus and prediction,
with places in the text as it was given; and what is refused."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import bothways as bw
from bothways import cli
from bothways.corpus.cached_encoder import pack, unpack
from bothways.corpus.store import TokenStore
from bothways.errors import ConfigError, InputError, ModelError
from bothways.families.config import ModelConfig
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.tokenization.learning import learn_vocabulary
from bothways.tokenization.segmenter import VARIABLE, Segmenter
from golden_texts import korean

# Cuts the particles off, as an analyser of morphemes does.
MODULE = """
import re

def morphemes(text):
    particle = "(?:에서|가|를|이|은|을)(?![가-힣])"
    return re.findall(rf"[가-힣]+?(?={particle})|에서|[가-힣]+|\\w+|[^\\w\\s]", text)

def base_forms(text):
    return [word.replace("팔았다", "팔다") for word in text.split()]

def forgets(text):
    return text.split()[:1]
"""
NAME = "ko_words_of_tests:morphemes"
TEXT = "할머니가 서울에서 빵을  팔았다!"


@pytest.fixture(autouse=True)
def module(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("module")
    (folder / "ko_words_of_tests.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("cannot be imported", str(folder), prepend=":")
    monkeypatch.setenv(VARIABLE, NAME)
    yield
    sys.modules.pop("ko_words_of_tests", None)


def test_a_mask_stays_whole() -> None:
    segmenter = Segmenter(NAME)
    text = "할머니가 [MASK]에서 빵을[MASK] 팔았다!"
    assert segmenter.divide(text).text.count("[MASK]") == 0, "it would be taken apart"
    divided = segmenter.divide_around(text, "[MASK]")
    assert divided.text == "할머니 가 [MASK]에서 빵 을[MASK] 팔았다 !"
    for word in ("할머니", "[MASK]에서", "빵", "팔았다", "!"):
        start = divided.text.index(word)
        first, end = divided.original((start, start + len(word)))
        assert text[first:end] == word
    assert segmenter.divide_around(TEXT, "[MASK]") == segmenter.divide(TEXT)
    assert segmenter.divide_around("[MASK]", "[MASK]").text == "[MASK]"


def test_a_text_is_divided_and_its_places_are_kept() -> None:
    divided = Segmenter(NAME).divide(TEXT)
    assert divided.text == "할머니 가 서울 에서 빵 을  팔았다 !"
    for word in divided.text.split():
        start = divided.text.index(word)
        first, last = divided.original((start, start + len(word)))
        assert TEXT[first:last] == word
    assert Segmenter(NAME).divide("").text == ""
    assert Segmenter(NAME).divide("  a ").text == "  a "


@pytest.mark.parametrize("algorithm", ["wordpiece", "unigram"])
def test_vocabulary_and_encoding_divide_alike(algorithm: str, tmp_path: Path) -> None:
    lines = [*korean().splitlines(), TEXT] * 3
    options = {"size": 260 if algorithm == "wordpiece" else 70, "algorithm": algorithm}
    whole = learn_vocabulary(lines, **options)
    divided = learn_vocabulary(lines, segmenter=NAME, **options)
    by_hand = learn_vocabulary([*Segmenter(NAME).divided(lines)], **options)
    assert divided.pieces == by_hand.pieces != whole.pieces
    assert divided.fingerprint != by_hand.fingerprint
    encoding = divided.encode(TEXT, "서울은 넓다")
    assert encoding.ids == by_hand.encode("할머니 가 서울 에서 빵 을  팔았다 !", "서울 은 넓다").ids
    assert divided.encode_plain([TEXT])[0] == encoding.ids[encoding.parts[0]]
    for part, text in zip(encoding.parts, (TEXT, "서울은 넓다"), strict=True):
        found = [text[start:end] for start, end in encoding.offsets[part]]
        if algorithm == "wordpiece":  # the library's places of Unigram overlap
            assert "".join(found).replace(" ", "") == text.replace(" ", "")
    divided.save(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["segmenter"] == NAME
    again = bw.Tokenizer.from_folder(tmp_path)
    assert again.fingerprint == divided.fingerprint
    assert pickle.loads(pickle.dumps(again)).encode(TEXT, "서울은 넓다") == encoding


def test_corpora_have_the_ids_of_divided_sentences() -> None:
    tokenizer = learn_vocabulary(korean().splitlines(), size=240, segmenter=NAME)
    encoder = unpack(pack(tokenizer))
    ids, lengths = encoder.encode([TEXT, "아이가 편지를 찾았다."])
    expected = tokenizer.encode_plain([TEXT, "아이가 편지를 찾았다."])
    assert ids.tolist() == [id for one in expected for id in one]
    assert lengths.tolist() == [*map(len, expected)]


def test_from_the_command_line_to_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ko.txt").write_text(korean(), encoding="utf-8")
    words = ["vocab", "--files", "ko.txt", "--size", "240", "--out", "v", "--segmenter", NAME]
    assert cli.main(words) == 0
    report = json.loads(Path("v/vocabulary-report.json").read_text())["vocabulary"]
    assert report["segmenter"] == NAME
    assert report["single_syllables"] > 50
    words = ["corpus", "--files", "ko.txt", "--tokenizer", "v", "--out", "c", "--language", "ko"]
    assert cli.main([*words, "--workers", "1"]) == 0
    tokenizer = TokenStore.open("c").tokenizer
    assert tokenizer.segmenter is not None
    shape = {"layers": 1, "hidden": 16, "heads": 2, "intermediate": 16, "positions": 48}
    model = EncoderModel(ModelConfig(vocab_size=tokenizer.vocab_size, **shape), seed=1)
    save_model("m", model, tokenizer)
    loaded = bw.load("m")
    by_hand = tokenizer.with_segmenter(None)
    save_model("plain", model, by_hand)
    np.testing.assert_array_equal(
        loaded.embed([TEXT]), bw.load("plain").embed(["할머니 가 서울 에서 빵 을  팔았다 !"])
    )
    assert NAME in Path("m/README.md").read_text(encoding="utf-8")
    assert cli.main(["info", "m", "--check"]) == 0
    monkeypatch.delenv(VARIABLE)
    capsys.readouterr()
    assert cli.main(["embed", "m", TEXT, "--out", "v.npz"]) == 1
    assert f"set {VARIABLE}={NAME}" in " ".join(capsys.readouterr().err.split())


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = NAME.partition(":")[0]
    with pytest.raises(InputError, match=r"gives '팔다' where the text goes on with ' ?팔았다"):
        Segmenter(f"{module}:base_forms").divide("빵을 팔았다")
    with pytest.raises(InputError, match="ends where the text goes on with ' b c'"):
        Segmenter(f"{module}:forgets").divide("a b c")
    for name, why in {
        "words": "cannot be imported",
        "no_such_module:words": "cannot be imported",
        f"{module}:none": "cannot be imported",
    }.items():
        with pytest.raises(ConfigError, match=why):
            Segmenter(name)
    learn_vocabulary(korean().splitlines(), size=240, segmenter=NAME).save(tmp_path)
    for allowed in ("", "another:one"):
        monkeypatch.setenv(VARIABLE, allowed)
        with pytest.raises(ModelError, match=f"tokenizer_config.json: .*{VARIABLE}={NAME}"):
            bw.Tokenizer.from_folder(tmp_path)
