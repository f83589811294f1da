"""Vectors beside other libraries: what is compared, and who is left out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from bothways.errors import ConfigError
from bothways.experiments import bench_infer as bench
from bothways.experiments.bench import main
from bothways.experiments.bench_infer import CONTENDERS, Setting, reference_vectors
from bothways.experiments.options import BenchInferConfig
from bothways.model.flops import forward_operations, training_cost
from bothways.model.folder import save_model
from bothways.runtime.folder import load_model
from model_examples import small_bert, small_config, small_tokenizer

TEXTS = [" ".join(f"w{n % 80 + 1}" for n in range(at, at + 1 + at * 7 % 30)) for at in range(40)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "matrix_rate", lambda _: 1e9)
    monkeypatch.setattr(bench, "_SINGLES", 2)
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model")
    save_model(path, small_bert(small_config((2, 32, 4, 50, 97))), small_tokenizer(97))
    return str(path)


def test_the_table_names_who_is_left_out(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    contenders = ["bothways torch fp32", "bothways torch bf16", "onnxruntime by hand fp32"]
    lacking = ["bothways onnxruntime bf9", "sentence-transformers fp32"]
    monkeypatch.setitem(bench.CONTENDERS, lacking[0], bench._ours("onnxruntime", "bf9"))
    words = ["infer", folder, "--texts", str(tmp_path / "texts.txt"), "--rounds", "2"]
    words += ["--out", str(tmp_path / "out.json"), "--threads", "1", "--contenders"]
    main([*words, *contenders, *lacking])
    out = capsys.readouterr().out
    assert f"{lacking[0]}: left out: the engine onnxruntime computes in" in out
    assert f"{lacking[1]}: left out: " in out
    record = json.loads((tmp_path / "out.json").read_text())
    assert [own["name"] for own in record["results"]] == contenders
    for own in record["results"]:
        assert len(own["seconds"]) == 2
        assert own["lowest_cosine"] <= own["cosine"] <= 1 + 1e-9
        least = 0.99 if "bf16" in own["name"] else 1 - 1e-6
        assert own["lowest_cosine"] > least, own["name"]
        share = own["texts_per_second"] / len(TEXTS) * record["operations"] / 1e9
        assert own["share_of_rate"] == pytest.approx(share)


@pytest.mark.parametrize(
    "name",
    ["bothways onnxruntime fp32", "sentence-transformers fp32"],
)
def test_contenders_compute_the_same_vectors(name: str, folder: str) -> None:
    loaded = load_model(folder)
    made = CONTENDERS[name](Setting(folder, loaded.tokenizer, loaded.config, 1))
    np.testing.assert_allclose(made(TEXTS), reference_vectors(folder, TEXTS), atol=1e-5)


def test_unknown_contenders_are_refused(folder: str) -> None:
    with pytest.raises(ConfigError, match="unknown contender 'fast'; choose from bothways torch"):
        bench.bench_infer(BenchInferConfig(folder, contenders=("fast",)))
    assert BenchInferConfig(folder).contenders == tuple(CONTENDERS)


def test_operations_are_a_third_of_training_without_heads() -> None:
    config = small_config((4, 64, 4, 256, 97))
    lengths = np.array([7, 30])
    whole = sum(n * training_cost(config, length=n, targets=0).whole / 3 for n in lengths.tolist())
    head = 2 * 64 * (64 + config.padded_vocab) * lengths.sum() + 2 * 2 * 64 * 64
    assert forward_operations(config, lengths) == pytest.approx(whole - head)
