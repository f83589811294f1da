"""GPUs as figures, and what a step costs on some of them: computed, not run.

W ranks, each with one device. Figures of the devices are those of NVIDIA's data sheets: "A100
Tensor Core GPU" (SXM, 80 GB), "H100 Tensor Core GPU" (SXM), "H200 Tensor Core GPU" (SXM), "L40S
GPU", "DGX A100", "DGX H100/H200". What a program reaches of them was measured on one H100
(benchmarks/2026-11-26-h100.md), and is assumed of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from bothways.families.config import ModelConfig

_IN_MACHINE = 8  # devices


@dataclass(frozen=True)
class Accelerator:
    """A device, by its data sheet.

    Attributes:
        rate: bf16 matrix products, operations per second, dense (half of what is said of sparse
            matrices).
        memory: bytes.
        bandwidth: bytes of memory per second.
        link: bytes per second that it can send to the others of its machine (half of what is said
            of both directions).
        network: the same to other machines.
    """

    rate: float
    memory: float
    bandwidth: float
    link: float
    network: float


ACCELERATORS: dict[str, Accelerator] = {
    # NVLink 600 GB/s; DGX A100: eight ports of 200 Gb/s.
    "a100": Accelerator(312e12, 80e9, 2.039e12, 300e9, 25e9),
    # 1,979 TFLOP/s sparse; NVLink 900 GB/s; DGX H100 and H200: eight ports of 400 Gb/s.
    "h100": Accelerator(989e12, 80e9, 3.35e12, 450e9, 50e9),
    "h200": Accelerator(989e12, 141e9, 4.8e12, 450e9, 50e9),
    # PCIe 4, 64 GB/s both ways; its data sheet knows no network: 200 Gb/s for eight is assumed.
    "l40s": Accelerator(362e12, 48e9, 0.864e12, 32e9, 3.125e9),
}
"""By their names on the command line, which :class:`PlanConfig` lists too."""

REACHED = 0.30
"""Share of the rate that forward and backward passes reach: base, 256 x 128, 566,249 tokens per
second, without the update as computed here."""
_UPDATED = 30 / 4
"""Bytes that the update reads and writes, by the bytes of weights: these and two moments twice, the
gradient, the copy in bf16."""
LAYER_CALLS = 10.6e-3 / 4
"""Seconds that the host's calls for one layer take, forward and backward, however small it is: a
step of mini, four layers, took 10.6 ms, of which the device waited for half."""


class ComputedStep(NamedTuple):
    """What a step costs one rank.

    Attributes:
        seconds: computing, updating, then sending; nothing is counted as done at the same time.
        states: bytes of weights, gradients, moments and copies.
        sent: bytes that it sends; it receives as many.
    """

    seconds: float
    states: float
    sent: float


def computed_step(
    device: Accelerator,
    shape: ModelConfig,
    *,
    weights: float,
    layer: float,
    tokens: float,
    operations: float,
    ranks: int,
    rounds: int,
    sharded: bool,
) -> ComputedStep:
    """The cost of a step, in bf16 with fp32 master weights.

    A replicated model (DDP) has whole weights, moments and copies in bf16, and gradients, which
    stay in bf16 where nothing is added to them; gradients are summed over a ring, in fp32. A
    sharded one (FSDP) has a share of weights, gradients and moments, and whole weights and
    gradients of what is gathered: embeddings and heads, and a layer with the next one. In each
    micro-batch layers are gathered twice, embeddings and heads once, gradients scattered once.

    Args:
        device: one device.
        shape: the network.
        weights, layer: bytes of all weights in fp32, and of those of one layer.
        tokens: of a micro-batch.
        operations: per token, as :func:`bothways.model.flops.training_cost` counts them.
        ranks: W; a single one shards nothing.
        rounds: micro-batches of a rank in a step.
        sharded: FSDP, else DDP.
    """
    layers = shape.layers * layer
    if sharded and ranks > 1:
        owned = weights / ranks
        states = 4 * owned + 2 * (weights - layers) + 3 * layer
        sent = rounds * (ranks - 1) / ranks * (2 * weights + layers)
    else:
        owned = weights
        states = weights * 3.5 + (weights if rounds > 1 or ranks > 1 else weights / 2)
        sent = 2 * (ranks - 1) / ranks * weights
    computing = max(tokens * operations / (device.rate * REACHED), shape.layers * LAYER_CALLS)
    seconds = rounds * computing + _UPDATED * owned / device.bandwidth
    seconds += sent / (device.link if ranks <= _IN_MACHINE else device.network)
    return ComputedStep(seconds, states, sent)


def kept(shape: ModelConfig, tokens: float, *, recompute: bool) -> float:
    """Bytes of activations that a micro-batch keeps for its backward pass, in bf16.

    Of a layer its input, queries, keys and values, the attended values, the sums before both norms
    and what lies between, and the feed-forward's middle before and after its activation; with
    recomputing, of all layers but one the input alone.
    """
    layer = 2 * tokens * (8 * shape.hidden + (3 if shape.gated else 2) * shape.intermediate)
    if recompute:
        return layer + 2 * tokens * shape.hidden * (shape.layers - 1)
    return layer * shape.layers
