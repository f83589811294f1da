"""Engines: found as entry points, chosen, refused; and that nothing but torch's needs torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bothways import cli
from bothways.api.model import Model, load
from bothways.batch import collate
from bothways.errors import ConfigError
from bothways.families.heads import HEADS
from bothways.model.batch import Inputs
from bothways.model.engine import TorchEngine, as_loaded, network_of
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.runtime.engine import EngineOptions, engines, layer_name, open_engine
from bothways.runtime.folder import load_model
from model_examples import BOTH_HEADS, small_bert, small_config, small_tokenizer

TOKENIZER = small_tokenizer(97)
# Another package's engine, whose outputs are a fixed function of the tokens.
DUMMY = """
import contextlib
import numpy as np


class Dummy:
    name, precision = "dummy", "fp32"

    def __init__(self, loaded):
        self.loaded = loaded
        self.table = {name: values for name, values in loaded.weights.items()}

    def working(self):
        return contextlib.nullcontext()

    def compute(self, batch, heads={}, layers=()):
        sizes = {**self.loaded.heads, "masked_lm": self.loaded.config.vocab_size}
        found = {head: self.rows(batch.tokens[at], sizes[head]) for head, at in heads.items()}
        for layer in layers:
            found[f"layer {layer}"] = self.rows(batch.tokens + layer, self.loaded.config.hidden)
        return found

    def rows(self, tokens, columns):
        return np.sin(tokens[:, None] * np.arange(1, columns + 1)).astype(np.float32)
"""
SCRIPT = """
import json, sys
sys.modules["torch"] = sys.modules["onnxruntime"] = None
import bothways
from bothways import cli

folders, out = json.loads(sys.argv[1]), {}
open_ = {name: bothways.load(folder) for name, folder in folders.items()}
out["predict"] = open_["classifier"].predict(["w1 w2", "w3"]).values.tolist()
out["embed"] = open_["classifier"].embed(["w1 w2"], layers=(0, -1)).tolist()
out["answer"] = [a.text for a in open_["span"].answer("w1 w2", "w3 w4 w5", top=2)]
out["tag"] = list(open_["tagger"].tag("w1 w2 w3").tags)
out["choose"] = open_["choice"].choose("w1", ["w2", "w3 w4"])
out["fill"] = [f.piece for f in open_["pretrained"].fill_mask("w1 [MASK] w2")[0]]
out["next"] = open_["pretrained"].next_sentence("w1", "w2")
for words in (["predict", folders["classifier"], "w1"], ["info", folders["classifier"], "--check"],
              ["embed", folders["tagger"], "w1 w2", "--out", "out.npz"]):
    assert cli.main(words) == 0, words
assert sys.modules["torch"] is None
try:
    open_["pretrained"].network
except (ImportError, bothways.BothwaysError) as error:
    out["network"] = str(error)
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("models")
    kinds: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "classifier": ({"classes": 3}, {"kind": "classification", "labels": ["a", "b", "c"]}),
        "tagger": ({"tags": 3}, {"kind": "tagging", "labels": ["B-X", "I-X", "O"]}),
        "span": ({"spans": True}, {"kind": "spans"}),
        "choice": ({"choices": True}, {"kind": "choice"}),
        "pretrained": (BOTH_HEADS, {}),
    }
    for name, (heads, about) in kinds.items():
        save_model(root / name, small_bert(**heads), TOKENIZER, about)
    return {name: str(root / name) for name in kinds}


@pytest.fixture
def dummy(tmp_path: Path) -> Path:
    """A folder for the path, with an installed package that brings an engine."""
    site = tmp_path / "site"
    about = site / "dummy-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "dummy.py").write_text(DUMMY)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: dummy\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[bothways.engines]\ndummy = dummy:Dummy\n")
    return site


def run(script: str, folder: Path, *path: Path, words: tuple[str, ...] = ()) -> Any:
    found = os.pathsep.join([*map(str, path), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-c", script, *words],
        # Speeds that were measured with torch say nothing here.
        env={**os.environ, "PYTHONPATH": found, "XDG_CACHE_HOME": str(folder / "cache")},
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_nothing_needs_torch_but_its_engine(
    folders: dict[str, str], dummy: Path, tmp_path: Path
) -> None:
    done = run(SCRIPT, tmp_path, dummy, words=(json.dumps(folders),))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    cls = TOKENIZER.encode("w1").ids[0]
    logits = np.sin(cls * np.arange(1, 4))
    expected = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(found["predict"], [expected, expected], rtol=1e-5)
    tokens = np.array(TOKENIZER.encode("w1 w2").ids)
    columns = np.arange(1, small_config().hidden + 1)
    layers = [np.sin((tokens + layer)[:, None] * columns).mean(0) for layer in (0, 1)]
    np.testing.assert_allclose(found["embed"], [np.mean(layers, 0)], atol=1e-6)
    assert len(found["answer"]) == 2
    assert len(found["tag"]) == 3
    assert found["choose"] == [0.5, 0.5]
    mask = np.sin(TOKENIZER.mask_id * np.arange(1, 98))
    mask[TOKENIZER.special_ids] = -np.inf
    assert found["fill"][0] == TOKENIZER.piece(int(mask.argmax()))
    assert 0 < found["next"] < 1
    assert "torch" in found["network"]
    assert (tmp_path / "out.npz").exists()


def test_a_command_with_a_few_texts_starts_without_torch(
    folders: dict[str, str], tmp_path: Path
) -> None:
    script = (
        "import sys\nfrom bothways import cli\n"
        f"folder = {folders['classifier']!r}\n"
        "assert cli.main(['predict', folder, 'w1 w2']) == 0\n"
        "assert cli.main(['inspect', folder, 'w1']) == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "engine"),
    [
        (["predict", "w1"], "onnxruntime"),
        (["predict", "w1", "--engine", "torch"], "torch"),
        (["predict", "w1", "--precision", "bf16"], "torch"),
        (["predict", "--file", "rows.tsv", "--text", "text"], "torch"),
        (["predict", "w1 " * 50_000], "torch"),
        (["embed", "w1", "--out", "o.npy", "--precision", "fp32"], "torch"),
        (["inspect", "w1", "--attribute", "occlusion"], "onnxruntime"),
        (["inspect", "w1", "--attribute", "gradients"], "torch"),
    ],
)
def test_which_engine_computes_little_and_much(
    words: list[str],
    engine: str,
    folders: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert list(engines(few=True)) == ["onnxruntime", "torch", "openvino"]
    monkeypatch.chdir(tmp_path)
    Path("rows.tsv").write_text("text\tlabel\nw1 w2\ta\n")
    opened: list[str] = []

    def noted(loaded: Any) -> Any:
        opened.append((found := open_engine(loaded)).name)
        return found

    monkeypatch.setattr("bothways.runtime.folder.open_engine", noted)
    assert cli.main([words[0], folders["classifier"], *words[1:]]) == 0
    assert opened == [engine]


def test_an_engine_of_another_package_is_used_by_name(
    folders: dict[str, str],
    dummy: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(dummy))
    assert list(engines()) == ["torch", "onnxruntime", "openvino", "dummy"], "ours come first"
    model = load(folders["classifier"], engine="dummy")
    assert model.loaded.engine.name == "dummy"
    with pytest.raises(ConfigError, match="the engine dummy has no network of torch"):
        _ = model.network
    assert cli.main(["predict", folders["classifier"], "w1", "--engine", "dummy"]) == 0
    assert capsys.readouterr().out.startswith("label")


def test_only_engines_that_exist_are_taken(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(engines()) == ["torch", "onnxruntime", "openvino"]
    with pytest.raises(
        ConfigError, match="engine is 'tensor'; there are auto, torch, onnxruntime, openvino"
    ):
        load(folders["classifier"], engine="tensor")
    with pytest.raises(ConfigError, match="precision is 'int4'; choose from auto, fp32, bf16, int"):
        load(folders["classifier"], precision="int4")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="device is 'gpu'; choose from auto, cpu, cuda"):
        load(folders["classifier"], device="gpu")  # type: ignore[arg-type]
    assert cli.main(["embed", folders["classifier"], "w1", "--out", "o.npz", "--engine", "x"]) == 1
    assert "engine is 'x'; there are auto, torch, onnxruntime, openvino" in capsys.readouterr().err


def test_precision_is_the_engines(folders: dict[str, str]) -> None:
    options = EngineOptions(precision="bf16")
    half = load_model(folders["classifier"], options=options)
    whole = load_model(folders["classifier"])
    assert (half.engine.precision, whole.engine.precision) == ("bf16", "fp32")
    one, two = Model(half).embed(["w1 w2"]), Model(whole).embed(["w1 w2"])
    assert 0 < np.abs(one - two).max() < 0.1


def test_the_torch_engine_computes_what_its_network_does() -> None:
    """Every head at the tokens it reads, and every layer, in one call."""
    network = small_bert(small_config((2, 32, 4, 50, 97)), **BOTH_HEADS, tags=4)
    rows = [TOKENIZER.encode(text) for text in ("w1 w2 w3", "w4")]
    batch = collate([row.ids for row in rows], [row.segments for row in rows], max_positions=40)
    total = int(batch.bounds[-1])
    at = {
        name: batch.bounds[:-1] if head.reads == "sequence" else np.array([1, 4, total - 1])
        for name, head in HEADS.items()
        if name in network.heads
    }
    found = TorchEngine(network).compute(batch, at, layers=(0, 2))
    assert found.keys() == {*at, layer_name(0), layer_name(2)}
    assert all(value.dtype == np.float32 for value in found.values())
    loaded = as_loaded(network, TOKENIZER)
    expected = _outputs(network_of(loaded), batch)
    for name, positions in at.items():
        rows_of = expected[name] if HEADS[name].reads == "sequence" else expected[name][positions]
        np.testing.assert_allclose(found[name], rows_of, atol=2e-6, err_msg=name)
    np.testing.assert_allclose(found[layer_name(2)][:total], expected["hidden"], atol=2e-6)
    assert loaded.heads == {"masked_lm": 1, "next_sentence": 2, "tagger": 4}


@torch.no_grad()
def _outputs(network: EncoderModel, batch: Any) -> dict[str, Any]:
    return {name: value.numpy() for name, value in network.eval()(Inputs.of(batch)).items()}


SIGNALLED = """
import gc, signal, sys
from bothways.api.model import load
models = [load(sys.argv[1], engine="openvino") for _ in range(2)]
for model in models:
    model.embed(["w1"])
model = None
while models:
    del models[0]
    gc.collect()
signal.signal(signal.SIGTERM, lambda *_: print("heeded"))
signal.raise_signal(signal.SIGTERM)
"""


def test_signals_are_heeded_after_models_of_openvino_have_gone(folders: dict[str, str]) -> None:
    pytest.importorskip("openvino")
    # As the tests and many servers have it: handlers run on a stack of their own.
    words = [sys.executable, "-X", "faulthandler", "-c", SIGNALLED, folders["pretrained"]]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "heeded\n"), done.stderr
