"""Time a training step of masked LM by family, at one shape, in turns, beside transformers.

    python scripts/compare_families.py --size mini --batch 64 --precision fp32
    python scripts/compare_families.py --families bert modernbert --peer

A ratio is that of the same round's steps, against BERT's; the interval is of its median (a sign
test's, 95 %). With --peer each family is also trained by transformers: the same shape, tokens and
dropout, AdamW, under autocast if the precision is bf16.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from torch import Tensor

from bothways.batch import IGNORE
from bothways.experiments.bench import BATCHES, RunStep, full_batches
from bothways.families import FAMILIES, ModelConfig, family_of
from bothways.families.family import write_config
from bothways.families.options import SizeOptions
from bothways.model.batch import PretrainingBatch
from bothways.model.device import DTYPES, set_threads, transposing_pays
from bothways.model.model import EncoderModel
from bothways.objectives.masked import MaskedLM
from bothways.training.options import OptimizerOptions
from bothways.training.trainer import Trainer, step_loss
from compare_revisions import interval

Steps = list[list[PretrainingBatch]]


def main() -> None:
    """Time them in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--families", nargs="+", choices=tuple(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--size", default="mini")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--vocab-size", type=int, default=30522)
    parser.add_argument("--precision", choices=tuple(DTYPES), default="fp32")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--peer", action="store_true", help="time transformers' too")
    options = parser.parse_args()
    set_threads(options.threads)
    runners: dict[str, RunStep] = {}
    for family in dict.fromkeys(("bert", *options.families)):
        shape = SizeOptions(family=family, size=options.size, dropout=0.1, attention_dropout=0.1)
        config = shape.resolve(options.vocab_size)
        steps = full_batches(
            options.vocab_size,
            batch=options.batch,
            length=options.length,
            count=BATCHES,
            pairs="full",
        )
        runners[family] = _ours(config, steps, options.precision)
        if options.peer:
            runners[f"{family}, transformers"] = _theirs(config, steps, options.precision)
    for run in runners.values():  # not counted: compiling, and memory's first use
        for number in range(3):
            run(number)
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    for number in range(options.rounds):
        for name in list(runners)[:: 1 if number % 2 else -1]:
            start = time.perf_counter()
            runners[name](number)
            seconds[name].append(time.perf_counter() - start)
    tokens = options.batch * options.length
    for name, own in seconds.items():
        family = name.partition(",")[0]
        line = f"{name:<28} {tokens / statistics.median(own):9,.0f} tokens/s"
        against = [("bert", "of BERT's speed")] if name == family != "bert" else []
        if name != family:
            against = [(family, "of ours")]
        for other, words in against:
            ratios = sorted(a / b for a, b in zip(seconds[other], own, strict=True))
            low, high = interval(ratios)
            line += f"  {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f}) {words}"
        print(line)


def _ours(config: ModelConfig, steps: Steps, precision: str) -> RunStep:
    model = EncoderModel(config, masked_lm=True)
    model.shared.transposes = transposing_pays(DTYPES[precision])
    trainer: Trainer[PretrainingBatch] = Trainer(
        model, OptimizerOptions(), total_steps=10_000, seed=0, dtype=DTYPES[precision]
    )
    objective = MaskedLM(pairs="full")
    done = 0

    def step(number: int) -> None:
        nonlocal done
        micro_batches = steps[number % len(steps)]
        trainer.step(done, micro_batches, step_loss(micro_batches, objective))
        done += 1

    return step


def _theirs(config: ModelConfig, steps: Steps, precision: str) -> RunStep:
    """transformers' model of the same config.json, trained as its documentation does."""
    from transformers import AutoConfig, AutoModelForMaskedLM

    values = write_config(family_of(config), config, "", pad_id=0, dtype="float32")
    shape = AutoConfig.for_model(values.pop("model_type"), **values)
    model: Any = AutoModelForMaskedLM.from_config(shape).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    batches = [_rows(batch) for (batch,) in steps]

    def step(number: int) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = model(**batches[number % len(batches)]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _rows(batch: PretrainingBatch) -> dict[str, Tensor]:
    """Sequences of one length as rows; all tokens are seen, so no mask is needed."""
    inputs, masked = batch.inputs, batch.masked
    labels = torch.full((int(inputs.bounds[-1]),), IGNORE)
    labels[masked.positions[: masked.count]] = masked.ids[: masked.count]
    shape = (inputs.sequences, inputs.longest)
    return {
        "input_ids": inputs.tokens[: labels.numel()].view(shape),
        "labels": labels.view(shape),
    }


if __name__ == "__main__":
    main()
