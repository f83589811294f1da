"""What a fine-tuning is given: the model, the files of the task, the run folder's conditions."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.errors import ConfigError, InputError, Place
from bothways.families.heads import CLASSIFIER
from bothways.finetuning.options import FeaturesConfig, FinetuneConfig, RunSeeds
from bothways.io.annotations.tagged import brat_files
from bothways.io.files import sha256
from bothways.io.lines import listed
from bothways.io.rows import TABLES
from bothways.model.device import ChosenPrecision, Device
from bothways.model.engine import TorchEngine, fast_kernels, network_of
from bothways.model.model import EncoderModel
from bothways.runtime.folder import LoadedModel
from bothways.runtime.pipeline import (
    check_length,
    check_segments,
    predict_outputs,
    unknown_notes,
)
from bothways.tasks.examples import Examples
from bothways.tasks.kinds import KINDS, has_head_for
from bothways.tasks.metrics import Measurement
from bothways.tasks.options import TaskOptions, share
from bothways.tasks.parts import divide, first_examples, overlaps, parts_of, shown_counts, taken
from bothways.tasks.task import EncodedFile, Outputs, Task
from bothways.tasks.windows import Reading

# --------------------------------------------------------------------------------
# Files of a task other than train and dev: to measure on, or to predict.
#
# MNLI has two dev and two test files, and many data sets come with the labels of their test file. A
# model is chosen on ``dev`` alone; the scores on these files are only reported. So they may be
# added or replaced when a run is finished.

# Suffixes that name a format. Other dots belong to the file's name: eng.testa, eng.testb.
_ENDINGS = (*TABLES, ".conll")


def part_name(file: str) -> str:
    """The name of a task's file in tables and in the file names of its predictions."""
    path = Path(file)
    return path.stem if path.suffix.lower() in _ENDINGS else path.name


_LOPSIDED = 4
WITH_LABELS = " with labels"
"""Ends the digest of a file whose labels were read."""


def predictions_name(part: str) -> str:
    """The name of the file with the predictions for a part such as ``dev``."""
    return f"{part}_predictions.tsv"


@dataclass(frozen=True)
class ExtraFiles:
    """Further files of a task, encoded.

    Attributes:
        files: by name: ``test``, and those of ``measure`` and ``predict`` as
            :func:`part_name` calls them.
        labelled: the names of ``measure``.
        digests: by name, of the files' contents and of whether labels are read: without them,
            lines without a label are predicted too.
    """

    files: dict[str, EncodedFile[Any]] = field(default_factory=dict)
    labelled: tuple[str, ...] = ()
    digests: dict[str, str] = field(default_factory=dict)


def check_files(options: TaskOptions) -> None:
    """Refuse a task whose files do not all exist, before any is read.

    Raises:
        InputError: a file is missing.
        ConfigError: two files would write predictions of the same name.
    """
    empty_values = {"test": "null", "measure": "[]", "predict": "[]"}
    for option in ("train", "dev", "test", "measure", "predict"):
        value = getattr(options, option) or ()
        for name in (value,) if isinstance(value, str) else value:
            if Path(name).exists() or (option in ("dev", "test") and share(name) is not None):
                continue
            remedy = ""
            if option in empty_values:
                remedy = f" --set {option}={empty_values[option]} leaves it out."
            if option in ("dev", "test") and re.fullmatch(r"-?[\d.,]+\s*%?", name):
                remedy = (
                    " A share of the training examples is a number between 0 and 1, such as 0.2."
                )
            raise InputError(
                f"there is no such file ({option}, relative to --data if given).{remedy}",
                place=Place(name),
            )
    stems = [part_name(name) for name in (*options.measure, *options.predict)]
    counts = Counter(["dev", *(["test"] if options.test else []), *stems])
    for name, count in counts.items():
        if count > 1:
            raise ConfigError(
                f"measure and predict: {count} files would write "
                f"{predictions_name(name)}; rename one of them."
            )


def training_digests(options: TaskOptions) -> dict[str, str]:
    """A short digest of the contents of the files that a model depends on, and what is held out of
    them, for run.json."""
    train, held_out = _digest(options.train), share(options.test)
    return {
        "train": train if held_out is None else f"{train}, {held_out:g} of it held out",
        "dev": _digest(options.dev),
    }


def file_digests(options: TaskOptions) -> dict[str, str]:
    """A short digest of the contents of each file of a task, for run.json."""
    files = {"test": options.test or ""}
    for option, names in (("measure", options.measure), ("predict", options.predict)):
        files |= {f"{option}[{i}]": name for i, name in enumerate(names)}
    digests = {option: _digest(file) for option, file in files.items()}
    return {**training_digests(options), **digests}


def _digest(file: str) -> str:
    """Empty without a file; a share of the training examples as it is."""
    if share(file) is not None:
        return f"{share(file):g} of train"
    files = [Path(file)] if file else []
    if file and (annotations := brat_files(Path(file))):
        files = [one for own in annotations for one in (own.with_suffix(".txt"), own)]
        files = [one for one in files if one.is_file()]  # reading names what is missing
    sums = [sha256(path) for path in files]
    return (
        hashlib.sha256("".join(sums).encode()).hexdigest()[:16] if sums[1:] else "".join(sums)[:16]
    )


def read_extra_files(
    task: Task[Any, Any],
    options: TaskOptions,
    encode: Callable[[Any], EncodedFile[Any]],
    held_out: Any = None,
) -> ExtraFiles:
    """Read and encode ``test``, ``measure`` and ``predict``.

    Args:
        task: the task, with labels and metrics decided.
        options: name the files.
        encode: encodes the rows of a file, as for train and dev.
        held_out: rows of the training file that are the test's, if it has a share of them.

    Raises:
        InputError, LengthError: as for the other files.
    """
    paths = {"test": options.test} if options.test and held_out is None else {}
    paths |= {part_name(path): path for path in (*options.measure, *options.predict)}
    labelled = tuple(part_name(path) for path in options.measure)
    files = {
        name: encode(task.read(Path(path), task.options, labelled=name in labelled))
        for name, path in paths.items()
    }
    digests = {
        name: _digest(path) + WITH_LABELS * (name in labelled) for name, path in paths.items()
    }
    if held_out is not None:
        train = training_digests(options)["train"]
        files, labelled = {"test": encode(held_out), **files}, ("test", *labelled)
        digests = {"test": train + WITH_LABELS, **digests}
    return ExtraFiles(files, labelled, digests)


def measure_extra_files(
    extra: ExtraFiles,
    names: Iterable[str],
    task: Task[Any, Any],
    model: EncoderModel,
    folder: Path,
) -> dict[str, Measurement]:
    """Predict files into ``NAME_predictions.tsv`` and measure the labelled ones.

    Args:
        extra: the files.
        names: those to predict.
        task: after tuning on dev.
        model: trained.
        folder: where predictions are written.

    Returns:
        The measurements of the labelled files by name.
    """
    measurements, engine = {}, TorchEngine(model)
    for name in names:
        file = extra.files[name]
        predictions = task.decode(file, measured_outputs(engine, file.examples))
        task.write(folder / predictions_name(name), file, predictions)
        if name in extra.labelled:
            measurements[name] = task.measure(file, predictions)
    return measurements


def measured_outputs(engine: TorchEngine, examples: Examples) -> Outputs:
    """Outputs for the scores and predictions of a training run, as ``evaluate`` and ``predict``
    compute them from the saved folder.

    They are in fp32, whatever the precision and the kernels of training, so that a run's scores
    are repeated to the last digit by whoever has its folder (with as many threads, on such a
    device).

    Raises:
        NonFiniteError: an output is not finite.
    """
    model = engine.network
    with fast_kernels(model):
        return predict_outputs(
            engine,
            examples,
            head=model.task_name,
            outputs=model.task_outputs,
            positions=model.config.positions,
        )


# --------------------------------------------------------------------------------
# Reads, checks and encodes the files of a task for fine-tuning.


@dataclass(frozen=True)
class FinetuningData:
    """A task and its files, encoded.

    Attributes:
        task: the task, with labels and metrics decided.
        train, dev: labelled files; with folds, dev is the whole of train.
        extra: the other files, to measure on and to predict.
        split: what was held out of the training file, as a sentence; empty if nothing was.
        parts: for each part of the training file the places of its examples; empty if it has none.
        overlaps: texts that several files have, and texts of several labels, as sentences.
    """

    task: Task[Any, Any]
    train: EncodedFile[Any]
    dev: EncodedFile[Any]
    extra: ExtraFiles = field(default_factory=ExtraFiles)
    split: str = ""
    parts: Mapping[str, list[str]] = field(default_factory=dict)
    overlaps: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What was cut or empty in each file, and what they have in common, as sentences."""
        files = (self.train, self.dev, *self.extra.files.values())
        return (*(note for file in files for note in file.notes), *self.overlaps)


def load_data(config: FinetuneConfig, loaded: LoadedModel) -> FinetuningData:
    """Read, divide, check and encode the task's files.

    Raises:
        ConfigError, InputError, LengthError, ModelError: see :func:`bothways.finetune`.
    """
    options, kind = config.located().task, KINDS[config.task.kind]
    check_files(options)
    check_length(loaded, config.sequence_length)
    rows = kind.read(Path(options.train), options, labelled=True)
    task = _defined(kind, replace(options, group=None), rows, config)
    check_segments(loaded, pair=task.pair)
    held_out = {name: share(getattr(options, name)) or 0.0 for name in ("dev", "test")}
    parts = _divided(task, rows, held_out, config)
    train, dev = parts["train"], parts.get("dev", parts["train"])
    if options.dev and "dev" not in parts:
        dev = task.read(Path(options.dev), task.options, labelled=True)

    def encode(rows: Any) -> EncodedFile[Any]:
        return task.for_measuring().encode(loaded.tokenizer, rows, length=config.sequence_length)

    extra = read_extra_files(task, options, encode, parts.get("test"))
    encoded = _encoded_train(task, train, config, loaded)
    others = {} if config.folds else {"dev": dev}
    others |= {name: extra.files[name].rows for name in extra.labelled}
    contents = {name: task.contents(part) for name, part in others.items()}
    if config.folds and (apart := len({*task.groups(train)})) < config.folds:
        raise InputError(
            f"{config.folds:,} folds, but {apart:,} examples that can be held out apart (equal "
            "texts stay together, or a group); choose fewer folds.",
            place=Place(Path(options.train)),
        )
    counts = [f"{name} {shown_counts(task.strata(part))}" for name, part in parts.items()]
    several = len(parts) > 1
    return FinetuningData(
        task,
        encoded,
        _named_notes(encode(dev), "dev" if "dev" in parts else "", repeats=not options.dev),
        extra,
        split=f"held out of {Path(options.train).name}: {'; '.join(counts)}" if several else "",
        parts={name: task.places(part) for name, part in parts.items()} if several else {},
        overlaps=tuple(overlaps(task.contents(train), task.strata(train), contents)),
    )


def data_of_run(
    config: FinetuneConfig, loaded: LoadedModel, data: FinetuningData, run_seeds: RunSeeds
) -> FinetuningData:
    """What one run is trained and measured on: all, or its fold, and so many of the examples."""
    task, train, dev = data.task, data.train.rows, data.dev
    if run_seeds.fold is None and not config.examples:
        return data
    if run_seeds.fold is not None:
        number, fold = divmod(run_seeds.fold - 1, config.folds)
        # The number keeps the divisions apart from that into train, dev and test.
        shares = [1 / config.folds] * config.folds
        parts = divide(
            *(task.groups(train), task.strata(train), shares),
            seed=config.split_seed,
            number=number + 1,
        )
        own, others = np.flatnonzero(parts == fold), np.flatnonzero(parts != fold)
        if not len(own):
            raise InputError(
                f"fold {run_seeds.fold} has no examples; choose fewer folds.",
                place=Place(train.path),
            )
        dev = task.for_measuring().encode(
            loaded.tokenizer, taken(train, own), length=config.sequence_length
        )
        train = taken(train, others, broken=True)
    if config.examples and config.examples < len(train):
        chosen = first_examples(task.strata(train), config.examples, seed=run_seeds.seed)
        train = taken(train, chosen, broken=True)
    return replace(data, train=_encoded_train(task, train, config, loaded), dev=dev)


def _defined(
    kind: type[Task[Any, Any]], options: TaskOptions, rows: Any, config: FinetuneConfig
) -> Task[Any, Any]:
    """The task, with the main metric that is asked for."""
    if config.freeze and kind.head == CLASSIFIER:
        options = replace(options, reads="tokens")
    task = kind.define(options, rows)
    main = config.metric
    if not main:
        return task
    others = tuple(name for name in task.metrics if name != main)
    return kind.define(replace(options, metrics=(main, *others)), rows)


def _divided(
    task: Task[Any, Any], rows: Any, held_out: Mapping[str, float], config: FinetuneConfig
) -> dict[str, Any]:
    """The rows of each part of the training file, ``train`` first."""
    names = [name for name, held in held_out.items() if held]
    if not names:
        return {"train": rows}
    shares = [held_out[name] for name in names]
    if sum(shares) >= 1:
        raise ConfigError(
            f"dev and test hold out {' and '.join(f'{s:g}' for s in shares)} of the "
            "training examples, and none is left; hold out less."
        )
    parts = parts_of(
        *(rows, task.groups(rows), task.strata(rows), [1 - sum(shares), *shares]),
        seed=config.split_seed,
    )
    return dict(zip(["train", *names], parts, strict=True))


def _encoded_train(
    task: Task[Any, Any], rows: Any, config: FinetuneConfig, loaded: LoadedModel
) -> EncodedFile[Any]:
    encoded = task.encode(loaded.tokenizer, rows, length=config.sequence_length)
    if not len(encoded.examples.trainable):
        raise InputError(
            "no answer is where answer_start says, so there is nothing to train on; set "
            "spans_misaligned to search, or correct the file.",
            place=Place(rows.path),
        )
    read = Reading.of(loaded.tokenizer, encoded.examples, contents=task.contents(rows))
    unknown = unknown_notes(loaded.tokenizer, read, rows.path)
    return replace(encoded, notes=(*encoded.notes, *unknown))


def _named_notes(file: EncodedFile[Any], part: str, *, repeats: bool) -> EncodedFile[Any]:
    """The notes of a part of a file say which part; those of the file once more are left out."""
    if repeats:
        return replace(file, notes=())
    if not part:
        return file
    name = file.rows.path.name
    notes = (note.replace(f"{name}:", f"{name} ({part}):", 1) for note in file.notes)
    return replace(file, notes=tuple(notes))


# --------------------------------------------------------------------------------
# Weights of the labels in the loss.


def label_weights(
    given: Sequence[str], task: Task[Any, Any], train: EncodedFile[Any]
) -> NDArray[np.float32] | None:
    """The weight of each label in the loss, [C]; None if none is given.

    ``balanced`` weighs labels by how rare they are. Of one label per example the weights are scaled
    so that their mean over the training examples is 1; of several, a weight is that of the examples
    that have the label, beside 1 for those that have not.

    Raises:
        ConfigError: something that is neither ``balanced`` nor LABEL=WEIGHT of a label.
    """
    if not given:
        return None
    labels, gold = task.options.labels, train.examples.gold
    several = task.loss == "labels"
    counts = gold.sum(0) if several else np.bincount(gold, minlength=len(labels))
    total = len(gold)
    if tuple(given) == ("balanced",):
        found = np.maximum(counts, 1)
        weights = (total - counts) / found if several else total / (len(labels) * found)
        weights = np.where(counts > 0, weights, 1.0)
    else:
        weights = np.ones(len(labels))
        for text in given:
            label, _, number = text.rpartition("=")
            label = task.options.named.get(label, label)  # of the files, or its name
            if label not in labels:
                raise ConfigError(
                    f"class_weights has {text!r}; give balanced alone, or LABEL=WEIGHT (in Python "
                    f"a dictionary) of the labels {listed(labels)}."
                )
            weights[labels.index(label)] = _positive(number, text)
    if not several:
        weights = weights * total / (weights * counts).sum()
    return weights.astype(np.float32)


def _positive(number: str, text: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if not 0 < value < np.inf:
        raise ConfigError(f"class_weights has {text!r}; a weight is a number above 0.")
    return value


def most_lopsided(task: Task[Any, Any], train: EncodedFile[Any]) -> tuple[str, int] | None:
    """The rarest of a task's classes and how many examples have it, if another has at least four
    times as many."""
    if task.traits.several or not task.traits.has_labels:
        return None
    counts = np.bincount(train.examples.gold, minlength=len(task.options.labels))
    rarest = int(counts.argmin())
    return (
        (task.options.labels[rarest], int(counts[rarest]))
        if counts.max() >= _LOPSIDED * max(1, counts[rarest])
        else None
    )


# --------------------------------------------------------------------------------
# Steps before training that fine-tuning and the feature-based approach share: required options are
# checked, and the starting model is fingerprinted.


@dataclass(frozen=True)
class OpenedRun:
    """A run folder of fine-tuning, ready for training.

    Attributes:
        folder: the run folder.
        fingerprint: of everything the results depend on.
        identity: of the run, for its checkpoints.
        precision: arithmetic of the layers.
        threads: CPU threads.
        device: the device to train on.
        inputs: digests of the model and of the files that training reads.
        alone: no other process shows its progress on the same terminal.
    """

    folder: Path
    fingerprint: str
    identity: str
    precision: ChosenPrecision
    threads: int
    device: Device
    inputs: dict[str, str]
    alone: bool = True


def check_required(config: FinetuneConfig | FeaturesConfig) -> None:
    """Check that the options which have no default are given.

    Raises:
        ConfigError: one is missing.
    """
    folds = isinstance(config, FinetuneConfig) and config.folds > 0
    for name, value, meaning in (
        ("model", config.model, "the model folder to start from"),
        ("run", config.run, "the folder to write to"),
        ("train", config.task.train, "the training file"),
        (
            "dev",
            config.task.dev or folds,
            "the file to measure on, or the share of train to hold out for it, such as 0.1",
        ),
    ):
        if not value:
            raise ConfigError(f"{name} is missing: {meaning}.")


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
        shape = replace(shape, dropout=p, attention_dropout=p, head_dropout=None)
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


def model_digest(loaded: LoadedModel, *, weights: bool, head: bool = False) -> str:
    """A digest of a starting model: shape and vocabulary, and the weights that are used.

    Args:
        loaded: the model.
        weights: include the weights of the encoder.
        head: include the weights of the task head.
    """
    content = hashlib.sha256()
    shape = loaded.config.recorded()
    content.update(json.dumps([shape, loaded.tokenizer.fingerprint]).encode())
    if not (weights or head):
        return content.hexdigest()[:16]
    model = network_of(loaded)
    modules = ((model.encoder, weights), (model.lstm, head), (model.task_head, head))
    for module, included in modules:
        if module is None or not included:
            continue
        for name, value in module.state_dict().items():
            content.update(name.encode())
            content.update(value.contiguous().numpy())
    return content.hexdigest()[:16]
