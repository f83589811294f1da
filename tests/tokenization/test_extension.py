"""New words for an old vocabulary and its model: what changes, and that nothing else does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from bothways.cli import main
from bothways.errors import ConfigError, InputError, ModelError
from bothways.families.config import ModelConfig
from bothways.model.batch import collate
from bothways.model.engine import network_of
from bothways.model.folder import save_model
from bothways.model.growth import extend, grow_vocabulary
from bothways.model.model import EncoderModel
from bothways.runtime.folder import load_model
from bothways.tokenization.build import count_file_words
from bothways.tokenization.extension import choose_words, extend_vocabulary
from bothways.tokenization.learning import learn_vocabulary
from bothways.tokenization.options import ExtendConfig
from bothways.tokenization.pieces import SPECIAL_PIECES
from bothways.tokenization.tokenizer import Tokenizer
from model_examples import BOTH_HEADS, small_tokenizer

transformers = pytest.importorskip("transformers")

LETTERS = list("abcdefghijklmnopqrstuvwxyz")
OLD = Tokenizer.from_pieces(
    [*SPECIAL_PIECES, *".,", *LETTERS, *("##" + c for c in LETTERS), "heart", "the", "##itis"]
)
NEW_WORDS = ["Myocarditis", "stent", "cat", "stent", "the"]
WORD = st.text("abcst", min_size=1, max_size=8) | st.sampled_from(["heart", "cats", "stents"])


@settings(max_examples=200)
@given(words=st.lists(WORD | st.sampled_from(["stent", "cat", "myocarditis"]), max_size=8))
def test_only_words_that_begin_with_a_new_word_change(words: list[str]) -> None:
    extension = extend_vocabulary(OLD, NEW_WORDS)
    new = extension.tokenizer
    assert extension.words == ["myocarditis", "stent", "cat"]
    assert new.pieces == [*OLD.pieces, *extension.words]
    assert extension.parts == OLD.encode_plain(extension.words)
    before, after = OLD.encode_plain(words), new.encode_plain(words)
    for word, old_ids, new_ids in zip(words, before, after, strict=True):
        if word.startswith(tuple(extension.words)):
            assert new_ids[0] >= OLD.vocab_size
        else:
            assert new_ids == old_ids
    for i, word in enumerate(extension.words):
        assert new.encode_plain([word.upper()]) == [[OLD.vocab_size + i]]


def test_the_longer_of_two_pieces_still_wins() -> None:
    extension = extend_vocabulary(OLD, ["hea"])
    assert extension.tokenizer.encode_plain(["heart"]) == OLD.encode_plain(["heart"])


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("heart attack", "split it into 2"),
        ("x-ray", "split it into 3"),
        ("\u200b", "split it into 0"),
        ("x" * 101, "not one word of at most 100"),
    ],
)
def test_refuses_what_is_not_one_word(word: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        extend_vocabulary(OLD, ["fine", word])


def test_tokens_that_were_added_elsewhere_keep_their_ids(tmp_path: Path) -> None:
    """`add_tokens` of transformers appends them after the model's own pieces."""
    OLD.save(tmp_path)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    library.add_tokens(["<name>"])
    library.save(str(tmp_path / "tokenizer.json"))
    theirs = Tokenizer.from_folder(tmp_path)
    assert theirs.pieces[-1] == "<name>"
    new = extend_vocabulary(theirs, ["stent"]).tokenizer
    assert new.pieces == [*theirs.pieces, "stent"]
    sentence = "the <name> stent"
    assert new.encode_plain([sentence])[0][-2:] == [OLD.vocab_size, OLD.vocab_size + 1]


def test_refuses_bpe() -> None:
    bpe = learn_vocabulary(["a few words"], size=300, algorithm="byte-bpe")
    with pytest.raises(ModelError, match=r"is byte-bpe, and only wordpiece"):
        extend_vocabulary(bpe, ["word"])


def test_words_are_chosen_by_frequency_among_those_of_many_pieces() -> None:
    counts = {"heart": 90, "stent": 20, "cat": 30, "at": 40, "42": 99, "漢": 15, "dog": 9}
    chosen = choose_words(OLD, counts, most=9, min_count=10)
    assert chosen == ["cat", "stent", "漢"]
    assert choose_words(OLD, counts, most=1, min_count=10) == ["cat"]
    assert "dog" in choose_words(OLD, counts, most=9, min_count=9)


# ------------------------------------------------------------------------------------------- models

CONFIG = ModelConfig(
    vocab_size=OLD.vocab_size, layers=2, hidden=32, heads=2, intermediate=48, positions=40
)


@pytest.mark.parametrize("heads", ["pretraining", "classes", "none"])
def test_new_rows_are_means_and_old_outputs_stay(heads: str) -> None:
    both = BOTH_HEADS if heads == "pretraining" else {}
    model = EncoderModel(CONFIG, **both, classes=3 * (heads == "classes"))
    if model.masked_lm is not None:
        torch.nn.init.normal_(model.masked_lm.bias)
    parts = [[7, 8, 9], [10]] + [[5, 6]] * 70  # beyond the next multiple of 64
    grown = grow_vocabulary(model.eval(), parts)
    old, size = CONFIG.vocab_size, CONFIG.vocab_size + 72
    assert grown.config.vocab_size == size
    rows = grown.embedding_VH
    assert torch.equal(rows[:old], model.embedding_VH[:old])
    assert torch.equal(rows[old], model.embedding_VH[[7, 8, 9]].mean(0))
    assert torch.equal(rows[old + 1], model.embedding_VH[10])
    assert not rows[size:].any()
    inputs = collate([OLD.encode("the heart").ids], [[0] * 4], max_positions=40)
    with torch.inference_mode():
        assert torch.equal(model.encoder(inputs), grown.encoder(inputs))
        if model.masked_lm is not None and grown.masked_lm is not None:
            at = torch.tensor([1, 2])
            before = model.masked_lm_logits(model.encoder(inputs)[at])[:, :old]
            after = grown.masked_lm_logits(grown.encoder(inputs)[at])
            torch.testing.assert_close(after[:, :old], before)
            bias = model.masked_lm.bias
            assert torch.equal(grown.masked_lm.bias[old], bias[[7, 8, 9]].mean())
            mean = before[:, [7, 8, 9]].mean(1)
            torch.testing.assert_close(after[:, old], mean)


def test_a_model_folder_is_extended_and_transformers_loads_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(tmp_path / "old", EncoderModel(CONFIG, **BOTH_HEADS), OLD, {"made_by": "test"})
    (tmp_path / "words.txt").write_text("stent\nMyocarditis\n\nheart\n")
    (tmp_path / "text.txt").write_text("the angina of the cat, the angina.\n" * 6)
    argv = ["vocab", "extend", "--source", str(tmp_path / "old"), "--out", str(tmp_path / "new")]
    argv += ["--words", str(tmp_path / "words.txt"), "--files", str(tmp_path / "text.txt")]
    assert main([*argv, "--workers", "1", "--most", "1"]) == 0
    assert "angina stent myocarditis" in " ".join(capsys.readouterr().out.split())
    loaded = load_model(tmp_path / "new")
    assert loaded.about["made_by"] == "test"
    assert loaded.about["vocabulary_extended_by"] == 3
    assert loaded.tokenizer.pieces[-3:] == ["angina", "stent", "myocarditis"]
    assert (
        json.loads((tmp_path / "new" / "config.json").read_text())["vocab_size"]
        == OLD.vocab_size + 3
    )
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    network = transformers.BertForPreTraining.from_pretrained(tmp_path / "new").eval()
    text = "The stent, myocarditis and angina of the heart"
    encoding = loaded.tokenizer.encode(text)
    assert theirs(text)["input_ids"] == encoding.ids
    assert sum(i >= OLD.vocab_size for i in encoding.ids) == 3
    inputs = collate([encoding.ids], [encoding.segments], max_positions=40)
    with torch.inference_mode():
        hidden = network_of(loaded).encoder(inputs)
        at = torch.arange(len(encoding.ids))
        ours = network_of(loaded).masked_lm_logits(hidden[at])[:, : OLD.vocab_size + 3]
        expected = network(torch.tensor([encoding.ids])).prediction_logits[0]
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_weights_that_the_source_lacks_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(tmp_path / "old", EncoderModel(CONFIG, **BOTH_HEADS), OLD)
    path = tmp_path / "old/model.safetensors"
    weights = {k: v for k, v in load_file(path).items() if "pooler" not in k and "cls.seq" not in k}
    save_file({**weights, "crf.transitions": torch.zeros(2)}, path, {"format": "pt"})
    (tmp_path / "words.txt").write_text("stent\n")
    argv = ["vocab", "extend", "--source", str(tmp_path / "old"), "--out", str(tmp_path / "new")]
    assert main([*argv, "--words", str(tmp_path / "words.txt")]) == 0
    shown = capsys.readouterr().err
    assert "note: left out, not used here: crf.transitions" in shown
    assert "note: missing from the source, newly initialised: encoder.pooler.weight" in shown


def test_a_vocabulary_folder_is_extended(tmp_path: Path) -> None:
    OLD.save(tmp_path / "old")
    (tmp_path / "words.txt").write_text("stent\n")
    words = str(tmp_path / "words.txt")
    config = ExtendConfig(source=str(tmp_path / "old"), out=str(tmp_path / "new"), words=words)
    report = extend(config)
    sizes = report["vocabulary"]["pieces_before"], report["vocabulary"]["pieces"]
    assert sizes == (OLD.vocab_size, OLD.vocab_size + 1)
    assert Tokenizer.from_folder(tmp_path / "new").pieces == [*OLD.pieces, "stent"]
    with pytest.raises(InputError, match="pieces already"):
        extend(ExtendConfig(source=str(tmp_path / "new"), out=str(tmp_path / "x"), words=words))
    with pytest.raises(ConfigError, match="the source itself"):
        extend(ExtendConfig(source=str(tmp_path / "old"), out=str(tmp_path / "old"), words=words))
    with pytest.raises(ConfigError, match="--words, --files"):
        ExtendConfig(source="a", out="b")
    save_model(tmp_path / "model", EncoderModel(CONFIG), OLD)
    with pytest.raises(ConfigError, match="exists"):
        extend(ExtendConfig(source=str(tmp_path / "model"), out=str(tmp_path / "new"), words=words))


def test_the_embedding_of_an_unknown_word_is_that_of_unk() -> None:
    assert extend_vocabulary(small_tokenizer(60), ["漢"]).parts == [[1]]


def test_words_are_counted_by_the_tokenizers_own_rules(tmp_path: Path) -> None:
    """Uncased models that keep accents, and any with Chinese characters left together."""
    OLD.save(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    config = {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    text = tmp_path / "text.txt"
    text.write_text("Über über 東京 東京\n")
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert count_file_words([text], tokenizer, 1) == {"über": 2, "東京": 2}
    assert count_file_words([text], OLD, 1) == {"uber": 2, "京": 2, "東": 2}
