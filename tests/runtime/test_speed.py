"""The fastest precision: timed once, kept, handed on; and precisions that an engine lacks."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from bothways import cli
from bothways.api.model import load
from bothways.errors import ConfigError
from bothways.model.engine import TorchEngine
from bothways.model.folder import save_model
from bothways.runtime import speed
from bothways.runtime.engine import EngineOptions, engines
from bothways.runtime.onnx_engine import GraphEngine, OnnxEngine
from bothways.runtime.speed import measured_once, settled
from model_examples import small_bert, small_tokenizer

AUTO = EngineOptions(precision="auto")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "bothways" / "speed.jsonl"


@pytest.fixture
def timed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what engines measure; counts how often."""
    calls: list[str] = []

    def set_to(torch: dict[str, float], onnxruntime: dict[str, float]) -> list[str]:
        def of(own: dict[str, float], name: str) -> Any:
            return classmethod(lambda _, device: calls.append(f"{name} {device}") or own)

        monkeypatch.setattr(TorchEngine, "product_seconds", of(torch, "torch"))
        monkeypatch.setattr(OnnxEngine, "product_seconds", of(onnxruntime, "onnxruntime"))
        # What others of its kind are measured by, if they are installed.
        monkeypatch.setattr(GraphEngine, "product_seconds", classmethod(lambda *_: {}))
        cache.unlink(missing_ok=True)
        return calls

    return set_to


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model")
    save_model(path, small_bert(classes=2), small_tokenizer(97), {"kind": "classification"})
    return str(path)


@pytest.mark.parametrize(
    ("torch", "onnxruntime", "chosen"),
    [
        ({"fp32": 3.0, "bf16": 1.0}, {"fp32": 3.0}, ("torch", "bf16")),
        ({"fp32": 3.0, "bf16": 2.5}, {"fp32": 3.0}, ("torch", "fp32")),  # not worth its rounding
        ({"fp32": 3.0, "bf16": 9.0}, {"fp32": 2.7}, ("torch", "fp32")),  # products are not all
        ({"fp32": 3.0, "bf16": 9.0}, {"fp32": 1.0}, ("onnxruntime", "fp32")),
        ({"fp32": 9.0, "bf16": 2.0}, {"fp32": 1.0}, ("onnxruntime", "fp32")),
    ],
)
def test_the_fastest_is_taken(timed: Any, torch: Any, onnxruntime: Any, chosen: Any) -> None:
    timed(torch, onnxruntime)
    found = settled(AUTO)
    assert (found.name, found.precision) == chosen
    assert found.reason.startswith(f"{chosen[1]} with {chosen[0]}")
    assert f"torch fp32 {1e3 * torch['fp32']:.2f} ms" in found.reason
    assert settled(found) is found
    assert settled(pickle.loads(pickle.dumps(found))) == found, "it can be handed on"


def test_it_is_timed_once(timed: Any, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = timed({"fp32": 3.0, "bf16": 1.0}, {"fp32": 3.0})
    assert settled(AUTO) == settled(AUTO)
    assert calls == ["torch cpu", "onnxruntime cpu"]
    assert cache.read_text().count("\n") == 2, "a line, and an empty one before"
    only = settled(EngineOptions("onnxruntime", precision="auto"))
    assert (only.name, only.precision) == ("onnxruntime", "fp32")
    assert calls[2:] == ["onnxruntime cpu"]
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # another machine, as far as products go
    settled(AUTO)
    assert len(calls) == 5


@pytest.mark.parametrize("content", [b"", b"[]", b'{"key": "pro', b'{"x": 1}', b"null", b"\xff"])
def test_a_damaged_cache_is_made_anew(timed: Any, cache: Path, content: bytes) -> None:
    calls = timed({"fp32": 3.0, "bf16": 1.0}, {"fp32": 3.0})
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_bytes(content)
    for _ in range(2):
        assert settled(AUTO).precision == "bf16"
    assert calls == ["torch cpu", "onnxruntime cpu"]


def test_the_first_of_two_measurements_holds(cache: Path) -> None:
    """Of two processes that begin at once; and a line that was cut spoils no other."""
    cache.parent.mkdir(parents=True)
    cache.write_text('{"key": "what')

    def measure() -> dict[str, float]:
        assert measured_once("what", lambda: {"x": 2.0}, 1, []) == {"x": 2.0}
        return {"x": 1.0}

    assert measured_once("what", measure, 1, []) == {"x": 2.0}
    assert measured_once("what", measure, 1, []) == {"x": 2.0}


def test_a_cache_that_cannot_be_written_means_fp32(
    timed: Any,
    folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls = timed({"fp32": 3.0, "bf16": 1.0}, {"fp32": 3.0})
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cli.main(["embed", folder, "w1 w2", "--out", str(tmp_path / "o.npz")]) == 0
    (note,) = capsys.readouterr().err.splitlines()
    assert note.startswith("note: fp32: no measurement can be kept in ")
    assert not calls


def test_real_products_are_timed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_LONGEST", 0.01)
    found = settled(AUTO)
    assert found.name in engines()
    lines = [json.loads(line) for line in cache.read_text().split("\n\n")]
    (seconds,) = (own["seconds"] for own in lines if "engine auto" in own["key"])
    assert [*seconds][:3] == ["torch fp32", "torch bf16", "onnxruntime fp32"]
    assert all(0 < taken < 10 for taken in seconds.values())


def test_a_precision_that_an_engine_lacks_is_refused_by_name(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", folder, "w1", "--precision", "int8", "--engine", "torch"]
    assert cli.main(words) == 1
    told = "the engine torch computes in fp32 or bf16, not in int8"
    assert told in capsys.readouterr().err
    with pytest.raises(ConfigError, match=told):
        load(folder, engine="torch", precision="int8")
    with pytest.raises(ConfigError, match=r"the engine onnxruntime computes in .*, not in bf16"):
        load(folder, engine="onnxruntime", precision="bf16")
