"""Folders as other hands leave them: read as what they are, or refused by name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bothways import cli
from bothways.api.doctor import diagnose
from bothways.api.model import load
from bothways.errors import BothwaysError, ConfigError, ModelError
from bothways.model.folder import save_model
from bothways.runtime.folder import load_model
from bothways.serving import answers, wire
from model_examples import small_bert, small_tokenizer

TEXTS = ["w1 w2 w3", "w4 W5"]


TABLE, DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"


Weights = dict[str, Tensor]


@pytest.fixture(scope="module")
def vectors(foreign: Path) -> np.ndarray:
    return load(foreign).embed(TEXTS)


def weights_of(folder: Path) -> Weights:
    return load_file(folder / "model.safetensors")


def encoder_of(folder: Path) -> Weights:
    return {name: v for name, v in weights_of(folder).items() if name.startswith("bert.")}


def write(folder: Path, weights: Weights) -> None:
    save_file({k: v.contiguous() for k, v in weights.items()}, folder / "model.safetensors")


def set_config(folder: Path, drop: tuple[str, ...] = (), **changes: Any) -> None:
    values = json.loads((folder / "config.json").read_text())
    values = {key: value for key, value in (values | changes).items() if key not in drop}
    (folder / "config.json").write_text(json.dumps(values))


def head(outputs: int, name: str = "classifier") -> Weights:
    generator = torch.Generator().manual_seed(outputs)
    return {
        f"{name}.weight": torch.randn(outputs, 16, generator=generator),
        f"{name}.bias": torch.zeros(outputs),
    }


def write_head(folder: Path, outputs: int, **config: Any) -> None:
    write(folder, {**encoder_of(folder), **head(outputs)})
    set_config(folder, architectures=["BertForSequenceClassification"])
    set_config(folder, **config)


@pytest.mark.parametrize(
    "prefix",
    [
        *("module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "model.", "encoder."),
        *("0.auto_model.", "auto_model.", "model.encoder.", "module.model.", "bert_model."),
        *("net.module._orig_mod.", "student.", "bert."),
    ],
)
@pytest.mark.parametrize("bare", [False, True])
def test_what_wrappers_put_before_all_names(
    prefix: str, bare: bool, folder: Path, vectors: np.ndarray
) -> None:
    weights = encoder_of(folder)
    if bare:
        weights = {name.removeprefix("bert."): value for name, value in weights.items()}
    write(folder, {prefix + name: value for name, value in weights.items()})
    np.testing.assert_array_equal(load(folder).embed(TEXTS), vectors)


def test_a_head_in_the_wrapper_comes_with_its_encoder(folder: Path, tmp_path: Path) -> None:
    plain = Path(shutil.copytree(folder, tmp_path / "plain"))
    names = {"id2label": {"0": "bad", "1": "good"}}
    write_head(plain, 2, **names)
    write_head(folder, 2, **names)
    write(folder, {f"model.{name}": value for name, value in weights_of(folder).items()})
    expected, found = (load(path).predict(TEXTS) for path in (plain, folder))
    assert found.labels == expected.labels
    np.testing.assert_array_equal(found.values, expected.values)


def test_two_encoders_are_named(folder: Path) -> None:
    weights = encoder_of(folder)
    write(folder, {p + n: v.clone() for p in ("query.", "passage.") for n, v in weights.items()})
    with pytest.raises(ModelError, match=r"several encoders \(passage\.bert.*query\.bert"):
        load_model(folder)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(
    "nest",
    [
        lambda w: w,
        lambda w: {"state_dict": w, "epoch": 3, "best": 0.5},
        lambda w: {"model": w, "loss": np.float64(0.25), "steps": np.int64(7)},
        lambda w: {"model": {"state_dict": w}, "optimizer": {"state": {0: {"m": torch.ones(2)}}}},
        lambda w: {"model_state_dict": w, "ema": w, "rng": torch.ones(3)},
        lambda w: {**w, "epoch": 3, "name": "mine", "none": None},
        lambda w: {"anything": w},
        lambda w: {"state_dict": {f"model.{n}": v for n, v in w.items()}, "hparams": {"lr": 1e-3}},
    ],
)
def test_checkpoints_of_trainers(
    nest: Callable[[Weights], Any], old: bool, folder: Path, vectors: np.ndarray
) -> None:
    content = nest(encoder_of(folder))
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not old)
    np.testing.assert_array_equal(load(folder).embed(TEXTS), vectors)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"one": {"x": torch.ones(2)}, "two": {"y": torch.ones(2)}}, "several sets of them"),
        ({"epoch": 3}, "no weights by name.*epoch"),
        ([torch.ones(2)], "no weights by name"),
        ({"model": torch.nn.Linear(2, 2)}, "could execute arbitrary code"),
    ],
)
def test_files_that_hold_no_weights(content: Any, message: str, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=message):
        load_model(folder)


def test_the_decoder_is_stored_in_place_of_the_embedding(folder: Path, vectors: np.ndarray) -> None:
    weights = weights_of(folder)
    fillings = load(folder).fill_mask("w1 [MASK]")
    weights[DECODER] = weights.pop(TABLE)
    write(folder, weights)
    np.testing.assert_array_equal(load(folder).embed(TEXTS), vectors)
    assert load(folder).fill_mask("w1 [MASK]") == fillings


@pytest.mark.parametrize("declared", [True, False])
def test_an_untied_output_is_refused_where_it_is_used(
    declared: bool,
    folder: Path,
    vectors: np.ndarray,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    weights = weights_of(folder)
    if declared:  # whether stored or not
        set_config(folder, tie_word_embeddings=False)
    else:
        write(folder, {**weights, DECODER: weights[TABLE] + 1})
    model = load(folder)
    np.testing.assert_array_equal(model.embed(TEXTS), vectors)
    with pytest.raises(ModelError, match="differs from the input embedding"):
        model.fill_mask("w1 [MASK]")
    assert model.next_sentence("w1", "w2") > 0
    assert any("differs" in problem for problem in diagnose(folder))
    assert cli.main(["convert", str(folder), str(tmp_path / "out")]) == 0
    assert "left out" in capsys.readouterr().err
    assert "masked_lm" not in load_model(tmp_path / "out").heads


@pytest.mark.parametrize("extra", [1, 31, 1000, 19_000])
def test_more_rows_than_pieces(extra: int, folder: Path, vectors: np.ndarray) -> None:
    weights = weights_of(folder)
    weights[TABLE] = torch.cat([weights[TABLE], torch.randn(extra, 16)])
    weights["cls.predictions.bias"] = torch.cat(
        [weights["cls.predictions.bias"], torch.ones(extra)]
    )
    write(folder, weights)
    set_config(folder, vocab_size=97 + extra)
    model = load(folder)
    np.testing.assert_array_equal(model.embed(TEXTS), vectors)
    assert any("are of no piece" in note for note in model.loaded.notes)
    assert model.fill_mask("w1 [MASK]")[0][0].piece in model.tokenizer.pieces


@pytest.mark.parametrize("kind", [torch.int32, torch.int8, torch.uint8, torch.bool])
def test_weights_of_whole_numbers(kind: torch.dtype, folder: Path) -> None:
    name = "bert.encoder.layer.0.output.dense.weight"
    weights = weights_of(folder)
    write(folder, {**weights, name: weights[name].to(kind)})
    with pytest.raises(ModelError, match=rf"{name} holds numbers of the type {str(kind)[6:]}"):
        load_model(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("num_hidden_layers", n) for n in (10**9, 10**30, -1, 0, "two", 2.5, None, [1], True)),
        *(("hidden_size", n) for n in (10**9, 0, "x", {}, -16)),
        *(("vocab_size", n) for n in (10**12, "97", 97.0, None)),
        *(("num_attention_heads", n) for n in (10**9, 0, 3, "2")),
        *(("max_position_embeddings", n) for n in (10**15, -1, "40")),
        *(("layer_norm_eps", n) for n in (1e30, -1, "1e-12", 0, 10**400)),
        *(("hidden_dropout_prob", n) for n in (2, -0.5, "no", [0.1])),
        *(("intermediate_size", n) for n in (10**12, 1.5)),
        *(("model_type", n) for n in (5, ["bert"], None, "bert\x1b[31m", "a" * 10_000)),
        *(("hidden_act", n) for n in (5, "", ["gelu"], {})),
    ],
)
def test_absurd_configs_are_refused_at_once(key: str, value: Any, folder: Path) -> None:
    set_config(folder, **{key: value})
    with pytest.raises(ModelError, match=r"config\.json") as refused:
        load_model(folder)
    assert len(str(refused.value)) < 1000


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _nowhere(path: Path) -> None:
    path.symlink_to("gone")


KINDS = {
    "pipe": (_pipe, "is a named pipe"),
    "device": (_device, "is a device"),
    "circle": (_loop, "a link that leads nowhere"),
    "nowhere": (_nowhere, "a link that leads nowhere"),
    "folder": (Path.mkdir, "is a folder"),
}


NAMES = ("config.json", "model.safetensors", "bothways.json", "tokenizer.json", "vocab.txt")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*NAMES, "tokenizer_config.json", "modules.json"])
def test_what_is_in_place_of_a_file(kind: str, name: str, folder: Path) -> None:
    make, message = KINDS[kind]
    if name == "vocab.txt":
        (folder / "tokenizer.json").unlink()
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    with pytest.raises(ModelError, match=rf"{name}.*{message}"):
        load_model(folder)
    assert diagnose(folder)


@pytest.mark.parametrize(
    ("outputs", "config", "labels", "note"),
    [
        (2, {"id2label": {"0": "bad", "1": "good"}}, ["bad", "good"], ""),
        (2, {"id2label": ["bad", "good"]}, ["bad", "good"], ""),
        (2, {"label2id": {"bad": 0, "good": 1}}, ["bad", "good"], ""),
        (2, {"id2label": {"0": 0, "1": 1}, "label2id": {"0": 0, "1": 1}}, ["0", "1"], ""),
        (2, {"id2label": None, "label2id": None}, ["LABEL_0", "LABEL_1"], ""),
        (2, {"id2label": {"1": "bad", "2": "good"}}, ["LABEL_0", "LABEL_1"], "numbers are 1, 2"),
        (3, {"id2label": {"0": "bad", "1": "good"}}, ["LABEL_0", "LABEL_1", "LABEL_2"], "numbers"),
        (
            2,
            {"id2label": {"0": "a", "1": "b", "2": "c"}},
            ["LABEL_0", "LABEL_1"],
            "numbers are 0, 1, 2",
        ),
        (
            2,
            {"id2label": {"0": "bad", "1": "bad"}},
            ["LABEL_0", "LABEL_1"],
            "a name is there twice",
        ),
        (2, {"id2label": ["bad"]}, ["LABEL_0", "LABEL_1"], "do not fit"),
        (2, {"id2label": 7}, ["LABEL_0", "LABEL_1"], "no map"),
        (2, {"id2label": {"0": None, "1": "x"}}, ["LABEL_0", "LABEL_1"], "a name is empty"),
        (2, {"label2id": {"bad": 0, "good": 0}}, ["LABEL_0", "LABEL_1"], "no map"),
        (2, {"label2id": {"bad": "0", "good": "1"}}, ["LABEL_0", "LABEL_1"], "no map"),
        (
            2,
            {"id2label": {"0": "bad", "1": "good"}, "label2id": {"good": 0, "bad": 1}},
            ["LABEL_0", "LABEL_1"],
            "contradict each other",
        ),
        (2, {"num_labels": 5}, ["LABEL_0", "LABEL_1"], "num_labels 5, but the head has 2"),
    ],
)
def test_names_of_labels(
    outputs: int, config: dict[str, Any], labels: list[str], note: str, folder: Path
) -> None:
    write_head(folder, outputs, **config)
    model = load(folder)
    assert model.loaded.about["labels"] == labels
    assert set(model.predict(TEXTS).labels) <= set(labels)
    assert any(note in n for n in model.loaded.notes) if note else not model.loaded.notes


@pytest.mark.parametrize("classes", [None, [], ["BertModel"], ["BertCrfForNer"]])
@pytest.mark.parametrize(
    ("labels", "tags"),
    [
        (["O", "B-PER", "I-PER", "B-LOC"], True),
        (["[PAD]", "O", "B-PER", "I-PER", "X"], True),
        (["O", "PER_B", "PER_I"], True),
        (["NOUN", "VERB", "ADJ", "PUNCT"], True),
        (["bad", "good", "neutral"], False),
        (["B-movie", "documentary", "comedy"], False),
        (["O", "A", "B", "AB"], False),
    ],
)
def test_tags_or_labels_where_no_class_says_it(
    labels: list[str], tags: bool, classes: list[str] | None, folder: Path
) -> None:
    write_head(folder, len(labels), id2label={str(i): label for i, label in enumerate(labels)})
    set_config(folder, architectures=classes)
    model = load(folder)
    if classes == ["BertModel"]:  # a class that is known, and without a head
        assert model.loaded.task_head
        return
    assert model.loaded.task_head == ("tagger" if tags else "classifier")
    if tags:
        assert any("labels are tags" in note for note in model.loaded.notes)
        assert model.tag("w1 w2").words
    else:
        assert model.predict(TEXTS).labels


@pytest.mark.parametrize(
    "extra", ["crf.transitions", "pre_classifier.weight", "layer_weights.scalars", "lstm.w_ih"]
)
def test_a_part_of_a_head_is_never_left_out_in_silence(
    extra: str,
    folder: Path,
    vectors: np.ndarray,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_head(folder, 2)
    write(folder, {**weights_of(folder), extra: torch.ones(2, 2)})
    model = load(folder)
    with pytest.raises(ModelError, match=extra):
        model.predict(TEXTS)
    np.testing.assert_array_equal(model.embed(TEXTS), vectors)
    assert any(extra in problem for problem in diagnose(folder))
    for argv in (["predict", str(folder), "w1"], ["convert", str(folder), str(tmp_path / "out")]):
        assert cli.main(argv) == 1
        assert extra in capsys.readouterr().err
    write(folder, {**encoder_of(folder), **head(2), "loss_fct.weight": torch.ones(2)})
    assert load(folder).predict(TEXTS).labels, "a loss is of training alone"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: [*p[:20], "", *p[21:]], "piece 20 .*line 21.* is empty"),
        (lambda p: [*p[:20], p[10], *p[21:]], "occurs twice, as pieces 10 and 20 .*the first"),
        (lambda p: p[5:], r"\[PAD\], \[UNK\]"),
        (lambda p: [*p, "more"], "98 pieces but the model has 97"),
    ],
)
def test_vocabularies_with_holes_doubles_and_without_specials(
    change: Callable[[list[str]], list[str]], message: str, folder: Path
) -> None:
    (folder / "tokenizer.json").unlink()
    pieces = change((folder / "vocab.txt").read_text().splitlines())
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    with pytest.raises(ModelError, match=message):
        load_model(folder)


def test_a_cased_vocabulary_of_few_letters_is_not_read_as_uncased(folder: Path) -> None:
    """Chemistry: most pieces are in brackets, and what has letters is what counts."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    atoms = [f"[{a}{n}]" for n in range(9) for a in ("C@", "C@@", "N+", "O-", "nH")]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "C", "c", "N", "n", "O", "Cl", *atoms]
    pieces += [f"[unused{n}]" for n in range(97 - len(pieces))]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    with pytest.raises(ModelError, match="do_lower_case"):
        load_model(folder)
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert load(folder).tokenizer.encode("C Cl c").ids[1:-1] == [5, 10, 6], "the remedy"


def write_modules(folder: Path, *modules: tuple[str, str, dict[str, Any] | None]) -> None:
    listed = [
        {"idx": n, "name": str(n), "path": path, "type": kind}
        for n, (kind, path, _) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    for kind, path, settings in modules:
        if settings is not None:
            (folder / path).mkdir(exist_ok=True)
            name = (
                "sentence_bert_config.json"
                if path.startswith("0_") or "Transformer" in kind
                else "config.json"
            )
            (folder / path / name).write_text(json.dumps(settings))


OLD, NEW = "sentence_transformers.models.", "sentence_transformers.sentence_transformer.modules."


@pytest.mark.parametrize("place", ["0_BERT", "0_Transformer"])
def test_the_layout_before_version_2(place: str, foreign: Path, tmp_path: Path) -> None:
    root = tmp_path / "st"
    shutil.copytree(foreign, root / place)
    write_modules(
        root,
        (OLD + place[2:], place, {"max_seq_length": 30, "do_lower_case": False}),
        (
            OLD + "Pooling",
            "1_Pooling",
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
        ),
    )
    expected = load(foreign).embed(TEXTS, pooling="cls")
    np.testing.assert_array_equal(load(root).embed(TEXTS), expected)
    assert diagnose(root) == []


@pytest.mark.parametrize(
    ("modules", "named"),
    [
        ([(OLD + "Dense", "2_Dense", {})], "Dense"),
        ([(OLD + "LSTM", "2_LSTM", {})], "LSTM"),
        ([(OLD + "WeightedLayerPooling", "2_W", {})], "WeightedLayerPooling"),
        ([("my_code.Transformer2", "2_X", {})], "my_code.Transformer2"),
        (
            [(NEW + "Normalize", "2_Normalize", {"module_input_name": "token_embeddings"})],
            "Normalize",
        ),
        ([("", "", None)], "without a type"),
    ],
)
def test_modules_that_are_not_computed(
    modules: list[tuple[str, str, dict[str, Any] | None]], named: str, folder: Path
) -> None:
    first = [
        (OLD + "Transformer", "", None),
        (OLD + "Pooling", "1_Pooling", {"pooling_mode": "cls"}),
    ]
    write_modules(folder, *first, *modules)
    with pytest.raises(ConfigError, match=named):
        load(folder).embed(TEXTS)


@pytest.mark.parametrize(
    ("settings", "pooling"),
    [
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": ["cls"]}, "cls"),
        ({"embedding_dimension": 16, "pooling_mode": "cls", "include_prompt": True}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"word_embedding_dimension": 16}, "mean"),
        ({"pooling_mode": "max"}, None),
        ({"pooling_mode": "lasttoken"}, None),
        ({"pooling_mode": "weightedmean"}, None),
        ({"pooling_mode": ["cls", "mean"]}, None),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, None),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, None),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False}, None),
    ],
)
def test_pooling_of_every_version(settings: dict[str, Any], pooling: Any, folder: Path) -> None:
    write_modules(folder, (NEW + "Transformer", "", None), (NEW + "Pooling", "1_Pooling", settings))
    model = load(folder)
    if pooling is None:
        with pytest.raises(ConfigError, match="pooling is"):
            model.embed(TEXTS)
    else:
        np.testing.assert_array_equal(model.embed(TEXTS), model.embed(TEXTS, pooling=pooling))


@pytest.mark.parametrize(
    "settings",
    [
        {"transformer_task": "fill-mask"},
        {"module_output_name": "cls_token_embeddings"},
        {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}},
    ],
)
def test_other_outputs_of_the_encoder(settings: dict[str, Any], folder: Path) -> None:
    write_modules(folder, (NEW + "Transformer", "", settings), (NEW + "Pooling", "1_Pooling", {}))
    with pytest.raises(ConfigError, match="Transformer with "):
        load(folder).embed(TEXTS)


def test_a_folder_without_pooling_is_not_pooled_by_the_mean(folder: Path) -> None:
    write_modules(folder, (NEW + "Transformer", "", None))
    with pytest.raises(ConfigError, match="pooling is not named"):
        load(folder).embed(TEXTS)
    for text in (
        "{}",
        "[1]",
        '[{"type": "sentence_transformers.models.Transformer", "path": "../x"}]',
    ):
        (folder / "modules.json").write_text(text)
        with pytest.raises(ModelError, match=r"modules\.json"):
            load_model(folder)


@pytest.mark.parametrize(
    ("mode", "include", "length"), [("cls", True, 64), ("mean", False, 64), ("cls", False, 6)]
)
def test_the_current_version_computes_the_same(
    mode: str, include: bool, length: int, folder: Path
) -> None:
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    encoder = modules.Transformer(str(folder), max_seq_length=length)
    pooling = modules.Pooling(16, pooling_mode=mode, include_prompt=include)
    theirs = library.SentenceTransformer(
        modules=[encoder, pooling, modules.Normalize()],
        prompts={"query": "w7 w8 ", "long": "w1 w2 w3 w4 w5 w6 w7 ", "document": ""},
        default_prompt_name="query",
        device="cpu",
    )
    saved = folder.parent / "saved"
    theirs.save(str(saved))
    model = load(saved)
    again = library.SentenceTransformer(str(model.save(folder.parent / "again")), device="cpu")
    for name in (None, *theirs.prompts):
        expected = theirs.encode(TEXTS, prompt_name=name)
        np.testing.assert_allclose(model.embed(TEXTS, prompt=name), expected, atol=1e-5)
        np.testing.assert_allclose(again.encode(TEXTS, prompt_name=name), expected, atol=1e-5)
        served = answers.features(model, wire.Features(TEXTS, prompt_name=name))
        np.testing.assert_allclose(served, expected, atol=1e-5)
    expected = theirs.encode(TEXTS, prompt="w9 ")
    np.testing.assert_allclose(model.embed(TEXTS, prompt="w9 "), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("order", "settings"),
    [
        (("Transformer", "Normalize", "Pooling"), {}),
        (("Transformer", "Pooling", "Normalize"), {"module_output_name": "other"}),
        (("Transformer", "Pooling", "Normalize"), {"module_output_name": "sentence_embedding"}),
    ],
)
def test_what_is_normalised(order: tuple[str, ...], settings: Any, folder: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    of = {"Pooling": {"embedding_dimension": 16, "pooling_mode": "mean"}, "Normalize": settings}
    write_modules(folder, *((OLD + k, k if k in of else "", of.get(k)) for k in order))
    expected = library.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(load(folder).embed(TEXTS), expected, atol=1e-5)


def write_adapter(folder: Path, base: str, weights: Weights, **changes: Any) -> None:
    folder.mkdir()
    values = {
        **{"peft_type": "LORA", "base_model_name_or_path": base, "r": 2, "lora_alpha": 4},
        **{"bias": "none", "task_type": "SEQ_CLS", "fan_in_fan_out": False, "use_dora": False},
    }
    values = {key: value for key, value in (values | changes).items() if value is not ...}
    (folder / "adapter_config.json").write_text(json.dumps(values))
    save_file(weights, folder / "adapter_model.safetensors")


PAIR = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_"


def pair(rank: int = 2) -> Weights:
    return {f"{PAIR}A.weight": torch.randn(rank, 16), f"{PAIR}B.weight": torch.randn(16, rank)}


@pytest.mark.parametrize(
    ("changes", "scale"),
    [
        ({}, 2.0),
        ({"use_rslora": True}, 4 / 2**0.5),
        ({"alpha_pattern": {"query": 6}}, 3.0),
        ({"lora_alpha": 1}, 0.5),
        ({"lora_alpha": ...}, 4.0),  # 8 in PEFT
        ({"alpha_pattern": {r"^bert\..*\.layer\.[0-5]+.attention.self.query|dense": 6}}, 3.0),
    ],
)
@pytest.mark.parametrize("bare", [False, True])
def test_a_lora_is_merged_into_its_base(
    changes: dict[str, Any], scale: float, bare: bool, folder: Path, tmp_path: Path
) -> None:
    weights, merged = weights_of(folder), tmp_path / "merged"
    given = pair()
    shutil.copytree(folder, merged)
    name = "bert.encoder.layer.0.attention.self.query.weight"
    update = scale * given[f"{PAIR}B.weight"] @ given[f"{PAIR}A.weight"]
    write(merged, {**weights, **head(3), name: weights[name] + update})
    set_config(merged, architectures=["BertForSequenceClassification"])
    if bare:
        write(folder, {n.removeprefix("bert."): v for n, v in encoder_of(folder).items()})
    of_head = {f"base_model.model.{n}": v for n, v in head(3).items()}
    write_adapter(tmp_path / "adapter", "../model", {**given, **of_head}, **changes)
    model, expected = load(tmp_path / "adapter"), load(merged)
    np.testing.assert_allclose(
        model.predict(TEXTS).values, expected.predict(TEXTS).values, atol=1e-6
    )
    assert not np.allclose(model.embed(TEXTS), load(folder).embed(TEXTS), atol=1e-3)
    assert any("an adapter (LoRA), merged" in note for note in model.loaded.notes)
    assert model.loaded.folder is None, "graphs are found by a folder's weights"
    if not bare:
        with pytest.raises(ModelError, match="name the base for that"):
            model.fill_mask("w1 [MASK]")


@pytest.mark.parametrize(
    ("changes", "extra", "message"),
    [
        ({"peft_type": "IA3"}, {}, "peft_type is 'IA3'"),
        ({"peft_type": None}, {}, "peft_type is None"),
        ({"use_dora": True}, {}, "use_dora is True"),
        ({"init_lora_weights": "pissa_niter_4"}, {}, "init_lora_weights is 'pissa_niter_4'"),
        ({"init_lora_weights": "olora"}, {}, "init_lora_weights is 'olora'"),
        ({"base_model_name_or_path": "nowhere"}, {}, "an adapter of nowhere"),
        ({"base_model_name_or_path": None}, {}, "does not name its base"),
        ({}, {f"{PAIR[:-5]}lora_magnitude_vector": torch.ones(16)}, "lora_magnitude_vector"),
        ({}, {PAIR.replace("layer.0", "layer.7") + "A.weight": torch.ones(2, 16)}, "another base"),
        ({}, {f"{PAIR}A.weight": torch.ones(2, 8)}, "another base"),
        ({"r": 8}, {}, r"the rank of .*query is 8, but its matrices have 2"),
        ({"lora_alpha": None}, {}, "lora_alpha is None for .*; it must be a number"),
        ({"lora_alpha": "16"}, {}, "lora_alpha is '16'"),
        ({"r": ...}, {}, r"the rank of .*query is 8, but its matrices have 2"),
        ({"alpha_pattern": {"*": 8}}, {}, "alpha_pattern is no map"),
        ({"rank_pattern": {"([a-z0-9.]+)+!": 2}}, {}, "rank_pattern is no map"),
        ({"alpha_pattern": {".*.*.*.*!": 2}}, {}, "alpha_pattern is no map"),
        ({"rank_pattern": [8]}, {}, "rank_pattern is no map"),
    ],
)
def test_adapters_that_cannot_be_merged(
    changes: dict[str, Any], extra: Weights, message: str, folder: Path, tmp_path: Path
) -> None:
    assert folder.name == "model"
    write_adapter(tmp_path / "adapter", "../model", {**pair(), **extra}, **changes)
    with pytest.raises(ModelError, match=message):
        load_model(tmp_path / "adapter")


def test_an_adapter_beside_whole_weights_is_not_merged_in_silence(
    folder: Path, tmp_path: Path, vectors: np.ndarray
) -> None:
    write_adapter(tmp_path / "adapter", "../model", pair(), task_type=None)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(tmp_path / "adapter" / name, folder)
    model = load(folder)
    np.testing.assert_array_equal(model.embed(TEXTS), vectors)
    (note,) = model.loaded.notes
    assert "holds an adapter, too" in note
    changed = load(tmp_path / "adapter")  # as the note says, from a folder of its own
    assert not np.allclose(changed.embed(TEXTS), vectors, atol=1e-3)


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    save_model(tmp_path / "ours", small_bert(classes=2), small_tokenizer(97))
    return tmp_path / "ours"


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(bytes(data))


def test_a_flipped_bit_of_a_weight_is_named(ours: Path) -> None:
    assert diagnose(ours) == []
    assert load_model(ours).notes == []
    flip(ours / "model.safetensors", -5)
    (problem,) = diagnose(ours)
    assert "model.safetensors does not match its checksum" in problem
    (note,) = load_model(ours).notes
    assert "model.safetensors changed since bothways wrote the folder" in note


def test_another_vocabulary_of_the_same_size(ours: Path, tmp_path: Path) -> None:
    pieces = small_tokenizer(97).pieces
    type(small_tokenizer(97)).from_pieces([*pieces[:5], *pieces[:4:-1]], lowercase=True).save(
        tmp_path / "other"
    )
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "other" / name, ours / name)
    assert any("the vocabulary is not the one" in note for note in load_model(ours).notes)
    assert any("the vocabulary is not the one" in problem for problem in diagnose(ours))


@pytest.mark.parametrize("text", ["{", "[]", '{"files": 3}', '{"files": {"a": 1}}', ""])
def test_damaged_checksums(text: str, ours: Path) -> None:
    (ours / "checksums.json").write_text(text)
    assert any("checksums.json" in note for note in load_model(ours).notes)
    assert any("checksums.json" in problem for problem in diagnose(ours))


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":' * 5000,
        b"[]",
        b'{"x": {"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]}}',
        b'{"x": {"dtype": "F32", "shape": [1e3], "data_offsets": [0, 16]}}',
        b'{"x": {"dtype": [], "shape": [4], "data_offsets": [0, 16]}}',
        b'{"x": {"dtype": "F32", "shape": 4, "data_offsets": [0, 16]}}',
        b'{"x": 3}',
        b'{"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, '
        b'"y": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}',
        b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, '
        b'"y": {"dtype": "F32", "shape": [1], "data_offsets": [12, 16]}}',
        b'{"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, '
        b'"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}',
        b"\xff\xfe",
    ],
)
def test_hostile_headers(header: bytes, folder: Path) -> None:
    content = len(header).to_bytes(8, "little") + header + bytes(16)
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(BothwaysError, match=r"model\.safetensors is damaged or truncated"):
        load_model(folder)


def test_a_flipped_bit_of_a_pickled_weight(folder: Path) -> None:
    weights = encoder_of(folder)
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    torch.save(weights, path)
    load_model(folder)
    at = path.read_bytes().index(weights[TABLE].numpy().tobytes()[:64])
    flip(path, at + 70)
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is damaged.*its checksum"):
        load_model(folder)


def longer(weights: Weights, rows: int) -> Weights:
    """With more rows of the token table, and of the output's bias."""
    generator = torch.Generator().manual_seed(rows)
    kept = {name: value for name, value in weights.items() if name != DECODER}
    kept[TABLE] = torch.cat([kept[TABLE], torch.randn(rows, 16, generator=generator)])
    for name in [name for name in kept if name in ("cls.predictions.bias", f"{DECODER[:-6]}bias")]:
        kept[name] = torch.cat([kept[name], torch.zeros(rows)])
    return kept


def settings_of_tokenizer(folder: Path, **changes: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def added_in_a_file(folder: Path) -> None:
    (folder / "added_tokens.json").write_text(json.dumps({"<e2>": 98, "<e1>": 97}))


def added_in_settings(folder: Path) -> None:
    flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    tokens = {str(97 + n): {"content": f"<e{n + 1}>", "special": True, **flags} for n in range(2)}
    settings_of_tokenizer(folder, added_tokens_decoder=tokens)


@pytest.mark.parametrize("add", [added_in_a_file, added_in_settings])
def test_tokens_that_a_tokenizer_json_lacks(add: Callable[[Path], None], folder: Path) -> None:
    write(folder, longer(weights_of(folder), 2))
    set_config(folder, vocab_size=99)
    add(folder)
    loaded = load_model(folder)
    assert loaded.tokenizer.encode_plain(["w1 <e1> w2<e2>"]) == [[6, 97, 7, 98]]
    assert not [note for note in loaded.notes if "left out" in note]
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert theirs("w1 <e1> w2<e2>", add_special_tokens=False)["input_ids"] == [6, 97, 7, 98]
    assert not diagnose(folder)


def test_added_tokens_without_rows_are_named_and_the_remedy_holds(
    folder: Path, vectors: np.ndarray
) -> None:
    added_in_a_file(folder)
    with pytest.raises(ModelError, match="has no rows for '<e1>', '<e2>': perhaps"):
        load_model(folder)
    (folder / "added_tokens.json").write_text("{}")
    np.testing.assert_array_equal(load(folder).embed(TEXTS), vectors)


@pytest.mark.parametrize("pieces", [10, 97])
def test_vocabularies_that_disagree(pieces: int, folder: Path, vectors: np.ndarray) -> None:
    said = "has other pieces than tokenizer.json, which is used"
    lines = (folder / "vocab.txt").read_text().splitlines()
    lines = lines[:10] if pieces == 10 else [*lines[:5], *reversed(lines[5:])]
    (folder / "vocab.txt").write_text("".join(f"{line}\n" for line in lines))
    loaded = load_model(folder)
    (note,) = [note for note in loaded.notes if "vocab.txt" in note]
    assert said in note
    assert any(said in problem for problem in diagnose(folder))
    np.testing.assert_array_equal(load(folder).embed(TEXTS), vectors)
    (folder / "vocab.txt").unlink()
    assert not load_model(folder).notes


def test_a_weight_in_two_parts_is_that_which_the_index_means(
    folder: Path, vectors: np.ndarray
) -> None:
    weights = weights_of(folder)
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    parts = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    save_file({n: weights[n].clone() for n in names[:12]}, folder / parts[0])
    others = {n: weights[n] + (n in names[:12]) for n in names[8:]}  # left over from before
    save_file(others, folder / parts[1])
    index = {"weight_map": {n: parts[n not in names[:12]] for n in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    np.testing.assert_array_equal(load(folder).embed(TEXTS), vectors)


def test_a_weight_under_two_names(folder: Path, vectors: np.ndarray) -> None:
    weights = weights_of(folder)
    name, old = (f"bert.embeddings.LayerNorm.{end}" for end in ("weight", "gamma"))
    write(folder, {**weights, old: weights[name].clone()})
    np.testing.assert_array_equal(load(folder).embed(TEXTS), vectors)
    write(folder, {**weights, old: 2 * weights[name]})
    with pytest.raises(ModelError, match=rf"holds {name} twice, with other values"):
        load_model(folder)


def test_a_model_type_of_another_family(folder: Path, vectors: np.ndarray) -> None:
    set_config(folder, model_type="roberta")
    with pytest.raises(ModelError, match="named as those of BERT"):
        load_model(folder)
    set_config(folder, model_type="bert")
    np.testing.assert_array_equal(load(folder).embed(TEXTS), vectors)
