"""One seed of a fine-tuning run: a model is made, trained, measured and saved.

The seed's folder holds the model folder, scores (``metrics.json``, ``metrics.jsonl``) and
predictions. The seed is finished when its scores have been written.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bothways.config import FinetuneConfig, RunSeeds, to_dict
from bothways.errors import ConfigError, RunError
from bothways.files import explain_disk_errors, restore_set_aside, write_json
from bothways.finetuning.checkpoint import FOLDER as CHECKPOINT
from bothways.finetuning.checkpoint import Checkpoint
from bothways.finetuning.epochs import SeedTraining
from bothways.finetuning.extra_files import WITH_LABELS, measure_extra_files, predictions_name
from bothways.finetuning.report import DEV_REPORT, describe
from bothways.finetuning.results import SeedResult
from bothways.finetuning.run_setup import OpenedRun
from bothways.finetuning.task_files import FinetuningData
from bothways.model.bert import Bert
from bothways.model.folder import LoadedModel, load_model, save_model, write_model_files
from bothways.prediction.predict import write_predictions
from bothways.tasks.kinds import has_head_for, task_of
from bothways.tasks.task import Task
from bothways.training.checkpoint import FOREIGN
from bothways.training.monitor import METRICS
from bothways.training.runfolder import versions
from bothways.training.trial import try_save

SCORES = "metrics.json"
MEASURED_IN = "fp32"
"""The precision of scores and predictions, whatever that of training is."""


def new_model(loaded: LoadedModel, config: FinetuneConfig, task: Task[Any, Any], seed: int) -> Bert:
    """The encoder with a new task head, or with that of the model folder (:func:`keeps_head`).

    Other heads are dropped. Weights that the model folder lacked (a pooler) are newly initialised
    too, and with ``from_scratch`` all are.

    Args:
        loaded: the starting model.
        config: for dropout, ``lstm``, ``kernels``, ``recompute`` and ``from_scratch``.
        task: decides the head.
        seed: keys the initialisation.
    """
    shape = loaded.model.config
    if config.dropout is not None:
        shape = dataclasses.replace(shape, dropout=config.dropout, attention_dropout=config.dropout)
    model = task.new_model(shape, seed=seed, lstm=config.lstm)
    model.shared.fast = config.kernels == "fast"
    model.shared.recompute = config.recompute
    if not config.from_scratch:
        state = loaded.model.encoder.state_dict()
        pretrained = {n: v for n, v in state.items() if f"encoder.{n}" not in loaded.fresh}
        model.encoder.load_state_dict(pretrained, strict=False)
    if keeps_head(loaded, config, task):
        assert model.task_head is not None
        assert loaded.model.task_head is not None
        model.task_head.load_state_dict(loaded.model.task_head.state_dict())
        if model.lstm is not None and loaded.model.lstm is not None:
            model.lstm.load_state_dict(loaded.model.lstm.state_dict())
    return model


def keeps_head(loaded: LoadedModel, config: FinetuneConfig, task: Task[Any, Any]) -> bool:
    """Whether training starts from the model folder's task head, as it does from its encoder.

    Raises:
        ConfigError: that is requested, but the folder has no head for this kind and these labels.
    """
    if config.head == "keep" and config.from_scratch:
        raise ConfigError("head is keep, but from_scratch initialises all weights; leave one out.")
    if config.head == "new" or config.from_scratch:
        return False
    fits = has_head_for(loaded, task) and loaded.model.lstm_units == config.lstm
    if config.head == "keep" and not fits:
        raise ConfigError(
            "head is keep, but the model folder has no head that was fine-tuned on a task of this "
            f"kind and these labels with lstm {config.lstm}; set head to new."
        )
    keeps = fits and (config.head == "keep" or task.loss == "place")
    if keeps and config.head_seeds:
        raise ConfigError(
            "head_seeds draw new heads, but this run continues from the model folder's head; set "
            "head to new, or leave head_seeds out."
        )
    return keeps


def train_seed(
    config: FinetuneConfig,
    loaded: LoadedModel,
    data: FinetuningData,
    run: OpenedRun,
    run_seeds: RunSeeds,
) -> SeedResult:
    """Train, measure and save one seed, from its checkpoint if there is one.

    Anything else in its folder is replaced.
    """
    folder = run.folder / run_seeds.folder
    restore_set_aside(folder / CHECKPOINT)
    checkpoint = _checkpoint(config, run, run_seeds)
    _clear_folder(folder, checkpoint, run_seeds)
    start = time.monotonic()
    model = new_model(loaded, config, data.task, run_seeds.head_seed).to(run.device.torch)
    model.shared.transposes = run.precision.transposes
    _try_model(folder / "model", model, loaded, _about(config, data.task, run, run_seeds.seed, {}))
    progress, predictions = SeedTraining(config, model, data, run, run_seeds, checkpoint).train()
    task = data.task.tuned(data.dev, predictions)
    measurement = task.measure(data.dev, predictions)
    extra = data.extra
    further = measure_extra_files(extra, extra.files, task, model, folder)
    result = SeedResult(
        run_seeds.seed,
        measurement,
        folder,
        round(progress.seconds + time.monotonic() - start, 2),
        further,
        order=run_seeds.order,
        head=run_seeds.head,
    )
    about = _about(config, task, run, run_seeds.seed, measurement.scores)
    save_model(folder / "model", model, loaded.tokenizer, about)
    write_predictions(folder / predictions_name("dev"), task, data.dev, predictions)
    write_json(folder / DEV_REPORT, describe(task, data.dev, predictions))
    scores = {
        "fingerprint": run.fingerprint,
        "precision": run.precision.name,
        "measured_in": MEASURED_IN,
        "threads": run.threads,
        "device": run.device.name,
        "kernels": config.kernels,
        "versions": versions(),
        "epochs": [epoch.scores for epoch in progress.measured],
        **result.record(),
        "files": extra.digests,
    }
    write_json(folder / SCORES, scores)  # written last: it marks the seed as finished
    checkpoint.remove()
    return result


def _try_model(path: Path, model: Bert, loaded: LoadedModel, about: dict[str, Any]) -> None:
    """See that the trained model can be saved, before it is trained."""
    with try_save(path) as trial:
        write_model_files(trial.folder, model, loaded.tokenizer, about, trial.write)
        trial.reserve()


def _checkpoint(config: FinetuneConfig, run: OpenedRun, run_seeds: RunSeeds) -> Checkpoint:
    """The checkpoint of a seed; only a process with the same arithmetic may continue from it."""
    key = {
        "recipe": run.fingerprint,
        "run": run_seeds.name,
        "precision": run.precision.name,
        "kernels": config.kernels,
    }
    folder = run.folder / run_seeds.folder
    return Checkpoint(folder, key, config.checkpoint_minutes, run=run.identity)


def _clear_folder(folder: Path, checkpoint: Checkpoint, run_seeds: RunSeeds) -> None:
    """Remove everything from a seed's folder except a usable checkpoint and its records, and
    checkpoints of other runs."""
    if problem := checkpoint.reject():
        print(f"{run_seeds.name}: {problem}; training starts again from the beginning", flush=True)
    keep = {CHECKPOINT, METRICS} if (folder / CHECKPOINT).exists() else set()
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.name in keep or path.name.startswith(FOREIGN):
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def read_seed(folder: Path, run_seeds: RunSeeds, fingerprint: str) -> SeedResult | None:
    """The result of a seed; None if it is not finished, or was trained by another recipe.

    A damaged record is reported, and the seed counts as not finished.

    Raises:
        RunError: there is a record, but the disk or its permissions keep it from being read.
    """
    path = folder / SCORES
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        result = SeedResult.from_record(record, folder)
        same = record["fingerprint"] == fingerprint and result.run_seeds == run_seeds
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(
            f"{path} cannot be read ({error.strerror}), so it is not known whether the seed is "
            "finished. Make it readable, or remove it to train the seed again."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"{path} is damaged ({error}); {run_seeds.name} is trained again", flush=True)
        return None
    return result if same else None


def remove_leftovers(folder: Path) -> None:
    """Remove what a finished seed's training left behind, if it was killed at the very end."""
    shutil.rmtree(folder / CHECKPOINT, ignore_errors=True)


def update_extra_files(
    data: FinetuningData,
    run: OpenedRun,
    result: SeedResult,
    say: Callable[[str], None],
) -> SeedResult:
    """Bring a finished seed up to date with the files to measure on and to predict: those that are
    new or have changed since are predicted and measured with its model.

    Returns:
        The result with the scores on the files that are given now.

    Raises:
        RunError, ModelError: the seed's model folder is needed, but missing or damaged.
        DiskError: predictions or scores could not be written.
    """
    extra, path = data.extra, result.folder / SCORES
    record = json.loads(path.read_text(encoding="utf-8"))
    known, further = dict(record.get("files", {})), dict(result.further)
    for name in further.keys() & known.keys():
        if not known[name].endswith(WITH_LABELS):  # earlier versions did not say so
            known[name] += WITH_LABELS
    names = [
        name
        for name, digest in extra.digests.items()
        if known.get(name) != digest
        or (name in extra.labelled and name not in further)
        or not (result.folder / predictions_name(name)).exists()
    ]
    if names:
        listed = ", ".join(names)
        if not result.model.is_dir():
            raise RunError(
                f"{result.model} is missing, and {listed} cannot be predicted without it. Put it "
                f"back, or remove {result.folder} to train this seed again."
            )
        # If this is interrupted, none of them may count as those of an earlier file.
        kept = {name: digest for name, digest in known.items() if name not in names}
        further = {name: found for name, found in further.items() if name not in names}
        write_json(path, {**record, "files": kept})
        say(f"{result.name}: predicts {listed}, added or changed since it was trained")
        earlier = record.get("measured_in", record.get("precision", MEASURED_IN))
        if earlier != MEASURED_IN:  # 0.1 measured in the precision of training
            say(f"{result.name}: these in {MEASURED_IN}, its other scores were in {earlier}")
        loaded = load_model(result.model)
        model, task = loaded.model.to(run.device.torch), task_of(loaded)
        further |= measure_extra_files(extra, names, task, model, result.folder)
        scores = {name: measurement.record() for name, measurement in further.items()}
        files = {**kept, **{name: extra.digests[name] for name in names}}
        write_json(path, {**record, "further": scores, "files": files})
    return dataclasses.replace(result, further={name: further[name] for name in extra.labelled})


def _about(
    config: FinetuneConfig,
    task: Task[Any, Any],
    run: OpenedRun,
    seed: int,
    scores: Mapping[str, float],
) -> dict[str, Any]:
    """The content of bothways.json for a fine-tuned model."""
    options = to_dict(task.options)
    for item in dataclasses.fields(task.options):
        # Paths and the like do not define the task; kind and labels have keys of their own below.
        if item.metadata.get("kind") == "free" or item.name in ("kind", "labels"):
            del options[item.name]
    return {
        "task": task.name,
        "kind": task.options.kind,
        "labels": list(task.options.labels),
        "pair": task.pair,
        "length": config.length,
        "options": options,
        "precision": run.precision.name,
        "measured_in": MEASURED_IN,
        "dev": scores,
        "source": "random weights" if config.from_scratch else config.model,
        "seed": seed,
        "setting": config.setting,
        "fingerprint": run.fingerprint,
    }
