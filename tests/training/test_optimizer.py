"""BERT's Adam, against the original's formula in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bothways.model.kernels.rounded import RoundedWeights
from bothways.model.model import EncoderModel
from bothways.training.optimizer import CompiledAdam, Optimizer, frozen_below, make_optimizer
from bothways.training.options import OptimizerOptions
from pretraining_examples import BOTH_HEADS, small_model, small_shape

STEPS = 50


class Two(nn.Module):
    """A matrix, which decays, and a vector, which does not."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.matrix = nn.Parameter(torch.randn(7, 5, generator=generator))
        self.vector = nn.Parameter(torch.randn(9, generator=generator))


def gradient_of(step: int, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng([step, len(shape)])
    gradient = rng.normal(size=shape) * 10.0 ** rng.integers(-4, 2)
    return gradient.astype(np.float32)


def rate_of(step: int) -> float:
    return 1e-2 * min(step + 1, 10) / 10


def train(model: Two, optimizer: Optimizer) -> None:
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate_of(step)
        for parameter in model.parameters():
            parameter.grad = torch.from_numpy(gradient_of(step, tuple(parameter.shape)))
        optimizer.step()


def original(start: np.ndarray, options: OptimizerOptions, decay: float) -> np.ndarray:
    """AdamWeightDecayOptimizer of google-research/bert's optimization.py, in float64."""
    parameter = start.astype(np.float64)
    m, v = np.zeros_like(parameter), np.zeros_like(parameter)
    for step in range(STEPS):
        gradient = gradient_of(step, parameter.shape).astype(np.float64)
        m = options.beta1 * m + (1 - options.beta1) * gradient
        v = options.beta2 * v + (1 - options.beta2) * gradient**2
        update = m / (np.sqrt(v) + options.eps) + decay * parameter
        parameter = parameter - rate_of(step) * update
    return parameter


OPTIONS = pytest.mark.parametrize(
    "changed", [{}, {"beta2": 0.98}, {"beta2": 0.99999}, {"beta1": 0.5}, {"eps": 1e-2}]
)


@pytest.mark.parametrize("form", ["library", "compiled"])
@OPTIONS
def test_equals_the_original(changed: dict[str, Any], form: str) -> None:
    options = OptimizerOptions(weight_decay=0.1, **changed)
    model = Two()
    start = {n: p.detach().numpy().copy() for n, p in model.named_parameters()}
    optimizer = make_optimizer(model, options, rounded=_rounded(form))
    assert isinstance(optimizer, CompiledAdam) == (form == "compiled")
    train(model, optimizer)
    for name, parameter in model.named_parameters():
        decay = 0.1 if name == "matrix" else 0.0
        expected = original(start[name], options, decay)
        moved = np.abs(expected - start[name]).max()
        assert moved > 0.1
        # Rounding of 50 steps, far below what a correction or the other decay would change.
        error = np.abs(parameter.detach().numpy() - expected).max()
        assert error < 3e-5 * max(moved, 1), (name, error)
        other = original(start[name], options, 0.1 - decay)
        assert np.abs(other - expected).max() > 100 * error, "the test sees which one decays"


def _rounded(form: str) -> RoundedWeights | None:
    return RoundedWeights() if form == "compiled" else None


@pytest.mark.parametrize("corrected", [True, False])
def test_the_compiled_loop_is_the_librarys_adam(corrected: bool) -> None:
    """With gradients that are divided, a parameter without one, and sizes of several pieces."""
    options = OptimizerOptions(weight_decay=0.1, bias_correction=corrected)
    found = []
    for form in ("library", "compiled"):
        generator = torch.Generator().manual_seed(5)
        model = nn.Module()
        for name, shape in (("a", (70, 131)), ("b", (3,)), ("unused", (5, 5)), ("c", (1, 4096))):
            values = torch.randn(shape, generator=generator)
            model.register_parameter(name, nn.Parameter(values))
        optimizer: Any = make_optimizer(model, options, rounded=_rounded(form))
        for step in range(5):
            for name, parameter in model.named_parameters():
                if name != "unused" and (name != "b" or step != 2):
                    parameter.grad = torch.randn(parameter.shape, generator=generator)
            if form == "library":
                optimizer.grad_scale = torch.tensor(3.0)
            else:
                gradients = [p.grad for p in model.parameters() if p.grad is not None]
                norm = torch.nn.utils.get_total_norm(gradients)
                torch.testing.assert_close(optimizer.norm(), norm)
                optimizer.divisor = 3.0
            for group in optimizer.param_groups:
                group["lr"] = rate_of(step)
            optimizer.step()
            model.zero_grad()
        moments = [value for p in model.parameters() for value in optimizer.state[p].values()]
        found.append([*model.parameters(), *moments])
    torch.testing.assert_close(found[1], found[0], rtol=2e-5, atol=1e-7)


def lamb(start: np.ndarray, options: OptimizerOptions, *, matrix: bool) -> np.ndarray:
    """Algorithm 2 of You et al. 2020 in float64, phi the identity; vectors are not adapted."""
    x = start.astype(np.float64)
    m, v = np.zeros_like(x), np.zeros_like(x)
    for step in range(STEPS):
        gradient = gradient_of(step, x.shape).astype(np.float64)
        m = options.beta1 * m + (1 - options.beta1) * gradient
        v = options.beta2 * v + (1 - options.beta2) * gradient**2
        t = step + 1 if options.bias_correction else np.inf
        r = m / (1 - options.beta1**t) / (np.sqrt(v / (1 - options.beta2**t)) + options.eps)
        if matrix:
            r = r + options.weight_decay * x
            r *= np.linalg.norm(x) / np.linalg.norm(r)
        x = x - rate_of(step) * r
    return x


@pytest.mark.parametrize("corrected", [True, False])
@OPTIONS
def test_lamb_is_the_papers(corrected: bool, changed: dict[str, Any]) -> None:
    options = OptimizerOptions(
        optimizer="lamb", weight_decay=0.1, bias_correction=corrected, **changed
    )
    model = Two()
    start = {n: p.detach().numpy().copy() for n, p in model.named_parameters()}
    train(model, make_optimizer(model, options))
    for name, parameter in model.named_parameters():
        expected = lamb(start[name], options, matrix=name == "matrix")
        moved = np.abs(expected - start[name]).max()
        assert moved > 0.01
        error = np.abs(parameter.detach().numpy() - expected).max()
        assert error < 1e-5 * max(moved, 1), (name, error)
        other = lamb(start[name], options, matrix=name != "matrix")
        assert np.abs(other - expected).max() > 100 * error, "the test sees which is adapted"


def test_lamb_takes_queries_keys_and_values_for_themselves() -> None:
    model = small_model()
    fused = model.encoder.layers[0].attention.qkv.weight
    with torch.no_grad():
        fused[:16] *= 10
    before = fused.detach().clone()
    optimizer = make_optimizer(model, OptimizerOptions(optimizer="lamb", weight_decay=0.0))
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(held) == len(set(map(id, held))) == len(list(model.parameters()))
    fused.grad = torch.randn(fused.shape)
    optimizer.step()
    for own, moved in zip(before.chunk(3), (fused - before).detach().chunk(3), strict=True):
        assert float(moved.norm()) == pytest.approx(0.1 * float(own.norm()), rel=1e-5)


def test_lamb_without_a_norm_moves_as_adam_does() -> None:
    model = nn.Module()
    model.zero = nn.Parameter(torch.zeros(3, 2))
    model.still = nn.Parameter(torch.ones(2, 2))
    options = OptimizerOptions(optimizer="lamb", bias_correction=True, weight_decay=0.0)
    optimizer = make_optimizer(model, options)
    optimizer.param_groups[0]["lr"] = 0.5
    model.zero.grad = torch.tensor([[1.0, -2.0], [3.0, 4.0], [-5.0, 6.0]])
    model.still.grad = torch.zeros(2, 2)
    optimizer.step()
    torch.testing.assert_close(model.zero.detach(), -0.5 * model.zero.grad.sign())
    assert torch.equal(model.still, torch.ones(2, 2))


def test_with_correction_it_is_adamw() -> None:
    options = OptimizerOptions(bias_correction=True)
    ours, theirs = Two(), Two()
    train(ours, make_optimizer(ours, options))
    reference = torch.optim.AdamW(
        [
            {"params": [theirs.matrix], "weight_decay": 0.01},
            {"params": [theirs.vector], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.999),
        eps=1e-6,
        fused=True,
    )
    train(theirs, reference)
    assert torch.equal(ours.matrix, theirs.matrix)
    assert torch.equal(ours.vector, theirs.vector)
    without = Two()
    train(without, make_optimizer(without, OptimizerOptions()))
    assert (without.matrix - ours.matrix).abs().max() > 1e-2, "the two differ"


def other(name: str, start: np.ndarray, o: OptimizerOptions, decay: float) -> np.ndarray:
    """The rules of the papers, in float64. Liu et al. 2020; Kingma and Ba 2015, 7.1; Shazeer and
    Stern 2018, with relative steps."""
    p = start.astype(np.float64)
    m, v = np.zeros_like(p), np.zeros_like(p)
    row, column = np.zeros((len(p), 1)), np.zeros((1, p.shape[-1]))
    for step in range(STEPS):
        size = np.sqrt((p**2).mean())
        t, lr, g = step + 1, rate_of(step), gradient_of(step, p.shape).astype(np.float64)
        if name in ("radam", "adafactor"):
            p *= 1 - lr * decay
        else:
            g = g + decay * p
        if name == "sgd":
            m = o.beta1 * m + g
            p -= lr * m
            continue
        if name == "adafactor":
            beta = 1 - t**-0.8
            square = g**2
            if p.ndim > 1:
                row = beta * row + (1 - beta) * square.mean(-1, keepdims=True)
                column = beta * column + (1 - beta) * square.mean(0, keepdims=True)
                v = row @ column / row.mean()
            else:
                v = beta * v + (1 - beta) * square
            update = g / np.sqrt(v)
            update /= max(1, np.sqrt((update**2).mean()))
            p -= max(1e-3, size) * min(lr, t**-0.5) * update
            continue
        m = o.beta1 * m + (1 - o.beta1) * g
        mean = m / (1 - o.beta1**t)
        if name == "adamax":
            v = np.maximum(o.beta2 * v, np.abs(g) + o.eps)
            p -= lr * mean / v
            continue
        v = o.beta2 * v + (1 - o.beta2) * g**2
        most = 2 / (1 - o.beta2) - 1
        rho = most - 2 * t * o.beta2**t / (1 - o.beta2**t)
        if rho > 5:
            r = (rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho)
            mean *= np.sqrt(r * (1 - o.beta2**t)) / (np.sqrt(v) + o.eps)
        p -= lr * mean
    return p


@pytest.mark.parametrize("name", ["radam", "sgd", "adafactor", "adamax"])
def test_other_optimizers_equal_their_papers(name: Any) -> None:
    options, model = OptimizerOptions(optimizer=name, weight_decay=0.1), Two()
    start = {n: p.detach().numpy().copy() for n, p in model.named_parameters()}
    optimizer = make_optimizer(model, options)
    before = {id(p): set(optimizer.state[p]) for p in model.parameters()}
    train(model, optimizer)
    for key, parameter in model.named_parameters():
        assert set(optimizer.state[parameter]) == before[id(parameter)], "a checkpoint has it all"
        expected = other(name, start[key], options, 0.1 if key == "matrix" else 0.0)
        moved = np.abs(expected - start[key]).max()
        assert moved > 1e-2
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=0, atol=1e-4 * moved)


@pytest.mark.parametrize("name", ["adam", "lamb", "sgd"])
def test_rates_fall_from_layer_to_layer(name: Any) -> None:
    """Those of equal gradients; the group of each layer is one made by hand."""
    model = EncoderModel(replace(small_shape(), layers=2), **BOTH_HEADS, seed=3)
    made: Any = make_optimizer(model, OptimizerOptions(optimizer=name, layer_decay=0.5))
    names = {id(p): n for n, p in model.named_parameters()}
    scales = {names[id(p)]: g["scale"] for g in made.param_groups for p in g["params"]}
    assert scales.keys() == set(names.values())
    expected = {
        "encoder.embeddings": 0.125,
        "encoder.layers.0": 0.25,
        "encoder.layers.1": 0.5,
        "encoder.pooler": 1.0,
        "masked_lm": 1.0,
    }
    for own, scale in scales.items():
        assert [scale] == [s for start, s in expected.items() if own.startswith(start)] or (
            own.startswith("next_sentence") and scale == 1.0
        )
    if name == "lamb":
        kinds = {(len(g["rows"]), g["weight_decay"]) for g in made.param_groups}
        assert kinds == {(0, 0.0), (1, 0.01), (3, 0.01)}


def test_layers_are_unfrozen_from_the_top() -> None:
    options = OptimizerOptions(unfreeze=0.6)
    below = [frozen_below(step, 100, 3, options) for step in range(100)]
    assert [below.index(depth) for depth in (3, 2, 1, 0)] == [0, 20, 40, 60]
    assert below == sorted(below, reverse=True)
    assert not frozen_below(0, 100, 3, OptimizerOptions())


def test_the_counter_may_stop() -> None:
    # Past 2 ** 24 an fp32 counter stands still; the update must not notice.
    models = [Two(), Two()]
    for model, count in zip(models, (2.0**23, 2.0**24), strict=True):
        optimizer = make_optimizer(model, OptimizerOptions())
        for parameter in model.parameters():
            optimizer.state[parameter]["step"].fill_(count)
        train(model, optimizer)
    assert torch.equal(models[0].matrix, models[1].matrix)


def test_what_decays() -> None:
    model = small_model()
    optimizer = make_optimizer(model, OptimizerOptions(weight_decay=0.03))
    names = {id(p): n for n, p in model.named_parameters()}
    groups = {
        group["weight_decay"]: {names[id(p)] for p in group["params"]}
        for group in optimizer.param_groups
    }
    assert set(groups) == {0.03, 0.0}
    assert groups[0.03] | groups[0.0] == set(names.values())
    for name in groups[0.03]:
        assert name.endswith("weight")
        assert "norm" not in name
    for name in groups[0.0]:
        assert "norm" in name or name.endswith("bias"), name
    for name in ("encoder.embeddings.tokens.weight", "encoder.pooler.weight"):
        assert name in groups[0.03]
    assert "masked_lm.bias" in groups[0.0]


def test_frozen_parameters_are_left_out() -> None:
    model = Two()
    model.vector.requires_grad_(False)
    optimizer = make_optimizer(model, OptimizerOptions())
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 0]
