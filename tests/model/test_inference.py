"""The encoder prepared for inference: the states of the plain form, in every family."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bothways.batch import collate
from bothways.families import config_of
from bothways.families.config import ModelConfig
from bothways.model import inference
from bothways.model.batch import Inputs, SelectedPositions
from bothways.model.encoder import Encoder, HiddenStates
from bothways.model.engine import TorchEngine
from bothways.model.inference import PreparedEncoder, prepare
from bothways.model.kernels import compiled
from bothways.runtime.engine import layer_name
from family_examples import EXAMPLES, LENGTHS, perturb, rows
from model_examples import small_bert, small_config

DTYPES = [torch.float32, torch.bfloat16, torch.float64]


def attention(lengths: Sequence[int], heads: int, size: int, dtype: torch.dtype, **own: Any) -> Any:
    """What the loop gives, and the definition in fp64."""
    H, T = heads * size, sum(lengths)
    generator = torch.Generator().manual_seed(sum(lengths))
    x = (2 * torch.randn(T, 3 * H, generator=generator)).to(dtype)
    bias = torch.randn(3 * H, generator=generator, dtype=compiled.exact(x))
    bounds, at, causal = np.cumsum([0, *lengths]), own.get("at"), own.get("causal", False)
    queries = x if at is None else x[at, :H].contiguous()
    keys = x if at is None else x[:, H:].contiguous()
    query_bounds = bounds if at is None else np.searchsorted(at, bounds)
    out = torch.full((len(queries), H), 9.0, dtype=dtype)
    compiled.runner()(
        *("attention", queries, query_bounds, keys, bounds, heads, bias),
        *(compiled.number(size**-0.5, x), causal, out),
    )
    expected = []
    for start, end in pairwise(bounds):
        rows = (x[start:end].double() + bias.double()).view(end - start, 3, heads, size)
        q, k, v = rows.permute(1, 2, 0, 3)
        scores = q @ k.transpose(1, 2) * size**-0.5
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        expected.append((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))
    reference = torch.cat(expected)
    return out, reference if at is None else reference[at]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "size"), [(1, 32), (3, 5), (2, 64)])
def test_attention_is_that_of_each_sequence(heads: int, size: int, dtype: torch.dtype) -> None:
    close = {torch.float32: 1e-5, torch.bfloat16: 0.02, torch.float64: 1e-12}[dtype]
    lengths = (9, 70, 1, 33, 32, 4)
    for own in ({}, {"causal": True}, {"at": np.array([0, 3, 9, 10, 11, 78, 79, 148])}):
        found, expected = attention(lengths, heads, size, dtype, **own)
        torch.testing.assert_close(found.double(), expected, rtol=close, atol=close)


def test_attention_does_not_depend_on_the_other_sequences() -> None:
    """More sequences than one thread takes a head of, too."""
    many = [1 + n * 7 % 40 for n in range(130)]
    together, _ = attention(many, 2, 32, torch.float32)
    generator = torch.Generator().manual_seed(sum(many))
    x = 2 * torch.randn(sum(many), 192, generator=generator)
    bias, bounds = torch.randn(192, generator=generator), np.cumsum([0, *many])
    run = compiled.runner()
    for n in (0, 77, 129):
        own = x[bounds[n] : bounds[n + 1]].contiguous()
        alone = torch.empty(len(own), 64)
        of_one = np.array([0, len(own)])
        scale = compiled.number(32**-0.5, x)
        run("attention", own, of_one, own, of_one, 2, bias, scale, False, alone)
        assert torch.equal(alone, together[bounds[n] : bounds[n + 1]])


def family_encoder(name: str) -> tuple[Encoder, Inputs]:
    example = EXAMPLES[name]
    config, _ = config_of(example.config().to_dict(), where="file")
    encoder = Encoder(config).eval()
    perturb(encoder)
    return encoder, Inputs.of(collate(*rows(example), max_positions=max(LENGTHS)))


def form_of(encoder: Encoder, dtype: torch.dtype = torch.float32) -> PreparedEncoder:
    form = prepare(encoder, dtype)
    assert isinstance(form, PreparedEncoder)
    return form


@pytest.fixture(params=[False, True], ids=["as torch takes it", "oneDNN"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each library that products in fp32 may be computed with."""
    monkeypatch.setattr(inference, "onednn_pays", lambda: request.param)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", EXAMPLES)
@torch.no_grad()
def test_states_are_those_of_the_plain_form(name: str) -> None:
    encoder, inputs = family_encoder(name)
    form, total = prepare(encoder, torch.float32), int(inputs.bounds[-1])
    covered = compiled.why_not_covered(encoder.config) is None
    assert isinstance(form, PreparedEncoder) == covered
    expected = encoder.hidden_states(inputs)
    for one, two in zip(form.hidden_states(inputs), expected, strict=True):
        torch.testing.assert_close(one[:total], two[:total], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(form(inputs)[:total], expected[-1][:total], rtol=1e-5, atol=1e-5)
    chosen = torch.tensor([50, 2, 0, 49]), torch.tensor([3, 60])
    selected = SelectedPositions.of(inputs, *chosen)
    for at, found in zip(chosen, form.hidden_at(inputs, selected), strict=True):
        torch.testing.assert_close(found, expected[-1][at], rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("library")
@torch.no_grad()
def test_left_to_right() -> None:
    encoder = Encoder(small_config((2, 32, 4, 50, 97), left_to_right=True)).eval()
    perturb(encoder)
    inputs = Inputs.of(collate(*rows(EXAMPLES["bert"]), max_positions=40))
    form, total, at = form_of(encoder), int(inputs.bounds[-1]), torch.tensor([7, 1])
    expected = encoder(inputs)
    torch.testing.assert_close(form(inputs), expected[:total], rtol=1e-5, atol=1e-5)
    (found,) = form.hidden_at(inputs, SelectedPositions.of(inputs, at))
    torch.testing.assert_close(found, expected[at], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_bf16_rounds_no_more_than_the_plain_form() -> None:
    shape = (3, 64, 4, 128, 97)
    encoder = Encoder(small_config(shape)).eval()
    perturb(encoder)
    inputs = Inputs.of(collate(*rows(EXAMPLES["bert"]), max_positions=40))
    total = int(inputs.bounds[-1])
    exact = encoder.double()(inputs, dtype=torch.float64)[:total]
    encoder.float()

    def error(form: HiddenStates) -> float:
        found = form(inputs, dtype=torch.bfloat16)
        assert found.dtype == torch.bfloat16
        return float((found[:total].double() - exact).square().mean().sqrt())

    own, plain = error(form_of(encoder, torch.bfloat16)), error(encoder)
    assert 1e-3 < own < 1.1 * plain


@torch.no_grad()
def test_shapes_that_are_not_covered_are_rounded_once() -> None:
    name = next(n for n in EXAMPLES if n.startswith("modernbert"))
    encoder, inputs = family_encoder(name)
    form, total = prepare(encoder, torch.bfloat16), int(inputs.bounds[-1])
    found = form(inputs, dtype=torch.bfloat16)[:total]
    assert torch.equal(found, encoder(inputs, dtype=torch.bfloat16)[:total])
    assert isinstance(form, Encoder)
    assert {p.dtype for p in form.layers.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in encoder.parameters()} == {torch.float32}


def weights(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.usefixtures("library")
@torch.no_grad()
def test_shared_weights_keep_their_values() -> None:
    encoder, inputs = family_encoder("bert")
    before, expected = weights(encoder), encoder(inputs)
    form = prepare(encoder, torch.float32, share=True)
    after = encoder.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    layer: Any = encoder.layers[0]
    assert layer.expand.weight.t().is_contiguous(), "there is one copy"
    total = int(inputs.bounds[-1])
    for states in (encoder(inputs), form(inputs)):
        torch.testing.assert_close(states[:total], expected[:total], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("other", "pays"), [(0.5, True), (0.9, False), (2.0, False)])
def test_onednn_computes_fp32_where_it_is_much_faster(
    other: float, pays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds(*actions: Callable[[], Tensor]) -> list[float]:
        one, two = (action() for action in actions)
        torch.testing.assert_close(one, two)
        return [1.0, other]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(inference, "least_seconds", seconds)
    assert inference.onednn_pays.__wrapped__() is pays


def test_an_engine_sees_weights_that_change() -> None:
    """Neither the engine of a network in memory nor a folder's computes with old ones."""
    network = small_bert(classes=2)
    batch = collate([[1, 2, 3], [4]], [[0, 0, 0], [0]], max_positions=40)
    last = network.config.layers
    engine = TorchEngine(network)
    one = engine.compute(batch, layers=[last])[layer_name(last)]
    layer: Any = network.encoder.layers[0]
    with torch.no_grad():
        layer.expand.weight.mul_(3)
    two = engine.compute(batch, layers=[last])[layer_name(last)]
    fresh = TorchEngine(network).compute(batch, layers=[last])[layer_name(last)]
    assert np.abs(one - two).max() > 1e-3
    assert np.array_equal(two, fresh)
    assert all(p.is_contiguous() for p in network.parameters()), "it is not the engine's own"


def test_plain_kernels_are_the_plain_form() -> None:
    encoder = Encoder(small_config())
    encoder.shared.fast = False
    assert prepare(encoder, torch.float32) is encoder


@torch.no_grad()
def test_embeddings_without_a_norm() -> None:
    config: ModelConfig = dataclasses.replace(small_config(), embedding_norm=False)
    encoder = Encoder(config).eval()
    perturb(encoder)
    inputs = Inputs.of(collate(*rows(EXAMPLES["bert"]), max_positions=40))
    found, total = form_of(encoder)(inputs), int(inputs.bounds[-1])
    torch.testing.assert_close(found, encoder(inputs)[:total], rtol=1e-5, atol=1e-5)
