"""Model folders: what is written, what is read back, what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bothways.api.doctor import diagnose
from bothways.errors import DiskError, ModelError
from bothways.model.engine import load_network, network_of
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.runtime.folder import load_model
from bothways.runtime.weights import weight_files
from model_examples import BOTH_HEADS, SHAPES, small_bert, small_config, small_tokenizer

FILES = {
    "README.md",
    "checksums.json",
    "bothways.json",
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
}


MODULES = {"modules.json", "1_Pooling"}
"""Of a model without a task: how vectors are made of it."""


def _saved(
    tmp_path: Path, model: EncoderModel | None = None, about: dict[str, Any] | None = None
) -> Path:
    model = model or small_bert(**BOTH_HEADS)
    save_model(tmp_path / "model", model, small_tokenizer(model.config.vocab_size), about)
    return tmp_path / "model"


def _rewrite(folder: Path, change: dict[str, Tensor | None]) -> None:
    weights: dict[str, Any] = {**load_file(folder / "model.safetensors"), **change}
    kept = {name: value for name, value in weights.items() if value is not None}
    save_file(kept, folder / "model.safetensors")


def _change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# ------------------------------------------------------------------------------------- round trip


@pytest.mark.parametrize(
    "heads",
    [
        {},
        BOTH_HEADS,
        {"classes": 3},
        {**BOTH_HEADS, "classes": 1},
    ],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_model_comes_back_bit_identical(
    shape: tuple[int, ...], heads: dict[str, Any], tmp_path: Path
) -> None:
    model = small_bert(small_config(shape), **heads)
    folder = _saved(tmp_path, model)
    modules = set() if "classes" in heads else MODULES
    assert {path.name for path in folder.iterdir()} == FILES | modules
    loaded = load_model(folder)
    ours, theirs = model.state_dict(), network_of(loaded).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert loaded.config == model.config
    assert not network_of(loaded).training
    assert (loaded.unused, loaded.fresh) == ([], [])
    assert loaded.tokenizer.fingerprint == small_tokenizer(shape[4]).fingerprint


def test_whoever_may_read_the_config_may_read_the_weights(tmp_path: Path) -> None:
    modes = {path.stat().st_mode for path in _saved(tmp_path).rglob("*") if path.is_file()}
    assert len(modes) == 1


def test_saving_twice_writes_the_same_bytes(tmp_path: Path) -> None:
    first = _saved(tmp_path / "a")
    second = _saved(tmp_path / "b", load_network(first))
    for name in FILES:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    model = small_bert(**BOTH_HEADS)
    folder = _saved(tmp_path / os.fsdecode(b"mod\xe8le"), model)
    theirs = load_network(folder).state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in model.state_dict().items())
    (folder / "model.safetensors").write_bytes(b"\x08")
    with pytest.raises(ModelError, match="is damaged or truncated"):
        load_model(folder)


def test_one_pretraining_head_alone_comes_back_alone(tmp_path: Path) -> None:
    model = small_bert(**BOTH_HEADS)
    model.next_sentence = None
    folder = _saved(tmp_path, model)
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    loaded = load_network(folder)
    assert loaded.masked_lm is not None
    assert loaded.next_sentence is None


def test_about_and_labels_come_back(tmp_path: Path) -> None:
    about: dict[str, Any] = {"task": "x", "kind": "classification", "labels": ["no", "yes", "ja"]}
    folder = _saved(tmp_path, small_bert(classes=3), about)
    assert load_model(folder).about == {"format": 2, **about}
    kept = {"format": 2, "steps": 3, "tasks": {"classifier": about}}
    save_model(folder, load_network(folder), small_tokenizer(97), {"steps": 3, **about})
    assert json.loads((folder / "bothways.json").read_text()) == kept
    # As 0.1 wrote it.
    (folder / "bothways.json").write_text(json.dumps({"format": 1, "steps": 3, **about}))
    assert load_model(folder).about == {"format": 1, "steps": 3, **about}
    (folder / "bothways.json").write_text(json.dumps({"format": 3}))
    with pytest.raises(ModelError, match=r"has the format 3; .* up to 2"):
        load_model(folder)
    values = json.loads((folder / "config.json").read_text())
    assert values["id2label"] == {"0": "no", "1": "yes", "2": "ja"}
    (folder / "bothways.json").unlink()  # as in a foreign folder
    assert load_model(folder).about == {"kind": "classification", "labels": about["labels"]}


@pytest.mark.parametrize("labels", [["a", "b"], ["a", "b", "a"], ["a", "b", "c", "d"]])
def test_labels_that_do_not_fit_the_head_are_refused(labels: list[str], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"3 outputs but the labels are"):
        _saved(tmp_path, small_bert(classes=3), {"labels": labels})
    assert not (tmp_path / "model").exists()


def test_saving_replaces_the_whole_folder(tmp_path: Path) -> None:
    folder = _saved(tmp_path)
    (folder / "pytorch_model.bin").write_bytes(b"of another model")
    _saved(tmp_path, small_bert(small_config(SHAPES[1])))
    assert {path.name for path in folder.iterdir()} == FILES | MODULES
    assert load_model(folder).config.vocab_size == 128
    assert not list(tmp_path.glob(".partial*"))


@pytest.mark.parametrize("heads", [BOTH_HEADS, {"classes": 3}, {"tags": 3}, {"spans": True}])
def test_weights_are_contiguous_however_they_were_pickled(
    tmp_path: Path, heads: dict[str, Any]
) -> None:
    folder, model = tmp_path / "model", small_bert(small_config(), **heads)
    save_model(folder, model, small_tokenizer(97))
    state = load_file(folder / "model.safetensors")
    turned = {n: v.t().contiguous().t() if v.ndim == 2 else v for n, v in state.items()}
    flat = "bert.encoder.layer.0.output.dense.bias"
    turned[flat] = torch.zeros(1).expand_as(state[flat])
    assert not any(v.is_contiguous() for v in turned.values() if v.ndim == 2 and len(v) > 1)
    (folder / "model.safetensors").unlink()
    torch.save(turned, folder / "pytorch_model.bin")
    loaded = load_network(folder).state_dict()
    expected = model.state_dict()
    for name, value in loaded.items():
        assert value.is_contiguous(), name
        assert value.stride() == expected[name].stride(), name
    changed = [name for name, value in loaded.items() if not torch.equal(value, expected[name])]
    assert len(changed) == 1
    assert not loaded[changed[0]].any()


def test_a_failed_write_leaves_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _saved(tmp_path)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def full(*_: Any, **__: Any) -> None:
        raise SafetensorError("No space left on device")

    monkeypatch.setattr("bothways.model.weight_files.save_file", full)
    with pytest.raises(DiskError, match=r"model\.safetensors.*No space left"):
        _saved(tmp_path, small_bert(small_config(SHAPES[1])))
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_saving_with_a_vocabulary_of_another_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="98 pieces but the model has 97"):
        save_model(tmp_path / "model", small_bert(), small_tokenizer(98))
    assert not list(tmp_path.iterdir())


# ----------------------------------------------------------------------------- foreign weight files


def _as_bin(folder: Path, *, old_names: bool) -> dict[str, Tensor]:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if old_names:
        weights = {
            name.removeprefix("bert.")
            .replace("LayerNorm.weight", "LayerNorm.gamma")
            .replace("LayerNorm.bias", "LayerNorm.beta"): value
            for name, value in weights.items()
        }
    torch.save(weights, folder / "pytorch_model.bin")
    return weights


@pytest.mark.parametrize("old_names", [False, True])
def test_a_bin_file_of_plain_weights_loads(old_names: bool, tmp_path: Path) -> None:
    model = small_bert(**BOTH_HEADS)
    folder = _saved(tmp_path, model)
    _as_bin(folder, old_names=old_names)
    loaded = load_model(folder)
    ours, theirs = model.state_dict(), network_of(loaded).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert (loaded.unused, loaded.fresh) == ([], [])


class _Hostile:
    def __init__(self, target: Path):
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("zipped", [False, True])
def test_a_bin_file_with_code_is_refused_and_not_run(zipped: bool, tmp_path: Path) -> None:
    folder = _saved(tmp_path)
    (folder / "model.safetensors").unlink()
    content = {"weight": torch.zeros(2), "run": _Hostile(tmp_path / "owned")}
    path = folder / "pytorch_model.bin"
    if zipped:
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(ModelError, match=r"pytorch_model\.bin .*arbitrary code"):
        load_model(folder)
    assert not (tmp_path / "owned").exists()


def _in_parts(folder: Path, ending: str) -> list[Path]:
    """Save the weights in three parts with an index, as ``save_pretrained(max_shard_size=...)``."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    whole = "model.safetensors" if ending == "safetensors" else "pytorch_model.bin"
    names = [f"{whole.split('.')[0]}-0000{n}-of-00003.{ending}" for n in (1, 2, 3)]
    parts: list[dict[str, Tensor]] = [{}, {}, {}]
    for number, (name, value) in enumerate(weights.items()):
        parts[number % 3][name] = value
    for name, part in zip(names, parts, strict=True):
        save_file(part, folder / name) if ending == "safetensors" else torch.save(
            part, folder / name
        )
    where = {w: n for n, part in zip(names, parts, strict=True) for w in part}
    (folder / f"{whole}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return [folder / name for name in names]


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_weights_in_parts_load(ending: str, tmp_path: Path) -> None:
    model = small_bert(**BOTH_HEADS)
    folder = _saved(tmp_path, model)
    parts = _in_parts(folder, ending)
    assert weight_files(folder) == parts
    loaded = load_model(folder)
    ours, theirs = model.state_dict(), network_of(loaded).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert (loaded.unused, loaded.fresh) == ([], [])


def test_weights_that_transformers_saves_in_parts_load(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = small_bert(**BOTH_HEADS)
    folder = _saved(tmp_path, model)
    theirs = transformers.BertForPreTraining.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    theirs.save_pretrained(folder, max_shard_size="8KB")
    assert len(weight_files(folder)) > 2
    loaded = load_network(folder).state_dict()
    assert all(torch.equal(value, loaded[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_a_missing_or_damaged_part_is_named(ending: str, tmp_path: Path) -> None:
    folder = _saved(tmp_path)
    part = _in_parts(folder, ending)[1]
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(ModelError, match=rf"00002-of-00003\.{ending} is damaged"):
        load_model(folder)
    part.unlink()
    with pytest.raises(ModelError, match=rf"index\.json lists .*00002.*{ending}, .*all 3 parts"):
        load_model(folder)


@pytest.mark.parametrize(
    "index",
    [
        "{",
        "[]",
        "{}",
        '{"weight_map": []}',
        '{"weight_map": {"a": 3}}',
        '{"weight_map": {"a": ["x"]}}',
        '{"weight_map": {"a": "../model.safetensors"}}',
        '{"weight_map": {"a": "pytorch_model.bin"}}',
    ],
)
def test_a_damaged_index_of_parts_is_named(index: str, tmp_path: Path) -> None:
    folder = _saved(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json is damaged"):
        load_model(folder)


@pytest.mark.parametrize("content", [[torch.zeros(2)], {"model": {}}, {"step": 3}, torch.zeros(3)])
def test_a_bin_file_of_something_else_is_refused(content: Any, tmp_path: Path) -> None:
    folder = _saved(tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin holds no weights"):
        load_model(folder)


def test_half_precision_weights_load_as_fp32(tmp_path: Path) -> None:
    folder = _saved(tmp_path)
    halves = {n: v.half() for n, v in load_file(folder / "model.safetensors").items()}
    save_file(halves, folder / "model.safetensors")
    model = load_network(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


# ---------------------------------------------------------------------------------- what is missing


def test_an_encoder_saved_without_a_pooler_says_so(tmp_path: Path) -> None:
    folder = _saved(tmp_path, small_bert())
    _rewrite(folder, {"bert.pooler.dense.weight": None, "bert.pooler.dense.bias": None})
    loaded = load_model(folder)
    assert loaded.fresh == ["encoder.pooler.weight", "encoder.pooler.bias"]
    pooler = network_of(loaded).encoder.pooler
    assert 0 < pooler.weight.abs().max() <= 2 * loaded.config.init_std
    assert (pooler.bias == 0).all()
    assert torch.equal(load_network(folder).encoder.pooler.weight, pooler.weight)


def test_a_head_for_whole_texts_needs_a_pooler(tmp_path: Path) -> None:
    """A head for tokens, which has none, must not be taken for one of whole texts."""
    folder = _saved(
        tmp_path, small_bert(tags=3), {"kind": "tagging", "labels": ["O", "B-X", "I-X"]}
    )
    pooler = ["bert.pooler.dense.weight", "bert.pooler.dense.bias"]
    _rewrite(folder, dict.fromkeys(pooler))
    assert load_network(folder).tagger is not None
    _change_config(folder, architectures=["BertModel"])
    with pytest.raises(ModelError, match=r"no weights of the pooler.*BertForTokenClassification"):
        load_model(folder)


def test_a_model_trained_again_elsewhere_is_not_taken_for_the_earlier(tmp_path: Path) -> None:
    about = {"kind": "classification", "labels": ["no", "yes"]}
    folder = _saved(tmp_path, small_bert(classes=2), about)
    labels = {"id2label": {"0": "bad", "1": "good"}, "label2id": {"bad": 0, "good": 1}}
    _change_config(folder, **labels)
    with pytest.raises(ModelError, match=r"labels \['no', 'yes'\], by config.json .*'good'.*older"):
        load_model(folder)
    # A pre-trained model of ours that transformers gave a head.
    (folder / "bothways.json").write_text('{"format": 1, "steps": 3}')
    assert load_model(folder).about == {
        **{"format": 1, "steps": 3, "kind": "classification", "labels": ["bad", "good"]}
    }
    for problem, kind in (
        ("regression", "multiregression"),
        ("multi_label_classification", "multilabel"),
    ):
        _change_config(folder, problem_type=problem)
        about = load_model(folder).about
        assert (about["kind"], about["labels"]) == (kind, ["bad", "good"])


@pytest.mark.parametrize("kind", ["multilabel", "multiregression"])
def test_several_may_be_one(kind: str, tmp_path: Path) -> None:
    about = {"kind": kind, "labels": ["joy"]}
    save_model(tmp_path / "one", small_bert(classes=1), small_tokenizer(97), about)
    assert load_model(tmp_path / "one").about == {"format": 2, **about}
    values = json.loads((tmp_path / "one" / "config.json").read_text())
    assert values["id2label"] == {"0": "joy"}


@pytest.mark.parametrize("pretraining", [True, False])
def test_rows_up_to_a_round_number_belong_to_no_piece(pretraining: bool, tmp_path: Path) -> None:
    """As embeddings that were made larger for the sake of speed have them."""
    model = small_bert(**BOTH_HEADS if pretraining else {})
    size = model.config.vocab_size
    round_size = -(-size // 8) * 8 + 8
    folder = _saved(tmp_path, model)
    table = load_file(folder / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    rows = torch.cat([table, torch.ones(round_size - size, table.shape[1])])
    change: dict[str, Tensor | None] = {"bert.embeddings.word_embeddings.weight": rows}
    if pretraining:
        bias = load_file(folder / "model.safetensors")["cls.predictions.bias"]
        change["cls.predictions.bias"] = torch.cat([bias, torch.ones(round_size - size)])
    _rewrite(folder, change)
    _change_config(folder, vocab_size=round_size)
    with pytest.raises(ModelError, match="do not belong together"):  # we never make such folders
        load_model(folder)
    (folder / "bothways.json").unlink()
    loaded = load_model(folder)
    assert loaded.unused == [f"embeddings.word_embeddings.weight[{size}:{round_size}], of no piece"]
    first, changed = loaded.notes
    rows = f"rows {size:,} to {round_size - 1:,}"
    assert first.endswith(
        f"{rows} of the embedding are of no piece of the vocabulary, and left out"
    )
    assert "config.json, model.safetensors changed since bothways wrote the folder" in changed
    expected = model.state_dict()
    assert network_of(loaded).state_dict().keys() == expected.keys()
    assert all(torch.equal(v, expected[k]) for k, v in network_of(loaded).state_dict().items())


def test_weights_of_no_use_are_listed(tmp_path: Path) -> None:
    folder = _saved(tmp_path)
    _rewrite(folder, {"crf.transitions": torch.zeros(2, 16)})
    assert load_model(folder).unused == ["crf.transitions"]


@pytest.mark.parametrize(
    "name",
    [
        "bert.encoder.layer.0.attention.self.key.weight",
        "bert.embeddings.LayerNorm.bias",
        "cls.predictions.transform.dense.weight",
        "cls.seq_relationship.bias",
    ],
)
def test_a_missing_weight_is_named_as_the_file_would_name_it(name: str, tmp_path: Path) -> None:
    folder = _saved(tmp_path)
    _rewrite(folder, {name: None})
    block = name.rsplit(".", 2)[0]
    with pytest.raises(ModelError, match=rf"model\.safetensors lacks 1 .*{block}"):
        load_model(folder)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("bert.encoder.layer.0.output.dense.weight", (16, 63)),
        ("bert.embeddings.position_embeddings.weight", (41, 16)),
        ("bert.embeddings.word_embeddings.weight", (128, 16)),
        ("cls.predictions.bias", (128,)),
        ("bert.pooler.dense.bias", ()),
    ],
)
def test_a_weight_of_another_shape_is_named(
    name: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    folder = _saved(tmp_path)
    _rewrite(folder, {name: torch.zeros(shape)})
    what = "the token embedding" if "word" in name else name
    expected = re.escape(f"model.safetensors: {what} has shape {shape}")
    with pytest.raises(ModelError, match=expected):
        load_model(folder)


@pytest.mark.parametrize(
    ("weight", "found"),
    [
        (torch.zeros(3), r"\(3,\)"),
        (torch.zeros(()), r"\(\)"),
        (torch.zeros(0, 16), r"\(0, 16\)"),
        (None, r"\(\)"),
    ],
)
def test_a_task_head_of_no_definite_size_is_refused(
    weight: Tensor | None, found: str, tmp_path: Path
) -> None:
    folder = _saved(tmp_path, small_bert(classes=3))
    _rewrite(folder, {"classifier.weight": weight})
    expected = rf"model\.safetensors: .*head classifier is missing or .*{found}"
    with pytest.raises(ModelError, match=expected):
        load_model(folder)


def test_a_config_of_another_depth_is_refused(tmp_path: Path) -> None:
    folder = _saved(tmp_path)
    _change_config(folder, num_hidden_layers=2)
    with pytest.raises(ModelError, match=r"lacks 12 .*bert\.encoder\.layer\.1\."):
        load_model(folder)
    _saved(tmp_path, small_bert(dataclasses.replace(small_config(), layers=3)))
    _change_config(folder, num_hidden_layers=2)
    with pytest.raises(ModelError, match=r"weights of layers beyond the 2 .*encoder\.layer\.2\."):
        load_model(folder)
    # The remedy, as it says.
    transformers = pytest.importorskip("transformers")
    transformers.BertForPreTraining.from_pretrained(folder).save_pretrained(folder)
    assert load_model(folder).config.layers == 2


# ----------------------------------------------------------------------------------- what is broken


@pytest.mark.parametrize("keep", [0, 5, 200, 0.5, -1])
def test_a_truncated_weight_file_is_named(keep: float, tmp_path: Path) -> None:
    folder = _saved(tmp_path)
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if 0 < keep < 1 else int(keep)])
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged or truncated"):
        load_model(folder)


@pytest.mark.parametrize("keep", [0, 5, 200, 0.5, -1])
def test_a_truncated_bin_file_is_named(keep: float, tmp_path: Path) -> None:
    folder = _saved(tmp_path)
    _as_bin(folder, old_names=False)
    path = folder / "pytorch_model.bin"
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if 0 < keep < 1 else int(keep)])
    with pytest.raises(ModelError, match=r"pytorch_model\.bin (is|holds).* damaged"):
        load_model(folder)


@pytest.mark.parametrize("content", [b"\x80\x02.", b"\x80\x02}}}s.", b"\x80\x02h\x05."])
def test_a_bin_file_that_no_unpickler_can_follow_is_named(content: bytes, tmp_path: Path) -> None:
    """Where bytes are wrong, torch raises IndexError, TypeError, AssertionError and others."""
    folder = _saved(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is damaged or truncated"):
        load_model(folder)
    assert any("is damaged or truncated" in problem for problem in diagnose(folder))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    folder = _saved(tmp_path)
    (folder / name).unlink()
    with pytest.raises(ModelError, match=name.replace(".", r"\.")):
        load_model(folder)


def test_a_folder_without_vocabulary_or_no_folder_at_all(tmp_path: Path) -> None:
    folder = _saved(tmp_path)
    (folder / "tokenizer.json").unlink()
    assert load_model(folder).tokenizer.vocab_size == 97  # from vocab.txt
    (folder / "vocab.txt").unlink()
    with pytest.raises(ModelError, match=r"vocab\.txt"):
        load_model(folder)
    with pytest.raises(ModelError, match=r"did you mean 'mini-en'\? a model folder holds"):
        load_model("minien")
    (tmp_path / "saved").mkdir()
    with pytest.raises(ModelError, match=r"did you mean '.*saved'\?"):
        load_model(tmp_path / "save")
    (tmp_path / "rows.csv").write_text("a,b\n")
    with pytest.raises(ModelError, match="this is a file; a model is a folder"):
        load_model(tmp_path / "rows.csv")
    with pytest.raises(ModelError, match=r"nowhere.config\.json does not exist"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"config\.json"):
        load_model(folder / "config.json")


@pytest.mark.parametrize("content", ["{", "[]", "\x00", '{"model_type": "bert"}'])
@pytest.mark.parametrize("name", ["config.json", "bothways.json"])
def test_a_broken_json_file_is_named(name: str, content: str, tmp_path: Path) -> None:
    folder = _saved(tmp_path)
    (folder / name).write_text(content)
    if name == "bothways.json" and content.startswith('{"'):
        assert load_model(folder).about == {"model_type": "bert"}
        return
    with pytest.raises(ModelError, match=name.replace(".", r"\.")):
        load_model(folder)


def test_a_vocabulary_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    folder = _saved(tmp_path)
    small_tokenizer(96).save(folder)
    with pytest.raises(ModelError, match="96 pieces but the model has 97"):
        load_model(folder)


@pytest.mark.parametrize(
    ("key", "value"), [("hidden_act", "quick_gelu"), ("model_type", "xlnet"), ("is_decoder", "yes")]
)
def test_a_network_of_another_kind_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    folder = _saved(tmp_path)
    _change_config(folder, **{key: value})
    with pytest.raises(ModelError, match=rf"config\.json: {key} is {value!r}"):
        load_model(folder)


def test_unknown_harmless_keys_of_a_config_are_ignored(tmp_path: Path) -> None:
    folder = _saved(tmp_path)
    _change_config(folder, use_cache=True, something_new=[1, 2])
    assert load_model(folder).config == small_config()
