"""One training step, ours and transformers', ready to be timed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bothways.errors import ConfigError
from bothways.experiments.bench.cases import PaddedBatch, padded
from bothways.families.config import ModelConfig
from bothways.model.batch import PretrainingBatch
from bothways.model.device import CPU, DTYPES, transposing_pays
from bothways.model.model import EncoderModel
from bothways.objectives.masked import MaskedLM
from bothways.objectives.objective import pretraining_loss
from bothways.training.options import OptimizerOptions
from bothways.training.trainer import Trainer

Step = Callable[[int], None]
"""Trains on the batches with this number; numbers beyond the last start over."""

OURS = ("bothways", "bothways fp32", "bothways plain")
PEERS = ("transformers fp32", "transformers bf16", "transformers bf16 compile")


def make_step(
    name: str,
    config: ModelConfig,
    steps: Sequence[Sequence[PretrainingBatch]],
    precision: str,
    device: torch.device = CPU,
) -> Step:
    """A contender's training step on one of these batches.

    Args:
        name: of :data:`OURS` or :data:`PEERS`.
        config: the shape, the same for all.
        steps: micro-batches of each step.
        precision: of ``bothways`` and ``bothways plain``.
        device: where it runs; the batches are moved there beforehand.
    """
    if name in OURS:
        chosen = "fp32" if name == "bothways fp32" else precision
        return _ours(config, steps, chosen, device, fast=name != "bothways plain")
    if name in PEERS:
        return _theirs(config, steps, device, bf16="bf16" in name, compiled="compile" in name)
    raise ConfigError(f"unknown contender {name!r}; choose from {', '.join((*OURS, *PEERS))}.")


def _ours(
    config: ModelConfig,
    steps: Sequence[Sequence[PretrainingBatch]],
    precision: str,
    device: torch.device,
    *,
    fast: bool,
) -> Step:
    model = EncoderModel(config, masked_lm=True, next_sentence=True).to(device)
    model.shared.fast = fast
    if device.type == "cpu" and fast:
        model.shared.transposes = transposing_pays(DTYPES[precision])
    trainer: Trainer[PretrainingBatch] = Trainer(
        model, OptimizerOptions(), total_steps=10_000, seed=0, dtype=DTYPES[precision]
    )
    if device.type != "cpu":
        steps = [[batch.to(device) for batch in micro_batches] for micro_batches in steps]
    done = 0

    def step(number: int) -> None:
        nonlocal done
        micro_batches = steps[number % len(steps)]
        trainer.step(done, micro_batches, pretraining_loss(micro_batches, MaskedLM()))
        done += 1

    return step


def _arguments(batch: PaddedBatch, device: torch.device) -> dict[str, Tensor]:
    """The arguments of transformers' forward pass; without a mask that hides nothing, which would
    keep its compiled form from the fastest attention."""
    tensors = {name: value.to(device) for name, value in vars(batch).items()}
    if batch.attention_mask.all():
        del tensors["attention_mask"]
    return tensors


def _theirs(
    config: ModelConfig,
    steps: Sequence[Sequence[PretrainingBatch]],
    device: torch.device,
    *,
    bf16: bool,
    compiled: bool,
) -> Step:
    """transformers' model as its documentation trains it: AdamW, clipping, autocast."""
    try:
        from transformers import BertConfig, BertForPreTraining
    except ImportError as error:
        raise ConfigError(
            "transformers is not installed, so there is nothing to compare with; "
            "pip install 'bothways[bench]', or choose only --contenders of bothways."
        ) from error
    shape = BertConfig(
        vocab_size=config.padded_vocab,
        hidden_size=config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=config.intermediate,
        max_position_embeddings=config.positions,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.attention_dropout,
    )
    model: Any = BertForPreTraining(shape).train().to(device)
    forward: Any = torch.compile(model) if compiled else model
    options = OptimizerOptions()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.lr, weight_decay=options.weight_decay, fused=True
    )
    batches = [
        [_arguments(padded(batch), device) for batch in micro_batches] for micro_batches in steps
    ]

    def step(number: int) -> None:
        micro_batches = batches[number % len(batches)]
        for batch in micro_batches:
            context = (
                torch.autocast(device.type, torch.bfloat16) if bf16 else contextlib.nullcontext()
            )
            with context:
                loss = forward(**batch).loss
            (loss / len(micro_batches)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
