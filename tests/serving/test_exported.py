"""Folders that `bothways export` made, served: the same answers as without a server, in fp32 and in
8 bits; and graphs that are damaged, or not of their folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bothways.api.calls import export
from bothways.cli import main
from bothways.serving.options import ServeConfig
from bothways.serving.server import choose_engines
from bothways.training.options import PredictPrecision
from serving_examples import Running, make_folders, offline, running

TEXTS = [f"w{n} " * (1 + n % 30) for n in range(1, 30)]
MASKED = "w1 [MASK] w3"
DEV = {
    "classes": "sentence\tlabel\n" + "".join(f"{t}\t{'abc'[n % 3]}\n" for n, t in enumerate(TEXTS)),
    "vectors": "".join(f"{text}\n" for text in TEXTS),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Exported, with and without 8 bits."""
    root = tmp_path_factory.mktemp("exported")
    own = make_folders(root / "own", "classes", "vectors", "tags", "answers", "pretrained")
    for name, folder in own.items():
        how: dict[str, Any] = {}
        if name in DEV:
            dev = root / (f"{name}.tsv" if name == "classes" else f"{name}.txt")
            dev.write_text(DEV[name], encoding="utf-8")
            limits = {"agreement": 0.5, "lowest": 0.5, "metric_loss": 100.0, "speedup": 0}
            how = {"int8": True, "gate": dev, **limits}
        report = export(folder, root / "out" / name, **how)
        assert name not in DEV or report.int8 is not None
    return {name: str(root / "out" / name) for name in own}


@pytest.fixture(scope="module")
def server(folders: dict[str, str]) -> Iterator[Running]:
    with running(folders) as found:
        yield found


@pytest.fixture(scope="module")
def of_8_bits(folders: dict[str, str]) -> Iterator[Running]:
    with running({name: folders[name] for name in DEV}, precision="int8") as found:
        yield found


def asked(server: Running, path: str, body: Any) -> Any:
    answer = server.post(path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_graphs_answer_as_without_a_server(
    precision: PredictPrecision, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("server" if precision == "fp32" else "of_8_bits")
    models = {name: offline(path, precision) for name, path in server.folders.items()}
    for name in server.folders:
        info = server.get(f"/models/{name}/info").json()
        assert (info["model_dtype"], info["max_batch_tokens"]) == (precision, 512)
    expected = models["classes"].predict(TEXTS)
    assert {*expected.names} == {"a", "b", "c"}
    found = asked(server, "/models/classes", {"inputs": TEXTS})
    rows = [{one["label"]: one["score"] for one in row} for row in found]
    assert [[row[name] for name in expected.names] for row in rows] == expected.values.tolist()
    vectors = asked(server, "/models/vectors/embed", {"inputs": TEXTS, "normalize": False})
    np.testing.assert_array_equal(np.array(vectors, "f4"), models["vectors"].embed(TEXTS))
    alone = asked(server, "/models/vectors/embed", {"inputs": TEXTS[7], "normalize": False})
    assert alone == vectors[7:8]


def test_8_bits_are_not_fp32(server: Running, of_8_bits: Running) -> None:
    one, two = (asked(s, "/models/vectors/embed", {"inputs": "w1"}) for s in (server, of_8_bits))
    assert 0 < np.abs(np.subtract(one, two)).max() < 0.3


def test_other_heads(server: Running) -> None:
    models = {name: offline(path) for name, path in server.folders.items()}
    found = asked(server, "/models/tags", {"inputs": TEXTS[5]})
    assert [one["score"] for one in found] == [
        one.probability for one in models["tags"].tag(TEXTS[5]).entities
    ]
    (best,) = models["answers"].answer(TEXTS[3], TEXTS[4], top=1)
    inputs = {"question": TEXTS[3], "context": TEXTS[4]}
    assert asked(server, "/models/answers", {"inputs": inputs})["score"] == best.probability
    (expected,) = models["pretrained"].fill_mask(MASKED, top=5)
    found = asked(server, "/models/pretrained", {"inputs": MASKED})
    assert [one["score"] for one in found] == [one.probability for one in expected]


def test_a_graph_of_heads_gives_no_vectors(server: Running, of_8_bits: Running) -> None:
    for one in (server, of_8_bits):
        tasks = one.get("/models/classes/info").json()["tasks"]
        assert tasks == ["text-classification", "attribution"]
        refused = one.post("/models/classes/embed", {"inputs": "w1"})
        assert refused.status_code == 422
        assert refused.json()["error"] == (
            "the model classes does not do feature-extraction; it does text-classification, "
            "attribution."
        )
    assert server.get("/models/vectors/info").json()["tasks"][0] == "feature-extraction"


@pytest.mark.parametrize("engine", ["auto", "onnxruntime"])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("damage", ["half", "empty", "another"])
def test_a_damaged_graph_is_named(
    engine: str, own: bool, damage: str, folders: dict[str, str], tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "out").mkdir()
    for path in Path(folders["vectors"]).rglob("*"):
        if path.is_file() and "quantized" not in path.name:
            copy = tmp_path / "out" / path.relative_to(folders["vectors"])
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(path.read_bytes())
    graph = tmp_path / "out/onnx/model.onnx"
    whole = graph.read_bytes()
    other = (Path(folders["classes"]) / "onnx/model.onnx").read_bytes()
    graph.write_bytes({"half": whole[: len(whole) // 2], "empty": b"", "another": other}[damage])
    if not own:  # as another program would have exported it
        for name in ("bothways.json", "checksums.json"):
            (tmp_path / "out" / name).unlink()
    assert main(["serve", str(tmp_path / "out"), "--port", "0", "--engine", engine]) == 1
    told = capsys.readouterr()
    assert "onnx/model.onnx" in told.err
    assert "Traceback" not in told.err
    assert "serving" not in told.out


def test_8_bits_that_were_not_exported(tmp_path: Path, capsys: Any) -> None:
    folder = make_folders(tmp_path, "classes")["classes"]
    assert main(["serve", folder, "--port", "0", "--precision", "int8"]) == 1
    told = capsys.readouterr().err
    assert "in int8 a folder that was exported and measured so" in told
    assert f"error: the model {Path(folder).name}: the engine" in told


def test_what_auto_chooses_is_settled_before_the_workers_start(
    folders: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = ServeConfig(models=tuple(folders.values()), precision="auto")
    for how in choose_engines(config).values():
        assert how.precision in ("fp32", "bf16")
        assert how.name in ("onnxruntime", "openvino")  # torch does not compute graphs
        assert how.reason
