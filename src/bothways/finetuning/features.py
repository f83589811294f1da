"""The feature-based approach: a BiLSTM on layers of a frozen encoder (Devlin et al. 2019, 5.3)."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from bothways.config.fields import digest
from bothways.errors import ConfigError, ModelError
from bothways.finetuning.options import FeaturesConfig, LayerChoice
from bothways.finetuning.setup import (
    check_required,
    file_digests,
    model_digest,
)
from bothways.io import html
from bothways.io.files import explain_disk_errors, new_folder, reserve_space, write_json
from bothways.io.terminal import line_printer, table_text
from bothways.model.device import (
    borrowed_process,
    choose_precision,
    set_threads,
)
from bothways.model.engine import TorchEngine, evaluating, network_of
from bothways.model.model import EncoderModel
from bothways.model.recurrent import FeatureTagger
from bothways.objectives.labelled import FeatureBatch, TaggedFeatures
from bothways.runtime.batching import Computed, computed
from bothways.runtime.engine import layer_name
from bothways.runtime.folder import LoadedModel, load_model
from bothways.runtime.pipeline import check_length
from bothways.tasks.examples import Examples, length_batches
from bothways.tasks.metrics import Measurement
from bothways.tasks.tagging import TaggedFile, TaggingTask
from bothways.tasks.task import Outputs
from bothways.training.checkpoint import CHECKPOINTS, Checkpoint, remove_checkpoints
from bothways.training.fit import EpochScores, Window, epochs_of, fit
from bothways.training.monitor import Monitor
from bothways.training.runfolder import locks_released, open_run_with_precision, read_result
from bothways.training.trainer import Trainer

# --------------------------------------------------------------------------------
# The hidden states of an encoder as features: computed once, kept on disk, read by a BiLSTM.
#
# R words read, L layers and the embeddings below them, H hidden size.

_ARRAY, _ABOUT = "layers.npy", "features.json"


def cached_layers(
    folder: Path,
    model: EncoderModel,
    examples: Examples,
    *,
    fingerprint: str,
    dtype: torch.dtype,
    say: Callable[[str], None],
) -> NDArray[np.float16]:
    """The hidden states of the words of a file, in every layer; computed unless they are on disk.

    Args:
        folder: where they are kept; replaced if it has another fingerprint.
        model: the encoder.
        examples: the file, encoded.
        fingerprint: of everything the hidden states depend on.
        dtype: arithmetic of the layers.
        say: called with a line before computing starts.

    Returns:
        float16 [R, L + 1, H], the embeddings first, mapped from disk.

    Raises:
        DiskError: the disk has too little room.
        ModelError: a hidden state is not finite, or too large for 16 bits.
    """
    if _fingerprint(folder) != fingerprint:
        shape = (len(examples.read_positions), model.config.layers + 1, model.config.hidden)
        size = np.prod(shape) * 2 / 2**20
        say(
            f"{folder.name}: computing {shape[1]} layers for {shape[0]:,} words from "
            f"{examples.bounds[-1]:,} tokens ({size:,.0f} MiB in {folder})"
        )
        with new_folder(folder) as partial, explain_disk_errors(folder):
            array = open_memmap(partial / _ARRAY, mode="w+", dtype=np.float16, shape=shape)
            # Now: writing to a mapped file could not report a full disk.
            reserve_space(partial / _ARRAY, (partial / _ARRAY).stat().st_size)
            _compute(array, model, examples, dtype)
            array.flush()
            write_json(partial / _ABOUT, {"fingerprint": fingerprint, "shape": shape})
    layers: NDArray[np.float16] = np.load(folder / _ARRAY, mmap_mode="r")
    return layers


def _fingerprint(folder: Path) -> str | None:
    """What the array on disk was computed from; None if it is missing or cut off."""
    try:
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        whole = (folder / _ARRAY).stat().st_size > math.prod(about["shape"]) * 2  # and a header
        return str(about["fingerprint"]) if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _compute(
    array: NDArray[np.float16], model: EncoderModel, examples: Examples, dtype: torch.dtype
) -> None:
    engine, layers = TorchEngine(model, dtype, fast=False), range(model.config.layers + 1)

    def compute(indices: NDArray[np.int64]) -> Computed[np.float16]:
        batch = examples.batch(indices, max_positions=model.config.positions)
        states = engine.compute(batch.inputs, layers=layers)
        words = [states[layer_name(layer)][batch.read_positions] for layer in layers]
        with np.errstate(over="ignore"):  # refused below
            features = np.stack(words, 1).astype(np.float16)
        if not np.isfinite(features).all():
            raise ModelError(
                "a hidden state is not finite in 16 bits; the model's weights are damaged."
            )
        return features, batch.bounds

    for n, rows in computed(engine, examples.lengths, compute):
        array[examples.output_bounds[n] : examples.output_bounds[n + 1]] = rows


def chosen_layers(
    choice: LayerChoice,
    layers: int,
    remedy: str = "leave it out, as --layers embeddings last sum-all does",
) -> slice:
    """The layers that a choice stands for; the embeddings are number 0.

    Args:
        choice: of layers.
        layers: that the encoder has.
        remedy: for the message.

    Raises:
        ConfigError: the encoder has too few layers.
    """
    chosen = {
        "embeddings": slice(0, 1),
        "second-to-last": slice(layers - 1, layers),
        "last": slice(layers, layers + 1),
        "sum-last-four": slice(layers - 3, layers + 1),
        "concat-last-four": slice(layers - 3, layers + 1),
        "sum-all": slice(1, layers + 1),
    }[choice]
    if chosen.start < (0 if choice == "embeddings" else 1):
        raise ConfigError(
            f"layers: {choice!r} needs {2 if choice == 'second-to-last' else 4} layers, but this "
            f"encoder has {layers}; {remedy}."
        )
    return chosen


# --------------------------------------------------------------------------------
# The feature-based approach: a BiLSTM tagger on the layers of a frozen encoder.
#
# Devlin et al. 2019, section 5.3 and Table 7. The hidden states of all words are computed once for
# all choices of layers (``features/`` in the run folder). Each choice and seed has a folder of its
# own with its scores; those that are finished are kept when the same command runs again.

# Dev F1 on CoNLL-2003 in percent, BERT-base, cased: Devlin et al. 2019, Table 7, feature-based.
PAPER_SCORES: dict[LayerChoice, float] = {
    "embeddings": 91.0,
    "second-to-last": 95.6,
    "last": 94.9,
    "sum-last-four": 95.9,
    "concat-last-four": 96.1,
    "sum-all": 95.5,
}
_PAPER_TASK = "CoNLL-2003"
_PAPER_NOTE = (
    "paper: dev F1 on CoNLL-2003 with BERT-base and a two-layer 768-dimensional BiLSTM (Devlin "
    "et al. 2019, Table 7, feature-based rows); fine-tuned BERT-base reaches 96.4 on dev and 92.4 "
    "on test"
)
_SCORES = "metrics.json"
_CHECKPOINT_MINUTES = 5.0
_PREDICT_WORDS = 8192


@dataclass(frozen=True)
class FeatureFile:
    """A file of the task with the hidden states of its words.

    Attributes:
        tagged: the file, encoded.
        layers: float16 [R, L + 1, H].
    """

    tagged: TaggedFile
    layers: NDArray[np.float16]

    def batch(self, sentences: NDArray[np.int64], layers: slice) -> FeatureBatch:
        """The words of these sentences, with some of the layers and the tags."""
        at, gold = self.tagged.encoded.output_bounds, self.tagged.examples.gold
        states = [self.layers[at[s] : at[s + 1], layers] for s in sentences]
        tags = np.concatenate([gold[at[s] : at[s + 1]] for s in sentences])
        features = torch.from_numpy(np.concatenate(states)).float()
        return FeatureBatch(features, [len(x) for x in states], torch.from_numpy(tags))


@dataclass(frozen=True, repr=False)
class FeaturesResult:
    """Scores of each choice of layers; shown, they are the table.

    Attributes:
        run: the run folder.
        task: name of the task.
        metric: the main one.
        dev: scores of the metric over the seeds, by choice.
        test: the same on the test file; empty without one.
        notes: what was skipped or found in the files.
    """

    run: Path
    task: str
    metric: str
    dev: dict[str, list[float]]
    test: dict[str, list[float]]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return html.fragment("", html.preformatted(self.table()))

    def table(self) -> str:
        """Each choice with the score of the paper, in percent, as text."""
        papers = self.task == _PAPER_TASK
        paper_column = ["dev, paper"] if papers else []
        rows = [["layers", "dev", *(["test"] if self.test else []), *paper_column]]
        for choice, scores in self.dev.items():
            test = [_percent(self.test[choice])] if self.test else []
            paper = [f"{PAPER_SCORES[choice]:.1f}"] if papers else []  # type: ignore[index]
            rows.append([choice, _percent(scores), *test, *paper])
        table = table_text(rows, f"{self.task}: {self.metric} in percent")
        notes = [_PAPER_NOTE] if papers else []
        return "\n".join([table, *notes, *self.notes, f"saved in {self.run}"])


def _percent(scores: list[float]) -> str:
    mean = f"{100 * statistics.fmean(scores):.2f}"
    return f"{mean} ± {100 * statistics.stdev(scores):.2f}" if len(scores) > 1 else mean


@borrowed_process()
@locks_released()
def tag_by_features(config: FeaturesConfig) -> FeaturesResult:
    """Train and measure every choice of layers with every seed; finished ones are kept.

    Raises:
        ConfigError: options that do not make a task, or layers that the encoder does not have.
        InputError, ModelError, LengthError: files or a folder that cannot be read as requested.
        RunError: the run folder was made by another recipe, or training diverged
            (:class:`DivergenceError`).
        DiskError: features or results cannot be written.
    """
    check_required(config)
    config = config.located()
    if config.task.predict:
        raise ConfigError("predict is for finetune; features measures labelled files alone.")
    say = line_printer()
    loaded = load_model(config.model)
    length = config.max_length or min(config.sequence_length, loaded.config.positions)
    config = replace(config, max_length=length)
    layers = {choice: chosen_layers(choice, loaded.config.layers) for choice in config.layers}
    task, tagged = _load(config, loaded)
    run, precision = open_run_with_precision(
        config,
        lambda: choose_precision(config.precision),
        verb="reproduce features",
        inputs={**file_digests(config.task), "model": model_digest(loaded, weights=True)},
        numerics={"threads": set_threads(config.threads)},
        say=say,
    )
    folder, fingerprint = run.folder, digest(run.record["recipe"])
    say(f"{task.name}: {len(tagged['train'].rows):,} training sentences, {precision.reason}")
    notes = tuple(note for file in tagged.values() for note in file.notes)
    for note in (*loaded.notes, *notes):
        say(note)
    key = fingerprint
    if precision.name != run.resolved["precision"]:
        key = f"{fingerprint}-{precision.name}"
    if others := _left_out(config, folder):
        say(
            f"finished earlier and not part of this result: {', '.join(others)}; to include them, "
            "name them too (--layers, --seeds)"
        )
    network, dtype = network_of(loaded), precision.dtype
    files = {}
    for name, file in tagged.items():
        place, examples = folder / "features" / name, file.examples
        states = cached_layers(place, network, examples, fingerprint=key, dtype=dtype, say=say)
        files[name] = FeatureFile(file, states)
    metric = task.metrics[0]
    dev: dict[str, list[float]] = {choice: [] for choice in config.layers}
    test: dict[str, list[float]] = {c: [] for c in config.layers} if "test" in files else {}
    for choice in config.layers:
        for seed in config.seeds:
            seed_folder = folder / choice / f"seed-{seed}"
            name = training_name(choice, seed)
            own = {"layers": choice, "seed": seed}
            scores = read_result(seed_folder / _SCORES, fingerprint, name, _whose, say)
            if scores is None:
                scores = train_tagger(
                    *(config, task, files, choice, layers[choice], seed, seed_folder),
                    precision=precision.name,
                    run=run.identity,
                )
                record = {"fingerprint": fingerprint, **own, **scores}
                write_json(seed_folder / _SCORES, record)
                remove_checkpoints(seed_folder / CHECKPOINTS)
            else:
                say(f"{name}: finished before, kept")
            dev[choice].append(scores["dev"][metric])
            if test:
                test[choice].append(scores["test"][metric])
    write_json(folder / "report.json", {"metric": metric, "dev": dev, "test": test})
    return FeaturesResult(folder, task.name, metric, dev, test, notes)


def training_name(choice: str, seed: int) -> str:
    """A choice of layers with a seed, in messages."""
    return f"{choice} seed {seed}"


def _whose(record: dict[str, Any]) -> str:
    """The name of the training that a record is of."""
    return training_name(record["layers"], record["seed"])


def _load(config: FeaturesConfig, loaded: LoadedModel) -> tuple[TaggingTask, dict[str, TaggedFile]]:
    """The task and its encoded files, by name."""
    check_length(loaded, config.sequence_length)
    options = config.task
    train = TaggingTask.read(Path(options.train), options, labelled=True)
    task = TaggingTask.define(options, train)
    files = {"train": train, "dev": TaggingTask.read(Path(options.dev), options, labelled=True)}
    if options.test:
        files["test"] = TaggingTask.read(Path(options.test), options, labelled=True)
    return task, {
        name: task.encode(loaded.tokenizer, rows, length=config.sequence_length)
        for name, rows in files.items()
    }


def _left_out(config: FeaturesConfig, folder: Path) -> list[str]:
    """Choices and seeds that are finished in the run folder, but not named by this command."""
    asked = {f"{choice}/seed-{seed}" for choice in config.layers for seed in config.seeds}
    finished = sorted(folder.glob(f"*/seed-*/{_SCORES}"))
    names = [path.parent.relative_to(folder).as_posix() for path in finished]
    return [name for name in names if name not in asked]


def train_tagger(
    config: FeaturesConfig,
    task: TaggingTask,
    files: Mapping[str, FeatureFile],
    choice: LayerChoice,
    layers: slice,
    seed: int,
    folder: Path,
    *,
    precision: str,
    run: str,
) -> dict[str, Any]:
    """Train a BiLSTM tagger to the last epoch: one choice of layers with one seed.

    Args:
        config: options of the BiLSTM and of training.
        task: the task, with labels decided.
        files: train, dev and perhaps test, with their hidden states.
        choice: the choice of layers.
        layers: the layers it stands for.
        seed: keys initialisation, order of the data and dropout.
        folder: where records, predictions and checkpoints are written.
        precision: of the hidden states.
        run: identity of the run.

    Returns:
        The content of metrics.json: the scores of the last epoch, by file, notes, layer weights and
        seconds.

    Raises:
        DivergenceError: the gradient is not finite.
        DiskError: records or predictions cannot be written.
    """
    name, train = training_name(choice, seed), files["train"]
    items = np.arange(len(train.tagged.rows))
    per_epoch = -(-len(items) // config.batch_size)
    steps = per_epoch * config.epochs
    model = FeatureTagger(
        layers.stop - layers.start,
        train.layers.shape[2],
        config.hidden,
        task.outputs,
        summed=choice.startswith("sum"),
        dropout=config.dropout,
        seed=seed,
    )
    model.shared.fast = False  # its operations are the library's
    trainer: Trainer[FeatureBatch] = Trainer(
        model, config.optimizer, total_steps=steps, seed=seed, dtype=torch.float32, clips_apart=True
    )
    window, progress, measured = Window("loss"), EpochScores(), dict[str, Measurement]()
    key = {"seed": name, "precision": precision}
    checkpoint = Checkpoint(folder / CHECKPOINTS, trainer, (window, progress), run=run, key=key)

    def measure(step: int) -> None:
        for part in ("dev", "test") if step == steps else ("dev",):
            if part in files:
                file, outputs = files[part].tagged, tagger_outputs(model, files[part], layers)
                predictions = task.decode(file, outputs)
                task.write(folder / f"{part}_predictions.conll", file, predictions)
                measured[part] = task.measure(file, predictions)

    def record(step: int) -> None:
        measure(step)
        progress.measured.append(measured["dev"])
        scores = {f"dev_{metric}": score for metric, score in measured["dev"].scores.items()}
        watch.log(step, {"epoch": step // per_epoch, **window.close(), **scores})

    say = line_printer()
    done = checkpoint.restore(lambda text: say(f"{name}: {text}"), or_start_again=True)
    with Monitor(folder, steps, name, done=done - window.steps) as watch:
        if done:
            watch.say(f"{name}: continuing after step {done:,} of {steps:,}")
        checkpoint.rehearse()
        if len(progress.measured) < done // per_epoch:  # trained and saved, but not measured
            record(done)
        batches = epochs_of(
            items,
            config.batch_size,
            config.epochs,
            seed=seed,
            done=done,
            make=lambda sentences: [train.batch(sentences, layers)],
            device=model.device,
        )
        for step in fit(
            trainer,
            TaggedFeatures(),
            batches,
            checkpoint,
            minutes=_CHECKPOINT_MINUTES,
            say=watch.say,
        ):
            window.add(step)
            if step.due(per_epoch):
                step.save_if_due()
                record(step.number)
        if not measured:  # all was trained and measured before
            measure(steps)
        metric = task.metrics[0]
        shown = ", ".join(f"{part} {m.scores[metric]:.4f}" for part, m in measured.items())
        watch.say(f"{name}: {metric} on {shown}")
    return {
        **{part: found.scores for part, found in measured.items()},
        "notes": {part: list(found.notes) for part, found in measured.items()},
        "layer_weights": None if model.sum is None else model.sum.weights.softmax(0).tolist(),
        "seconds": round(progress.seconds, 2),
    }


@torch.inference_mode()
def tagger_outputs(model: FeatureTagger, file: FeatureFile, layers: slice) -> Outputs:
    """The outputs for all words of a file, float32 [R, C]; sentences of similar length are computed
    together."""
    at = file.tagged.encoded.output_bounds
    outputs = np.zeros((int(at[-1]), model.output.out_features), dtype=np.float32)
    for sentences in length_batches(np.diff(at), _PREDICT_WORDS):
        batch = file.batch(sentences, layers)
        with evaluating(model):
            y_TC = model(batch.features, batch.lengths).numpy()
        ends = np.cumsum(batch.lengths)[:-1]
        for s, y in zip(sentences, np.split(y_TC, ends), strict=True):
            outputs[at[s] : at[s + 1]] = y
    return outputs
