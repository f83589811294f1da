"""Vectors of texts and tokens: which layer, which window, and files that give them back."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers

from bothways import cli
from bothways.api.model import Model, load
from bothways.api.sklearn import TextEmbedder
from bothways.errors import ConfigError, LengthError, NonFiniteError
from bothways.model.engine import network_of
from bothways.model.folder import save_model
from bothways.runtime.embeddings import embed_texts
from bothways.tokenization.tokenizer import Tokenizer
from model_examples import POSITIONS, small_bert, small_config, small_tokenizer

pytestmark = pytest.mark.usefixtures("several_tiles")


VOCABULARY = 97


SHAPE = (3, 32, 4, 50, VOCABULARY)


TEXTS = ["w1  w2, w3", "", "w5 W6"]


LONG = " ".join(f"w{i % 90}" for i in range(100))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors") / "model"
    save_model(path, small_bert(small_config(SHAPE), seed=4), small_tokenizer(VOCABULARY))
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(folder)


@torch.no_grad()
def their_states(folder: Path, model: Model, text: str) -> np.ndarray:
    """transformers' hidden states [layers + 1, tokens, H] of one text."""
    theirs = transformers.BertModel.from_pretrained(folder).eval()
    ids = torch.tensor([model.tokenizer.encode(text).ids])
    return torch.cat(theirs(ids, output_hidden_states=True).hidden_states).numpy()


def test_every_layer_is_that_of_transformers(folder: Path, model: Model) -> None:
    for text in TEXTS:
        states = their_states(folder, model, text)
        for layer in range(-4, 4):
            mean = model.embed([text], layers=[layer])
            np.testing.assert_allclose(mean[0], states[layer].mean(0), atol=2e-5)
            (own,) = model.embed_tokens([text], layers=[layer])
            np.testing.assert_allclose(own.vectors, states[layer][1:-1], atol=2e-5)


def test_several_layers(folder: Path, model: Model) -> None:
    states = their_states(folder, model, TEXTS[0])[:, 0]
    asked = {"layers": [-1, 1], "pooling": "cls"}
    for combine, expected in {
        "mean": (states[3] + states[1]) / 2,
        "sum": states[3] + states[1],
        "concat": np.concatenate([states[3], states[1]]),
    }.items():
        found = model.embed([TEXTS[0]], combine=combine, **asked)  # type: ignore[arg-type]
        np.testing.assert_allclose(found[0], expected, atol=2e-5)
    for layers in ([4], [-5], []):
        with pytest.raises(ConfigError, match="layers"):
            model.embed(TEXTS, layers=layers)


def test_tokens_have_their_characters(model: Model) -> None:
    found = model.embed_tokens(TEXTS)
    assert [own.tokens for own in found] == [("w1", "w2", "[UNK]", "w3"), (), ("w5", "w6")]
    assert found[0].offsets.tolist() == [[0, 2], [4, 6], [6, 7], [8, 10]]
    assert found[1].vectors.shape == (0, 32)
    unit = model.embed_tokens(TEXTS, normalize=True)
    np.testing.assert_allclose(np.linalg.norm(unit[2].vectors, axis=1), 1, atol=1e-5)


def test_long_texts_by_windows(model: Model) -> None:
    """Each token is that of a text cut out by hand around it."""
    words = LONG.split()
    (own,) = model.embed_tokens([LONG], max_length=12)
    assert own.tokens == tuple(words)
    # Windows of 10 words begin at every fifth; word 52 is read in that from 50 or from 45.
    alone = model.embed_tokens([" ".join(words[start : start + 10]) for start in (45, 50)])
    assert np.allclose(own.vectors[52], alone[0].vectors[7], atol=1e-5)
    assert not np.allclose(own.vectors[52], alone[1].vectors[2], atol=1e-5)
    found = embed_texts(model.loaded, [LONG, "w1"], long="windows")
    assert (found.cut, found.long) == (0, 1)
    assert found.pooled is not None
    np.testing.assert_allclose(found.pooled[1], model.embed(["w1"])[0], atol=1e-6)
    assert not np.allclose(found.pooled[0], model.embed([LONG], long="cut")[0], atol=1e-3)


def test_the_cls_of_a_long_text_is_the_mean_over_its_windows(model: Model) -> None:
    words = LONG.split()
    windows = [" ".join(words[start : start + 10]) for start in range(0, 91, 5)]
    each = model.embed(windows, pooling="cls")
    whole = model.embed([LONG], max_length=12, pooling="cls")[0]
    np.testing.assert_allclose(whole, each.mean(0), atol=1e-5)


def test_the_mean_of_windows_is_that_of_their_tokens(model: Model) -> None:
    (own,) = model.embed_tokens([LONG], max_length=12)
    mean = model.embed([LONG], max_length=12, long="windows")[0]
    words = LONG.split()
    ends = [
        embed_texts(model.loaded, [" ".join(part)], pooling="mean").pooled
        for part in (words[:10], words[90:])
    ]
    first = model.embed([" ".join(words[:10])], pooling="cls")[0]
    tail = model.embed_tokens([" ".join(words[90:])])[0].vectors
    assert ends[1] is not None
    last_cls = model.embed([" ".join(words[90:])], pooling="cls")[0]
    sep = ends[1][0] * 12 - tail.sum(0) - last_cls
    np.testing.assert_allclose(mean, (own.vectors.sum(0) + first + sep) / 102, atol=1e-4)


def test_windows_change_nothing_for_texts_that_fit(model: Model) -> None:
    for pooling in ("mean", "cls"):
        cut = model.embed(TEXTS, pooling=pooling, long="cut")  # type: ignore[arg-type]
        windows = model.embed(TEXTS, pooling=pooling, long="windows")  # type: ignore[arg-type]
        np.testing.assert_array_equal(cut, windows)
    with pytest.raises(LengthError, match=f"positions for {POSITIONS}"):
        model.embed_tokens(TEXTS, max_length=POSITIONS + 1)


@pytest.mark.parametrize("pooling", ["mean", "tokens"])
def test_the_three_kinds_of_files_hold_the_same(
    pooling: str, folder: Path, model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [*TEXTS, LONG, "문 é \u2028"]
    argv = ["embed", str(folder), *texts, "--pooling", pooling, "--layers", "0", "-2"]
    for name in ("v.npz", "v.arrow", "v.jsonl"):
        assert cli.main([*argv, "--out", str(tmp_path / name)]) == 0
        assert "1 of 5 texts are longer than 40 tokens and were read" in capsys.readouterr().err
    rows = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().split("\n")[:-1]]
    with pa.OSFile(str(tmp_path / "v.arrow")) as file:
        table = pa.ipc.open_file(file).read_all()
    assert table.column("text").to_pylist() == texts == [row["text"] for row in rows]
    with np.load(tmp_path / "v.npz") as stored:
        if pooling == "mean":
            expected = model.embed(texts, layers=[0, -2], long="windows")
            np.testing.assert_array_equal(stored["embeddings"], expected)
            for found in (table.column("embedding").to_pylist(), [r["embedding"] for r in rows]):
                np.testing.assert_array_equal(np.array(found, np.float32), expected)
            return
        tokens = model.embed_tokens(texts, layers=[0, -2])
        bounds = stored["bounds"]
        for i, own in enumerate(tokens):
            part = slice(bounds[i], bounds[i + 1])
            held = [
                (stored["tokens"][part], stored["offsets"][part], stored["embeddings"][part]),
                [table.column(name)[i].as_py() for name in ("tokens", "offsets", "embeddings")],
                [rows[i][name] for name in ("tokens", "offsets", "embeddings")],
            ]
            for pieces, offsets, vectors in held:
                assert tuple(pieces) == own.tokens
                assert np.array(offsets).tolist() == own.offsets.tolist()
                found = np.array(vectors, np.float32).reshape(own.vectors.shape)
                np.testing.assert_array_equal(found, own.vectors)


def test_another_kind_of_file_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "v.csv")
    assert cli.main(["embed", str(tmp_path / "no-model"), "w1", "--out", out]) == 1
    assert "written to .npz, .npy, .arrow, .parquet, .jsonl files" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["cls", "mean"])
def test_a_folder_of_sentence_transformers_says_how_it_pools(
    folder: Path, tmp_path: Path, mode: str
) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    kinds = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    network = kinds.Transformer(str(folder))
    pooling = kinds.Pooling(network.get_embedding_dimension(), pooling_mode=mode)
    theirs = sentence_transformers.SentenceTransformer(
        modules=[network, pooling, kinds.Normalize()], device="cpu"
    )
    theirs.save(str(tmp_path / "theirs"))
    ours = load(tmp_path / "theirs")
    expected = theirs.encode(["w1 w2", "w5 w6 w7"])
    found = ours.embed(["w1 w2", "w5 w6 w7"])
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert np.abs(ours.embed(["w1 w2"], normalize=False) - expected[:1]).max() > 1e-3
    other = ours.embed(["w1 w2"], pooling="mean" if mode == "cls" else "cls", normalize=True)
    assert np.abs(other - expected[:1]).max() > 1e-3
    converted = tmp_path / "converted"
    assert cli.main(["convert", str(tmp_path / "theirs"), str(converted)]) == 0
    again = load(converted).embed(["w1 w2", "w5 w6 w7"])
    np.testing.assert_allclose(again, expected, atol=2e-5)


@pytest.mark.parametrize("cased", [False, True])
def test_what_sentence_transformers_does_to_texts_is_said(
    cased: bool, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(shutil.copytree(folder, tmp_path / "model"))
    (path / "bothways.json").unlink()
    modules = [("Transformer", "0_Transformer"), ("Pooling", "1_Pooling")]
    listed = [{"type": f"sentence_transformers.models.{kind}", "path": p} for kind, p in modules]
    (path / "modules.json").write_text(json.dumps(listed))
    for _, name in modules:
        (path / name).mkdir(exist_ok=True)
    (path / "1_Pooling/config.json").write_text('{"pooling_mode": "mean"}')
    config = '{"max_seq_length": 20, "do_lower_case": true}'
    (path / "0_Transformer/sentence_bert_config.json").write_text(config)
    prompts: dict[str, Any] = {"prompts": {"query": "w3 ", "none": ""}, "default_prompt_name": None}
    (path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    if not cased:
        assert load(path).embed(["w1"]).shape == (1, 32)  # the tokenizer lower-cases anyway
        prompts["default_prompt_name"] = "query"
        (path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
        model = load(path)
        with_prompt, plain = model.embed(["w1"]), model.embed(["w1"], prompt="")
        np.testing.assert_array_equal(with_prompt, model.embed(["w3 w1"], prompt=""))
        np.testing.assert_array_equal(with_prompt, model.embed(["w1"], prompt="query"))
        np.testing.assert_array_equal(with_prompt, model.embed(["w1"], prompt="w3 "))
        assert not np.allclose(plain, with_prompt)
        long = ["w1 w2 w3 w4 " * 10]
        cut, whole = (model.embed(long, prompt="", long=how) for how in ("cut", "windows"))
        np.testing.assert_array_equal(model.embed(long, prompt=""), cut)
        np.testing.assert_array_equal(load(folder).embed(long, max_length=20), whole)
        assert not np.allclose(cut, whole)
        np.testing.assert_array_equal(
            TextEmbedder(str(path)).fit_transform(long), model.embed(long)
        )
        assert not np.allclose(model.embed(long), model.embed(long, long="windows"))
        return
    Tokenizer.from_pieces(small_tokenizer(VOCABULARY).pieces, lowercase=False).save(path)
    message = r"texts are lower-cased \(do_lower_case\)"
    with pytest.raises(ConfigError, match=f"{message}.*Set pooling to mean or cls"):
        load(path).embed(["w1"])
    argv = ["embed", str(path), "w1", "--pooling", "mean", "--out", str(tmp_path / "v.npz")]
    assert cli.main(argv) == 0
    assert re.search(f"note: with sentence-transformers {message}", capsys.readouterr().err)


@pytest.mark.parametrize("pooling", ["mean", "cls", "tokens"])
def test_vectors_that_are_not_finite_are_refused(folder: Path, pooling: Any) -> None:
    loaded = load(folder).loaded
    with torch.no_grad():
        network_of(loaded).encoder.embeddings.tokens.weight[
            loaded.tokenizer.encode("w7").ids[1]
        ] = torch.nan
    sound = embed_texts(loaded, ["w1", LONG.replace("w7 ", "")], pooling=pooling)
    assert sound.long == 1
    with pytest.raises(NonFiniteError, match="a vector is not finite"):
        embed_texts(loaded, ["w1", LONG.replace("w7 ", ""), LONG], pooling=pooling)


def test_many_texts_are_read_in_parts(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part tokenized ahead; nothing of a text changes, and the parts stay in order."""
    texts = [" ".join(f"w{n % 9}" for n in range(1 + at * 5 % 50)) for at in range(23)]
    whole = embed_texts(model.loaded, texts, pooling="mean")
    tokens = model.embed_tokens(texts)
    monkeypatch.setattr("bothways.runtime.batching._TOGETHER", 5)
    seen: list[tuple[int, int]] = []
    parts = embed_texts(
        model.loaded, texts, pooling="mean", progress=lambda done, of: seen.append((done, of))
    )
    assert parts.pooled is not None
    assert whole.pooled is not None
    np.testing.assert_allclose(parts.pooled, whole.pooled, atol=1e-6)
    assert parts.long == whole.long > 0
    assert seen[-1] == (23, 23)
    assert seen == sorted(seen)
    for one, two in zip(model.embed_tokens(texts), tokens, strict=True):
        assert one.tokens == two.tokens
        np.testing.assert_allclose(one.vectors, two.vectors, atol=1e-6)


def test_no_texts_have_no_vectors(model: Model) -> None:
    assert model.embed([]).shape == (0, 32)
