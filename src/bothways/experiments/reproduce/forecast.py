"""What a table takes: its steps, which of them are done, and about how many hours are left.

Hours are estimated from tokens (of the training text, and of the tasks' files by their sizes), the
operations per token, and the rate at which this machine multiplies matrices. The times of recorded
steps correct the estimates for steps of the same kind.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from bothways.corpus.store import MANIFEST, Manifest
from bothways.experiments.reproduce.execute import Ledger, blocked, to_compute
from bothways.experiments.reproduce.grid import Grid, unrepeated_masks
from bothways.experiments.reproduce.heldout import HeldOutOptions
from bothways.experiments.reproduce.options import ReproduceConfig
from bothways.experiments.reproduce.steps import Kind, Step
from bothways.families.config import ModelConfig
from bothways.finetuning.options import FeaturesConfig, FinetuneConfig
from bothways.io.terminal import table_text
from bothways.model.device import choose_device, choose_precision, find_peak, set_threads
from bothways.model.flops import training_cost
from bothways.pretraining.options import PretrainConfig
from bothways.tasks.options import SplitConfig, TaskOptions

# --------------------------------------------------------------------------------
# Precision and device of recorded steps, which are no part of their names.
#
# A finished step is not computed again when another precision or device is requested, so the reader
# is told which steps were kept, and which rows of a table were computed differently.

_KINDS: dict[Kind, str] = {
    "pretrain": "pre-training",
    "finetune": "fine-tuning",
    "features": "features",
}


def kept_steps(grid: Grid, ledger: Ledger, pending: Collection[str]) -> list[str]:
    """A line for each precision and device of finished steps that are not the requested ones.

    Args:
        grid: the steps, whose configs hold what is requested.
        ledger: the records.
        pending: names of the steps that will be computed.
    """
    kept: dict[tuple[str, str], list[str]] = defaultdict(list)
    for step in grid.steps.values():
        had, asked = _recorded(step, ledger), _requested(step)
        if step.name not in pending and had and not _fits(had, asked):
            kept[_phrase(had), _phrase(asked)].append(step.name)
    return [
        f"Computed with {had}, not with {asked} as requested, and kept (a new --out computes them "
        f"again): {', '.join(names)}"
        for (had, asked), names in kept.items()
    ]


def different_rows(grid: Grid, ledger: Ledger) -> list[str]:
    """A line for each kind of step whose precision or device differs between rows."""
    lines = []
    for kind, title in _KINDS.items():
        rows: dict[str, dict[str, None]] = defaultdict(dict)  # labels, each once
        for row in grid.rows:
            measured = [grid.steps[source.step] for cell in row.cells for source in cell]
            read = [grid.steps[name] for step in measured for name in step.needs]
            for step in (*measured, *read):
                if step.kind == kind and (had := _recorded(step, ledger)):
                    rows[_phrase(had)][" / ".join(filter(None, row.label))] = None
        if len(rows) > 1:
            shown = "; ".join(f"{had} for {', '.join(labels)}" for had, labels in rows.items())
            lines.append(f"Rows differ in how they were computed, {title}: {shown}.")
    return lines


def _recorded(step: Step, ledger: Ledger) -> dict[str, str]:
    """Precision and device with which a step began, as far as it has and records them."""
    record = ledger.record(step)
    if record is None or record.get("result") is None:
        return {}
    run = record.get("run") or {}
    return {name: run[name] for name in ("precision", "device") if name in run}


def _requested(step: Step) -> dict[str, str]:
    """Precision and device, unless they are left to this machine."""
    asked = {name: getattr(step.config, name, "auto") for name in ("precision", "device")}
    return {name: value for name, value in asked.items() if value != "auto"}


def _fits(had: dict[str, str], asked: dict[str, str]) -> bool:
    """Whether a step has the requested precision and device; a card is recorded by its name."""
    device = "cpu" if had.get("device") == "cpu" else "cuda"
    had = {**had, "device": device} if "device" in had else had
    return all(had.get(name, value) == value for name, value in asked.items())


def _phrase(values: dict[str, str]) -> str:
    return " on ".join(values[name] for name in ("precision", "device") if name in values)


# The share of the rate of large matrix products that a small encoder's steps reach, measured with
# mini on two cores in pre-training. Fine-tuning, with its shorter sequences, reaches less.
_REACHED = {"pretrain": 0.55, "heldout": 0.5, "finetune": 0.4, "features": 0.4}
_BYTES_PER_TOKEN = 4.5
_UNKNOWN_FILE_TOKENS = 20_000  # of a task's file that does not exist yet (smoke scale)
_LSTM_OPERATIONS = 6 * 2 * 2 * 8  # per word and units squared: two layers, two directions
# Per token, for `lstm` in fine-tuning: four gates in two directions, forward and backward, times 4,
# because its products are small and follow each other: mini takes 2.3 times as long with it.
_LSTM_ON_TOP = 3 * 2 * 4 * 2 * 4


def forecast(grid: Grid, ledger: Ledger, config: ReproduceConfig) -> str:
    """The steps with their state, tokens and hours, as text."""
    rate = on_cpu = _rate(config)
    features = any(step.kind == "features" for step in grid.steps.values())
    # Features are computed on the CPU, whatever the device.
    if features and choose_device(config.device).torch.type != "cpu":
        on_cpu = _rate(dataclasses.replace(config, device="cpu"))
    estimates = {
        step.name: _estimate(step, grid, on_cpu if step.kind == "features" else rate)
        for step in grid.steps.values()
    }
    factors = _factors(grid, ledger, estimates)
    rows = [["step", "state", "tokens", "hours"]]
    hours_left, pending = 0.0, to_compute(grid.steps, ledger)
    for step in grid.steps.values():
        tokens, seconds = estimates[step.name]
        done, to_do = ledger.done(step), step.name in pending
        hours = (ledger.seconds(step) if done else seconds * factors.get(step.kind, 1.0)) / 3600
        if not done and not to_do:
            hours = 0.0
        hours_left += hours if to_do else 0.0
        hours_text = f"{hours:.2f}" if done else f"~{hours:.2f}"
        millions = f"{tokens / 1e6:,.1f} M" if tokens else ""
        state = "again: its files are gone" if done and to_do else _state(step, grid, ledger)
        rows.append([step.name, state, millions, hours_text if tokens else ""])
    title = f"{grid.table.name}, scale {grid.scale.name}"
    table = table_text(rows, title, left_columns=2, width=118)
    jobs = f" in {config.jobs} jobs" if config.jobs > 1 else ""
    done_steps = sum(map(ledger.done, grid.steps.values()))
    summary = (
        f"{len(grid.steps)} steps, {done_steps} done; about {hours_left / config.jobs:.1f} hours "
        f"left{jobs} (estimated from tokens)"
    )
    kept = kept_steps(grid, ledger, pending)
    masks = unrepeated_masks(grid.table, grid.steps.values())
    return "\n".join([table, summary, *kept, *masks])


def _state(step: Step, grid: Grid, ledger: Ledger) -> str:
    if ledger.done(step):
        return "diverged" if ledger.diverged(step) else "done"
    if blocked(step, grid.steps, ledger):
        return "impossible"
    return "to do" if ledger.record(step) is None else "started"


def _rate(config: ReproduceConfig) -> float:
    """Operations per second of matrix products, with the threads that one job has."""
    device = choose_device(config.device).torch
    threads = set_threads(config.threads)
    set_threads(max(1, threads // config.jobs))
    dtype = choose_precision(config.precision, device).dtype
    rate = find_peak(device, dtype).flops
    set_threads(config.threads)
    return rate


def _factors(
    grid: Grid, ledger: Ledger, estimates: dict[str, tuple[float, float]]
) -> dict[str, float]:
    """For each kind, how many times longer than estimated the finished steps took."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for step in grid.steps.values():
        seconds = estimates[step.name][1]
        if seconds and ledger.done(step) and not ledger.diverged(step):
            ratios[step.kind].append(ledger.seconds(step) / seconds)
    return {kind: statistics.median(values) for kind, values in ratios.items()}


def _estimate(step: Step, grid: Grid, rate: float) -> tuple[float, float]:
    """Tokens that a step reads, and seconds it takes."""
    if isinstance(step.config, PretrainConfig):
        recipe = step.config
        shape = recipe.shape(_vocab_size(recipe, grid))
        operations = tokens = 0.0
        for phase in recipe.phases:
            read = (recipe.clock.steps or 0) * phase.share * phase.batch * phase.length
            share = 1.0 if recipe.masking.left_to_right else recipe.masking.rate
            targets = share * phase.length
            tokens += read
            operations += read * training_cost(shape, length=phase.length, targets=targets).matrix
        return tokens, operations / rate / _REACHED["pretrain"]
    if isinstance(step.config, FinetuneConfig):
        config = step.config
        shape = _shape_of(step, grid)
        train, dev = _task_tokens(step, config, grid)
        tokens = config.epochs * len(step.wanted) * (train + dev)
        trained = config.epochs * len(step.wanted) * (train + dev / 3)
        cost = training_cost(shape, length=min(config.sequence_length, 128), targets=0).whole
        cost -= 6 * shape.hidden * (shape.padded_vocab + shape.hidden)  # without output layer
        cost += _LSTM_ON_TOP * config.lstm * (config.lstm + shape.hidden)
        return tokens, trained * cost / rate / _REACHED["finetune"]
    if isinstance(step.config, FeaturesConfig):
        return _estimate_features(step, step.config, _shape_of(step, grid), rate)
    if isinstance(step.config, HeldOutOptions):
        options = step.config
        tokens = float(options.sequences * options.length)
        cost = training_cost(_shape_of(step, grid), length=options.length, targets=20).matrix
        return tokens, tokens * cost / 3 / rate / _REACHED["heldout"]
    return 0.0, 0.0


def _estimate_features(
    step: Step, config: FeaturesConfig, shape: ModelConfig, rate: float
) -> tuple[float, float]:
    files = [*_files(config.task), *([config.task.test] if config.task.test else [])]
    tokens = sum(_tokens(f, config.task, config.length) for f in files)
    forward = tokens * training_cost(shape, length=config.length, targets=0).whole / 3
    words = sum(_size(f) for f in files) / 8  # one word per line, with its columns
    trained = words * config.epochs * len(step.wanted) * config.hidden**2 * _LSTM_OPERATIONS
    return tokens, (forward + trained) / rate / _REACHED["features"]


def _shape_of(step: Step, grid: Grid) -> ModelConfig:
    """The shape of the encoder that a step reads."""
    runs = (grid.steps[name].config for name in step.needs)
    recipe = next(config for config in runs if isinstance(config, PretrainConfig))
    return recipe.shape(_vocab_size(recipe, grid))


def _vocab_size(recipe: PretrainConfig, grid: Grid) -> int:
    """Pieces of a run's vocabulary; as many as the scale asks for if it is still to be learned."""
    corpus = Path(recipe.corpus)
    if (corpus / MANIFEST).is_file():
        return Manifest.read(corpus).vocab_size
    return grid.scale.vocabulary.size


def _task_tokens(step: Step, config: FinetuneConfig, grid: Grid) -> tuple[float, float]:
    """Tokens of a task's train and dev files, which may still have to be split from one file."""
    for needed in (grid.steps[name].config for name in step.needs):
        if isinstance(needed, SplitConfig):
            tokens = _tokens(needed.file, config.task, config.sequence_length)
            return needed.share * tokens, (1 - needed.share) * tokens
    train, dev = (_tokens(f, config.task, config.sequence_length) for f in _files(config.task))
    return train, dev


def _files(task: TaskOptions) -> tuple[str, str]:
    return task.train, task.dev


def _tokens(file: str, task: TaskOptions, length: int) -> float:
    """About how many tokens the sequences of a task's file have."""
    path = Path(file)
    if not path.exists():
        return _UNKNOWN_FILE_TOKENS
    if task.kind == "spans":
        return path.read_bytes().count(b'"question"') * length / 2
    if task.kind == "tagging":
        sentences = path.read_bytes().count(b"\n\n")
        return float(sentences * (length if task.tagging.context == "document" else 20))
    return min(_size(file) / _BYTES_PER_TOKEN, path.read_bytes().count(b"\n") * length)


def _size(file: str) -> float:
    path = Path(file)
    return path.stat().st_size if path.exists() else _UNKNOWN_FILE_TOKENS * _BYTES_PER_TOKEN
