"""Fine-tuning: an encoder and labelled data in, model folders, scores and predictions out.

One new output layer reads [CLS] through the pooler, or single tokens, and everything is trained
(Devlin et al. 2019, section 4). One run for each seed; the seed keys the order of the data, the new
layer and dropout, unless the first two have seeds of their own.

A run folder holds ``run.json``, ``report.json``, ``report.html`` and ``seed-N/`` with the model
folder, scores (``metrics.json``, ``metrics.jsonl``) and predictions. Running the same command again
keeps finished seeds; a seed that was interrupted goes on from its checkpoint, or from its beginning
if it had none yet, and ends the same. The model saved is that of the last epoch: within a seed
nothing is selected on dev but the threshold of "no answer", for questions that may have none. A
search (:mod:`bothways.tasks.search`) has such a run folder for each of its settings.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console

from bothways.config import SEARCHED, FinetuneConfig, ModelConfig, digest
from bothways.errors import ConfigError
from bothways.model.folder import Loaded, load_model
from bothways.model.varlen import describe_attention
from bothways.tasks.data import Data, Opened, load_data
from bothways.tasks.further import file_digests
from bothways.tasks.jobs import Jobs
from bothways.tasks.report import FinetuneResult
from bothways.tasks.runpage import write_reports, write_search_reports
from bothways.tasks.search import SEARCH_VERB, search
from bothways.tasks.seeds import keeps_head, read_seed
from bothways.training.device import choose_device
from bothways.training.precision import Choice, choose_precision
from bothways.training.runfolder import changed_numerics, open_run
from bothways.training.runtime import set_threads, threads_phrase

# A narrower encoder learns little at a rate below (EXPERIMENTS.md, section 9).
_NARROW, _SLOW = 384, 1e-4


def finetune(config: FinetuneConfig) -> FinetuneResult:
    """Train and measure one model for each seed; continue where the run folder left off.

    With something to search, each setting is trained so, and the result is that of the setting
    chosen, which says under ``search`` what it was chosen from.

    All files are read and encoded before training, so a broken test file shows at once.

    Raises:
        ConfigError: options that make no task.
        InputError: a data file that cannot be read as asked; file and line are named.
        ModelError, LengthError: a model folder that cannot be loaded or is too short.
        RunError: the run folder was made by another recipe, or training diverged
            (:class:`DivergenceError`), or one of several processes was killed.
        DiskError: results cannot be written.
    """
    with Jobs(config.jobs) as jobs:
        return begin(config, jobs)()


def begin(config: FinetuneConfig, jobs: Jobs) -> Callable[[], FinetuneResult]:
    """Read and check everything, and hand over the runs that are not finished.

    Args:
        config: what to fine-tune.
        jobs: who trains the runs; several begin at once.

    Returns:
        What waits for the runs (or trains them now) and reports on all, as :func:`finetune`.
    """
    _check_asked(config)
    say = Console(markup=False, highlight=False, soft_wrap=True).print
    loaded = load_model(config.model)
    data = load_data(config, loaded)
    kept = keeps_head(loaded, config, data.task)
    run = _open(config, loaded, kept, say)
    threads = threads_phrase(run.threads)
    say(
        f"{data.task.name}: {len(data.train.rows):,} training and {len(data.dev.rows):,} dev "
        f"examples, from {'random weights shaped as ' * config.from_scratch}{config.model}, "
        f"{threads}{'' if run.alone else f' in each of {config.jobs} processes'}, "
        f"{run.device.reason}, {run.precision.reason}"
    )
    shape = loaded.model.config
    if loaded.fresh and not config.from_scratch:
        say(f"not in the model folder, newly drawn: {', '.join(loaded.fresh)}")
    for line in advice(config, shape):
        say(line)
    if kept:
        say("goes on with the head of the model folder too (head: new draws another)")
    form = describe_attention(
        shape,
        run.device.torch,
        run.precision.dtype,
        fast=config.kernels == "fast",
    )
    for note in [form, *data.notes] if form else data.notes:
        say(note)
    if not config.search.asked:
        return _begin_setting(config, loaded, data, run, jobs, say)

    def begin_one(setting: FinetuneConfig) -> Callable[[], FinetuneResult]:
        own = _open(setting, loaded, kept, say, precision=run.precision)
        return _begin_setting(setting, loaded, data, own, jobs, say)

    finish = search(config, begin_one, say)

    def choose() -> FinetuneResult:
        found = finish()
        write_search_reports(found)
        return dataclasses.replace(found.chosen, search=found)

    return choose


def _begin_setting(
    config: FinetuneConfig,
    loaded: Loaded,
    data: Data,
    run: Opened,
    jobs: Jobs,
    say: Callable[[str], None],
) -> Callable[[], FinetuneResult]:
    """Hand over the runs of one setting that its folder does not hold yet."""
    begun = []
    for restart in config.restarts:
        done = read_seed(run.folder / restart.folder, restart, run.fingerprint)
        kept = None if done is None else (restart.name, done)
        begun.append(kept or jobs.begin(config, loaded, data, run, restart))

    def finish() -> FinetuneResult:
        results = []
        for own in begun:
            if isinstance(own, tuple):
                say(f"{own[0]}: finished before, kept")
            results.append(own[1] if isinstance(own, tuple) else own())
        result = FinetuneResult(
            run=run.folder,
            task=data.task.name,
            metrics=data.task.metrics,
            seeds=tuple(results),
            baseline=data.task.baseline(data.train, data.dev).scores,
            dev_examples=len(data.dev.rows),
            notes=data.notes,
            setting=config.setting,
        )
        write_reports(result)
        return result

    return finish


def _open(
    config: FinetuneConfig,
    loaded: Loaded,
    kept: bool,
    say: Callable[[str], None],
    precision: Choice | None = None,
) -> Opened:
    """Start or continue the run folder; files and starting model count by content.

    Args:
        config: with something to search, the folder is that of the search.
        loaded: the starting model.
        kept: the head is the starting model's, too.
        say: hears what changed since the run began.
        precision: what a new folder computes in; by config if not given.
    """
    threads = set_threads(config.threads, processes=config.jobs)
    device = choose_device(config.device)
    if config.jobs > 1 and device.torch.type != "cpu":
        raise ConfigError(
            f"jobs is {config.jobs}, but a GPU trains one run at a time; leave jobs out."
        )
    numerics = {"device": device.name, "threads": threads, "kernels": config.kernels}
    inputs = file_digests(config.located().task)
    inputs["model"] = model_digest(loaded, weights=not config.from_scratch, head=kept)
    reasons = []

    def resolve() -> dict[str, Any]:
        choice = precision or choose_precision(config.precision, device.torch)
        reasons.append(choice.reason)
        return {"precision": choice.name, **numerics}

    verb, without = (SEARCH_VERB, SEARCHED) if config.search.asked else ("finetune", ())
    run = open_run(config.run, config, verb=verb, inputs=inputs, resolve=resolve, without=without)
    name = run.resolved["precision"] if config.precision == "auto" else config.precision
    reason = reasons[0] if reasons else f"{name}: as this run began"
    changed = changed_numerics(run, {"precision": name, **numerics})
    if changed and not run.new:
        say(f"finished seeds are kept, bits of others may differ: {'; '.join(changed)}")
    fingerprint = digest(run.record["recipe"])
    choice, alone = Choice(name, reason), config.jobs == 1
    return Opened(run.folder, fingerprint, choice, threads, device, alone, run.lock)


def model_digest(loaded: Loaded, *, weights: bool, head: bool = False) -> str:
    """A digest of what a model folder brings: shape, vocabulary and (if asked) the weights of the
    encoder and of the task head."""
    content = hashlib.sha256()
    shape = dataclasses.asdict(loaded.model.config)
    content.update(json.dumps([shape, loaded.tokenizer.fingerprint]).encode())
    model = loaded.model
    parts = ((model.encoder, weights), (model.lstm, head), (model.task_head, head))
    for part in (part for part, wanted in parts if wanted and part is not None):
        for name, value in part.state_dict().items():
            content.update(name.encode())
            content.update(value.contiguous().numpy())
    return content.hexdigest()[:16]


def advice(config: FinetuneConfig, shape: ModelConfig) -> Iterator[str]:
    """What the settings leave out that small encoders usually need."""
    if config.dropout is None and not shape.dropout and not shape.attention_dropout:
        yield "the model folder has no dropout, so there is none; the paper's is --dropout 0.1"
    rate = max(config.search.values["lr"], default=config.optimizer.lr)
    if shape.hidden < _NARROW and rate < _SLOW:
        yield (
            f"the learning rate, {rate:g}, suits encoders as wide as the paper's; one of "
            f"{shape.hidden} usually needs 1e-4 to 3e-4"
        )


def _check_asked(config: FinetuneConfig) -> None:
    for name, value, what in (
        ("model", config.model, "the model folder to start from"),
        ("run", config.run, "the folder to write to"),
        ("task.train", config.task.train, "the training file"),
        ("task.dev", config.task.dev, "the file to measure on"),
    ):
        if not value:
            raise ConfigError(f"{name} is missing: {what}.")
