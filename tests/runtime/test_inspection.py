"""Looking inside: states and attention beside transformers', attributions beside their meaning."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bothways
from bothways.api.model import Model, load
from bothways.errors import ConfigError, InputError, LengthError, ModelError
from bothways.model.engine import network_of
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.runtime.inspection import MOST_SHOWN, Attribution, Inspection
from family_examples import EXAMPLES, save_theirs
from model_examples import BOTH_HEADS, randomise, small_bert, small_config, small_tokenizer

TOKENIZER = small_tokenizer(97)


TEXT, PAIR = "w1 w2 w3 w40 w5 w60 w7 w8 w19 w10 w11", "w12 w3"


HOSTILE = '</script><img src="x" onerror="alert(1)"> & w1'


KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "classes": ({"classes": 3}, {"kind": "classification", "labels": ["a", "b", "c"]}),
    "labels": ({"classes": 3}, {"kind": "multilabel", "labels": ["a", "b", "c"]}),
    "score": ({"classes": 1}, {"kind": "regression"}),
    "scores": ({"classes": 2}, {"kind": "multiregression", "labels": ["a", "b"]}),
    "lstm": ({"classes": 2, "lstm": 5}, {"kind": "classification", "labels": ["a", "b"]}),
    "tokens": (
        {"tags": 2},
        {"kind": "classification", "labels": ["a", "b"], "options": {"reads": "tokens"}},
    ),
}


def save(folder: Path, name: str) -> Path:
    heads, about = KINDS[name]
    network = small_bert(small_config((2, 32, 4, 50, 97)), **heads)
    randomise(network, seed=3)
    save_model(folder, network, TOKENIZER, about)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: save(root / name, name) for name in KINDS}


@pytest.mark.parametrize("name", EXAMPLES)
@torch.no_grad()
def test_as_transformers(name: str, tmp_path: Path) -> None:
    """Of every family, on every engine: all states, and all heads' maps."""
    example = EXAMPLES[name]
    model = example.model("Model")
    save_theirs(model, tmp_path)
    pair = PAIR if example.segments != 1 else None
    for engine in ("torch", "onnxruntime", "openvino"):
        found = load(tmp_path, engine=engine).inspect(TEXT, pair)
        given = {"input_ids": torch.from_numpy(found.ids)[None]}
        if example.segments:
            given["token_type_ids"] = torch.from_numpy(found.segments)[None]
        theirs = model(**given, output_attentions=True, output_hidden_states=True)
        states = torch.cat(theirs.hidden_states).numpy()
        maps = torch.cat(theirs.attentions).numpy()
        assert found.hidden.shape == states.shape
        assert found.attentions.shape == maps.shape
        assert {found.hidden.dtype, found.attentions.dtype} == {np.dtype(np.float32)}
        np.testing.assert_allclose(found.attentions, maps, atol=1e-4, err_msg=engine)
        # Weights of order one: states are large.
        np.testing.assert_allclose(found.hidden, states, atol=1e-4, rtol=2e-4, err_msg=engine)
        np.testing.assert_allclose(found.attentions.sum(-1), 1, atol=1e-5)


def test_what_an_inspection_says(folders: dict[str, Path]) -> None:
    model = load(folders["classes"], engine="onnxruntime")
    found = model.inspect("w1  w2", "w3")
    assert found.tokens == ("[CLS]", "w1", "w2", "[SEP]", "w3", "[SEP]")
    assert found.ids.tolist() == model.tokenizer.encode("w1  w2", "w3").ids
    assert found.parts.tolist() == [-1, 0, 0, -1, 1, -1]
    assert found.offsets.tolist() == [[0, 0], [0, 2], [4, 6], [0, 0], [0, 2], [0, 0]]
    assert repr(found).endswith("hidden [3, 6, 32], attentions 2 layers x 4 heads")
    np.testing.assert_allclose(
        model.embed_tokens(["w1  w2"])[0].vectors,
        model.inspect("w1  w2").hidden[-1, 1:3],
        atol=1e-5,
    )
    assert '<iframe title="Inspection" sandbox=' in found._repr_html_()
    assert set(found.as_json()) == {
        *("tokens", "ids", "segments", "parts", "offsets", "hidden", "attentions")
    }


def test_left_to_right_sees_nothing_later(tmp_path: Path) -> None:
    save_model(tmp_path, small_bert(small_config(left_to_right=True)), TOKENIZER, {})
    for engine in ("torch", "onnxruntime"):
        maps = load(tmp_path, engine=engine).inspect(TEXT).attentions
        assert np.triu(maps, 1).max() == 0


@pytest.mark.parametrize("engine", ["torch", "onnxruntime"])
def test_what_cannot_be_inspected(engine: str, folders: dict[str, Path]) -> None:
    model = load(folders["classes"], engine=engine)
    with pytest.raises(LengthError, match=r"has 52 tokens, and this encoder reads 40 at a time"):
        model.inspect(" ".join(["w1"] * 50))
    with pytest.raises(InputError):
        model.inspect(["w1"])  # type: ignore[arg-type]


def test_an_engine_may_lack_it(folders: dict[str, Path]) -> None:
    class Other:
        name, precision = "other", "fp32"

    model = load(folders["classes"], engine="onnxruntime")
    model.loaded.use(Other())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the engine other does not give states and attention"):
        model.inspect("w1")


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_graph_in_a_file_gives_its_outputs_alone(
    engine: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    bothways.export(folders["classes"], tmp_path / "out")
    model = load(tmp_path / "out", engine=engine)
    with pytest.raises(ModelError, match=r"model.onnx does not give states and attention; use"):
        model.inspect("w1 w2")
    expected = load(folders["classes"], engine="onnxruntime").attribute("w1 w2", target="b")
    np.testing.assert_allclose(
        model.attribute("w1 w2", target="b").scores, expected.scores, atol=1e-4
    )


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_shows_the_same(folders: dict[str, Path]) -> None:
    one, two = (load(folders["classes"], engine="torch", device=name) for name in ("cpu", "cuda"))
    found, expected = two.inspect(TEXT, PAIR), one.inspect(TEXT, PAIR)
    np.testing.assert_allclose(found.attentions, expected.attentions, atol=1e-3)
    np.testing.assert_allclose(found.hidden, expected.hidden, atol=1e-2, rtol=1e-2)
    for method in ("occlusion", "gradients"):
        scores = [model.attribute(TEXT, PAIR, method=method).scores for model in (one, two)]  # type: ignore[arg-type]
        np.testing.assert_allclose(*scores, atol=1e-2)


def log_odds(model: Model, kind: str, column: int, *texts: str) -> float:
    """The output that is explained, from what predict says of a text."""
    found = model.predict([texts[0]], [texts[1]] if texts[1:] else None)
    if kind in ("score", "scores"):
        return float(found.values[0, column])
    p = found.values[0, column]
    return float(np.log(p) - np.log1p(-p))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ["torch", "onnxruntime"])
def test_occlusion_is_predict_without_a_token(
    kind: str, engine: str, folders: dict[str, Path]
) -> None:
    model = load(folders[kind], engine=engine)
    found = model.attribute("w1 w2 w3", "w4 w5")
    names = model.predict(["w1"]).names
    column = names.index(found.target)
    assert found.output == pytest.approx(log_odds(model, kind, column, "w1 w2 w3", "w4 w5"), 1e-4)
    without = [
        log_odds(model, kind, column, *texts)
        for texts in (("[MASK] w2 w3", "w4 w5"), ("w1 w2 w3", "w4 [MASK]"))
    ]
    first, *_, last = found.scores[found.parts >= 0]
    np.testing.assert_allclose([first, last], found.output - np.array(without), atol=1e-4)
    assert found.scores[found.parts < 0].tolist() == [0, 0, 0]
    assert (found.method, found.delta, found.hidden_by) == ("occlusion", None, "[MASK]")
    other = model.attribute("w1 w2 w3", "w4 w5", target=names[-1])
    assert other.target == names[-1]
    assert "occlusion: each token in turn replaced by [MASK]" in repr(found)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_complete(kind: str, folders: dict[str, Path]) -> None:
    """Their sum is the change of the output, the less wrong the more steps there are; and they are
    those of a function that is written down for transformers' own way of computing."""
    model = load(folders[kind], engine="torch")
    found, finer = (
        model.attribute("w1 w2 w3", "w4", method="gradients", steps=n) for n in (8, 200)
    )
    assert found.delta is not None
    assert finer.delta is not None
    assert abs(finer.delta) < 5e-3
    total = finer.scores.sum() - (finer.output - finer.blank)
    assert total == pytest.approx(finer.delta, abs=1e-6)
    occluded = model.attribute("w1 w2 w3", "w4")
    assert found.output == pytest.approx(occluded.output, abs=1e-4)
    assert found.blank == pytest.approx(occluded.blank, abs=1e-4)
    after = model.attribute("w1 w2 w3", "w4")
    np.testing.assert_array_equal(after.scores, occluded.scores)  # nothing of the model changed
    assert "completeness error" in repr(found)


@pytest.mark.parametrize("name", EXAMPLES)
def test_gradients_of_every_family(name: str, tmp_path: Path) -> None:
    """Beside a sum over the line that asks transformers for each gradient."""
    example = EXAMPLES[name]
    model = example.model("ForSequenceClassification", num_labels=3)
    for parameter in model.parameters():  # so that the line is smooth enough for few steps
        if parameter.requires_grad:
            parameter.data.mul_(0.3)
    save_theirs(model, tmp_path)
    ours = load(tmp_path, engine="torch")
    found = ours.attribute("w1 w2 w3 w4", method="gradients", steps=6)
    table = model.get_input_embeddings()
    ids = torch.from_numpy(found.ids)[None]
    blank = ids.clone()
    blank[0, found.parts >= 0] = ours.tokenizer.mask_id
    given = {"token_type_ids": torch.zeros_like(ids)} if example.segments else {}
    given["attention_mask"] = torch.ones_like(ids)
    label = list(model.config.label2id).index(found.target)
    nodes, weights = np.polynomial.legendre.leggauss(6)
    total = torch.zeros_like(table(ids))
    for node, weight in zip(nodes, weights, strict=True):
        rows = table(blank) + (node + 1) / 2 * (table(ids) - table(blank))
        rows = rows.detach().requires_grad_()
        logits = model(inputs_embeds=rows, **given).logits[0]
        others = [n for n in range(3) if n != label]
        (gradient,) = torch.autograd.grad(logits[label] - logits[others].logsumexp(-1), rows)
        total += weight / 2 * gradient
    expected = ((table(ids) - table(blank)) * total).sum(-1)[0].detach().numpy()
    np.testing.assert_allclose(found.scores, expected, atol=2e-4, rtol=2e-3)


def test_what_cannot_be_attributed(folders: dict[str, Path], tmp_path: Path) -> None:
    save_model(tmp_path / "tags", small_bert(tags=3), TOKENIZER, {"kind": "tagging"})
    save_model(tmp_path / "pretrained", small_bert(**BOTH_HEADS), TOKENIZER, {})
    about = {**KINDS["classes"][1], "pair": False, "options": {"long": "windows"}, "length": 16}
    save_model(tmp_path / "windows", small_bert(classes=3), TOKENIZER, about)
    with pytest.raises(ModelError, match=r"kind 'tagging'.*of which a token can have a share"):
        load(tmp_path / "tags").attribute("w1")
    with pytest.raises(ModelError, match="has no task head"):
        load(tmp_path / "pretrained").attribute("w1")
    model = load(folders["classes"], engine="onnxruntime")
    with pytest.raises(InputError, match="target is none of this model's: a, b, c"):
        model.attribute("w1", target="x")
    with pytest.raises(ConfigError, match=r"has no network of torch; load .* with engine torch"):
        model.attribute("w1", method="gradients")
    with pytest.raises(ConfigError, match="method is 'lime'; choose occlusion or gradients"):
        model.attribute("w1", method="lime")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="single texts; leave the second"):
        load(tmp_path / "windows").attribute("w1", "w2")
    with pytest.raises(InputError, match="more than the 16 tokens of a window"):
        load(tmp_path / "windows").attribute(" ".join(["w1"] * 30))


def test_of_a_text_that_is_cut_what_is_read(folders: dict[str, Path]) -> None:
    found = load(folders["classes"], engine="onnxruntime").attribute(" ".join(["w1"] * 50))
    assert (len(found), found.cut) == (40, 12)
    assert repr(found).splitlines()[0].endswith("; 12 tokens beyond the length are not read")


def test_an_ensemble_is_explained_as_it_predicts(folders: dict[str, Path], tmp_path: Path) -> None:
    other = small_bert(small_config((2, 32, 4, 50, 97)), classes=3)
    randomise(other, seed=8)
    save_model(tmp_path, other, TOKENIZER, KINDS["classes"][1])
    both = load(folders["classes"], tmp_path)
    found = both.attribute("w1 w2")
    column = ["a", "b", "c"].index(found.target)
    assert found.output == pytest.approx(log_odds(both, "classes", column, "w1 w2"), abs=1e-4)
    with pytest.raises(ModelError, match="gradients are of one model"):
        both.attribute("w1", method="gradients")


def given(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="given">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_a_hostile_token_stays_text(folders: dict[str, Path], tmp_path: Path) -> None:
    found = load(folders["classes"], engine="onnxruntime").attribute("w1 w2")
    tokens = (HOSTILE, *found.tokens[1:])
    changed = Attribution(**{**vars(found), "tokens": tokens})
    page = changed.to_html(tmp_path / "page.html").read_text(encoding="utf-8")
    assert given(page)["tokens"][0] == HOSTILE
    assert "<img" not in page
    assert "<img" not in changed._repr_html_()


def test_too_much_for_a_page_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    found = load(folders["classes"], engine="onnxruntime").inspect("w1")
    large = np.broadcast_to(np.float32(0), (12, 12, 512, 512))
    assert large.size > MOST_SHOWN
    changed = Inspection(**{**vars(found), "attentions": large})
    with pytest.raises(ConfigError, match="37,748,736 numbers"):
        changed.to_html(tmp_path / "page.html")


def test_a_network_of_ones_own_can_be_trained_afterwards(folders: dict[str, Path]) -> None:
    """Gradients of inputs leave none with the weights."""
    model = load(folders["classes"], engine="torch")
    model.attribute("w1 w2", method="gradients")
    network = network_of(model.loaded)
    assert isinstance(network, EncoderModel)
    assert all(parameter.grad is None for parameter in network.parameters())
