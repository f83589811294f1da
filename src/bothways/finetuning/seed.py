"""One seed of a fine-tuning: epochs, checkpoints, the model and its scores."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bothways.config.fields import to_dict
from bothways.errors import ConfigError, DivergenceError, NonFiniteError, RunError
from bothways.finetuning.options import FinetuneConfig, RunSeeds
from bothways.finetuning.report import DEV_REPORT, describe
from bothways.finetuning.results import SeedResult
from bothways.finetuning.setup import (
    WITH_LABELS,
    FinetuningData,
    OpenedRun,
    measure_extra_files,
    predictions_name,
)
from bothways.io.files import explain_disk_errors, new_folder, restore_set_aside, write_json
from bothways.model.batch import TaskInputs
from bothways.model.folder import LoadedModel, load_model, save_model, write_model_files
from bothways.model.model import EncoderModel
from bothways.objectives.labelled import task_loss
from bothways.runtime.pipeline import measured_outputs, write_predictions
from bothways.tasks.examples import TRAIN_TOKENS, cut_by_tokens, step_batches
from bothways.tasks.kinds import has_head_for, task_of
from bothways.tasks.metrics import Measurement
from bothways.tasks.options import SEVERAL, SEVERAL_OPTIONS
from bothways.tasks.task import Task
from bothways.training.checkpoint import (
    FOREIGN,
    STATE,
    read_state,
    rename_skipped,
    trained_tensors,
    try_save,
    verify_checkpoint,
    whose,
    write_state,
)
from bothways.training.frozen_rows import PrunedEmbedding
from bothways.training.fsdp import gather
from bothways.training.monitor import METRICS, Monitor
from bothways.training.prefetch import run_ahead
from bothways.training.ranks import SINGLE_PROCESS
from bothways.training.runfolder import versions
from bothways.training.trainer import Stats, Trainer

# --------------------------------------------------------------------------------
# The checkpoint of a fine-tuning run, from which it continues with the same bits.

FOLDER = "checkpoint"
_IDENTITY = {"recipe", "run"}  # of the key: these never change within a seed


@dataclass
class Progress:
    """How far the training of a seed is.

    Attributes:
        step: steps done.
        measured: dev scores after each epoch that is trained and measured.
        recent: statistics of the steps since the last record.
        seconds: spent by earlier processes, up to the checkpoint.
    """

    step: int = 0
    measured: list[Measurement] = field(default_factory=list)
    recent: list[Stats] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def recorded(self) -> int:
        """The step of the last record."""
        return self.step - len(self.recent)


class Checkpoint:
    """The only checkpoint of a seed, replaced by each save.

    Args:
        folder: of the seed.
        key: what the state depends on; a checkpoint with another key is not used.
        minutes: between saves.
        run: identity of the run.
    """

    def __init__(self, folder: Path, key: Mapping[str, Any], minutes: float, *, run: str):
        self._path, self._key, self._interval = folder / FOLDER, dict(key), minutes * 60
        self._run = run
        self._started = self._saved = time.monotonic()
        self._seconds_before = 0.0

    def reject(self) -> str:
        """Take the checkpoint away if training cannot continue from it: one of another run or seed
        is renamed, others are removed.

        Returns:
            Why it cannot; empty if it can or there is none.

        Raises:
            RunError: it cannot be read, so it may be intact.
            DiskError: it cannot be renamed.
        """
        if not self.exists():
            return ""
        if damage := verify_checkpoint(self._path):
            self.remove()
            return f"its checkpoint is damaged ({'; '.join(damage)})"
        manifest = json.loads((self._path / STATE).read_text(encoding="utf-8"))
        key = manifest["extra"].get("key", {})  # pre-training's has none
        changed = [name for name, value in self._key.items() if key.get(name) != value]
        other = whose(self._path, self._run)
        if not other and not changed:
            return ""
        if other or not _IDENTITY.isdisjoint(changed):
            if not other:
                named = key.get("run") if "run" in changed else "another recipe"
                other = f"it is step {manifest['step']} of {named}; move it back there"
            kept = rename_skipped(self._path, FOREIGN)
            return f"its checkpoint is not its own: {other} (now {kept})"
        self.remove()
        return f"its checkpoint was made with another {', '.join(changed)}"

    def restore(
        self, trainer: Trainer[TaskInputs], rows: PrunedEmbedding | None
    ) -> Progress | None:
        """Load the saved state, if there is one; the embedding table must be pruned."""
        if not self.exists():
            return None
        restored, tensors = read_state(self._path)
        with torch.no_grad():
            for name, tensor in trained_tensors(trainer.model, trainer.optimizer):
                # In 0.1 a head on choices was one on texts.
                old = name.replace("choice.", "classifier.", 1)
                tensor.copy_(tensors[name if name in tensors else old])
        if rows is not None:
            rows.set_state(tensors, restored.extra["decayed"])
        self._seconds_before = restored.extra["seconds"]
        measured = [Measurement.from_record(record) for record in restored.extra["measured"]]
        recent = restored.extra.get("recent", [])  # older ones were saved at records only
        return Progress(restored.step, measured, recent, self._seconds_before)

    def due(self) -> bool:
        """Whether it is time to save."""
        return time.monotonic() - self._saved >= self._interval

    def exists(self) -> bool:
        """Whether there is one."""
        return self._path.exists()

    def save(
        self, trainer: Trainer[TaskInputs], rows: PrunedEmbedding | None, progress: Progress
    ) -> None:
        """Replace the checkpoint, atomically. The embedding table must be pruned.

        Raises:
            DiskError: it could not be written; the previous checkpoint is intact.
        """
        tensors, extra = self._state(trainer, rows, progress)
        with new_folder(self._path) as partial:
            write_state(partial, progress.step, tensors, extra, run=self._run)
        self._saved = time.monotonic()

    def try_save(
        self, trainer: Trainer[TaskInputs], rows: PrunedEmbedding | None, progress: Progress
    ) -> int:
        """Try :meth:`save` before training, with nothing written in the end. Space is not
        reserved: training may end before the first one is due.

        Returns:
            Bytes of a checkpoint's tensors.

        Raises:
            DiskError: it could not be written.
            RunError: it could not be made.
        """
        tensors, extra = self._state(trainer, rows, progress)
        with try_save(self._path) as trial:
            write_state(
                trial.folder, progress.step, tensors, extra, run=self._run, write=trial.write
            )
            return trial.size

    def _state(
        self, trainer: Trainer[TaskInputs], rows: PrunedEmbedding | None, progress: Progress
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What is saved: tensors, and JSON-serialisable data."""
        tensors = gather(trained_tensors(trainer.model, trainer.optimizer), SINGLE_PROCESS)
        extra = {
            "key": self._key,
            "measured": [measurement.record() for measurement in progress.measured],
            "recent": [{k: float(v) for k, v in stats.items()} for stats in progress.recent],
            "seconds": self._seconds_before + time.monotonic() - self._started,
        }
        if rows is not None:
            unused_rows, extra["decayed"] = rows.state()
            tensors |= gather(unused_rows.items(), SINGLE_PROCESS)
        return tensors, extra

    def remove(self) -> None:
        """Remove the checkpoint: training is done, or cannot continue from it."""
        with explain_disk_errors(self._path):
            shutil.rmtree(self._path, ignore_errors=True)


# --------------------------------------------------------------------------------
# Trains one model of a fine-tuning run, epoch by epoch, and measures dev after each epoch.

# Approximate number of records in metrics.jsonl per run.
_RECORDS = 200


@contextlib.contextmanager
def _naming_run(run_seeds: RunSeeds) -> Iterator[None]:
    """Report divergence, whether the gradients or the outputs show it, with the name of the run."""
    try:
        yield
    except (DivergenceError, NonFiniteError) as error:
        raise DivergenceError(f"{run_seeds.name}: {error}") from None


class SeedTraining:
    """The training of one seed, from the beginning or from its checkpoint.

    While training, the embedding table may be pruned to the rows that occur in the training file
    (:class:`PrunedEmbedding`). It must be whole when dev is measured and at the end, and pruned
    when a checkpoint is saved or restored.

    Args:
        config: the setting.
        model: trained in place.
        data: the files of the task, encoded.
        run: the run folder.
        run_seeds: the seeds of this run.
        checkpoint: restored if there is one, and saved now and then.
    """

    def __init__(
        self,
        config: FinetuneConfig,
        model: EncoderModel,
        data: FinetuningData,
        run: OpenedRun,
        run_seeds: RunSeeds,
        checkpoint: Checkpoint,
    ):
        self.config, self.model, self.data, self.run = config, model, data, run
        self.run_seeds, self.checkpoint = run_seeds, checkpoint
        self.steps_per_epoch = -(-len(data.train.examples.trainable) // config.batch)
        self.total = self.steps_per_epoch * config.epochs
        self.pruned: PrunedEmbedding | None = None
        if config.kernels == "fast" and config.optimizer.name == "adam":
            table, ids = model.encoder.embeddings.tokens, data.train.examples.tokens
            self.pruned = PrunedEmbedding(table, ids, config.optimizer, self.total)
        self.trainer: Trainer[TaskInputs] = Trainer(
            model,
            config.optimizer,
            total_steps=self.total,
            seed=run_seeds.seed,
            dtype=run.precision.dtype,
        )
        self.progress = checkpoint.restore(self.trainer, self.pruned) or Progress()

    def train(self) -> tuple[Progress, Any]:
        """Train the epochs that are not done.

        Returns:
            The dev scores after each epoch, and the predictions for dev after the last.

        Raises:
            DivergenceError: training diverged; the message names the run.
            DiskError: records or a checkpoint could not be written.
        """
        progress, done = self.progress, self.progress.step
        predictions: Any = None
        title = f"{self.data.task.name} {self.run_seeds.name}"
        folder, bar = self.run.folder / self.run_seeds.folder, self.run.alone
        with (
            _naming_run(self.run_seeds),
            Monitor(folder, self.total, title, done=progress.recorded, bar=bar) as monitor,
        ):
            if done:
                monitor.say(
                    f"{self.run_seeds.name}: continuing after step {done:,} of {self.total:,}"
                )
            if done < self.total:
                self._try_saving(monitor)
            for epoch in range(len(progress.measured), self.config.epochs):
                end = (epoch + 1) * self.steps_per_epoch
                self._train_epoch(epoch, monitor)
                with self.pruned.full_table(end) if self.pruned else contextlib.nullcontext():
                    predictions = self._measure(epoch, monitor)
                if epoch + 1 < self.config.epochs and self.checkpoint.due():
                    self._save()
            if self.pruned:
                self.pruned.restore(self.total)
        return progress, predictions

    def _train_epoch(self, epoch: int, monitor: Monitor) -> None:
        """Train what is left of one pass over the data, without the record of its last step."""
        examples, trainer = self.data.train.examples, self.trainer
        items, batch = examples.trainable, self.config.batch
        order = step_batches(len(items), batch, seed=self.run_seeds.order_seed, epoch=epoch)
        steps = [items[chosen] for chosen in order]
        record_every = max(1, self.total // _RECORDS)
        positions, device = self.model.config.positions, self.model.device
        progress = self.progress

        def make_micro_batches(i: int) -> list[TaskInputs]:
            parts = cut_by_tokens(steps[i], examples.lengths, TRAIN_TOKENS)
            batches = [
                TaskInputs.of(examples.batch(part, max_positions=positions)) for part in parts
            ]
            return batches if device.type == "cpu" else [batch.to(device) for batch in batches]

        remaining = range(progress.step - epoch * len(steps), len(steps))
        ahead = 0 if device.type == "cpu" else 2  # on a CPU, training itself uses all cores
        prepared = run_ahead(make_micro_batches, remaining, ahead=ahead, device=device)
        for i, micro_batches in zip(remaining, prepared, strict=True):
            step = epoch * len(steps) + i
            loss = task_loss(self.data.task.loss, examples.count_targets(steps[i]))
            progress.recent.append(trainer.step(step, micro_batches, loss))
            progress.step = step + 1
            if progress.step % record_every == 0 and i + 1 < len(steps):
                trainer.check()
                monitor.log(progress.step, _means(progress.recent))
                progress.recent.clear()
            # Predicting the other files may take long, so the last step is saved in any long run.
            last = progress.step == self.total
            if self.checkpoint.due() or (last and self.checkpoint.exists()):
                self._save()
        trainer.check()

    def _measure(self, epoch: int, monitor: Monitor) -> Any:
        """Measure dev, and record the scores with the last statistics of training; the
        predictions."""
        dev = self.data.dev
        outputs = measured_outputs(self.model, dev.examples)
        predictions = self.data.task.decode(dev, outputs)
        measurement = self.data.task.tuned(dev, predictions).measure(dev, predictions)
        self.progress.measured.append(measurement)
        scores = {f"dev_{k}": v for k, v in measurement.scores.items()}
        stats = _means(self.progress.recent)
        self.progress.recent.clear()
        monitor.log(self.progress.step, {"epoch": epoch + 1, **stats, **scores})
        shown = ", ".join(f"{k} {v:.4f}" for k, v in measurement.scores.items())
        notes = "".join(f" ({note})" for note in measurement.notes)
        monitor.say(f"{self.run_seeds.name} epoch {epoch + 1}: dev {shown}{notes}")
        return predictions

    def _try_saving(self, monitor: Monitor) -> None:
        """See that checkpoints can be written, before a step is trained."""
        size = self.checkpoint.try_save(self.trainer, self.pruned, self.progress)
        folder = self.run.folder / self.run_seeds.folder
        free = shutil.disk_usage(folder).free
        if free < size:
            monitor.say(
                f"{folder}: a checkpoint, written every {self.config.checkpoint_minutes:g} minutes "
                f"(--checkpoint_minutes), needs {size / 2**20:,.0f} MiB, {free / 2**20:,.0f} MiB "
                "are free; free some space if training takes longer"
            )

    def _save(self) -> None:
        """Save a checkpoint, unless training has diverged."""
        self.trainer.check()
        self.checkpoint.save(self.trainer, self.pruned, self.progress)


def _means(records: list[Stats]) -> dict[str, float]:
    return {name: float(np.mean([float(r[name]) for r in records])) for name in records[0]}


# --------------------------------------------------------------------------------
# One seed of a fine-tuning run: a model is made, trained, measured and saved.
#
# The seed's folder holds the model folder, scores (``metrics.json``, ``metrics.jsonl``) and
# predictions. The seed is finished when its scores have been written.

CHECKPOINT = FOLDER

SCORES = "metrics.json"
MEASURED_IN = "fp32"
"""The precision of scores and predictions, whatever that of training is."""


def new_model(
    loaded: LoadedModel, config: FinetuneConfig, task: Task[Any, Any], seed: int
) -> EncoderModel:
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
        p = config.dropout
        shape = dataclasses.replace(shape, dropout=p, attention_dropout=p, head_dropout=None)
    model = EncoderModel(
        shape,
        classes=task.outputs if task.head == "classes" else 0,
        tags=task.outputs if task.head == "tags" else 0,
        spans=task.head == "spans",
        choices=task.head == "choices",
        lstm=config.lstm,
        seed=seed,
    )
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


def _try_model(path: Path, model: EncoderModel, loaded: LoadedModel, about: dict[str, Any]) -> None:
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
    for name in {"multilabel", *SEVERAL_OPTIONS} if task.options.kind not in SEVERAL else ():
        del options[name]
    return {
        "task": task.name,
        "kind": task.options.kind,
        "labels": list(task.options.labels),
        "pair": task.pair,
        "length": config.sequence_length,
        "options": options,
        "precision": run.precision.name,
        "measured_in": MEASURED_IN,
        "dev": scores,
        "source": "random weights" if config.from_scratch else config.model,
        "seed": seed,
        "setting": config.setting,
        "fingerprint": run.fingerprint,
    }
