"""Exported folders: every family and head, the names that others expect, 8 bits and their gate."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import bothways
from bothways import cli
from bothways.api.calls import export
from bothways.api.model import load
from bothways.batch import collate
from bothways.errors import EXTRAS, BothwaysError, ConfigError, InputError, ModelError
from bothways.exporting import export as module
from bothways.exporting.options import ExportConfig
from bothways.families import FAMILIES, config_of
from bothways.families.heads import HEADS
from bothways.model.engine import TorchEngine, load_network
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.runtime.engine import layer_name
from bothways.runtime.folder import load_model
from bothways.runtime.onnx_engine import GraphEngine
from bothways.runtime.onnx_graph import output_names, write_graph
from family_examples import EXAMPLES, perturb, rows
from model_examples import BOTH_HEADS, small_bert, small_config, small_tokenizer
from plain_forward import PlainForward

TOKENIZER = small_tokenizer(97)
LABELS = {"kind": "classification", "labels": ["a", "b", "c"]}
KINDS: dict[str, dict[str, Any]] = {
    "classifier": LABELS,
    "tagger": {"kind": "tagging", "labels": ["B-X", "I-X", "O"]},
    "span": {"kind": "spans"},
    "choice": {"kind": "choice"},
    "frozen": LABELS,
}
NAMES = {"span": ["start_logits", "end_logits"]}


def heads_of(name: str) -> list[str]:
    """One head a folder, which is what other programs read."""
    return [h for h in HEADS if h in FAMILIES[name].heads or HEADS[h].form is not None]


CASES = [
    pytest.param(name, head, id=f"{name}-{head or 'encoder'}")
    for name, example in EXAMPLES.items()
    for head in ["", *heads_of(config_of(example.config().to_dict(), where="")[0].family)]
]


def model_folder(folder: Path, name: str, head: str) -> EncoderModel:
    config, _ = config_of(EXAMPLES[name].config().to_dict(), where="file")
    heads = {head: HEADS[head].outputs or 3} if head else {}
    network = EncoderModel(config, heads=heads, seed=1).eval()
    perturb(network)
    save_model(folder, network, TOKENIZER, KINDS.get(head, {}))
    return network


@pytest.mark.parametrize(("name", "head"), CASES)
def test_every_family_and_head(name: str, head: str, tmp_path: Path) -> None:
    """torch, the file through its names, and NumPy give the same."""
    network = model_folder(tmp_path / "m", name, head)
    report = export(tmp_path / "m", tmp_path / "out")
    assert report.compared_with == "torch (fp32)"
    session = onnxruntime.InferenceSession(tmp_path / "out/onnx/model.onnx")
    found = [one.name for one in session.get_outputs()]
    assert found == NAMES.get(head, ["logits"] if head else ["last_hidden_state"])
    onnx.checker.check_model(tmp_path / "out/onnx/model.onnx", full_check=True)
    batch = collate(*rows(EXAMPLES[name]), max_positions=44)
    places = batch.bounds[:-1] if head and HEADS[head].reads == "sequence" else np.arange(7, 60)
    at, layers = ({head: places}, ()) if head else ({}, (network.config.layers,))
    expected = TorchEngine(network).compute(batch, at, layers)
    exported = load(tmp_path / "out").loaded
    assert exported.heads == ({head: HEADS[head].outputs or 3} if head else {})
    state = {key: value.numpy() for key, value in network.own_state().items()}
    for engine in (exported.engine, PlainForward(network.config, state)):
        values = engine.compute(batch, at, layers)
        assert values.keys() == expected.keys()
        for key, value in values.items():
            real = slice(0, int(batch.bounds[-1]))  # a tail is no sequence's
            np.testing.assert_allclose(value[real], expected[key][real], atol=1e-4, rtol=0)


@pytest.mark.parametrize("settings", [{"left_to_right": True}], ids=str)
def test_other_axes(settings: dict[str, Any], tmp_path: Path) -> None:
    network = small_bert(small_config(**settings), classes=3)
    save_model(tmp_path / "m", network, TOKENIZER, LABELS | {"pooled": "last"})
    export(tmp_path / "m", tmp_path / "out")
    one, two = (load(tmp_path / name).predict(["w1 w2 w3"]) for name in ("m", "out"))
    np.testing.assert_allclose(one.values, two.values, atol=1e-4)


def test_verbs_answer_as_before(tmp_path: Path) -> None:
    """Choices and pre-training heads, whose names or shapes differ most."""
    save_model(tmp_path / "c", small_bert(choices=True), TOKENIZER, KINDS["choice"])
    save_model(tmp_path / "p", small_bert(**BOTH_HEADS), TOKENIZER, {})
    for name in "cp":
        export(tmp_path / name, tmp_path / f"{name}-out")
    one, two = (load(tmp_path / name).choose("w1", ["w2", "w3 w4"]) for name in ("c", "c-out"))
    np.testing.assert_allclose(one, two, atol=1e-4)
    one_, two_ = (load(tmp_path / name) for name in ("p", "p-out"))
    pieces = [[f.piece for f in m.fill_mask("w1 [MASK] w2")[0]] for m in (one_, two_)]
    assert pieces[0] == pieces[1]
    assert one_.next_sentence("w1", "w2") == pytest.approx(two_.next_sentence("w1", "w2"), abs=1e-4)
    names = {one.name for one in onnx.load(tmp_path / "p-out/onnx/model.onnx").graph.output}
    assert names == {"logits", "seq_relationship_logits"}
    with pytest.raises(ModelError, match="gives logits, seq_relationship_logits, not the states"):
        two_.embed(["w1"])


@pytest.mark.parametrize(
    ("heads", "about"),
    [
        ({}, {}),
        (BOTH_HEADS, {}),
        ({"classes": 3}, LABELS),
        ({"tags": 3}, KINDS["tagger"]),
        ({"tags": 3}, LABELS | {"options": {"reads": "tokens"}}),
        ({"spans": True}, KINDS["span"]),
        ({"choices": True}, KINDS["choice"]),
    ],
)
def test_what_info_offers_works(
    heads: dict[str, Any],
    about: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """For a folder with weights, and for one with a graph: the commands, and what the verbs that
    are not offered would say."""
    monkeypatch.chdir(tmp_path)
    network = small_bert(replace(small_config(), positions=128), **heads)
    save_model(Path("m"), network, TOKENIZER, about)
    assert cli.main(["export", "m", "out"]) == 0
    rows = "".join(f"w{n} w{n + 1},{'ab'[n % 2]}\n" for n in range(40))
    Path("train.csv").write_text(f"text,label\n{rows}")
    uses = {
        "embed": ["embed", "FOLDER", "w1", "--out", "v.npz"],
        "finetune": ["finetune", *"--train train.csv --dev 0.2 --epochs 1 --model FOLDER".split()],
        "export": ["export", "FOLDER", "again"],
        "inspect": ["inspect", "FOLDER", "w1 w2"],
        "tokenize": ["tokenize", "FOLDER", "w1"],
    }
    for folder in ("m", "out"):
        found = bothways.info(folder)
        for command in found.next:
            words = shlex.split(command)[1:]
            assert cli.main(words) == 0, command
        done = {command.split()[1] for command in found.next}
        for verb, words in uses.items():
            if verb in done:
                continue
            shutil.rmtree("again", ignore_errors=True)
            status = cli.main([word.replace("FOLDER", folder) for word in words])
            assert status == int(verb not in found.verbs), words
    assert not {"finetune", "export", "inspect"} & {*bothways.info("out").verbs}
    capsys.readouterr()
    assert cli.main([word.replace("FOLDER", "out") for word in uses["finetune"]]) == 1
    assert "out has no weights, only a graph" in capsys.readouterr().err


def test_what_needs_weights_says_so(tmp_path: Path) -> None:
    out = exported(tmp_path, classes=3)
    said = "has no weights, only a graph, .* name the one that it was exported from"
    for call in (
        lambda: load(out).network,
        lambda: load(out).attribute("w1", method="gradients"),
        lambda: load_network(out),
        lambda: export(out, tmp_path / "two"),
        lambda: bothways.convert(out, tmp_path / "two"),
    ):
        with pytest.raises(ModelError, match=said):
            call()


@pytest.mark.parametrize(
    ("heads", "about"),
    [
        ({}, {}),
        (BOTH_HEADS, {}),
        ({"classes": 3}, LABELS),
        ({"classes": 1}, {"kind": "regression", "pair": True}),
        ({"tags": 3}, KINDS["tagger"]),
        ({"tags": 3}, LABELS | {"options": {"reads": "tokens"}}),
        ({"spans": True}, KINDS["span"] | {"pair": True}),
        ({"choices": True}, KINDS["choice"] | {"pair": True}),
    ],
)
def test_the_code_on_the_card_runs(
    heads: dict[str, Any],
    about: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """That of the libraries which are here; it names none that opens weights."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    save_model(tmp_path / "m", small_bert(**heads), TOKENIZER, about)
    export(tmp_path / "m", out := tmp_path / "out")
    card = (out / "README.md").read_text()
    assert "as an ONNX graph, without its weights" in card
    assert "library_name: onnx" in card
    blocks = [block.partition("```")[0] for block in card.split("```python\n")[1:]]
    assert len(blocks) == 2 + (not heads)
    for code in blocks:
        assert "transformers import pipeline" not in code
        assert "Transformer(" not in code or 'backend="onnx"' in code
        if "optimum" not in code and "sentence_transformers" not in code:
            exec(compile(code.replace("FOLDER", str(out)), "card", "exec"), {})
            assert capsys.readouterr().out
    assert (out / "modules.json").exists() == (not heads)
    assert (tmp_path / "m/modules.json").exists() == ("kind" not in about)


def test_the_card_says_where_vectors_are_cut(tmp_path: Path) -> None:
    save_model(tmp_path / "m", small_bert(), TOKENIZER, {"cut_at": 24})
    export(tmp_path / "m", tmp_path / "out")
    for folder in ("m", "out"):
        card = (tmp_path / folder / "README.md").read_text()
        assert "texts of up to 24 tokens" in card
        assert "Texts longer than 24 tokens are cut" in card


def test_names_of_several_heads() -> None:
    assert output_names(["tagger", "masked_lm"]) == {
        "masked_lm": ("prediction_logits",),
        "tagger": ("logits",),
    }


def test_the_same_bytes_twice(tmp_path: Path) -> None:
    save_model(tmp_path / "m", small_bert(classes=3), TOKENIZER, LABELS)
    for name in "ab":
        export(tmp_path / "m", tmp_path / name)
    files = [p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*") if p.is_file()]
    assert len(files) > 4
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_large_weights_lie_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path / "m", small_bert(classes=3), TOKENIZER, LABELS)
    monkeypatch.setattr(module, "write_graph", lambda *a, **k: write_graph(*a, **k, external=1))
    export(tmp_path / "m", tmp_path / "out")
    data = tmp_path / "out/onnx/model.onnx_data"
    assert data.stat().st_size > (tmp_path / "out/onnx/model.onnx").stat().st_size
    one, two = (load(tmp_path / name).predict(["w1 w2"]) for name in ("m", "out"))
    np.testing.assert_allclose(one.values, two.values, atol=1e-4)
    data.write_bytes(data.read_bytes()[:-4])
    with pytest.raises(
        ModelError, match=r"model.onnx_data has [\d,]+ bytes, and .*: it is truncated"
    ):
        load(tmp_path / "out").predict(["w1 w2"])


def test_folders_of_sentence_transformers_stay_such(tmp_path: Path) -> None:
    save_model(tmp_path / "m", small_bert(), TOKENIZER, {})
    (tmp_path / "m/bothways.json").unlink()
    (tmp_path / "m/1_Pooling").mkdir(exist_ok=True)
    (tmp_path / "m/1_Pooling/config.json").write_text('{"pooling_mode_cls_token": true}')
    types = "sentence_transformers.models."
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    listed = [{"path": path, "type": types + kind} for path, kind in modules]
    (tmp_path / "m/modules.json").write_text(json.dumps(listed))
    export(load(tmp_path / "m"), tmp_path / "out")
    assert (tmp_path / "out/modules.json").exists()
    assert (tmp_path / "out/1_Pooling/config.json").exists()
    one, two = (load(tmp_path / name).embed(["w1 w2", "w3"]) for name in ("m", "out"))
    np.testing.assert_allclose(one, two, atol=1e-5)
    with pytest.raises(ModelError, match="gives last_hidden_state, not the states of layer 0"):
        load(tmp_path / "out").embed(["w1"], layers=[0])


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(tmp_path / "lstm", small_bert(classes=3, lstm=5), TOKENIZER, LABELS)
    save_model(tmp_path / "m", small_bert(classes=3), TOKENIZER, LABELS)
    with pytest.raises(ModelError, match="BiLSTM under its task head"):
        export(tmp_path / "lstm", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="exists already"):
        export(tmp_path / "m", tmp_path / "m")
    export(tmp_path / "m", tmp_path / "out")
    with pytest.raises(ModelError, match="has no weights, only a graph"):
        export(tmp_path / "out", tmp_path / "again")
    with pytest.raises(ConfigError, match="torch does not compute a graph"):
        load(tmp_path / "out", engine="torch")
    assert cli.main(["export", str(tmp_path / "m"), str(tmp_path / "x"), "--int8"]) == 1
    assert "int8 needs a dev file" in capsys.readouterr().err


def test_a_graph_that_differs_is_not_given_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path / "m", small_bert(classes=3), TOKENIZER, LABELS)
    monkeypatch.setattr(module, "CLOSE", 0.0)
    with pytest.raises(ModelError, match=r"the graph's outputs \(classifier\) differ by .* torch"):
        export(tmp_path / "m", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_compares_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path / "m", small_bert(classes=3), TOKENIZER, LABELS)

    original = module.load_model

    def without_torch(folder: Path, **options: Any) -> Any:
        if options:
            raise ConfigError("the engine torch needs torch")
        return original(folder)

    monkeypatch.setattr(module, "load_model", without_torch)
    report = export(tmp_path / "m", tmp_path / "out")
    assert (report.compared_with, report.difference) == ("", None)
    assert "not compared" in str(report)


# ------------------------------------------------------------------------------ folders of others


def exported(folder: Path, **heads: Any) -> Path:
    """A folder as another program exports it: nothing of ours in it."""
    about = LABELS if "classes" in heads else {}
    save_model(folder / "m", small_bert(**heads), TOKENIZER, about)
    export(folder / "m", folder / "out")
    (folder / "out/bothways.json").unlink()
    return folder / "out"


def test_a_folder_of_another_program_is_opened(tmp_path: Path) -> None:
    out = exported(tmp_path, classes=3)
    one, two = (load(path).predict(["w1 w2", "w3"]) for path in (tmp_path / "m", out))
    np.testing.assert_allclose(one.values, two.values, atol=1e-4)
    assert load(out).loaded.engine.name == "onnxruntime"
    assert bothways.diagnose(out) == []


def test_labels_that_are_no_map_are_passed_over(tmp_path: Path) -> None:
    out = exported(tmp_path, classes=3)
    values = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**values, "id2label": 7, "label2id": 7}))
    assert load(out).classes_ == ["LABEL_0", "LABEL_1", "LABEL_2"]


def test_other_outputs_are_refused_by_name(tmp_path: Path) -> None:
    out = exported(tmp_path)
    values = json.loads((out / "config.json").read_text())
    values["architectures"] = ["BertForQuestionAnswering"]
    (out / "config.json").write_text(json.dumps(values))
    with pytest.raises(ModelError, match=r"outputs last_hidden_state, and no start_logits"):
        load(out)


def test_damaged_graphs_are_named(tmp_path: Path) -> None:
    out = exported(tmp_path)
    path = out / "onnx/model.onnx"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=r"onnx/model.onnx is missing, damaged or truncated"):
        load(out).embed(["w1"])
    path.write_bytes(b"")
    with pytest.raises(ModelError, match=r"onnx/model.onnx has the outputs , and no"):
        load(out).embed(["w1"])
    export(tmp_path / "m", tmp_path / "ours")
    graph = onnx.load(tmp_path / "ours/onnx/model.onnx")
    graph.producer_version = "another"
    onnx.save(graph, tmp_path / "ours/onnx/model.onnx")
    with pytest.raises(ModelError, match="not the file that belongs to this folder"):
        load(tmp_path / "ours").embed(["w1"])
    assert "not the file that belongs" in bothways.diagnose(tmp_path / "ours")[0]


def test_another_size_is_refused(tmp_path: Path) -> None:
    out = exported(tmp_path)
    save_model(tmp_path / "wide", small_bert(small_config((2, 64, 4, 50, 97))), TOKENIZER, {})
    shutil.copy(tmp_path / "wide/config.json", out / "config.json")
    with pytest.raises(ModelError, match=r"config.json, 64; they do not belong together"):
        load(out)


# ---------------------------------------------------------------------------------------- 8 bits


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A classifier, and a dev file whose labels are what it predicts."""
    folder = tmp_path_factory.mktemp("task")
    options = {"kind": "classification", "labels": ["a", "b", "c"], "metrics": ["accuracy"]}
    about = {**LABELS, "options": options}
    network = small_bert(small_config((3, 64, 4, 128, 97)), classes=3)
    save_model(folder / "m", network, TOKENIZER, about)
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{i}" for i in rng.integers(0, 90, n % 25 + 1)) for n in range(90)]
    labels = load(folder / "m").predict(texts).labels
    lines = ["sentence\tlabel", *(f"{a}\t{b}" for a, b in zip(texts, labels, strict=True))]
    (folder / "dev.tsv").write_text("\n".join(lines) + "\n")
    return folder / "m", folder / "dev.tsv"


@pytest.fixture(scope="module")
def of_8_bits(task: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("int8") / "out"
    limits = {"speedup": 0, "agreement": 0.9, "metric_loss": 10.0}
    report = export(task[0], out, int8=True, gate=task[1], **limits)
    assert report.int8 is not None
    assert report.int8.holds
    assert report.int8.fp32 == 1.0
    return out


def test_what_holds_is_written_and_used(of_8_bits: Path, task: tuple[Path, Path]) -> None:
    about = json.loads((of_8_bits / "bothways.json").read_text())["export"]
    assert about["int8"]["holds"]
    files = json.loads((of_8_bits / "checksums.json").read_text())["files"]
    assert {"onnx/model.onnx", "onnx/model_quantized.onnx", "config.json"} < set(files)
    model = load(of_8_bits, precision="int8")
    assert (model.loaded.engine.name, model.loaded.engine.precision) == ("onnxruntime", "int8")
    texts = ["w1 w2 w3", "w5"]
    one, two = model.predict(texts).values, load(task[0]).predict(texts).values
    assert 0 < np.abs(one - two).max() < 0.1
    with pytest.raises(ConfigError, match="in int8 a folder that was exported and measured"):
        load(task[0], precision="int8")


def test_a_graph_of_other_weights_is_named(
    of_8_bits: Path, task: tuple[Path, Path], tmp_path: Path
) -> None:
    """Where nothing else tells, as shapes and names are the same."""
    folder = tmp_path / "m"
    shutil.copytree(task[0], folder)
    (folder / "checksums.json").unlink()
    shutil.copytree(of_8_bits / "onnx", folder / "onnx")
    assert bothways.diagnose(folder) == []
    load(folder, precision="int8")
    theirs = tmp_path / "theirs"
    save_model(theirs, small_bert(small_config((3, 64, 4, 128, 97)), classes=3, seed=7), TOKENIZER)
    shutil.copy(theirs / "model.safetensors", folder)
    one, two = bothways.diagnose(folder)
    assert "onnx/model.onnx was not made from the weights beside it" in one
    assert "onnx/model_quantized.onnx was not made from the weights beside it" in two
    with pytest.raises(ModelError, match=r"model_quantized\.onnx was not made from the weights"):
        load(folder, precision="int8")
    (folder / "onnx/model.onnx").write_bytes(b"x")
    assert any("model.onnx is damaged" in problem for problem in bothways.diagnose(folder))


def test_a_graph_of_8_bits_of_another_model_is_named(of_8_bits: Path, tmp_path: Path) -> None:
    """In a folder with a graph alone: by the list of its files, or where there is none, by the
    graph beside it."""
    theirs = small_bert(small_config((3, 64, 4, 128, 97)), classes=3, seed=7)
    save_model(tmp_path / "m", theirs, TOKENIZER, LABELS)
    export(tmp_path / "m", out := tmp_path / "out")
    assert bothways.diagnose(out) == []
    shutil.copy(of_8_bits / "onnx/model_quantized.onnx", out / "onnx")
    not_listed = r"model_quantized\.onnx is not among the files of checksums\.json"
    for folder in (out, tmp_path / "m"):
        (folder / "onnx").mkdir(exist_ok=True)
        shutil.copy(of_8_bits / "onnx/model_quantized.onnx", folder / "onnx")
        problems = "\n".join(bothways.diagnose(folder))
        assert problems.count("model_quantized.onnx was not ") == 1
        load(folder)
        (folder / "checksums.json").rename(tmp_path / "sums")
        with pytest.raises(ModelError, match=r"quantized\.onnx was not (of|made from) "):
            load(folder, precision="int8")
        (tmp_path / "sums").rename(folder / "checksums.json")
    # Vectors do not tell two heads on one encoder: the list of the files does.
    shutil.copytree(of_8_bits, tmp_path / "same")
    sums = tmp_path / "same/checksums.json"
    values = json.loads(sums.read_text())
    del values["files"]["onnx/model_quantized.onnx"]
    sums.write_text(json.dumps(values, indent=2) + "\n")
    (problem,) = bothways.diagnose(tmp_path / "same")
    assert re.search(not_listed, problem)
    with pytest.raises(ModelError, match=f"{not_listed}.*remove checksums.json"):
        load(tmp_path / "same", precision="int8")
    sums.unlink()
    assert bothways.diagnose(tmp_path / "same") == []
    load(tmp_path / "same", precision="int8")


def test_what_the_doctor_advises_for_a_graph(tmp_path: Path) -> None:
    save_model(tmp_path / "m", small_bert(classes=3), TOKENIZER, LABELS)
    export(tmp_path / "m", out := tmp_path / "out")
    settings = out / "tokenizer_config.json"
    settings.write_text(settings.read_text() + " ")
    (problem,) = bothways.diagnose(out)
    assert problem.endswith("Copy it again, or export the model again (`bothways export`)")
    (out / "onnx/model.onnx").unlink()
    for call in (load_model, load):
        with pytest.raises(ModelError, match=r"onnx/model\.onnx is missing"):
            call(out)
    one, two = bothways.diagnose(out)
    assert "model.onnx is missing" in one
    assert two.endswith("Copy it again")


def test_columns_of_a_gate_are_named(task: tuple[Path, Path], tmp_path: Path) -> None:
    """For a model of a task, and of vectors."""
    rows = task[1].read_text().splitlines()[1:]
    (tmp_path / "own.tsv").write_text("\n".join(["said\tmeant", *rows]) + "\n")
    limits = {"speedup": 0, "agreement": 0.5, "metric_loss": 99.0, "lowest": 0.0}
    gate = {"int8": True, "gate": tmp_path / "own.tsv", **limits}
    with pytest.raises(InputError, match=r"no column 'text'; the columns are 'said', 'meant'"):
        export(task[0], tmp_path / "one", **gate)
    report = export(task[0], tmp_path / "one", **gate, text="said", label="meant")
    assert report.int8 is not None
    assert (report.int8.fp32, report.int8.texts) == (1.0, len(rows))
    save_model(tmp_path / "v", small_bert(small_config((3, 64, 4, 128, 97))), TOKENIZER, {})
    report = export(tmp_path / "v", tmp_path / "two", **gate, text="said")
    assert report.int8 is not None
    assert report.int8.texts == len(rows)
    with pytest.raises(ConfigError, match="on which a model without a task head is not measured"):
        export(tmp_path / "v", tmp_path / "three", **gate, label="meant")
    with pytest.raises(ConfigError, match="task and text both say which columns"):
        export(task[0], tmp_path / "three", **gate, text="said", task="sst2")


def test_bits_do_not_depend_on_the_batch(of_8_bits: Path) -> None:
    """Alone, in random batches, and beside a long text."""
    engine = load(of_8_bits, precision="int8").loaded.engine
    rng = np.random.default_rng(1)
    texts = [rng.integers(5, 97, n).tolist() for n in rng.integers(2, 40, 24)]

    def run(which: list[int]) -> Any:
        batch = collate(
            [texts[n] for n in which], [[0] * len(texts[n]) for n in which], max_positions=40
        )
        return engine.compute(batch, {"classifier": batch.bounds[:-1]})["classifier"]

    alone = np.concatenate([run([n]) for n in range(len(texts))])
    for _ in range(20):
        which = rng.permutation(len(texts))[: rng.integers(2, len(texts))].tolist()
        np.testing.assert_array_equal(run(which), alone[which])


def test_8_bits_have_the_same_bytes_twice(
    of_8_bits: Path, task: tuple[Path, Path], tmp_path: Path
) -> None:
    limits = {"speedup": 0, "agreement": 0.9, "metric_loss": 10.0}
    export(task[0], tmp_path / "b", int8=True, gate=task[1], **limits)
    for name in ("onnx/model_quantized.onnx", "bothways.json"):
        assert (of_8_bits / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_what_does_not_hold_is_not_written(
    task: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", task[0], tmp_path / "out", "--int8", "--gate", task[1]]
    limits = ["--speedup", "1000"]
    assert cli.main([*map(str, words), *limits]) == 1
    printed = capsys.readouterr().out
    assert "model_quantized.onnx was not written: " in printed
    assert "times as fast as fp32 here, below 1000" in printed
    assert "best attempt on" in printed
    assert [p.name for p in (tmp_path / "out/onnx").iterdir()] == ["model.onnx"]
    assert load(tmp_path / "out").predict(["w1"]).labels


def test_the_worst_layers_go_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(f"w{i} w{i + 1} w7" for i in range(1, 40)))
    save_model(tmp_path / "v", small_bert(small_config((3, 64, 4, 128, 97))), TOKENIZER, {})
    texts = tmp_path / "texts.txt"
    limits = {"speedup": 0, "agreement": 0.5, "lowest": 1.0}
    told: list[tuple[str, int, int]] = []
    with monkeypatch.context() as patch:
        patch.setattr(
            "bothways.exporting.export.progress_of_stages",
            lambda: nullcontext(lambda *stage: told.append(stage)),
        )
        report = export(tmp_path / "v", tmp_path / "out", int8=True, gate=texts, **limits)
    stages = dict.fromkeys(stage for stage, _, _ in told)
    attempts = [f"in 8 bits, attempt {n}" for n in (1, 2)]
    assert {*stages} == {"calibrating", "in fp32", "ranking maps", *attempts}
    for stage in stages:  # each goes to its end
        counts = [(done, total) for name, done, total in told if name == stage]
        assert counts == sorted(counts)
        assert counts[-1][0] == counts[-1][1]
    assert report.int8 is not None
    assert not report.int8.holds
    attempts = report.int8.attempts
    assert [len(one.exact) for one in attempts] == [0, 4]
    lowest = [one.agreement["lowest cosine with fp32"] for one in attempts]
    assert lowest[-1] > lowest[0]
    assert not (tmp_path / "out/onnx/model_quantized.onnx").exists()
    between = (lowest[0] + lowest[-1]) / 2
    limits |= {"lowest": between}
    report = export(tmp_path / "v", tmp_path / "two", int8=True, gate=texts, **limits)
    assert report.int8 is not None
    assert report.int8.holds
    assert report.int8.best.exact


def with_outliers(network: EncoderModel, size: float, unit: int = 7) -> EncoderModel:
    """The same function in fp32, computed with one unit of each layer's states and of its values
    that is larger than all others by ``size``: a bias adds that, and the maps that read it, and the
    sums that pass it on, take it away again. Outliers like these are what 8 bits lose most by."""
    hidden = network.config.hidden
    norm = network.encoder.embeddings.norm
    with torch.no_grad():
        for layer in network.encoder.layers:
            attention = layer.attention
            norm.bias[unit] += size
            attention.qkv.bias -= size * attention.qkv.weight[:, unit]
            attention.output.bias[unit] -= size
            attention.qkv.bias[2 * hidden + unit] += size
            attention.output.bias -= size * attention.output.weight[:, unit]
            layer.attention_norm.bias[unit] += size
            layer.expand.bias -= size * layer.expand.weight[:, unit]
            layer.contract.bias[unit] -= size
            norm = layer.norm
    return network


@pytest.mark.slow
def test_a_model_with_outliers_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trained one, with and without them."""
    ours, theirs = (load_network("mini-en") for _ in range(2))
    tokenizer = load_model("mini-en").tokenizer
    for name, network in (("plain", ours), ("outliers", with_outliers(theirs, 500.0))):
        save_model(tmp_path / name, network, tokenizer, {})
    texts = [
        f"The {who} {did} the {what} {when}."
        for who in ("captain", "old doctor", "children")
        for did in ("found", "had forgotten")
        for what in ("letter", "house by the river")
        for when in ("before dinner", "at last, and laughed", "in the winter of 1871")
    ]
    vectors = [load(tmp_path / name).embed(texts) for name in ("plain", "outliers")]
    np.testing.assert_allclose(*vectors, atol=2e-3)
    gate = tmp_path / "texts.txt"
    gate.write_text("\n".join(texts) + "\n")
    words = ["--int8", "--gate", str(gate), "--speedup", "0"]
    assert cli.main(["export", str(tmp_path / "plain"), str(tmp_path / "a"), *words]) == 0
    capsys.readouterr()
    assert cli.main(["export", str(tmp_path / "outliers"), str(tmp_path / "b"), *words]) == 1
    printed = capsys.readouterr().out
    assert "model_quantized.onnx was not written: share equal to fp32 is 0." in printed
    assert "the best of 2 attempts on 36 texts: " in printed
    assert "encoder.layers.0.attention.qkv" in printed, "what was computed in fp32"
    assert [p.name for p in (tmp_path / "b/onnx").iterdir()] == ["model.onnx"]
    about = json.loads((tmp_path / "b/bothways.json").read_text())["export"]
    assert not about["int8"]["holds"]


@pytest.mark.parametrize("head", ["tagger", "frozen", "span", "choice", "masked_lm"])
def test_gates_of_other_heads(head: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"kind": KINDS.get(head, {}).get("kind")}
    heads: dict[str, Any] = {
        "tagger": {"tags": 3},
        "frozen": {"tags": 3, "seed": 1},
        "span": {"spans": True},
        "choice": {"choices": True},
        "masked_lm": BOTH_HEADS,
    }
    words = [" ".join(f"w{(7 * n + i) % 90}" for i in range(12)) for n in range(20)]
    gate = tmp_path / "dev.txt"
    if head == "tagger":
        gate = tmp_path / "dev.conll"
        lines = ("\n".join(f"{word} O" for word in text.split()) for text in words)
        gate.write_text("\n\n".join(lines) + "\n")
        options |= {"labels": KINDS[head]["labels"], "tagging": {"scheme": "iob2"}}
    elif head == "frozen":  # labels of texts by the head for tokens
        gate = tmp_path / "dev.tsv"
        options |= {"reads": "tokens", "text": "sentence", "label": "label"}
        rows = [f"{text}\t{'abc'[n % 3]}" for n, text in enumerate(words)]
        gate.write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    elif head == "span":
        gate = tmp_path / "dev.json"
        qas = [
            {"id": str(n), "question": "w1 w2", "answers": [{"text": "w3", "answer_start": 0}]}
            for n in range(20)
        ]
        paragraphs = [
            {"context": f"w3 {text}", "qas": [qa]} for text, qa in zip(words, qas, strict=True)
        ]
        content = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
        gate.write_text(json.dumps(content))
    elif head == "choice":
        gate = tmp_path / "dev.tsv"
        options |= {"text": "a", "label": "label", "choices": ["x", "y"]}
        lines_ = [f"{text}\tw{n} w2\tw{4 * n}\t{n % 2}" for n, text in enumerate(words)]
        gate.write_text("\n".join(["a\tx\ty\tlabel", *lines_]) + "\n")
    else:
        gate.write_text("\n".join(words) + "\n")
    about = {**KINDS.get(head, {}), **({"options": options} if options["kind"] else {})}
    save_model(tmp_path / "m", small_bert(**heads[head]), TOKENIZER, about)
    limits = {"speedup": 0, "agreement": 0.3, "metric_loss": 100.0}
    report = export(tmp_path / "m", tmp_path / "out", int8=True, gate=gate, **limits)
    assert report.int8 is not None
    assert report.int8.holds, report.int8.lines(tmp_path)
    assert report.int8.texts == 20
    if head == "frozen":
        labels = [
            load(tmp_path / "out", engine="onnxruntime", precision=precision).predict(words).labels  # type: ignore[arg-type]
            for precision in ("fp32", "int8")
        ]
        equal = sum(a == b for a, b in zip(*labels, strict=True)) / len(words)
        assert equal == pytest.approx(report.int8.best.agreement["share equal to fp32"])


def test_errors_of_a_gate_leave_nothing(task: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(BothwaysError):
        export(task[0], tmp_path / "out", int8=True, gate=tmp_path / "none.tsv")
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_one_answer_is_no_gate(task: tuple[Path, Path], tmp_path: Path) -> None:
    """A model that has collapsed answers in 8 bits as in fp32, whatever 8 bits do to it."""
    header, first, *_ = task[1].read_text(encoding="utf-8").splitlines()
    gate = tmp_path / "same.tsv"
    gate.write_text("\n".join([header, *[first] * 9]) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"same\.tsv: in fp32 the model gives one answer"):
        export(task[0], tmp_path / "out", int8=True, gate=gate)
    assert list(tmp_path.iterdir()) == [gate]


def test_layers_are_the_last_alone(tmp_path: Path) -> None:
    out = exported(tmp_path)
    engine = load_model(out).engine
    batch = collate([[5, 6]], [[0, 0]], max_positions=9)
    last = small_config().layers
    assert engine.compute(batch, layers=(last,)).keys() == {layer_name(last)}


PAGE = Path(__file__).parents[2] / "docs" / "export.md"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_page_holds(
    task: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its commands and its Python run, but with limits that a model of noise holds."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(task[0], "runs/reviews/seed-0/model")
    shutil.copyfile(task[1], "dev.tsv")
    loose = ["--speedup", "0", "--set", "agreement=0.9", "--metric-loss", "10"]
    lines = [line for kind, text in BLOCKS if kind == "console" for line in text.splitlines()]
    for line in lines:
        words = shlex.split(line)[2:]
        assert cli.main([*words, *(loose if "--int8" in words else [])]) == 0, line
    for code in [text for kind, text in BLOCKS if kind == "python"]:
        exec(compile(code, str(PAGE), "exec"), {})
    assert "exported-too/onnx/model.onnx" in capsys.readouterr().out
    table = {row.split("|")[1].strip(" `") for row in PAGE.read_text().splitlines() if "|" in row}
    assert set(EXTRAS.values()) - {"bench"} <= table
    shown = dict(
        re.findall(r"`(?:--)?(agreement|lowest|metric-loss|speedup)` \| ([\d.]+)", PAGE.read_text())
    )
    config = ExportConfig("m", "out")
    assert {name.replace("-", "_"): float(value) for name, value in shown.items()} == {
        "agreement": 0.99,
        **{name: getattr(config, name) for name in ("lowest", "metric_loss", "speedup")},
    }


def test_auto_takes_what_computes_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest of all may not compute a folder with a graph alone; int8 is never taken."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fast = classmethod(lambda *_: {"fp32": 1.0, "bf16": 0.1})
    monkeypatch.setattr(TorchEngine, "product_seconds", fast)
    monkeypatch.setattr(GraphEngine, "product_seconds", classmethod(lambda *_: {"fp32": 2.0}))
    out = exported(tmp_path, classes=3)
    found = load(out, precision="auto").loaded
    assert (found.engine.name, found.engine.precision) == ("onnxruntime", "fp32")
    found = load(tmp_path / "m", precision="auto").loaded
    assert (found.engine.name, found.engine.precision) == ("torch", "bf16")


def change_graph(path: Path, change: Callable[[Any], None]) -> None:
    graph = onnx.load(path)
    change(graph)
    onnx.save(graph, path)


def test_inputs_of_graphs_of_other_programs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In 32 bits, as from TensorFlow; of one length; under other names; with values elsewhere."""
    out = exported(tmp_path, classes=3)
    path = out / "onnx/model.onnx"
    one = load(tmp_path / "m").predict(["w1 w2", "w3"])

    def in_32_bits(model: Any) -> None:
        for value in model.graph.input:
            value.type.tensor_type.elem_type = onnx.TensorProto.INT32
        for value in list(model.graph.input):
            wide = f"{value.name}_wide"
            for node in model.graph.node:
                node.input[:] = [wide if name == value.name else name for name in node.input]
            cast = onnx.helper.make_node("Cast", [value.name], [wide], to=onnx.TensorProto.INT64)
            model.graph.node.insert(0, cast)

    change_graph(path, in_32_bits)
    (out / "checksums.json").unlink(missing_ok=True)
    np.testing.assert_allclose(load(out).predict(["w1 w2", "w3"]).values, one.values, atol=1e-4)

    def of_one_length(model: Any) -> None:
        for value in model.graph.input:
            value.type.tensor_type.shape.dim[0].dim_value = 7

    change_graph(path, of_one_length)
    with pytest.raises(ModelError, match=r"one number of texts.*axes that vary"):
        load(out).predict(["w1 w2", "w3"])

    def renamed(model: Any) -> None:
        old = model.graph.input[0].name
        model.graph.input[0].name = "input"
        for node in model.graph.node:
            node.input[:] = ["input" if name == old else name for name in node.input]

    change_graph(path, renamed)
    with pytest.raises(ModelError, match="which are not known here: a graph of an encoder has"):
        load(out).predict(["w1 w2", "w3"])
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="data.bin", size_threshold=0)
    (path.parent / "data.bin").write_text("version https://git-lfs.github.com/spec/v1\noid 0\n")
    capfd.readouterr()
    with pytest.raises(ModelError, match=r"data\.bin.*git-lfs.*values of model\.onnx"):
        load(out).predict(["w1 w2", "w3"])
    (path.parent / "data.bin").unlink()
    with pytest.raises(ModelError, match=r"data\.bin.*does not exist.*values of model\.onnx"):
        load(out).predict(["w1 w2", "w3"])
    assert "onnxruntime:" not in capfd.readouterr().err
