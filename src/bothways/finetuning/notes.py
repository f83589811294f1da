"""What is said of a fine-tuning before it begins and after it: data, options that help, notes."""

from __future__ import annotations

from collections.abc import Iterator

from bothways.families.config import ModelConfig
from bothways.finetuning.options import NARROW, FinetuneConfig
from bothways.finetuning.results import FinetuneResult
from bothways.finetuning.setup import FinetuningData, OpenedRun, most_lopsided
from bothways.io.terminal import counted
from bothways.model.device import describe_kernels
from bothways.runtime.folder import LoadedModel

_LOW_RATE = 1e-4  # for encoders narrower than NARROW


def announcement(
    given: FinetuneConfig,
    config: FinetuneConfig,
    loaded: LoadedModel,
    data: FinetuningData,
    run: OpenedRun,
    keep_head: bool,
) -> Iterator[str]:
    """Lines about the run: data, starting model, device and precision; then hints and notes."""
    shape = loaded.config
    source = f"{'random weights shaped as ' if config.from_scratch else ''}{config.model}"
    processes = "" if run.alone else f" in each of {config.jobs} processes"
    yield (
        f"{data.task.name}: {len(data.train.rows):,} training and {len(data.dev.rows):,} dev "
        f"examples, from {source}, {counted(run.threads, 'thread')}{processes}, "
        f"{run.device.reason}, {run.precision.reason}"
    )
    yield from loaded.notes
    if loaded.fresh and not config.from_scratch:
        yield f"not in the model folder, newly initialised: {', '.join(loaded.fresh)}"
    yield from advice(config, shape)
    if data.split:
        yield data.split
    if config.folds:
        yield f"{config.folds} folds of train, each of which is dev once" + (
            f", in {config.repeats} divisions" if config.repeats > 1 else ""
        )
    if config.freeze:
        read = "token vectors" if config.task.traits.per_word else "the mean of its token vectors"
        yield f"the encoder is frozen: a linear head is fitted on {read}"
    rare = most_lopsided(data.task, data.train)
    if rare is not None and not config.class_weights:
        yield _lopsided(*rare, data)
    yield from data.task.hints(loaded.tokenizer, data.train.rows)
    if keep_head:
        yield "training continues from the task head of the model folder; head: new replaces it"
    kernels = describe_kernels(
        shape, run.device.torch, run.precision.dtype, fast=config.kernels == "fast"
    )
    if kernels:
        yield kernels
    yield from data.notes
    if config.sequence_length < given.sequence_length:
        yield f"length {config.max_length}: the encoder has no more positions"
    if not given.optimizer.lr and not config.searched.values["lr"] and not config.freeze:
        rate = f"{config.optimizer.lr:g}"
        yield f"learning rate {rate}, by the encoder's width (set lr to change it)"


def _lopsided(label: str, count: int, data: FinetuningData) -> str:
    """That a class is rare, and what helps."""
    task, total = data.task, len(data.train.rows)
    text = (
        f"{label!r} is the label of {count:,} of {total:,} training examples: --class-weights "
        "balanced keeps the others from drowning it"
    )
    labels = task.options.labels
    if len(labels) == 2 and labels[0] == label and "f1" in task.metrics:
        text += (
            f"; f1 is that of {labels[1]!r}, the second label: --labels {labels[1]} {label} "
            f"makes it that of {label!r}"
        )
    return text


def advice(config: FinetuneConfig, shape: ModelConfig) -> Iterator[str]:
    """Hints on options that small encoders usually need to be different."""
    if config.freeze:
        return
    if config.dropout is None and not shape.dropout and not shape.attention_dropout:
        yield "the model folder has no dropout, so none is used; the paper's is --dropout 0.1"
    rate = max(config.searched.values["lr"], default=config.optimizer.lr)
    if shape.hidden < NARROW and rate < _LOW_RATE:
        yield (
            f"the learning rate, {rate:g}, suits encoders as wide as the paper's; one of hidden "
            f"size {shape.hidden} usually needs 1e-4 to 3e-4"
        )


def remedies(
    config: FinetuneConfig, data: FinetuningData, result: FinetuneResult
) -> tuple[str, ...]:
    """What to try where runs predict the same for all, or nothing of the rarest class; and what to
    look at where weights of classes cost accuracy."""
    if not (config.task.traits.has_labels or config.task.traits.per_word):
        return ()
    rare = most_lopsided(data.task, data.train)
    if config.class_weights and rare and result.at_baseline and result.metrics[0] == "accuracy":
        return (
            "--class-weights costs accuracy for more of the rare classes; --metric f1_macro counts "
            "all alike",
        )
    lost = rare is not None and any(
        not seed.measurement.parts.get(rare[0], {"predicted": 1})["predicted"]
        for seed in result.seeds
    )
    if not result.collapsed and not lost:
        return ()
    tries = [] if config.class_weights or rare is None else ["--class-weights balanced"]
    if config.freeze:
        tries.append("all weights (no --freeze)")
    else:
        tries += [f"--lr {5 * config.optimizer.lr:g}", "more --epochs", "--freeze"]
    what = "a run collapsed" if rare is None or result.collapsed else f"never predicted: {rare[0]}"
    others = f"{', '.join(tries[:-1])} or " if len(tries) > 1 else ""
    return (f"{what}; try {others}{tries[-1]}",)
