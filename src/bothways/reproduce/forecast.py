"""What a table takes: its steps, what is there already, and about how many hours are left.

Hours follow from tokens: of the training text, of the tasks' files (guessed from their sizes),
times the operations of a token, over the rate at which this machine multiplies matrices. Where
steps of a kind are on record, their times correct the guess.
"""

from __future__ import annotations

import io
import statistics
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table as Shown

from bothways.config import (
    FeaturesConfig,
    FinetuneConfig,
    ModelConfig,
    PretrainConfig,
    ReproduceConfig,
    TaskOptions,
)
from bothways.model.cost import training_cost
from bothways.reproduce.execute import Ledger, hopeless, to_compute
from bothways.reproduce.grid import Grid
from bothways.reproduce.heldout import HeldOutOptions
from bothways.reproduce.steps import Step
from bothways.training.device import choose_device, find_peak
from bothways.training.precision import choose_precision
from bothways.training.runtime import set_threads

# Of the rate of large matrix products, what a small encoder's steps reach: measured with mini on
# two cores in pre-training. Fine-tuning's shorter sequences reach less.
_REACHED = {"pretrain": 0.55, "heldout": 0.5, "finetune": 0.4, "features": 0.4}
_BYTES_A_TOKEN = 4.5
_UNKNOWN_FILE_TOKENS = 20_000  # of a task's file that is not made yet: the smoke scale's
_VOCABULARY = 30_000  # pieces, for the cost of the output layer
_LSTM_OPERATIONS = 6 * 2 * 2 * 8  # a word, of two layers in two directions, by units squared


def forecast(grid: Grid, ledger: Ledger, config: ReproduceConfig) -> str:
    """The steps with their state, tokens and hours, as text."""
    rate = _rate(config)
    guesses = {step.name: _guess(step, grid, rate) for step in grid.steps.values()}
    factors = _factors(grid, ledger, guesses)
    table = Shown(title=f"{grid.table.name}, scale {grid.scale.name}", title_style="")
    for name in ("step", "state", "tokens", "hours"):
        table.add_column(name, justify="left" if name in ("step", "state") else "right")
    left, wanted = 0.0, to_compute(grid.steps, ledger)
    for step in grid.steps.values():
        tokens, seconds = guesses[step.name]
        done, again = ledger.done(step), step.name in wanted
        hours = (ledger.seconds(step) if done else seconds * factors.get(step.kind, 1.0)) / 3600
        if not done and not again:
            hours = 0.0
        left += hours if again else 0.0
        shown = f"{hours:.2f}" if done else f"~{hours:.2f}"
        millions = f"{tokens / 1e6:,.1f} M" if tokens else ""
        state = "again, its files are gone" if done and again else _state(step, grid, ledger)
        table.add_row(step.name, state, millions, shown if tokens else "")
    text = io.StringIO()
    Console(file=text, width=118, markup=False, highlight=False).print(table)
    many = f" in {config.jobs} jobs" if config.jobs > 1 else ""
    there = sum(map(ledger.done, grid.steps.values()))
    return (
        f"{text.getvalue()}{len(grid.steps)} steps, {there} of them there; about "
        f"{left / config.jobs:.1f} hours left{many} (a guess from tokens)"
    )


def _state(step: Step, grid: Grid, ledger: Ledger) -> str:
    if ledger.done(step):
        return "diverged" if ledger.diverged(step) else "there"
    if hopeless(step, grid.steps, ledger):
        return "impossible"
    return "to do" if ledger.record(step) is None else "begun"


def _rate(config: ReproduceConfig) -> float:
    """Operations a second of matrix products, with the threads that a job has."""
    device = choose_device(config.device).torch
    threads = set_threads(config.threads)
    set_threads(max(1, threads // config.jobs))
    dtype = choose_precision(config.precision, device).dtype
    found = find_peak(device, dtype).flops
    set_threads(config.threads)
    return found


def _factors(
    grid: Grid, ledger: Ledger, guesses: dict[str, tuple[float, float]]
) -> dict[str, float]:
    """By kind, how much longer than guessed the finished steps took."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for step in grid.steps.values():
        seconds = guesses[step.name][1]
        if seconds and ledger.done(step) and not ledger.diverged(step):
            ratios[step.kind].append(ledger.seconds(step) / seconds)
    return {kind: statistics.median(found) for kind, found in ratios.items()}


def _guess(step: Step, grid: Grid, rate: float) -> tuple[float, float]:
    """Tokens that a step reads, and seconds."""
    if isinstance(step.config, PretrainConfig):
        recipe = step.config
        shape = recipe.model.resolve(_VOCABULARY)
        operations = tokens = 0.0
        for phase in recipe.phases:
            read = (recipe.clock.steps or 0) * phase.share * phase.batch * phase.length
            targets = recipe.masking.rate * phase.length
            tokens += read
            operations += read * training_cost(shape, length=phase.length, targets=targets).matrix
        return tokens, operations / rate / _REACHED["pretrain"]
    if isinstance(step.config, FinetuneConfig):
        config = step.config
        shape = _shape_of(step, grid)
        train, dev = (_tokens(f, config.task, config.length) for f in _files(config.task))
        tokens = config.epochs * len(step.wanted) * (train + dev)
        trained = config.epochs * len(step.wanted) * (train + dev / 3)
        cost = training_cost(shape, length=min(config.length, 128), targets=0).whole
        cost -= 6 * shape.hidden * (shape.padded_vocab + shape.hidden)  # no output layer
        return tokens, trained * cost / rate / _REACHED["finetune"]
    if isinstance(step.config, FeaturesConfig):
        return _guess_features(step, step.config, _shape_of(step, grid), rate)
    if isinstance(step.config, HeldOutOptions):
        options = step.config
        tokens = float(options.sequences * options.length)
        cost = training_cost(_shape_of(step, grid), length=options.length, targets=20).matrix
        return tokens, tokens * cost / 3 / rate / _REACHED["heldout"]
    return 0.0, 0.0


def _guess_features(
    step: Step, config: FeaturesConfig, shape: ModelConfig, rate: float
) -> tuple[float, float]:
    files = [*_files(config.task), *([config.task.test] if config.task.test else [])]
    tokens = sum(_tokens(f, config.task, config.length) for f in files)
    forward = tokens * training_cost(shape, length=config.length, targets=0).whole / 3
    words = sum(_size(f) for f in files) / 8  # a word a line, with its columns
    trained = words * config.epochs * len(step.wanted) * config.hidden**2 * _LSTM_OPERATIONS
    return tokens, (forward + trained) / rate / _REACHED["features"]


def _shape_of(step: Step, grid: Grid) -> ModelConfig:
    """Of the encoder that a step reads."""
    runs = (grid.steps[name].config for name in step.needs)
    recipe = next(config for config in runs if isinstance(config, PretrainConfig))
    return recipe.model.resolve(_VOCABULARY)


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
    return min(_size(file) / _BYTES_A_TOKEN, path.read_bytes().count(b"\n") * length)


def _size(file: str) -> float:
    path = Path(file)
    return path.stat().st_size if path.exists() else _UNKNOWN_FILE_TOKENS * _BYTES_A_TOKEN
