"""The ONNX graph against the network: every family and head, both forms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from bothways.errors import ModelError
from bothways.families import FAMILIES, config_of
from bothways.families.heads import HEADS
from bothways.model.engine import network_of
from bothways.model.model import EncoderModel
from bothways.runtime.onnx_engine import _OnnxSession, _with_own_weights
from bothways.runtime.onnx_graph import (
    HIDDEN,
    IDS,
    MASK,
    READ,
    SEGMENTS,
    Int8,
    Outputs,
    build_graph,
    linear_maps,
)
from family_examples import EXAMPLES, NETWORKS, Example, batch_of, loaded, perturb

Arrays = dict[str, NDArray[Any]]
# Compared with values of order one.
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-4}


def session(model: EncoderModel, outputs: Outputs, *, fused: bool) -> onnxruntime.InferenceSession:
    state = {name: value.numpy() for name, value in model.own_state().items()}
    graph = build_graph(model.config, state, outputs, fused=fused)
    if not fused:
        onnx.checker.check_model(graph, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(graph.SerializeToString(), options)


def run(found: onnxruntime.InferenceSession, batch: dict[str, Any], **more: Any) -> Arrays:
    given = {name: np.asarray(value) for name, value in batch.items()}
    given.setdefault(SEGMENTS, np.zeros_like(given[IDS]))
    wanted = {one.name for one in found.get_inputs()}
    values = found.run(None, {k: v for k, v in {**given, **more}.items() if k in wanted})
    return {one.name: value for one, value in zip(found.get_outputs(), values, strict=True)}


def small_model(example: Example, *heads: str, **settings: Any) -> EncoderModel:
    config, _ = config_of(example.config().to_dict(), where="file")
    wanted = {name: HEADS[name].outputs or 3 for name in heads}
    model = EncoderModel(replace(config, **settings), heads=wanted, seed=1).eval()
    perturb(model)
    with torch.no_grad():
        model.embedding_VH[config.vocab_size :] = 0
    return model


def flat(rows: NDArray[Any], batch: dict[str, Any]) -> NDArray[Any]:
    return rows[np.asarray(batch[MASK]).astype(bool)]


def heads_of(name: str) -> list[tuple[str, ...]]:
    """All heads of a family, one task's at a time."""
    found = [h for h in HEADS if h in FAMILIES[name].heads or HEADS[h].form is not None]
    others = tuple(h for h in found if not HEADS[h].task)
    return [others, *((h,) for h in found if HEADS[h].task)]


CASES = [
    pytest.param(name, heads, id=f"{name}-{'+'.join(heads)}")
    for name, example in EXAMPLES.items()
    for heads in heads_of(config_of(example.config().to_dict(), where="")[0].family)
]


@pytest.mark.parametrize("fused", [False, True], ids=["portable", "fused"])
@pytest.mark.parametrize(("name", "heads"), CASES)
@torch.no_grad()
def test_outputs_are_the_networks(name: str, heads: tuple[str, ...], fused: bool) -> None:
    model = small_model(EXAMPLES[name], *heads)
    inputs, batch = batch_of(EXAMPLES[name])
    layers = range(model.config.layers + 1)
    found = run(session(model, Outputs(heads, hidden=True, layers=layers), fused=fused), batch)
    assert found.keys() == {HIDDEN, *heads, *(f"{HIDDEN}.{number}" for number in layers)}
    expected = {**model(inputs)}
    total = int(inputs.bounds[-1])
    for number, states in enumerate(model.encoder.hidden_states(inputs)):
        expected[f"{HIDDEN}.{number}"] = states[:total]
    for key, value in found.items():
        own = flat(value, batch) if value.ndim == 3 else value
        np.testing.assert_allclose(own, expected[key].numpy(), **CLOSE, err_msg=key)


@pytest.mark.parametrize("fused", [False, True], ids=["portable", "fused"])
@pytest.mark.parametrize("name", ["bert", "albert", "modernbert"])
@torch.no_grad()
def test_chosen_tokens_are_those_of_all(name: str, fused: bool) -> None:
    model = small_model(EXAMPLES[name], "masked_lm", "tagger")
    inputs, batch = batch_of(EXAMPLES[name])
    places = np.flatnonzero(np.asarray(batch[MASK]))[[3, 0, 50, 17]]
    heads = ("masked_lm", "tagger")
    found = run(
        session(model, Outputs(heads, chosen=True), fused=fused),
        batch,
        **{f"{READ}{head}": places for head in heads},
    )
    for head in heads:
        flat_places = np.searchsorted(np.flatnonzero(np.asarray(batch[MASK])), places)
        expected = model(inputs)[head][flat_places]
        np.testing.assert_allclose(found[head], expected.numpy(), **CLOSE)


@pytest.mark.parametrize("fused", [False, True], ids=["portable", "fused"])
@pytest.mark.parametrize("name", EXAMPLES)
@torch.no_grad()
def test_a_text_does_not_depend_on_its_batch(name: str, fused: bool) -> None:
    """Up to rounding: alone, padded, and beside others."""
    model = small_model(EXAMPLES[name], "classifier")
    found = session(model, Outputs(("classifier",), hidden=True), fused=fused)
    _, batch = batch_of(EXAMPLES[name])
    together = run(found, batch)
    for row, length in enumerate(np.asarray(batch[MASK]).sum(1)):
        alone = run(found, {k: v[row : row + 1, :length] for k, v in batch.items()})
        np.testing.assert_allclose(
            alone[HIDDEN][0], together[HIDDEN][row, :length], rtol=0, atol=1e-5
        )
        np.testing.assert_allclose(
            alone["classifier"], together["classifier"][row : row + 1], rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("fused", [False, True], ids=["portable", "fused"])
@pytest.mark.parametrize(
    "settings",
    [
        {"left_to_right": True},
        {"pooling": "mean"},
        {"kv_heads": 2},
        {"kv_heads": 1, "norm": "rms", "place": "rotary"},
        {"tied": False, "gated": True},
    ],
    ids=str,
)
@torch.no_grad()
def test_other_axes(settings: dict[str, Any], fused: bool) -> None:
    model = small_model(EXAMPLES["bert"], "masked_lm", "classifier", **settings)
    inputs, batch = batch_of(EXAMPLES["bert"])
    found = run(session(model, Outputs(("masked_lm", "classifier")), fused=fused), batch)
    expected = model(inputs)
    np.testing.assert_allclose(
        flat(found["masked_lm"], batch), expected["masked_lm"].numpy(), **CLOSE
    )
    np.testing.assert_allclose(found["classifier"], expected["classifier"].numpy(), **CLOSE)


def test_relative_places_have_no_graph() -> None:
    model = small_model(NETWORKS["deberta-v2"])
    with pytest.raises(ModelError, match="relative places of deberta-v2; use engine torch"):
        session(model, Outputs(hidden=True), fused=False)


@pytest.mark.parametrize("head", ["classifier", "tagger", "span"])
@torch.no_grad()
def test_a_bilstm_under_a_head(head: str) -> None:
    config, _ = config_of(EXAMPLES["bert"].config().to_dict(), where="file")
    model = EncoderModel(config, heads={head: HEADS[head].outputs or 3}, lstm=6, seed=1).eval()
    perturb(model)
    inputs, batch = batch_of(EXAMPLES["bert"])
    found = run(session(model, Outputs((head,)), fused=False), batch)[head]
    own = found if head == "classifier" else flat(found, batch)
    np.testing.assert_allclose(own, model(inputs)[head].numpy(), **CLOSE)


@pytest.mark.parametrize("name", ["bert", "albert-groups", "modernbert"])
@torch.no_grad()
def test_attentions_are_theirs(name: str, tmp_path: Path) -> None:
    theirs = EXAMPLES[name].model("Model")
    model = network_of(loaded(theirs, tmp_path))
    _, batch = batch_of(EXAMPLES[name])
    layers = range(1, model.config.layers + 1)
    found = run(session(model, Outputs(attentions=layers), fused=True), batch)
    expected = theirs(**batch, output_attentions=True).attentions
    tokens = np.asarray(batch[MASK]).astype(bool)
    for number in layers:
        shown, wanted = found[f"attentions.{number}"], expected[number - 1].numpy()
        for row, own in enumerate(tokens):
            np.testing.assert_allclose(shown[row][:, own], wanted[row][:, own], **CLOSE)


def test_a_head_without_weights_is_named() -> None:
    model = small_model(EXAMPLES["bert"], "classifier")
    with pytest.raises(ModelError, match="no weights of a tagger head"):
        session(model, Outputs(("tagger",)), fused=False)


def test_the_same_bytes_twice() -> None:
    model = small_model(EXAMPLES["modernbert"], "classifier")
    state = {name: value.numpy() for name, value in model.own_state().items()}
    graphs = [build_graph(model.config, state, Outputs(("classifier",))) for _ in range(2)]
    assert graphs[0].SerializeToString() == graphs[1].SerializeToString()


def test_names_that_others_expect() -> None:
    model = small_model(EXAMPLES["bert"], "classifier")
    wanted = Outputs(("classifier",), others=True)
    names = [one.name for one in session(model, wanted, fused=False).get_outputs()]
    assert names == ["logits"]


def ranges_of(model: EncoderModel, batch: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
    found = run(session(model, Outputs(ranges=True), fused=True), batch)
    assert found.keys() == {f"range.{name}" for name in linear_maps(model.config)}
    return {name.removeprefix("range."): value for name, value in found.items()}


def session_of_8_bits(
    model: EncoderModel, outputs: Outputs, int8: Int8
) -> onnxruntime.InferenceSession:
    state = {name: value.numpy() for name, value in model.own_state().items()}
    graph = build_graph(model.config, state, outputs, fused=True, int8=int8)
    # As the engine makes it: some processors need an option.
    found = _OnnxSession(graph.SerializeToString(), threads=1)._session
    assert isinstance(found, onnxruntime.InferenceSession)
    return found


def error(found: NDArray[Any], expected: NDArray[Any]) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@torch.no_grad()
def test_ranges_are_those_of_the_inputs() -> None:
    model = small_model(EXAMPLES["bert"])
    inputs, batch = batch_of(EXAMPLES["bert"], lengths=(11,))
    found = ranges_of(model, batch)
    states = model.encoder.hidden_states(inputs)
    for number in range(model.config.layers):
        expected = states[number][:11].abs().amax(0).numpy()
        own = found[f"encoder.layers.{number}.attention.qkv"]
        np.testing.assert_allclose(own, expected, atol=1e-4)
    assert all(found[name].min() >= 0 for name in found)


@pytest.mark.parametrize("name", EXAMPLES)
@torch.no_grad()
def test_8_bits_are_close_and_do_not_depend_on_the_batch(name: str) -> None:
    """A text's bits are the same alone, padded and beside others."""
    model = small_model(EXAMPLES[name], "classifier")
    inputs, batch = batch_of(EXAMPLES[name])
    int8 = Int8(ranges_of(model, batch))
    found = session_of_8_bits(model, Outputs(("classifier",), hidden=True), int8)
    together = run(found, batch)
    total = int(inputs.bounds[-1])
    assert error(flat(together[HIDDEN], batch), model.encoder(inputs)[:total].numpy()) < 0.05
    for row, length in enumerate(np.asarray(batch[MASK]).sum(1)):
        alone = run(found, {k: v[row : row + 1, :length] for k, v in batch.items()})
        assert error(alone[HIDDEN][0], together[HIDDEN][row, :length]) < 1e-6
        if name != "modernbert" and not model.config.gated:
            np.testing.assert_array_equal(alone[HIDDEN][0], together[HIDDEN][row, :length])


@torch.no_grad()
def test_weights_of_their_own_change_nothing() -> None:
    # Only processors without VNNI need them.
    model = small_model(EXAMPLES["albert"], "classifier")
    _, batch = batch_of(EXAMPLES["albert"])
    state = {name: value.numpy() for name, value in model.own_state().items()}
    outputs, int8 = Outputs(("classifier",), hidden=True), Int8(ranges_of(model, batch))
    graph = build_graph(model.config, state, outputs, fused=True, int8=int8)
    own = onnx.load_from_string(_with_own_weights(graph.SerializeToString()))

    def products(of: onnx.ModelProto) -> list[str]:
        return [n.input[1] for n in of.graph.node if n.op_type == "MatMulIntegerToFloat"]

    assert len({*products(graph)}) < len(products(graph)) == len({*products(own)})
    found = [run(_OnnxSession(g.SerializeToString(), 1)._session, batch) for g in (graph, own)]  # type: ignore[arg-type]
    for name, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][name])


@torch.no_grad()
def test_large_channels_are_made_smaller() -> None:
    """One channel of the inputs is a hundred times the others: its scale would be theirs too."""
    model = small_model(EXAMPLES["bert"])
    for layer in model.encoder.layers:
        layer.norm.weight[3] *= 100  # type: ignore[union-attr, operator]
        layer.attention.qkv.weight[:, 3] /= 100  # type: ignore[union-attr, operator, index]
    inputs, batch = batch_of(EXAMPLES["bert"])
    expected = model.encoder.hidden_states(inputs)[-1][: int(inputs.bounds[-1])].numpy()
    outputs, errors = Outputs(hidden=True), []
    for int8 in (Int8(), Int8(ranges_of(model, batch)), Int8(exact=linear_maps(model.config))):
        found = flat(run(session_of_8_bits(model, outputs, int8), batch)[HIDDEN], batch)
        keep = [i for i in range(found.shape[1]) if i != 3]
        errors.append(error(found[:, keep], expected[:, keep]))
    assert errors[1] < errors[0] / 2
    assert errors[2] < errors[1]
