"""Exported folders, served: the same answers as without a server, in fp32 and in 8 bits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bothways.api.calls import export
from bothways.cli import main
from bothways.serving.options import ServeConfig
from bothways.serving.server import choose_engines
from bothways.training.options import PredictPrecision
from serving_examples import make_folders, offline, running

TEXTS = [" ".join(f"w{(7 * n + i) % 80 + 1}" for i in range(1 + n % 30)) for n in range(60)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A classifier and a model of vectors: graphs in fp32 and in 8 bits, and no other weights."""
    folder = tmp_path_factory.mktemp("exported")
    found = {}
    for name, path in make_folders(folder / "models", "classes", "vectors").items():
        gate, header = folder / f"{name}.txt", []
        if name == "classes":
            gate, header = gate.with_suffix(".tsv"), ["sentence\tlabel"]
            about = Path(path, "bothways.json")
            content = json.loads(about.read_text())
            labels = offline(path).predict(TEXTS).labels
            rows = [f"{a}\t{b}" for a, b in zip(TEXTS, labels, strict=True)]
            content["tasks"]["classifier"]["options"] = {
                **{"kind": "classification", "labels": ["a", "b", "c"], "metrics": ["accuracy"]}
            }
            about.write_text(json.dumps(content))
        else:
            rows = TEXTS
        gate.write_text("\n".join([*header, *rows]) + "\n")
        limits = {"speedup": 0, "agreement": 0.3, "lowest": 0.0, "metric_loss": 100.0}
        report = export(path, folder / name, int8=True, gate=gate, **limits)
        assert report.int8 is not None
        assert report.int8.holds
        (folder / name / "model.safetensors").unlink(missing_ok=True)
        found[name] = str(folder / name)
    return found


@pytest.fixture(params=["fp32", "int8"])
def precision(request: pytest.FixtureRequest) -> PredictPrecision:
    chosen: PredictPrecision = request.param
    return chosen


def test_answers(exported: dict[str, str], precision: PredictPrecision) -> None:
    with running(exported, precision=precision) as server:
        info = server.get("/models/classes/info").json()
        assert (info["model_dtype"], info["max_batch_tokens"]) == (precision, 512)
        found = server.post("/models/classes", {"inputs": TEXTS}).json()
        expected = offline(exported["classes"], precision).predict(TEXTS)
        for row, values in zip(found, expected.values.tolist(), strict=True):
            assert {one["label"]: one["score"] for one in row} == dict(
                zip(expected.names, values, strict=True)
            )
        body = {"inputs": TEXTS, "normalize": False}
        vectors = np.array(server.post("/models/vectors/embed", body).json(), "f4")
        np.testing.assert_array_equal(vectors, offline(exported["vectors"], precision).embed(TEXTS))


def test_8_bits_are_not_those_of_32(exported: dict[str, str]) -> None:
    one, two = (offline(exported["vectors"], p).embed(TEXTS) for p in ("fp32", "int8"))
    assert 0 < np.abs(one - two).max() < 0.2


@pytest.mark.parametrize(
    ("file", "precision"),
    [("onnx/model.onnx", "fp32"), ("onnx/model_quantized.onnx", "int8")],
)
@pytest.mark.parametrize("damage", ["truncated", "of another model"])
def test_a_graph_that_is_not_the_folders_is_named(
    exported: dict[str, str],
    file: str,
    precision: str,
    damage: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(exported["classes"], folder)
    if damage == "truncated":
        content = (folder / file).read_bytes()
        (folder / file).write_bytes(content[: len(content) // 2])
    else:
        shutil.copy(Path(exported["vectors"], file), folder / file)
    for engine in ("onnxruntime", "auto"):
        words = ["serve", str(folder), "--port", "0", "--precision", precision]
        assert main([*words, "--engine", engine]) == 1
        told = capsys.readouterr().err
        assert str(folder / file) in told
        assert "Traceback" not in told


def test_what_auto_chooses_is_settled_before_the_workers_start(
    exported: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = ServeConfig(models=tuple(exported.values()), precision="auto")
    for how in choose_engines(config).values():
        assert how.precision in ("fp32", "bf16")
        assert how.name in ("onnxruntime", "openvino")  # torch does not compute graphs
        assert how.reason
