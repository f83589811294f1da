"""One seed of a fine-tuning: epochs, checkpoints, the model and its scores."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.config.fields import to_dict
from bothways.errors import ConfigError, DivergenceError, NonFiniteError, RunError
from bothways.finetuning.frozen import fit_head
from bothways.finetuning.options import FinetuneConfig, RunSeeds
from bothways.finetuning.report import DEV_REPORT, describe
from bothways.finetuning.results import SeedResult
from bothways.finetuning.setup import (
    WITH_LABELS,
    FinetuningData,
    OpenedRun,
    data_of_run,
    label_weights,
    measure_extra_files,
    measured_outputs,
    predictions_name,
)
from bothways.io.files import explain_disk_errors, write_json
from bothways.io.terminal import line_printer
from bothways.model.batch import TaskInputs
from bothways.model.engine import network_of
from bothways.model.folder import save_model, write_model_files
from bothways.model.model import EncoderModel
from bothways.objectives.labelled import LabelledExamples
from bothways.runtime.folder import LoadedModel, load_model
from bothways.tasks.examples import TRAIN_TOKENS, cut_by_tokens
from bothways.tasks.kinds import has_head_for
from bothways.tasks.metrics import Measurement
from bothways.tasks.options import ONLY_OF, SEVERAL_OPTIONS, TaskOptions
from bothways.tasks.task import Task
from bothways.training.checkpoint import (
    FOREIGN,
    LAST,
    LastCheckpoint,
    try_save,
)
from bothways.training.fit import EpochBatches, EpochPlan, EpochScores, Place, fit
from bothways.training.frozen_rows import PrunedEmbedding
from bothways.training.monitor import METRICS, Monitor
from bothways.training.runfolder import read_result, versions

# Approximate number of records in metrics.jsonl per run.
_RECORDS = 200


class BestEpoch:
    """The weights of the epoch with the best score so far, in a checkpoint too.

    Attributes:
        epoch: its number, from 1; 0 before the first.
        score: of the main metric on dev.
        weights: of the whole model, by name, on the CPU.
    """

    def __init__(self) -> None:
        self.epoch, self.score = 0, -math.inf
        self.weights: dict[str, Tensor] = {}

    def offer(self, epoch: int, score: float, model: EncoderModel) -> None:
        """Keep an epoch if it is better than those before."""
        if score > self.score:
            self.epoch, self.score = epoch, score
            self.weights = {n: v.detach().cpu().clone() for n, v in model.state_dict().items()}

    def state(self) -> dict[str, Any]:
        """The score and the weights."""
        if not self.epoch:
            return {}
        weights = {f"{_BEST}{name}": value for name, value in self.weights.items()}
        return {"best": [self.epoch, self.score], **weights}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with what was saved."""
        self.epoch, self.score = state.get("best", (0, -math.inf))
        self.weights = {
            name.removeprefix(_BEST): value.clone()
            for name, value in state.items()
            if name.startswith(_BEST)
        }


_BEST = "best."


class SeedTraining(EpochPlan[TaskInputs]):
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
        scores: those of the epochs, and the time.

    Attributes:
        predictions: for dev, when it was measured last.
    """

    def __init__(
        self,
        config: FinetuneConfig,
        model: EncoderModel,
        data: FinetuningData,
        run: OpenedRun,
        run_seeds: RunSeeds,
        checkpoint: LastCheckpoint,
        scores: EpochScores,
    ):
        self.config, self.model, self.data, self.run = config, model, data, run
        self.folder, self.checkpoint = run.folder / run_seeds.folder, checkpoint
        examples = data.train.examples
        batches = EpochBatches(
            examples.trainable,
            config.batch_size,
            config.epochs,
            seed=run_seeds.order_seed,
            make=self._micro_batches,
            device=model.device,
        )
        steps = batches.per_epoch * config.epochs
        self.pruned: PrunedEmbedding | None = None
        plain = config.optimizer.layer_decay == 1 and not config.optimizer.unfreeze
        if config.kernels == "fast" and config.optimizer.optimizer == "adam" and plain:
            table = model.encoder.embeddings.tokens
            self.pruned = PrunedEmbedding(table, examples.tokens, config.optimizer, steps)
        super().__init__(
            run_seeds.name,
            batches,
            scores,
            optimizer=config.optimizer,
            seed=run_seeds.seed,
            dtype=run.precision.dtype,
            minutes=config.checkpoint.minutes,
            record_every=max(1, steps // _RECORDS),
            parts=() if self.pruned is None else (self.pruned,),
        )
        self.predictions: Any = None
        self.best = BestEpoch() if config.keep == "best" else None
        if self.best is not None:
            self.parts = (*self.parts, self.best)
        weights = label_weights(config.class_weights, data.task, data.train)
        self._weights = None if weights is None else torch.from_numpy(weights).to(model.device)

    def train(self) -> Any:
        """Train to the end; the predictions for dev.

        Raises:
            DivergenceError: training diverged; the message names the run.
            DiskError: records or a checkpoint could not be written.
        """
        title = f"{self.data.task.name} {self.name}"
        place = Place(self.folder, self.checkpoint, title, alone=self.run.alone)
        task = self.data.task
        averaged = task.options.reads == "tokens"
        objective = LabelledExamples(task.loss, self._weights, averaged=averaged)
        try:
            fit(self.model, objective, self.batches, self, place)
        except (DivergenceError, NonFiniteError) as error:  # of gradients, or of outputs
            raise DivergenceError(f"{self.name}: {error}") from None
        done = len(self.scores.measured)
        if self.pruned:
            self.pruned.restore_table(done * self.batches.per_epoch)
        if self.best is not None and self.best.epoch < done:
            self.model.load_state_dict(self.best.weights)
            outputs = measured_outputs(self.model, self.data.dev.examples)
            self.predictions = task.decode(self.data.dev, outputs)
        return self.predictions

    def ends(self, now: int) -> bool:
        """After an epoch, if for ``patience`` of them none was better."""
        if self.best is None or not self.config.patience or now % self.batches.per_epoch:
            return False
        return 0 < self.best.epoch <= len(self.scores.measured) - self.config.patience

    def _micro_batches(self, items: NDArray[np.int64]) -> list[TaskInputs]:
        """Those of a step, on the device."""
        examples, positions = self.data.train.examples, self.model.config.positions
        parts = cut_by_tokens(items, examples.lengths, TRAIN_TOKENS)
        batches = [TaskInputs.of(examples.batch(part, max_positions=positions)) for part in parts]
        device = self.model.device
        return batches if device.type == "cpu" else [batch.to(device) for batch in batches]

    def tried(self, watch: Monitor, done: int, size: int) -> None:  # noqa: ARG002
        """Say if a checkpoint would not fit on the disk."""
        if self.best is not None and not self.best.epoch:  # its weights come later
            size += sum(v.nbytes for v in self.model.state_dict().values())
        free = shutil.disk_usage(self.folder).free
        if free < size:
            watch.say(
                f"{self.folder}: a checkpoint, written every {self.minutes:g} minutes "
                f"(--checkpoint-minutes), needs {size / 2**20:,.0f} MiB, {free / 2**20:,.0f} MiB "
                "are free; free some space if training takes longer"
            )

    def evaluate(self, now: int) -> Measurement:
        """With the whole table."""
        dev, task = self.data.dev, self.data.task
        with self.pruned.full_table(now) if self.pruned else contextlib.nullcontext():
            self.predictions = task.decode(dev, measured_outputs(self.model, dev.examples))
            measurement = task.tuned(dev, self.predictions).measure(dev, self.predictions)
            if self.best is not None:
                score = measurement.scores[task.metrics[0]]
                self.best.offer(now // self.batches.per_epoch, score, self.model)
        return measurement


# --------------------------------------------------------------------------------
# One seed of a fine-tuning run: a model is made, trained, measured and saved.
#
# The seed's folder holds the model folder, scores (``metrics.json``, ``metrics.jsonl``) and
# predictions. The seed is finished when its scores have been written.

_AVERAGED = (
    "computes this head by its classes for tokens; the outputs for a text are the means of those "
    "for all of its tokens, special ones included (its classes for texts, and the pipeline "
    "text-classification, put a head of random weights in its place)"
)
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
    shape = loaded.config
    if config.dropout is not None:
        p = config.dropout
        shape = dataclasses.replace(shape, dropout=p, attention_dropout=p, head_dropout=None)
    shape.refuse_to_train(anew=config.from_scratch)
    model = EncoderModel(
        shape,
        heads={task.head: task.outputs},
        lstm=config.lstm,
        seed=seed,
    )
    model.shared.fast = config.kernels == "fast"
    model.shared.recompute = config.recompute
    if not config.from_scratch:
        state = network_of(loaded).encoder.state_dict()
        pretrained = {n: v for n, v in state.items() if f"encoder.{n}" not in loaded.fresh}
        model.encoder.load_state_dict(pretrained, strict=False)
    if keeps_head(loaded, config, task):
        start = network_of(loaded)
        assert model.task_head is not None
        assert start.task_head is not None
        model.task_head.load_state_dict(start.task_head.state_dict())
        if model.lstm is not None and start.lstm is not None:
            model.lstm.load_state_dict(start.lstm.state_dict())
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
    fits = has_head_for(loaded, task) and loaded.lstm == config.lstm
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
    data = data_of_run(config, loaded, data, run_seeds)
    checkpoint = _checkpoint(config, run, run_seeds)
    _clear_folder(folder, checkpoint, run_seeds)
    scores = EpochScores()
    model = new_model(loaded, config, data.task, run_seeds.head_seed).to(run.device.torch)
    model.shared.transposes = run.precision.transposes
    _try_model(folder / "model", model, loaded, _about(config, data.task, run, run_seeds.seed, {}))
    kept = None
    if config.freeze:
        fit_head(model, data, config.class_weights)
        outputs = measured_outputs(model, data.dev.examples)
        predictions = data.task.decode(data.dev, outputs)
    else:
        training = SeedTraining(config, model, data, run, run_seeds, checkpoint, scores)
        predictions = training.train()
        kept = training.best.epoch if training.best is not None else None
    task = data.task.tuned(data.dev, predictions)
    measurement = task.measure(data.dev, predictions)
    extra = data.extra
    further = measure_extra_files(extra, extra.files, task, model, folder)
    result = SeedResult(
        run_seeds.seed,
        measurement,
        folder,
        round(scores.seconds, 2),
        further,
        order=run_seeds.order,
        head=run_seeds.head,
        fold=run_seeds.fold,
        epoch=kept,
        baseline=(
            None if run_seeds.fold is None else data.task.baseline(data.train, data.dev).scores
        ),
    )
    about = _about(config, task, run, run_seeds.seed, measurement.scores)
    if kept is not None:
        about["epoch"] = f"{kept} of {len(scores.measured)}, chosen by {task.metrics[0]} on dev"
    save_model(folder / "model", model, loaded.tokenizer, about)
    task.write(folder / predictions_name("dev"), data.dev, predictions)
    write_json(folder / DEV_REPORT, describe(task, data.dev, predictions))
    record = {
        "fingerprint": run.fingerprint,
        "precision": run.precision.name,
        "measured_in": MEASURED_IN,
        "threads": run.threads,
        "device": run.device.name,
        "kernels": config.kernels,
        "versions": versions(),
        "epochs": [epoch.scores for epoch in scores.measured],
        **result.record(),
        "files": extra.digests,
    }
    write_json(folder / SCORES, record)  # written last: it marks the seed as finished
    checkpoint.remove()
    return result


def _try_model(path: Path, model: EncoderModel, loaded: LoadedModel, about: dict[str, Any]) -> None:
    """See that the trained model can be saved, before it is trained."""
    with try_save(path) as trial:
        write_model_files(trial.folder, model, loaded.tokenizer, about, trial.write)
        trial.require_space()


def _checkpoint(config: FinetuneConfig, run: OpenedRun, run_seeds: RunSeeds) -> LastCheckpoint:
    """The checkpoint of a seed; only a process with the same arithmetic may continue from it."""
    key = {
        "recipe": run.fingerprint,
        "run": run_seeds.name,
        "precision": run.precision.name,
        "kernels": config.kernels,
    }
    return LastCheckpoint(run.folder / run_seeds.folder, key, run=run.identity)


def _clear_folder(folder: Path, checkpoint: LastCheckpoint, run_seeds: RunSeeds) -> None:
    """Remove everything from a seed's folder except a usable checkpoint and its records, and
    checkpoints of other runs."""
    if problem := checkpoint.reject():
        line_printer()(f"{run_seeds.name}: {problem}; training starts again from the beginning")
    keep = {LAST, METRICS} if checkpoint.exist() else set()
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
    record = read_result(
        folder / SCORES,
        fingerprint,
        run_seeds.name,
        lambda record: SeedResult.from_record(record, folder).name,
        line_printer(),
    )
    return None if record is None else SeedResult.from_record(record, folder)


def remove_leftovers(folder: Path) -> None:
    """Remove what a finished seed's training left behind, if it was killed at the very end."""
    shutil.rmtree(folder / LAST, ignore_errors=True)


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
        model, task = network_of(loaded).to(run.device.torch), loaded.task
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
    for name in {"multilabel", *SEVERAL_OPTIONS} if not task.traits.several else ():
        del options[name]
    for name, default in to_dict(TaskOptions()).items():
        if name in ONLY_OF and options[name] == default:  # as in folders that had no such options
            del options[name]
    trained = {"optimizer": "none: the encoder is frozen"} if config.freeze else config.setting
    averaged = {"transformers": _AVERAGED} if task.options.reads == "tokens" else {}
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
        "setting": trained,
        "fingerprint": run.fingerprint,
        **averaged,
    }
