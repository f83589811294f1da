"""The engine of onnxruntime beside torch's: the same answers, and none of torch."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bothways.api.model import Model, load
from bothways.batch import collate
from bothways.errors import ConfigError, InputError, LengthError, ModelError
from bothways.families import config_of
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.runtime.engine import layer_name
from bothways.runtime.onnx_engine import OnnxEngine, _OnnxSession
from bothways.runtime.onnx_graph import Outputs, graph_and_weights
from family_examples import EXAMPLES, LENGTHS, perturb, rows
from model_examples import BOTH_HEADS, small_bert, small_tokenizer

TOKENIZER = small_tokenizer(97)
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-4}
WORDS = " ".join(f"w{i}" for i in range(1, 30))


def both(folder: Path) -> tuple[Model, Model]:
    return load(folder, engine="onnxruntime"), load(folder, engine="torch")


@pytest.mark.parametrize("name", EXAMPLES)
def test_heads_and_layers_of_every_family(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    config, _ = config_of(example.config().to_dict(), where="file")
    head = "replaced" if config.family == "electra" else "masked_lm"
    # ModernBERT's files hold one head.
    heads = {head: 1} if config.family == "modernbert" else {head: 1, "tagger": 3}
    network = EncoderModel(config, heads=heads, seed=1).eval()
    perturb(network)
    about = {"kind": "tagging", "labels": ["a", "b", "c"]} if "tagger" in heads else {}
    save_model(tmp_path, network, TOKENIZER, about)
    batch = collate(*rows(example), max_positions=max(LENGTHS))
    at = {head: np.array([50, 2, 0, 49]), "tagger": np.array([3, 60])}
    at = {name: at[name] for name in heads}
    layers = (0, config.layers)
    one, two = (m.loaded.engine.compute(batch, at, layers) for m in both(tmp_path))
    assert one.keys() == two.keys() == {*heads, *map(layer_name, layers)}
    for key, value in one.items():
        assert value.dtype == np.float32
        np.testing.assert_allclose(value, two[key][: len(value)], **CLOSE, err_msg=key)


def test_every_verb_gives_the_same_answers(tmp_path: Path) -> None:
    kinds: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "classifier": ({"classes": 3}, {"kind": "classification", "labels": ["a", "b", "c"]}),
        "labels": ({"classes": 3}, {"kind": "multilabel", "labels": ["a", "b", "c"]}),
        "score": ({"classes": 1}, {"kind": "regression"}),
        "scores": ({"classes": 2}, {"kind": "multiregression", "labels": ["a", "b"]}),
        "lstm": ({"classes": 2, "lstm": 5}, {"kind": "classification", "labels": ["a", "b"]}),
        "tagger": ({"tags": 3}, {"kind": "tagging", "labels": ["B-X", "I-X", "O"]}),
        "span": ({"spans": True}, {"kind": "spans"}),
        "choice": ({"choices": True}, {"kind": "choice"}),
        "pretrained": (BOTH_HEADS, {}),
    }
    texts = ["w1 w2 w3", "w7", WORDS]
    for name, (heads, about) in kinds.items():
        save_model(tmp_path / name, small_bert(**heads), TOKENIZER, about)
        one, two = both(tmp_path / name)
        np.testing.assert_allclose(one.embed(texts), two.embed(texts), **CLOSE)
        if name in ("classifier", "labels", "score", "scores", "lstm"):
            found, expected = one.predict(texts), two.predict(texts)
            assert found.labels == expected.labels
            assert found.names == expected.names
            np.testing.assert_allclose(found.values, expected.values, **CLOSE)
        elif name == "tagger":
            assert one.tag("w1 w2 w3").tags == two.tag("w1 w2 w3").tags
        elif name == "span":
            found, expected = (m.answer("w1 w2", "w3 w4 w5", top=2) for m in (one, two))
            assert [a.text for a in found] == [a.text for a in expected]
            several = one.answer(["w1 w2", "w7"], "w3 w4 w5", top=2)
            assert [a.text for a in several[0]] == [a.text for a in found]
            assert several == one.answer(["w1 w2", "w7"], ["w3 w4 w5"] * 2, top=2)
            with pytest.raises(InputError, match="2 questions and 1 texts"):
                one.answer(["w1", "w2"], ["w3"])
            with pytest.raises(
                ModelError, match=r"kind 'spans'.*`bothways predict MODEL --question.*model\.answer"
            ):
                one.predict(["w1"])
        elif name == "choice":
            found, expected = (m.choose("w1", ["w2", "w3 w4"]) for m in (one, two))
            np.testing.assert_allclose(found, expected, **CLOSE)
        else:
            found, expected = (m.fill_mask("w1 [MASK] w2")[0] for m in (one, two))
            assert [f.piece for f in found] == [f.piece for f in expected]
            assert one.next_sentence("w1", "w2") == pytest.approx(
                two.next_sentence("w1", "w2"), abs=1e-4
            )


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("outputs", [1, 4])
def test_a_head_on_ordered_classes_that_no_task_has(
    name: str, outputs: int, tmp_path: Path
) -> None:
    """Both engines compute it, a folder holds it, and no verb takes it for classes."""
    config, _ = config_of(EXAMPLES[name].config().to_dict(), where="file")
    network = EncoderModel(config, heads={"ordinal": outputs}, seed=1).eval()
    perturb(network)
    save_model(tmp_path / "m", network, TOKENIZER)
    batch = collate(*rows(EXAMPLES[name]), max_positions=max(LENGTHS))
    at = {"ordinal": batch.bounds[:-1]}
    one, two = both(tmp_path / "m")
    assert (one.loaded.heads, one.loaded.unused) == ({"ordinal": outputs}, [])
    found, expected = (m.loaded.engine.compute(batch, at)["ordinal"] for m in (one, two))
    assert found.shape == (len(LENGTHS), outputs)
    np.testing.assert_allclose(found, expected, **CLOSE)
    save_model(tmp_path / "again", two.network, two.tokenizer, two.loaded.about)
    again = load(tmp_path / "again", engine="torch").loaded.engine.compute(batch, at)["ordinal"]
    np.testing.assert_array_equal(again, expected)
    with pytest.raises(ModelError, match="head for ordered classes of texts, which no task here"):
        one.predict(["w1 w2"])
    assert one.embed(["w1 w2"]).shape == (1, config.hidden)


def test_torch_stays_out(tmp_path: Path) -> None:
    about = {"kind": "classification", "labels": ["a", "b", "c"]}
    save_model(tmp_path / "m", small_bert(classes=3), TOKENIZER, about)
    script = (
        "import sys, bothways\n"
        "sys.modules['torch'] = None\n"
        f"model = bothways.load({str(tmp_path / 'm')!r})\n"
        "print(model.predict(['w1 w2']).labels[0], model.loaded.engine.name)\n"
        "assert sys.modules['torch'] is None\n"
    )
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    expected = load(tmp_path / "m", engine="torch").predict(["w1 w2"]).labels[0]
    assert done.stdout.split() == [expected, "onnxruntime"]


def test_a_session_has_its_own_copy_of_the_weights() -> None:
    network = small_bert(classes=3)
    state = {name: value.numpy() for name, value in network.state_dict().items()}
    asked = Outputs(("classifier",), layers=(network.config.layers,), chosen=True)
    graph, weights = graph_and_weights(network.config, state, asked, fused=True)
    session = _OnnxSession(graph.SerializeToString(), 1, weights)
    ids = np.array([[2, 5, 7, 3]])
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": ids * 0}
    outputs = sorted(session.outputs)
    expected = session.run(given, outputs)
    for value in weights.values():
        value[...] = np.nan
    for before, after in zip(expected, session.run(given, outputs), strict=True):
        np.testing.assert_array_equal(before, after)


def test_threads_may_use_it_together(tmp_path: Path) -> None:
    save_model(tmp_path, small_bert(**BOTH_HEADS), TOKENIZER, {})
    model = load(tmp_path, engine="onnxruntime")
    texts = [f"w{i} [MASK] w2" for i in range(12)]
    expected = [load(tmp_path, engine="onnxruntime").fill_mask(text)[0][0] for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert [found[0][0] for found in pool.map(model.fill_mask, texts)] == expected


def test_what_it_does_not_do_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, small_bert(**BOTH_HEADS), TOKENIZER, {})
    with pytest.raises(ConfigError, match="onnxruntime computes on the processor alone"):
        _ = load(tmp_path, engine="onnxruntime", device="cuda").loaded.engine
    engine = load(tmp_path, engine="onnxruntime").loaded.engine
    with pytest.raises(LengthError, match=r"a sequence of 41 tokens; .* positions for 40"):
        engine.compute(collate([[1] * 41], [[0] * 41], max_positions=41), layers=(0,))
    with pytest.raises(ModelError, match=r"token id 97 is outside .* vocabulary of 97 pieces"):
        engine.compute(collate([[97]], [[0]], max_positions=9), layers=(0,))
    with pytest.raises(ModelError, match="segment id 2 is outside this model's 2 segments"):
        engine.compute(collate([[9]], [[2]], max_positions=9), layers=(0,))
    with pytest.raises(ConfigError, match="has no network of torch"):
        _ = load(tmp_path, engine="onnxruntime").network


def test_a_graph_that_is_damaged_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """onnxruntime tells on standard output that it tries again, if it does. (A name that is not
    UTF-8 is such a case.)"""

    def refused(*_: Any) -> None:
        raise ValueError("damaged")

    session = "onnxruntime.InferenceSession._create_inference_session"
    monkeypatch.setattr(session, refused)
    with pytest.raises(ValueError, match="damaged"):
        OnnxEngine.session(b"", "fp32", 1)
    assert capfd.readouterr() == ("", "")
