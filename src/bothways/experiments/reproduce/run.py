"""`bothways reproduce`: a table of the paper, from data to a picture. Start reading here.

What is run follows from the declarations (:mod:`.tables`) and the command line as steps
(:mod:`.grid`); their forecast is shown, they are computed (:mod:`.execute`), and the table is
written from their records (:mod:`.report`).
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from bothways.corpus.store import MANIFEST, Manifest
from bothways.errors import ConfigError, RunError, nearest
from bothways.experiments.options import ReproduceConfig
from bothways.experiments.reproduce.execute import (
    Ledger,
    Say,
    blocked,
    compute,
    compute_all,
    files_to_read,
    to_compute,
)
from bothways.experiments.reproduce.grid import Grid, make_grid, unrepeated_masks
from bothways.experiments.reproduce.page import page
from bothways.experiments.reproduce.report import cells, draw, kept_steps, markdown, record
from bothways.experiments.reproduce.steps import HeldOutOptions, Step
from bothways.experiments.reproduce.tables import SCALES, table_of
from bothways.families.config import ModelConfig
from bothways.finetuning.options import FeaturesConfig, FinetuneConfig
from bothways.io.files import write_bytes, write_json, write_text
from bothways.io.terminal import line_printer, table_text
from bothways.model.device import (
    borrowed_process,
    choose_device,
    choose_precision,
    find_peak,
    set_threads,
)
from bothways.model.flops import training_cost
from bothways.pretraining.options import PretrainConfig
from bothways.tasks.options import SplitConfig, TaskOptions
from bothways.training.origin import PAGE


@borrowed_process()
def reproduce(config: ReproduceConfig) -> str:
    """Compute the steps of a table that are not done yet, and write the table.

    Returns:
        The table in Markdown and its folder; with ``plan``, what would be computed.

    Raises:
        ConfigError, InputError, StoreError: options or data that cannot be used; raised before
            anything is computed.
        RunError: a step failed.
        KeyboardInterrupt: interrupted; finished cells are written, and the same call continues.
    """
    table, scale = table_of(config.name), SCALES[config.scale]
    grid = make_grid(table, scale, config)
    ledger = Ledger(Path(config.out))
    say = line_printer()
    if config.step is not None:
        return _compute_one(config.step, grid, ledger, config, say)
    on_gpu = config.device != "cpu" and torch.cuda.is_available()
    if config.jobs > 1 and on_gpu and to_compute(grid.steps, ledger):
        raise ConfigError(
            f"jobs is {config.jobs}, but a GPU computes one step at a time; leave --jobs out, or "
            "pass --device cpu."
        )
    plan = forecast(grid, ledger, config)
    if config.plan:
        return plan
    say(plan)
    begun_with = _data_state(config)

    def before_step(step: Step) -> None:
        # Reading all files again takes its time, so only if one was touched.
        touched = _data_state(config) != begun_with
        if touched and step.name not in make_grid(table, scale, config).steps:
            raise RunError(
                f"{step.name}: the corpus or a task's files have changed since this command began. "
                "Restore them, or run it again to compute the table from what they hold now."
            )

    def after_step() -> None:
        _write(grid, ledger, config)

    try:
        compute_all(grid.steps, ledger, config, say, before_step, after_step)
    finally:
        folder = _write(grid, ledger, config, picture=True)
    text = (folder / "table.md").read_text(encoding="utf-8").partition("\n## Steps")[0]
    return f"{text}\nsaved in {folder}; as a page: {folder / PAGE}"


def _data_state(config: ReproduceConfig) -> list[tuple[str, int, int]]:
    """Name, size and time of change of the files that were given."""
    given = (config.glue, config.squad, config.ner, config.sick, *config.text)
    files = [Path(config.corpus or "") / MANIFEST]
    for path in (Path(name) for name in given if name):
        files += sorted(path.rglob("*")) if path.is_dir() else [path]
    stats = [(str(file), file.stat()) for file in files if file.is_file()]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def _compute_one(name: str, grid: Grid, ledger: Ledger, config: ReproduceConfig, say: Say) -> str:
    """Compute one step of the plan."""
    if name not in grid.steps:
        suggestion = nearest(name, list(grid.steps))
        hint = f"did you mean {suggestion}?" if suggestion else "--plan lists the steps."
        raise ConfigError(f"--step {name}: there is no such step in this plan; {hint}")
    step = grid.steps[name]
    if reason := blocked(step, grid.steps, ledger):
        raise RunError(f"--step {name}: cannot be computed: {reason}.")
    files = files_to_read(step, grid.steps, to_compute(grid.steps, ledger))
    for needed in () if ledger.usable(step, files) else map(grid.steps.__getitem__, step.needs):
        if not ledger.usable(needed, step.reads(needed)):
            raise RunError(
                f"--step {name}: it needs {needed.name}, which is not computed, or whose files are "
                "gone."
            )
    compute(step, ledger, config, say, files)
    return f"{name}: finished"


def _write(grid: Grid, ledger: Ledger, config: ReproduceConfig, *, picture: bool = False) -> Path:
    """Write table.md, table.json and, if requested, plot.png and report.html of the results so
    far."""
    folder = ledger.out / f"{grid.table.name}-{grid.scale.name}"
    with ledger.locked(folder.name, lambda _: None):
        computed = cells(grid, ledger)
        write_text(folder / "table.md", markdown(grid, computed, ledger, config))
        write_json(folder / "table.json", record(grid, computed, ledger, config))
        if picture:
            plot = draw(grid, computed)
            write_bytes(folder / "plot.png", plot)
            write_text(folder / PAGE, page(grid, computed, ledger, config, plot))
    return folder


# --------------------------------------------------------------------------------
# What a table takes: its steps, which of them are done, and about how many hours are left.
#
# Hours are estimated from tokens (of the training text, and of the tasks' files by their sizes),
# the operations per token, and the rate at which this machine multiplies matrices. The times of
# recorded steps correct the estimates for steps of the same kind.

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
    steps = grid.steps.values()
    estimates = {step.name: _estimate(step, grid) for step in steps}
    rate = on_cpu = _rate(config)
    # Features are computed on the CPU, whatever the device.
    features = any(step.kind == "features" for step in steps)
    if features and choose_device(config.device).torch.type != "cpu":
        on_cpu = _rate(replace(config, device="cpu"))
    seconds = {
        step.name: estimates[step.name].operations
        / (on_cpu if step.kind == "features" else rate)
        / _REACHED.get(step.kind, 1)
        for step in steps
    }
    factors = _factors(grid, ledger, seconds)
    rows = [["step", "state", "tokens", "hours"]]
    hours_left, pending = 0.0, to_compute(grid.steps, ledger)
    for step in steps:
        tokens, done, to_do = estimates[step.name].tokens, ledger.done(step), step.name in pending
        hours = ledger.seconds(step) if done else seconds[step.name] * factors.get(step.kind, 1.0)
        hours *= (done or to_do) / 3600
        hours_left += hours if to_do else 0.0
        state = "again: its files are gone" if done and to_do else _state(step, grid, ledger)
        millions, shown = f"{tokens / 1e6:,.1f} M", f"{hours:.2f}" if done else f"~{hours:.2f}"
        rows.append([step.name, state, *((millions, shown) if tokens else ("", ""))])
    table = table_text(
        rows, f"{grid.table.name}, scale {grid.scale.name}", left_columns=2, width=118
    )
    jobs, left = f" in {config.jobs} jobs" if config.jobs > 1 else "", hours_left / config.jobs
    time_left = f"{left:.1f} hours" if left >= 1 else f"{60 * left:.1f} minutes"
    summary = (
        f"{len(steps)} steps, {sum(map(ledger.done, steps))} done; about {time_left} left{jobs} "
        "(estimated from tokens)"
    )
    kept, masks = kept_steps(grid, ledger, pending), unrepeated_masks(grid.table, steps)
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
    set_threads(max(1, set_threads(config.threads) // config.jobs))
    rate = find_peak(device, choose_precision(config.precision, device).dtype).flops
    set_threads(config.threads)
    return rate


def _factors(grid: Grid, ledger: Ledger, seconds: Mapping[str, float]) -> dict[str, float]:
    """For each kind, how many times longer than estimated the finished steps took."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for step in grid.steps.values():
        if (estimate := seconds[step.name]) and ledger.done(step) and not ledger.diverged(step):
            ratios[step.kind].append(ledger.seconds(step) / estimate)
    return {kind: statistics.median(values) for kind, values in ratios.items()}


class _Estimate(NamedTuple):
    """Tokens that a step reads, and operations for them."""

    tokens: float = 0.0
    operations: float = 0.0


def _estimate(step: Step, grid: Grid) -> _Estimate:
    config = step.config
    if isinstance(config, PretrainConfig):
        shape = config.shape(_vocab_size(config, grid))
        operations = tokens = 0.0
        for phase in config.phases:
            read = (config.clock.steps or 0) * phase.share * phase.batch * phase.length
            targets = phase.length * (1.0 if config.masking.left_to_right else config.masking.rate)
            tokens += read
            operations += read * training_cost(shape, length=phase.length, targets=targets).matrix
        return _Estimate(tokens, operations)
    if isinstance(config, FinetuneConfig):
        shape = _shape_of(step, grid)
        train, dev = _task_tokens(step, config, grid)
        passes = config.epochs * len(step.wanted)
        cost = training_cost(shape, length=min(config.sequence_length, 128), targets=0).whole
        cost -= 6 * shape.hidden * (shape.padded_vocab + shape.hidden)  # without output layer
        cost += _LSTM_ON_TOP * config.lstm * (config.lstm + shape.hidden)
        return _Estimate(passes * (train + dev), passes * (train + dev / 3) * cost)
    if isinstance(config, FeaturesConfig):
        files = [file for file in (config.task.train, config.task.dev, config.task.test) if file]
        tokens = sum(_tokens(file, config.task, config.sequence_length) for file in files)
        cost = training_cost(_shape_of(step, grid), length=config.sequence_length, targets=0).whole
        words = sum(map(_size, files)) / 8  # one word per line, with its columns
        passes = config.epochs * len(step.wanted)
        trained = words * passes * config.hidden**2 * _LSTM_OPERATIONS
        return _Estimate(tokens, tokens * cost / 3 + trained)
    if isinstance(config, HeldOutOptions):
        tokens = float(config.sequences * config.length)
        cost = training_cost(_shape_of(step, grid), length=config.length, targets=20).matrix
        return _Estimate(tokens, tokens * cost / 3)
    return _Estimate()


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
    task, length = config.task, config.sequence_length
    for needed in (grid.steps[name].config for name in step.needs):
        if isinstance(needed, SplitConfig):
            tokens = _tokens(needed.file, task, length)
            return needed.share * tokens, (1 - needed.share) * tokens
    return _tokens(task.train, task, length), _tokens(task.dev, task, length)


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
