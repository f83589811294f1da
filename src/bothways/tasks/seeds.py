"""One run of fine-tuning: data read, a model trained, measured and saved.

A run's folder holds the model folder, scores (``metrics.json``, ``metrics.jsonl``) and predictions.
It is finished when its scores are there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bothways.config import FinetuneConfig, Restart, to_dict
from bothways.errors import ConfigError, DivergenceError, ModelError
from bothways.files import explain_disk_errors, write_json
from bothways.model.folder import Loaded, save_model
from bothways.model.heads import Bert
from bothways.tasks.examples import TRAIN_TOKENS, TaskBatch, cut_by_tokens, step_batches
from bothways.tasks.further import Further, check_files, measure_further, read_further
from bothways.tasks.kinds import KINDS, has_head_for
from bothways.tasks.metrics import Measurement
from bothways.tasks.predict import (
    check_length,
    check_segments,
    predict_outputs,
    write_predictions,
)
from bothways.tasks.report import SeedResult
from bothways.tasks.runpage import DEV_REPORT, describe
from bothways.tasks.task import Outputs, Part, Task, task_loss
from bothways.training.device import Device
from bothways.training.engine import Stats, Trainer
from bothways.training.monitor import Monitor
from bothways.training.precision import Choice
from bothways.training.prefetch import run_ahead
from bothways.training.rows import UsedRows
from bothways.training.runfolder import Hold

SCORES = "metrics.json"
# Records in metrics.jsonl over a seed, about.
_RECORDS = 200


@dataclass(frozen=True)
class Data:
    """The files of a task, encoded.

    Attributes:
        task: what is predicted.
        train, dev: labelled.
        test: unlabelled; None if there is no test file.
        further: more files to measure on and to predict.
    """

    task: Task[Any, Any]
    train: Part[Any]
    dev: Part[Any]
    test: Part[Any] | None
    further: Further = field(default_factory=Further)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was cut or empty, a sentence each."""
        parts = [self.train, self.dev, *([self.test] if self.test else []), *self.further.parts]
        return tuple(note for part in parts for note in part.notes)


@dataclass(frozen=True)
class Opened:
    """A run folder ready for work.

    Attributes:
        folder: the run folder.
        fingerprint: of everything the results depend on.
        precision: what the layers compute in.
        threads: CPU threads.
        device: what computes.
        alone: no other process shows its progress on the same terminal.
        hold: keeps other commands out of the folder.
    """

    folder: Path
    fingerprint: str
    precision: Choice
    threads: int
    device: Device
    alone: bool = True
    hold: Hold | None = None


def load_data(config: FinetuneConfig, loaded: Loaded) -> Data:
    """Read, check and encode the task's files.

    Raises:
        ConfigError, InputError, LengthError, ModelError: see :func:`bothways.finetune`.
    """
    options, kind = config.located().task, KINDS[config.task.kind]
    check_files(options)
    check_length(loaded.model, config.length)
    train = kind.read(Path(options.train), options, labelled=True)
    task = kind.define(options, train)
    check_segments(loaded.model, pair=task.pair)
    dev = task.read(Path(options.dev), task.options, labelled=True)
    test = task.read(Path(options.test), task.options, labelled=False) if options.test else None

    def encode(rows: Any) -> Part[Any]:
        return task.encode(loaded.tokenizer, rows, length=config.length)

    further = read_further(task, options, encode)
    return Data(task, encode(train), encode(dev), None if test is None else encode(test), further)


def new_model(loaded: Loaded, config: FinetuneConfig, task: Task[Any, Any], seed: int) -> Bert:
    """The encoder with a new output layer, or with the folder's if :func:`keeps_head` says so;
    other heads are dropped.

    Weights that the model folder lacked (a pooler) are drawn by the seed too, and with
    ``from_scratch`` all are.

    Args:
        loaded: what to start from.
        config: for dropout, ``lstm`` and ``from_scratch``.
        task: says which head.
        seed: keys what is drawn.
    """
    shape = loaded.model.config
    if config.dropout is not None:
        shape = dataclasses.replace(shape, dropout=config.dropout, attention_dropout=config.dropout)
    model = task.new_model(shape, seed=seed, lstm=config.lstm)
    model.shared.fast = config.kernels == "fast"
    model.shared.recompute = config.recompute
    if not config.from_scratch:
        theirs = loaded.model.encoder.state_dict()
        known = {n: v for n, v in theirs.items() if f"encoder.{n}" not in loaded.fresh}
        model.encoder.load_state_dict(known, strict=False)
    if keeps_head(loaded, config, task):
        assert model.task_head is not None
        assert loaded.model.task_head is not None
        model.task_head.load_state_dict(loaded.model.task_head.state_dict())
        if model.lstm is not None and loaded.model.lstm is not None:
            model.lstm.load_state_dict(loaded.model.lstm.state_dict())
    return model


def keeps_head(loaded: Loaded, config: FinetuneConfig, task: Task[Any, Any]) -> bool:
    """Whether to go on with the head that the model folder has, as with its encoder.

    Raises:
        ConfigError: that is asked for, and the folder has none of this kind and these labels.
    """
    if config.head == "keep" and config.from_scratch:
        raise ConfigError("head is keep, but from_scratch draws all weights; leave one out.")
    if config.head == "new" or config.from_scratch:
        return False
    fits = has_head_for(loaded, task) and loaded.model.lstm_units == config.lstm
    if config.head == "keep" and not fits:
        raise ConfigError(
            "head is keep, but the model folder has no head that was fine-tuned on a task of this "
            f"kind and these labels with lstm {config.lstm}; set head to new."
        )
    kept = fits and (config.head == "keep" or task.loss == "place")
    if kept and config.head_seeds:
        raise ConfigError(
            "head_seeds draw new heads, but this run goes on with the model folder's; set head to "
            "new, or leave head_seeds out."
        )
    return kept


def train_seed(
    config: FinetuneConfig, loaded: Loaded, data: Data, run: Opened, restart: Restart
) -> SeedResult:
    """Train, measure and save one run; what its folder held is replaced."""
    folder = run.folder / restart.folder
    with explain_disk_errors(folder):
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
    start = time.monotonic()
    model = new_model(loaded, config, data.task, restart.head_seed).to(run.device.torch)
    epochs, outputs = _train(config, model, data, run, restart)
    task = data.task.tuned(data.dev, outputs)
    found = task.decode(data.dev, outputs)
    scores = task.measure(data.dev, found)
    more = measure_further(data.further, task, model, folder, dtype=run.precision.dtype)
    result = SeedResult(
        restart.seed,
        scores,
        folder,
        round(time.monotonic() - start, 2),
        more,
        order=restart.order,
        head=restart.head,
    )
    save_model(folder / "model", model, loaded.tokenizer, _about(config, task, run, result))
    write_predictions(folder / "dev_predictions.tsv", task, data.dev, found)
    write_json(folder / DEV_REPORT, describe(task, data.dev, found))
    if data.test is not None:
        outputs = predict_outputs(model, data.test.examples, dtype=run.precision.dtype)
        found = task.decode(data.test, outputs)
        write_predictions(folder / "test_predictions.tsv", task, data.test, found)
    # Written last: a seed is finished when its scores are there.
    write_json(
        folder / SCORES,
        {
            "fingerprint": run.fingerprint,
            "precision": run.precision.name,
            "threads": run.threads,
            "device": run.device.name,
            "kernels": config.kernels,
            "epochs": [epoch.scores for epoch in epochs],
            **result.record(),
        },
    )
    return result


def read_seed(folder: Path, restart: Restart, fingerprint: str) -> SeedResult | None:
    """A finished run's result; None if it was not finished."""
    try:
        record = json.loads((folder / SCORES).read_text(encoding="utf-8"))
        result = SeedResult.from_record(record, folder)
        same = record["fingerprint"] == fingerprint and result.restart == restart
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return result if same else None


def _train(
    config: FinetuneConfig, model: Bert, data: Data, run: Opened, restart: Restart
) -> tuple[list[Measurement], Outputs]:
    """Train the epochs; the dev scores after each, and the last one's outputs."""
    task, dtype = data.task, run.precision.dtype
    per_epoch = -(-len(data.train.examples) // config.batch)
    total = per_epoch * config.epochs
    rows = None
    if config.kernels == "fast" and config.optimizer.name == "adam":
        table, ids = model.encoder.embeddings.tokens, data.train.examples.tokens
        # The tail of a flat batch shows id 0.
        rows = UsedRows(table, np.append(ids, 0), config.optimizer, total)
        rows.take()
    trainer: Trainer[TaskBatch] = Trainer(
        model, config.optimizer, total_steps=total, seed=restart.seed, dtype=dtype
    )
    measured: list[Measurement] = []
    outputs = np.zeros((0, task.outputs), np.float32)
    title = f"{task.name} {restart.name}"
    monitor = Monitor(run.folder / restart.folder, total, title, bar=run.alone)
    with monitor, _diverging(restart):
        for epoch in range(config.epochs):
            if rows:
                rows.take()
            stats = _train_epoch(config, trainer, data, epoch, restart.order_seed, monitor)
            if rows:
                rows.put_back((epoch + 1) * per_epoch)
            outputs = predict_outputs(model, data.dev.examples, dtype=dtype)
            measured.append(task.measure(data.dev, task.decode(data.dev, outputs)))
            scores = {f"dev_{k}": v for k, v in measured[-1].scores.items()}
            monitor.log((epoch + 1) * per_epoch, {"epoch": epoch + 1, **stats, **scores})
            shown = ", ".join(f"{k} {v:.4f}" for k, v in measured[-1].scores.items())
            notes = "".join(f" ({note})" for note in measured[-1].notes)
            monitor.say(f"{restart.name} epoch {epoch + 1}: dev {shown}{notes}")
    return measured, outputs


@contextlib.contextmanager
def _diverging(restart: Restart) -> Iterator[None]:
    """Name the run in which training diverged, whether gradients or outputs showed it."""
    try:
        yield
    except (DivergenceError, ModelError) as error:
        raise DivergenceError(f"{restart.name}: {error}") from None


def _train_epoch(
    config: FinetuneConfig,
    trainer: Trainer[TaskBatch],
    data: Data,
    epoch: int,
    order_seed: int,
    monitor: Monitor,
) -> dict[str, float]:
    """One pass over the data; the mean statistics since the last record."""
    examples = data.train.examples
    steps = step_batches(len(examples), config.batch, seed=order_seed, epoch=epoch)
    every = max(1, trainer.total_steps // _RECORDS)
    positions = trainer.model.config.positions
    device = trainer.model.device
    recent: list[Stats] = []

    def make(i: int) -> list[TaskBatch]:
        parts = cut_by_tokens(steps[i], examples.lengths, TRAIN_TOKENS)
        made = [examples.batch(part, max_positions=positions) for part in parts]
        return made if device.type == "cpu" else [batch.to(device) for batch in made]

    ahead = 0 if device.type == "cpu" else 2  # a CPU has enough to do
    for i, parts in enumerate(run_ahead(make, range(len(steps)), ahead=ahead, device=device)):
        step = epoch * len(steps) + i
        loss = task_loss(data.task.loss, examples.counted(steps[i]))
        recent.append(trainer.step(step, parts, loss))
        if (step + 1) % every == 0 and i + 1 < len(steps):
            trainer.check()
            monitor.log(step + 1, _means(recent))
            recent.clear()
    trainer.check()
    return _means(recent)


def _means(records: list[Stats]) -> dict[str, float]:
    return {name: float(np.mean([float(r[name]) for r in records])) for name in records[0]}


def _about(
    config: FinetuneConfig, task: Task[Any, Any], run: Opened, result: SeedResult
) -> dict[str, Any]:
    """What bothways.json says of a fine-tuned model."""
    options = to_dict(task.options)
    for item in dataclasses.fields(task.options):  # paths and the like, and what stands beside
        if item.metadata.get("kind") == "free" or item.name in ("kind", "labels"):
            del options[item.name]
    return {
        "task": task.name,
        "kind": task.options.kind,
        "labels": list(task.options.labels),
        "pair": task.pair,
        "length": config.length,
        "options": options,
        "dev": result.measurement.scores,
        "source": "random weights" if config.from_scratch else config.model,
        "seed": result.seed,
        "setting": config.setting,
        "fingerprint": run.fingerprint,
    }
