"""Fine-tuning: an encoder and labelled data in, model folders, scores and predictions out.

One new output layer reads [CLS] through the pooler, or single tokens, and all weights are trained
(Devlin et al. 2019, section 4). There is one training run per seed; the seed keys the order of the
data, the new layer and dropout, unless the first two have seeds of their own.

A run folder holds ``run.json``, ``report.json``, ``report.html`` and ``seed-N/`` with the model
folder, scores (``metrics.json``, ``metrics.jsonl``) and predictions. Running the same command again
keeps finished seeds, whose models measure and predict files that were added or changed since; an
interrupted seed continues from its checkpoint, or starts again if it had none yet, with the same
result. The model saved is that of the last epoch, or with ``keep: best`` of the best one on dev;
thresholds are tuned there, too. A share of the training file may be held out as dev or test, or
each part be dev once (folds). A search has such a run folder for each of its settings.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from types import TracebackType

from bothways.config.fields import digest
from bothways.errors import BothwaysError, ConfigError, DivergenceError, RunError
from bothways.families.config import ModelConfig
from bothways.finetuning.options import NARROW, SEARCHED, FinetuneConfig, RunSeeds
from bothways.finetuning.report import REPORT, write_reports, write_search_reports
from bothways.finetuning.results import FinetuneResult, SearchResult, SeedResult, setting_value
from bothways.finetuning.seed import (
    SCORES,
    keeps_head,
    read_seed,
    remove_leftovers,
    train_seed,
    update_extra_files,
)
from bothways.finetuning.setup import (
    FinetuningData,
    OpenedRun,
    check_required,
    label_weights,
    load_data,
    model_digest,
    most_lopsided,
    training_digests,
)
from bothways.io.files import write_text
from bothways.io.parallel import attempt, killed
from bothways.io.processes import exit_with
from bothways.io.terminal import counted, is_shown, line_printer, show_lines
from bothways.model.device import (
    ChosenPrecision,
    borrowed_process,
    choose_device,
    choose_for_training,
    describe_kernels,
    set_threads,
)
from bothways.runtime.folder import LoadedModel, load_model
from bothways.training.runfolder import RunLock, locks_released, open_run_with_precision

# --------------------------------------------------------------------------------
# Trains the seeds of fine-tuning runs, one after the other in this process or several at once in
# worker processes.
#
# A small model on short texts gains less from a second thread than from a second process, because
# most of its operations are too short to be divided.


class SeedRunner:
    """Trains the seeds submitted to it.

    With one process, a seed is trained in this process when its result is requested, so seeds are
    trained in the order in which results are collected. With several, a pool of worker processes
    starts on a seed as soon as it is submitted and a worker is free.

    A context manager. If the block ends with an error, seeds that have not started are dropped, and
    those in progress are finished and kept; Ctrl-C ends those too.

    Args:
        processes: 1 trains in this process.

    Raises:
        ConfigError: a worker process that imports the running script has come to its call of
            fine-tuning; or the system has no shared memory.
    """

    def __init__(self, processes: int):
        self._pool: ProcessPoolExecutor | None = None
        if processes > 1:
            if getattr(multiprocessing.current_process(), "_inheriting", False):
                raise _script_without_guard()
            context = multiprocessing.get_context("spawn")
            self._others = set(multiprocessing.active_children())  # of the calling program
            self._workers: set[BaseProcess] = set()
            try:
                self._worker_started = context.Event()
                self._pool = ProcessPoolExecutor(
                    processes,
                    context,
                    initializer=_start_worker,
                    initargs=(self._worker_started, is_shown()),
                )
            except OSError as error:  # of semaphores
                raise ConfigError(
                    f"jobs is {processes}, and this system has no shared memory for several "
                    f"processes ({error.strerror}; on Linux it is /dev/shm). Leave --jobs out."
                ) from None

    @property
    def parallel(self) -> bool:
        """Whether seeds are trained in worker processes, from when they are submitted."""
        return self._pool is not None

    def __enter__(self) -> SeedRunner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is None:
            return
        # Ctrl-C may have been sent to this process alone, as a supervisor does.
        if kind is not None and not issubclass(kind, Exception):
            for process in set(multiprocessing.active_children()) - self._others:
                process.terminate()
        self._pool.shutdown(cancel_futures=True)

    def submit(
        self,
        config: FinetuneConfig,
        loaded: LoadedModel,
        data: FinetuningData,
        run: OpenedRun,
        run_seeds: RunSeeds,
    ) -> Callable[[], SeedResult]:
        """Accept a seed of a setting.

        Args:
            config: the setting.
            loaded: the starting model.
            data: the files of the task, encoded.
            run: the run folder to write to.
            run_seeds: the seeds of this run.

        Returns:
            Waits for the result; without a pool, trains: call it once. It raises what this does,
            and as :func:`bothways.finetuning.seed.train_seed`.

        Raises:
            RunError: a worker process was killed or has ended, so the pool accepts no more.
            ConfigError: no worker process could start.
        """
        if self._pool is None:
            return partial(train_seed, config, loaded, data, run, run_seeds)
        folder = run.folder / run_seeds.folder
        try:
            future = self._pool.submit(attempt, _train_in_worker, config, run, run_seeds)
            self._workers |= set(multiprocessing.active_children()) - self._others
        except BrokenProcessPool:
            raise self._broken(folder) from None

        def result() -> SeedResult:
            try:
                return future.result()
            except BrokenProcessPool:
                raise self._broken(folder) from None

        return result

    def _broken(self, folder: Path) -> BothwaysError:
        """Why the pool broke before the seed of a folder was done."""
        if not self._worker_started.is_set():
            return _script_without_guard()
        for process in self._workers:
            process.join(timeout=1)  # the pool may notice before the exit status is there
        codes = {process.exitcode for process in self._workers}
        was_killed = -getattr(signal, "SIGKILL", 0) in codes
        why = killed("--jobs") if was_killed else "a worker process ended unexpectedly"
        return RunError(f"{folder}: {why}. Finished seeds are kept.")


def _script_without_guard() -> ConfigError:
    return ConfigError(
        "jobs: no worker process could start. Each first imports the script that is running, so "
        'the script must start fine-tuning below `if __name__ == "__main__":`; or leave jobs out.'
    )


def _start_worker(started: Event, verbose: bool) -> None:
    """Report that this worker has started, and make it exit silently at Ctrl-C, and when its parent
    process ends."""
    started.set()
    show_lines(verbose)
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert parent.pid is not None
    exit_with(parent.pid)


def _train_in_worker(config: FinetuneConfig, run: OpenedRun, run_seeds: RunSeeds) -> SeedResult:
    set_threads(run.threads)
    loaded, data = _load_in_worker(config.of_data())
    _refuse_changed(config, loaded, data, run)
    return train_seed(config, loaded, data, run, run_seeds)


def _refuse_changed(
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
    """Model and data; kept, because the worker's next job usually needs the same."""
    loaded = load_model(config.model)
    return loaded, load_data(config, loaded)


# --------------------------------------------------------------------------------
# A search over settings: every combination, each with every seed, chosen on dev.
#
# Each setting has a run folder of its own inside that of the search, so finished runs are kept
# however the search is interrupted or extended. Settings share no training: the learning rate falls
# to 0 over the length of a run, so two epochs are not the first two of three.

SEARCH_VERB = "finetune search"
"""The verb in run.json of a search's folder."""


@dataclass(frozen=True)
class PreparedSearch:
    """A search whose settings are all prepared.

    Attributes:
        folder: run folder of the search.
        settings: the prepared settings, by name.
        select: the rule that chooses one: ``mean`` or ``best``.
        say: called with lines of progress.
        lock: keeps other commands out of the search's folder.
    """

    folder: Path
    settings: Mapping[str, PreparedSetting]
    select: str
    say: Callable[[str], None]
    lock: RunLock | None = None

    def result(self) -> FinetuneResult:
        """Collect the results of all settings, write the reports, and choose a setting.

        A setting in which training diverges has no result; it is named in the report.

        Returns:
            The result of the setting chosen, with the search it was chosen in.

        Raises:
            DivergenceError: no setting has a result.
        """
        results, diverged = [], []
        for number, (name, setting) in enumerate(self.settings.items(), 1):
            self.say(f"setting {number} of {len(self.settings)}: {name}")
            try:
                results.append(setting.result())
            except DivergenceError as error:
                self.say(f"{name} has no result: {error}")
                diverged.append((name, str(error)))
        if not results:
            raise DivergenceError(
                f"none of the {len(self.settings)} settings has a result; training diverged in "
                "each. Lower the values of search_lr."
            )
        search = SearchResult(self.folder, tuple(results), self.select, tuple(diverged))
        write_search_reports(search)
        return dataclasses.replace(search.chosen, search=search)


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


# --------------------------------------------------------------------------------
# A run: everything is read and checked, the folder is opened, seeds are submitted and collected.

PARTS = "parts.tsv"
"""In a run folder: the line (or id) of each example that was held out of the training file, and of
the others."""
_LOW_RATE = 1e-4  # for encoders narrower than NARROW


@borrowed_process()
@locks_released()
def finetune(config: FinetuneConfig) -> FinetuneResult:
    """Train and measure one model per seed; continue where the run folder left off.

    With values to search, every setting is trained so, and the result is that of the setting
    chosen, with the search it was chosen in under ``search``.

    All files are read and encoded before training, so a broken test file is reported at once.

    Raises:
        ConfigError: options that do not make a task.
        InputError: a data file that cannot be read as requested; file and line are named.
        ModelError, LengthError: a model folder that cannot be loaded or is too short.
        RunError: the run folder was made by another recipe, or training diverged
            (:class:`DivergenceError`), or one of several processes was killed.
        DiskError: results cannot be written.
    """
    with SeedRunner(config.jobs) as runner:
        return prepare(config, runner).result()


def prepare(config: FinetuneConfig, runner: SeedRunner) -> PreparedSetting | PreparedSearch:
    """Read and check everything, open the run folder, and submit the seeds that are not finished.

    The result can be requested once.

    Args:
        config: what to fine-tune.
        runner: trains the seeds. In worker processes training starts now, so several runs may be
            prepared one after the other and trained at once; in this process it starts when the
            result is requested.

    Raises:
        BothwaysError: as :func:`finetune`.
    """
    check_required(config)
    say = line_printer()
    loaded = load_model(config.model)
    given, config = config, config.for_encoder(loaded.config)
    data = load_data(config, loaded)
    keep_head = keeps_head(loaded, config, data.task)
    label_weights(config.class_weights, data.task, data.train)  # refuses what is none
    run = _open_run(config, loaded, keep_head, say)
    for line in _announcement(config, loaded, data, run, keep_head):
        say(line)
    if config.sequence_length < given.sequence_length:
        say(f"length {config.max_length}: the encoder has no more positions")
    if not given.optimizer.lr and not config.searched.values["lr"] and not config.freeze:
        say(f"learning rate {config.optimizer.lr:g}, by the encoder's width (set lr to change it)")
    if data.parts:
        rows = [f"{part}\t{place}" for part, places in data.parts.items() for place in places]
        write_text(run.folder / PARTS, "\n".join(["part\texample", *rows]) + "\n")
    if not config.searched.enabled:
        return _prepare_setting(config, loaded, data, run, runner, say)
    settings = {}
    for name, setting in setting_configs(config).items():
        own_run = _open_run(setting, loaded, keep_head, say, precision=run.precision)
        settings[name] = _prepare_setting(setting, loaded, data, own_run, runner, say)
    _say_what_is_left_out(Path(config.run), REPORT, settings.keys(), "values", say)
    return PreparedSearch(Path(config.run), settings, config.search.select, say, run.lock)


@dataclass(frozen=True)
class PreparedSetting:
    """One setting, with its finished seeds read and the others submitted for training.

    Attributes:
        config: the setting.
        data: the files of the task, encoded.
        run: the run folder.
        finished: results of the seeds that were finished before.
        pending: the results of the other seeds, as :meth:`SeedRunner.submit` gives them.
        say: called with lines of progress.
    """

    config: FinetuneConfig
    data: FinetuningData
    run: OpenedRun
    finished: Mapping[RunSeeds, SeedResult]
    pending: Mapping[RunSeeds, Callable[[], SeedResult]]
    say: Callable[[str], None]

    def result(self) -> FinetuneResult:
        """Collect the results of all seeds, in the order of the config, and write the reports."""
        seeds = []
        for run_seeds in self.config.seeds_of_runs:
            if run_seeds in self.finished:
                self.say(f"{run_seeds.name}: finished before, kept")
                seed = self.finished[run_seeds]
                seeds.append(update_extra_files(self.data, self.run, seed, self.say))
            else:
                seeds.append(self.pending[run_seeds]())
        task, dev = self.data.task, self.data.dev
        baseline = task.baseline(self.data.train, dev).scores
        if of_folds := [seed.baseline for seed in seeds if seed.baseline is not None]:
            baseline = {m: statistics.fmean(b[m] for b in of_folds) for m in task.metrics}
        result = FinetuneResult(
            run=self.run.folder,
            task=task.name,
            metrics=task.metrics,
            seeds=tuple(seeds),
            baseline=baseline,
            dev_examples=len(dev.rows),
            notes=self.data.notes,
            setting=self.config.setting,
            folds=self.config.folds,
        )
        result = dataclasses.replace(result, advice=_remedies(self.config, self.data, result))
        write_reports(result, self.data)
        return result


def _remedies(
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


def _prepare_setting(
    config: FinetuneConfig,
    loaded: LoadedModel,
    data: FinetuningData,
    run: OpenedRun,
    runner: SeedRunner,
    say: Callable[[str], None],
) -> PreparedSetting:
    finished, pending = {}, {}
    for run_seeds in config.seeds_of_runs:
        result = read_seed(run.folder / run_seeds.folder, run_seeds, run.fingerprint)
        if result is not None:
            remove_leftovers(run.folder / run_seeds.folder)
            finished[run_seeds] = result
        else:
            pending[run_seeds] = runner.submit(config, loaded, data, run, run_seeds)
    _say_what_is_left_out(
        run.folder, SCORES, {r.folder for r in config.seeds_of_runs}, "seeds", say
    )
    return PreparedSetting(config, data, run, finished, pending, say)


def _say_what_is_left_out(
    folder: Path, record: str, asked: Collection[str], kind: str, say: Callable[[str], None]
) -> None:
    """Name finished seeds or settings that the command does not name: they are kept, but tables,
    ensembles and the choice of a setting are of those that it names."""
    finished = sorted(path.parent.name for path in folder.glob(f"*/{record}"))
    if others := [name for name in finished if name not in asked]:
        say(
            f"finished earlier and not part of this result: {', '.join(others)}; to include them, "
            f"name their {kind} too"
        )


def _open_run(
    config: FinetuneConfig,
    loaded: LoadedModel,
    keep_head: bool,
    say: Callable[[str], None],
    precision: ChosenPrecision | None = None,
) -> OpenedRun:
    """Create or continue the run folder; files and starting model count by content.

    Args:
        config: with values to search, the folder is that of the search.
        loaded: the starting model.
        keep_head: training starts from the head of the starting model, too.
        say: called with what changed since the run began.
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
        lock=run.lock,
    )


def _announcement(
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
