"""Fine-tuning: an encoder and labelled data in, model folders, scores and predictions out.

One new output layer reads [CLS] through the pooler, or single tokens, and all weights are trained
(Devlin et al. 2019, section 4). There is one training run per seed; the seed keys the order of the
data, the new layer and dropout, unless the first two have seeds of their own.

A run folder holds ``run.json``, ``report.json``, ``report.html`` and ``seed-N/`` with the model
folder, predictions, records (``metrics.jsonl``) and scores (``metrics.json``), which are written
last and make a seed a finished one. Running the same command again
keeps finished seeds, whose models measure and predict files that were added or changed since; an
interrupted seed continues from its checkpoint, or starts again if it had none yet, with the same
result. The model saved is that of the last epoch, or with ``keep: best`` of the best one on dev;
thresholds are tuned there, too. A share of the training file may be held out as dev or test, or
each part be dev once (folds). A search has such a run folder for each of its settings.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.config.fields import digest, to_dict
from bothways.errors import BothwaysError, ConfigError, DivergenceError, NonFiniteError, RunError
from bothways.finetuning.frozen import fit_head
from bothways.finetuning.notes import announcement, remedies
from bothways.finetuning.options import SEARCHED, FinetuneConfig, RunSeeds
from bothways.finetuning.report import REPORT, describe, write_reports, write_search_reports
from bothways.finetuning.results import FinetuneResult, SearchResult, SeedResult, setting_value
from bothways.finetuning.setup import (
    FinetuningData,
    OpenedRun,
    check_required,
    data_of_run,
    keeps_head,
    label_weights,
    load_data,
    measure_extra_files,
    measured_outputs,
    model_digest,
    new_model,
    predictions_name,
    training_digests,
)
from bothways.io.files import explain_disk_errors, write_json, write_text
from bothways.io.parallel import in_processes
from bothways.io.terminal import line_printer
from bothways.model.batch import TaskInputs
from bothways.model.device import (
    ChosenPrecision,
    borrowed_process,
    choose_device,
    choose_for_training,
    set_threads,
)
from bothways.model.engine import TorchEngine, network_of
from bothways.model.folder import save_model, write_model_files
from bothways.model.model import EncoderModel
from bothways.objectives.labelled import LabelledExamples
from bothways.runtime.folder import LoadedModel, load_model
from bothways.tasks.examples import TRAIN_TOKENS, cut_by_tokens
from bothways.tasks.metrics import Measurement
from bothways.tasks.options import ONLY_OF, SEVERAL_OPTIONS, TaskOptions
from bothways.tasks.task import Task
from bothways.training.checkpoint import (
    CHECKPOINTS,
    Checkpoint,
    check_space,
    rehearse,
    remove_checkpoints,
)
from bothways.training.fit import EpochScores, Window, epochs_of, fit
from bothways.training.frozen_rows import PrunedEmbedding
from bothways.training.monitor import METRICS, Monitor
from bothways.training.runfolder import (
    locks_released,
    open_run_with_precision,
    read_result,
    versions,
)
from bothways.training.trainer import Trainer

Say = Callable[[str], None]
SEARCH_VERB = "finetune search"
"""The verb in run.json of a search's folder."""
PARTS = "parts.tsv"
"""In a run folder: the line (or id) of each example that was held out of the training file, and of
the others."""
SCORES = "metrics.json"
MEASURED_IN = "fp32"
"""The precision of scores and predictions, whatever that of training is."""
_RECORDS = 200  # in metrics.jsonl of a seed, approximately


@borrowed_process()
@locks_released()
def finetune(config: FinetuneConfig) -> FinetuneResult:
    """Train and measure one model per seed; continue where the run folder left off.

    With values to search, every setting is trained so, and the result is that of the setting
    chosen, with the search it was chosen in under ``search``. A setting in which training diverges
    has no result; the report names it.

    All files are read and encoded before training, so a broken test file is reported at once. A
    seed that fails does not stop the others; then its error is raised.

    Raises:
        ConfigError: options that do not make a task.
        InputError: a data file that cannot be read as requested; file and line are named.
        ModelError, LengthError: a model folder that cannot be loaded or is too short.
        RunError: the run folder was made by another recipe, or training diverged
            (:class:`DivergenceError`), or one of several processes was killed.
        DiskError: results cannot be written.
    """
    check_required(config)
    say, loaded = line_printer(), load_model(config.model)
    given, config = config, config.for_encoder(loaded.config)
    data = load_data(config, loaded)
    keep_head = keeps_head(loaded, config, data.task)
    label_weights(config.class_weights, data.task, data.train)  # refuses what is none
    run = open_folder(config, loaded, keep_head, say)
    for line in announcement(given, config, loaded, data, run, keep_head):
        say(line)
    if data.parts:
        rows = [f"{part}\t{place}" for part, places in data.parts.items() for place in places]
        write_text(run.folder / PARTS, "\n".join(["part\texample", *rows]) + "\n")
    searches = config.searched.enabled
    runs = {"": (config, run)}
    if searches:
        runs = {
            name: (setting, open_folder(setting, loaded, keep_head, say, precision=run.precision))
            for name, setting in setting_configs(config).items()
        }
    finished: dict[Path, SeedResult] = {}
    for setting, own in runs.values():
        finished |= finished_seeds(setting, own)
        left_out(own.folder, SCORES, {r.folder for r in setting.seeds_of_runs}, "seeds", say)
    if searches:
        left_out(run.folder, REPORT, runs.keys(), "values", say)
    todo = [
        (setting, own, seeds)
        for setting, own in runs.values()
        for seeds in setting.seeds_of_runs
        if own.folder / seeds.folder not in finished
    ]
    results, diverged = list[FinetuneResult](), list[tuple[str, str]]()
    with trained(todo, loaded, data, jobs=config.jobs) as outcomes:
        for number, (name, (setting, own)) in enumerate(runs.items(), 1):
            if searches:
                say(f"setting {number} of {len(runs)}: {name}")
            try:
                results.append(collect(setting, own, data, finished, outcomes, say))
            except DivergenceError as error:
                if not searches:
                    raise
                say(f"{name} has no result: {error}")
                diverged.append((name, str(error)))
    if not results:
        raise DivergenceError(
            f"none of the {len(runs)} settings has a result; training diverged in each. Lower the "
            "values of search_lr."
        )
    if not searches:
        return results[0]
    search = SearchResult(run.folder, tuple(results), config.search.select, tuple(diverged))
    write_search_reports(search)
    return dataclasses.replace(search.chosen, search=search)


def finished_seeds(config: FinetuneConfig, run: OpenedRun) -> dict[Path, SeedResult]:
    """The seeds of a setting that were finished before, by folder."""
    finished = {}
    for seeds in config.seeds_of_runs:
        folder = run.folder / seeds.folder
        if (known := read_seed(folder, seeds, run.fingerprint)) is not None:
            remove_checkpoints(folder / CHECKPOINTS)  # of a kill at the very end
            finished[folder] = known
    return finished


def collect(
    config: FinetuneConfig,
    run: OpenedRun,
    data: FinetuningData,
    finished: Mapping[Path, SeedResult],
    outcomes: Iterator[SeedResult | BothwaysError],
    say: Say,
) -> FinetuneResult:
    """The result of a setting, with its reports.

    Args:
        config: the setting.
        run: its folder.
        data: the files of the task, encoded.
        finished: results of seeds that were finished before, by folder.
        outcomes: results, or why there is none, of the other seeds, in order.
        say: prints lines.

    Raises:
        BothwaysError: the first that a seed ended with.
    """
    results, failed = list[SeedResult](), list[BothwaysError]()
    for seeds in config.seeds_of_runs:
        if (known := finished.get(run.folder / seeds.folder)) is not None:
            say(f"{seeds.name}: finished before, kept")
            results.append(update_extra_files(data, run, known, say))
        elif isinstance(outcome := next(outcomes), BothwaysError):
            say(f"{seeds.name} has failed")
            failed.append(outcome)
        else:
            results.append(outcome)
    if failed:
        raise failed[0]
    task, dev = data.task, data.dev
    baseline = task.baseline(data.train, dev).scores
    if of_folds := [seed.baseline for seed in results if seed.baseline is not None]:
        baseline = {m: statistics.fmean(b[m] for b in of_folds) for m in task.metrics}
    result = FinetuneResult(
        run.folder,
        task.name,
        task.metrics,
        tuple(results),
        baseline,
        len(dev.rows),
        data.notes,
        config.setting,
        folds=config.folds,
    )
    result = dataclasses.replace(result, advice=remedies(config, data, result))
    write_reports(result, data)
    return result


def left_out(folder: Path, record: str, asked: Collection[str], kind: str, say: Say) -> None:
    """Name finished seeds or settings that the command does not name: they are kept, but tables,
    ensembles and the choice of a setting are of those that it names."""
    finished = sorted(path.parent.name for path in folder.glob(f"*/{record}"))
    if others := [name for name in finished if name not in asked]:
        say(
            f"finished earlier and not part of this result: {', '.join(others)}; to include them, "
            f"name their {kind} too"
        )


def setting_configs(config: FinetuneConfig) -> dict[str, FinetuneConfig]:
    """The config of each setting of a search, with its own run folder, by the setting's name."""
    configs = {setting_name(setting): setting for setting in config.settings()}
    return {
        name: dataclasses.replace(setting, run=str(Path(config.run) / name))
        for name, setting in configs.items()
    }


def setting_name(config: FinetuneConfig) -> str:
    """The folder of a setting, such as ``lr-5e-05-batch-16-epochs-3``.

    All options are in it, searched or not, so that a setting keeps its name when another option is
    searched later.
    """
    values = {"lr": config.optimizer.lr, "batch": config.batch_size, "epochs": config.epochs}
    if config.examples:
        values["examples"] = config.examples
    name = "-".join(f"{option}-{setting_value(value)}" for option, value in values.items())
    return name if config.optimizer.bias_correction else f"{name}-uncorrected"


def open_folder(
    config: FinetuneConfig,
    loaded: LoadedModel,
    keep_head: bool,
    say: Say,
    precision: ChosenPrecision | None = None,
) -> OpenedRun:
    """Create or continue the run folder; files and starting model count by content.

    Args:
        config: with values to search, the folder is that of the search.
        loaded: the starting model.
        keep_head: training starts from the head of the starting model, too.
        say: prints what changed since the run began.
        precision: of a new folder; chosen by config if not given.
    """
    threads = set_threads(config.threads, processes=config.jobs)
    device = choose_device(config.device)
    if config.jobs > 1 and device.torch.type != "cpu":
        raise ConfigError(
            f"jobs is {config.jobs}, but a GPU trains one run at a time; leave jobs out."
        )
    numerics = {"device": device.name, "threads": threads, "kernels": config.kernels}
    inputs = training_digests(config.located().task)
    inputs["model"] = model_digest(loaded, weights=not config.from_scratch, head=keep_head)
    searches = config.searched.enabled
    run, choice = open_run_with_precision(
        config,
        lambda: precision or choose_for_training(config.precision, device.torch),
        verb=SEARCH_VERB if searches else "finetune",
        inputs=inputs,
        numerics=numerics,
        say=say,
        without=SEARCHED if searches else (),
    )
    return OpenedRun(
        run.folder,
        digest(run.record["recipe"]),
        run.identity,
        choice,
        threads,
        device,
        inputs=inputs,
        alone=config.jobs == 1,
    )


# --------------------------------------------------------------------------------
# Seeds, one after the other in this process or several at once in worker processes.
#
# A small model on short texts gains less from a second thread than from a second process, because
# most of its operations are too short to be divided.


@contextmanager
def trained(
    todo: Sequence[tuple[FinetuneConfig, OpenedRun, RunSeeds]],
    loaded: LoadedModel,
    data: FinetuningData,
    *,
    jobs: int,
) -> Iterator[Iterator[SeedResult | BothwaysError]]:
    """The results of seeds in order, or the errors that they ended with; each is trained when it
    is asked for, or as soon as one of several worker processes is free.

    Raises:
        RunError: a worker process was killed or has ended.
    """
    if jobs == 1:
        yield (outcome_of(config, loaded, data, run, seeds) for config, run, seeds in todo)
        return
    from joblib.externals.loky import get_reusable_executor  # slow import

    lost, option = RunError, "--jobs"
    try:
        with in_processes(
            _train_in_worker, todo, workers=jobs, lost=lost, option=option
        ) as outcomes:
            yield outcomes
            next(outcomes, None)  # joblib warns where one does not come to the end
    finally:  # workers keep models and data in memory
        get_reusable_executor(reuse=True).shutdown()


def outcome_of(
    config: FinetuneConfig,
    loaded: LoadedModel,
    data: FinetuningData,
    run: OpenedRun,
    seeds: RunSeeds,
) -> SeedResult | BothwaysError:
    """What :func:`train_seed` returns, or its error."""
    try:
        return train_seed(config, loaded, data, run, seeds)
    except BothwaysError as error:
        return error


def _train_in_worker(
    config: FinetuneConfig, run: OpenedRun, seeds: RunSeeds
) -> SeedResult | BothwaysError:
    set_threads(run.threads)
    loaded, data = _load_in_worker(config.of_data())
    refuse_changed(config, loaded, data, run)
    return outcome_of(config, loaded, data, run, seeds)


def refuse_changed(
    config: FinetuneConfig, loaded: LoadedModel, data: FinetuningData, run: OpenedRun
) -> None:
    """Refuse a model or files that have changed since the run was opened: the seed would be
    recorded as trained from what they were."""
    head = keeps_head(loaded, config, data.task)
    found = {
        **training_digests(config.located().task),
        "model": model_digest(loaded, weights=not config.from_scratch, head=head),
    }
    if changed := [name for name in found if found[name] != run.inputs.get(name)]:
        raise RunError(
            f"{run.folder}: {', '.join(changed)} changed while this command ran. Restore it and "
            "run the command again, or choose another run folder."
        )


@lru_cache(maxsize=1)
def _load_in_worker(config: FinetuneConfig) -> tuple[LoadedModel, FinetuningData]:
    """Model and data; kept, because the worker's next seed usually needs the same."""
    loaded = load_model(config.model)
    return loaded, load_data(config, loaded)


# --------------------------------------------------------------------------------
# One seed: a model is made, trained, measured and saved.


@dataclass(frozen=True)
class Seed:
    """A seed in training.

    Attributes:
        config: the setting.
        data: what it is trained and measured on.
        run: the run folder.
        seeds: its seeds.
        model: in training.
        scores: of its epochs.
        say: prints lines.
    """

    config: FinetuneConfig
    data: FinetuningData
    run: OpenedRun
    seeds: RunSeeds
    model: EncoderModel
    scores: EpochScores
    say: Say

    @property
    def folder(self) -> Path:
        """Where records and results are written."""
        return self.run.folder / self.seeds.folder

    @property
    def per_epoch(self) -> int:
        """Steps of an epoch."""
        return -(-len(self.data.train.examples.trainable) // self.config.batch_size)

    def predict_dev(self) -> Any:
        """Predictions for dev, from the whole table of embeddings."""
        outputs = measured_outputs(TorchEngine(self.model), self.data.dev.examples)
        return self.data.task.decode(self.data.dev, outputs)


def train_seed(
    config: FinetuneConfig,
    loaded: LoadedModel,
    data: FinetuningData,
    run: OpenedRun,
    seeds: RunSeeds,
) -> SeedResult:
    """Train, measure and save one seed, from its checkpoint if there is one.

    Anything else in its folder is replaced.
    """
    scores = EpochScores()
    data = data_of_run(config, loaded, data, seeds)
    model = new_model(loaded, config, data.task, seeds.head_seed).to(run.device.torch)
    model.shared.transposes = run.precision.transposes
    seed = Seed(config, data, run, seeds, model, scores, line_printer())
    about = _about(config, data.task, run, seeds.seed, {})
    size = rehearse(
        seed.folder / "model",
        lambda path, write: write_model_files(path, model, loaded.tokenizer, about, write),
    )
    if config.freeze:
        clear(seed.folder)
        check_space(seed.folder, size, size, seed.say)
        fit_head(model, data, config.class_weights)
        return write_seed(seed, loaded, seed.predict_dev(), None)
    try:
        predictions, epoch = train(seed, size)
    except (DivergenceError, NonFiniteError) as error:  # of gradients, or of outputs
        raise DivergenceError(f"{seeds.name}: {error}") from None
    return write_seed(seed, loaded, predictions, epoch if config.keep == "best" else None)


def train(seed: Seed, size: int) -> tuple[Any, int]:
    """Train all weights; the predictions for dev, and the epoch whose weights the model has.

    While training, the embedding table may be pruned to the rows that occur in the training file
    (:class:`PrunedEmbedding`). It is whole when dev is measured and at the end, and pruned when a
    checkpoint is saved or restored.

    Args:
        seed: what is trained.
        size: bytes of the model.
    """
    config, data, run, model = seed.config, seed.data, seed.run, seed.model
    per_epoch, steps = seed.per_epoch, seed.per_epoch * config.epochs
    name = seed.seeds.name
    pruned = pruned_table(seed, steps)
    best, window = BestEpoch(config.patience if config.keep == "best" else None), Window()
    trainer: Trainer[TaskInputs] = Trainer(
        model,
        config.optimizer,
        total_steps=steps,
        seed=seed.seeds.seed,
        dtype=run.precision.dtype,
    )
    checkpoint = Checkpoint(
        seed.folder / CHECKPOINTS,
        trainer,
        [window, seed.scores, best, *([pruned] if pruned else [])],
        run=run.identity,
        key={"seed": name, "precision": run.precision.name, "kernels": config.kernels},
    )
    done = checkpoint.restore(lambda text: seed.say(f"{name}: {text}"), or_start_again=True)
    measured = seed.scores.measured
    clear(seed.folder, CHECKPOINTS, *([METRICS] if done else []))
    predictions = None

    def measure(step: int) -> Any:
        with pruned.full_table(step) if pruned else nullcontext():
            predictions = seed.predict_dev()
            task = data.task.tuned(data.dev, predictions)
            measured.append(task.measure(data.dev, predictions))
            best.offer(measured, model)
        record_epoch(seed, watch, step, window.close())
        return predictions

    title = f"{data.task.name} {name}"
    with Monitor(seed.folder, steps, title, done=done - window.steps, bar=run.alone) as watch:
        if done:
            epoch = min(done // per_epoch + 1, config.epochs)
            watch.say(
                f"{name}: continuing after step {done:,} of {steps:,}, from its checkpoint in "
                f"epoch {epoch} of {config.epochs}"
            )
        if done < steps:
            later = size if best.patience is not None and not best.epoch else 0
            check_space(seed.folder, size, size + later + checkpoint.rehearse(), watch.say)
        if len(measured) < done // per_epoch:  # trained and saved, but not measured
            predictions = measure(done)
        for step in fit(
            trainer,
            objective_of(seed),
            iter(()) if best.settled(measured) else batches_after(seed, done),
            checkpoint,
            minutes=config.checkpoint.minutes,
            say=watch.say,
            signals=run.alone,
        ):
            window.add(step)
            if step.due(per_epoch):
                step.save_if_due()  # measuring may take longer than training
                predictions = measure(step.number)
                if best.settled(measured):
                    break
            elif step.due(max(1, steps // _RECORDS)):
                watch.log(step.number, window.close())
    if pruned:
        pruned.restore_table(len(measured) * per_epoch)
    if best.weights and best.epoch < len(measured):
        model.load_state_dict(best.weights)
        predictions = None
    return seed.predict_dev() if predictions is None else predictions, best.epoch


def write_seed(seed: Seed, loaded: LoadedModel, predictions: Any, epoch: int | None) -> SeedResult:
    """Scores on dev and the other files, the model folder, and the record that ends the seed."""
    config, data, run, seeds, folder = seed.config, seed.data, seed.run, seed.seeds, seed.folder
    task, measured, extra = data.task.tuned(data.dev, predictions), seed.scores.measured, data.extra
    measurement = task.measure(data.dev, predictions)
    further = measure_extra_files(extra, extra.files, task, seed.model, folder)
    baseline = None if seeds.fold is None else data.task.baseline(data.train, data.dev).scores
    result = SeedResult(
        seeds.seed,
        measurement,
        folder,
        round(seed.scores.seconds, 2),
        further,
        seeds.order,
        seeds.head,
        seeds.fold,
        epoch,
        baseline,
        describe(task, data.dev, predictions),
    )
    about = _about(config, task, run, seeds.seed, measurement.scores)
    if epoch is not None:
        about["epoch"] = f"{epoch} of {len(measured)}, chosen by {task.metrics[0]} on dev"
    save_model(folder / "model", seed.model, loaded.tokenizer, about)
    task.write(folder / predictions_name("dev"), data.dev, predictions)
    record = {
        "fingerprint": run.fingerprint,
        "precision": run.precision.name,
        "measured_in": MEASURED_IN,
        "threads": run.threads,
        "device": run.device.name,
        "kernels": config.kernels,
        "versions": versions(),
        "epochs": [epoch.scores for epoch in measured],
        **result.record(),
        "examples": result.examples,
        "files": extra.digests,
    }
    write_json(folder / SCORES, record)  # the seed is finished
    remove_checkpoints(folder / CHECKPOINTS)
    return result


# --------------------------------------------------------------------------------
# What the training of a seed uses, in its order.


def pruned_table(seed: Seed, steps: int) -> PrunedEmbedding | None:
    """The table of embeddings with the rows that occur in the training file alone, where the
    optimizer allows that."""
    config, options = seed.config, seed.config.optimizer
    plain = options.layer_decay == 1 and not options.unfreeze
    if config.kernels != "fast" or options.optimizer != "adam" or not plain:
        return None
    tokens = seed.data.train.examples.tokens
    return PrunedEmbedding(seed.model.encoder.embeddings.tokens, tokens, options, steps)


@dataclass
class BestEpoch:
    """The epoch with the best score on dev.

    Attributes:
        patience: end training after so many epochs without a better one; 0: never; None: the last
            epoch is kept, whatever its score.
        epoch: its number, from 1; 0 before the first.
        score: of the main metric.
        weights: of the whole model, by name, on the CPU.
    """

    patience: int | None
    epoch: int = 0
    score: float = -math.inf
    weights: dict[str, torch.Tensor] = field(default_factory=dict)

    def offer(self, measured: Sequence[Measurement], model: EncoderModel) -> None:
        """Keep the weights of the last epoch if its score is better than those before."""
        score = next(iter(measured[-1].scores.values()))
        if self.patience is not None and score > self.score:
            self.epoch, self.score, state = len(measured), score, model.state_dict()
            self.weights = {name: value.detach().cpu().clone() for name, value in state.items()}

    def settled(self, measured: Sequence[Measurement]) -> bool:
        """Whether so many epochs were no better that training ends."""
        return 0 < (self.patience or 0) <= len(measured) - self.epoch

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        weights = {f"best.{name}": value for name, value in self.weights.items()}
        return {"best": [self.epoch, self.score], **weights} if self.epoch else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue."""
        self.epoch, self.score = state.get("best", (0, -math.inf))
        best = {name: value for name, value in state.items() if name.startswith("best.")}
        self.weights = {name.removeprefix("best."): value.clone() for name, value in best.items()}


def clear(folder: Path, *keep: str) -> None:
    """Remove what an earlier training left."""
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.name not in keep:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def objective_of(seed: Seed) -> LabelledExamples:
    """The loss of the task, with the weights of the labels."""
    task = seed.data.task
    found = label_weights(seed.config.class_weights, task, seed.data.train)
    weights = None if found is None else torch.from_numpy(found).to(seed.model.device)
    return LabelledExamples(task.loss, weights, averaged=task.options.reads == "tokens")


def batches_after(seed: Seed, done: int) -> Iterator[tuple[int, list[TaskInputs]]]:
    """The micro-batches of the steps that are left, by a budget of tokens."""
    config, examples, model = seed.config, seed.data.train.examples, seed.model

    def make(chosen: NDArray[np.int64]) -> list[TaskInputs]:
        parts = cut_by_tokens(chosen, examples.lengths, TRAIN_TOKENS)
        made = (examples.batch(part, max_positions=model.config.positions) for part in parts)
        batches = [TaskInputs.of(batch) for batch in made]
        return batches if model.device.type == "cpu" else [b.to(model.device) for b in batches]

    items, epochs, order = examples.trainable, config.epochs, seed.seeds.order_seed
    return epochs_of(
        items, config.batch_size, epochs, seed=order, done=done, make=make, device=model.device
    )


def record_epoch(seed: Seed, watch: Monitor, step: int, means: Mapping[str, float]) -> None:
    """Record and show the scores of an epoch, with the last means of training."""
    measured, epoch = seed.scores.measured[-1], len(seed.scores.measured)
    scores = {f"dev_{name}": score for name, score in measured.scores.items()}
    watch.log(step, {"epoch": epoch, **means, **scores})
    shown = ", ".join(f"{name} {score:.4f}" for name, score in measured.scores.items())
    notes = "".join(f" ({note})" for note in measured.notes)
    watch.say(f"{seed.seeds.name} epoch {epoch}: dev {shown}{notes}")


# --------------------------------------------------------------------------------
# A finished seed: its record, further files, and what its model folder says of it.


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


def update_extra_files(
    data: FinetuningData, run: OpenedRun, result: SeedResult, say: Say
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
    known, further = record["files"], result.further
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
        loaded = load_model(result.model)
        model, task = network_of(loaded).to(run.device.torch), loaded.task
        further |= measure_extra_files(extra, names, task, model, result.folder)
        scores = {name: measurement.record() for name, measurement in further.items()}
        files = {**kept, **{name: extra.digests[name] for name in names}}
        write_json(path, {**record, "further": scores, "files": files})
    return dataclasses.replace(result, further={name: further[name] for name in extra.labelled})


_AVERAGED = (
    "computes this head by its classes for tokens; the outputs for a text are the means of those "
    "for all of its tokens, special ones included (its classes for texts, and the pipeline "
    "text-classification, put a head of random weights in its place)"
)


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
