"""One run of fine-tuning: a model made, trained, measured and saved.

A run's folder holds the model folder, scores (``metrics.json``, ``metrics.jsonl``) and predictions.
It is finished when its scores are there.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from pathlib import Path
from typing import Any

from bothways.config import FinetuneConfig, Restart, to_dict
from bothways.errors import ConfigError
from bothways.files import explain_disk_errors, write_json
from bothways.model.folder import Loaded, save_model
from bothways.model.heads import Bert
from bothways.tasks.checkpoint import FOLDER as CHECKPOINT
from bothways.tasks.checkpoint import Checkpoint
from bothways.tasks.epochs import Epochs
from bothways.tasks.extra_files import measure_further
from bothways.tasks.kinds import has_head_for
from bothways.tasks.predict import predict_outputs, write_predictions
from bothways.tasks.report import SeedResult
from bothways.tasks.runpage import DEV_REPORT, describe
from bothways.tasks.task import Task
from bothways.tasks.task_files import Data, Opened
from bothways.training.monitor import METRICS

SCORES = "metrics.json"


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
    """Train, measure and save one run, or go on from its checkpoint; what its folder held besides
    is replaced."""
    folder = run.folder / restart.folder
    checkpoint = _checkpoint(config, run, restart)
    _clear(folder, checkpoint, restart)
    start = time.monotonic()
    model = new_model(loaded, config, data.task, restart.head_seed).to(run.device.torch)
    progress, outputs = Epochs(config, model, data, run, restart, checkpoint).train()
    task = data.task.tuned(data.dev, outputs)
    found = task.decode(data.dev, outputs)
    scores = task.measure(data.dev, found)
    more = measure_further(data.further, task, model, folder, dtype=run.precision.dtype)
    result = SeedResult(
        restart.seed,
        scores,
        folder,
        round(progress.seconds + time.monotonic() - start, 2),
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
            "epochs": [epoch.scores for epoch in progress.measured],
            **result.record(),
        },
    )
    checkpoint.remove()
    return result


def _checkpoint(config: FinetuneConfig, run: Opened, restart: Restart) -> Checkpoint:
    """Where the run's state in training is kept, for processes that compute the same."""
    key = {
        "recipe": run.fingerprint,
        "run": restart.name,
        "precision": run.precision.name,
        "kernels": config.kernels,
    }
    return Checkpoint(run.folder / restart.folder, key, config.checkpoint_minutes)


def _clear(folder: Path, checkpoint: Checkpoint, restart: Restart) -> None:
    """Leave in a run's folder what it goes on from."""
    if problem := checkpoint.problem():
        print(f"{restart.name}: {problem}; it starts again from its beginning", flush=True)
        checkpoint.remove()
    kept = {CHECKPOINT, METRICS} if (folder / CHECKPOINT).exists() else set()
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.name in kept:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def read_seed(folder: Path, restart: Restart, fingerprint: str) -> SeedResult | None:
    """A finished run's result; None if it was not finished."""
    try:
        record = json.loads((folder / SCORES).read_text(encoding="utf-8"))
        result = SeedResult.from_record(record, folder)
        same = record["fingerprint"] == fingerprint and result.restart == restart
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return result if same else None


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
