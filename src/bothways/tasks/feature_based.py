"""The feature-based approach: a BiLSTM on layers of an encoder that is not trained.

Devlin et al. 2019, section 5.3 and Table 7. The hidden states of all words are computed once for
all choices of layers (``features/`` in the run folder); each choice and seed has its own folder
with its scores. A choice and seed that is finished is kept when the same command runs again.
"""

from __future__ import annotations

import io
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from bothways.config import FeaturesConfig, LayerChoice, digest
from bothways.errors import ConfigError, DivergenceError
from bothways.files import sha256, write_json
from bothways.model.folder import Loaded, load_model
from bothways.model.losses import class_loss
from bothways.model.recurrent import FeatureTagger
from bothways.randomness import Purpose, derived_seed
from bothways.tasks.examples import step_batches
from bothways.tasks.features import chosen_layers, keep_layers
from bothways.tasks.finetune import model_digest
from bothways.tasks.metrics import Measurement
from bothways.tasks.predict import check_length, write_predictions
from bothways.tasks.tagging import TaggedPart, TaggingTask
from bothways.tasks.task import Outputs
from bothways.training.monitor import Monitor
from bothways.training.optimizer import make_optimizer
from bothways.training.precision import Choice, choose_precision
from bothways.training.runfolder import Run, open_run
from bothways.training.runtime import set_threads
from bothways.training.schedules import learning_rate

# Dev F1 on CoNLL-2003 in percent, BERT-base, cased: Devlin et al. 2019, Table 7, feature-based.
PAPER: dict[LayerChoice, float] = {
    "embeddings": 91.0,
    "second-to-last": 95.6,
    "last": 94.9,
    "sum-last-four": 95.9,
    "concat-last-four": 96.1,
    "sum-all": 95.5,
}
_PAPER_NOTE = (
    "paper: dev F1 on CoNLL-2003 with BERT-base and a two-layer 768-dimensional BiLSTM (Devlin "
    "et al. 2019, Table 7, feature-based rows); fine-tuned BERT-base has 96.4 on dev and 92.4 on "
    "test there"
)
_SCORES = "metrics.json"
_PREDICT_WORDS = 8192


@dataclass(frozen=True)
class LayerFile:
    """A file with the layers of its words.

    Attributes:
        part: the file.
        layers: float16 [R, L + 1, H].
    """

    part: TaggedPart
    layers: NDArray[np.float16]

    def words(self, sentences: NDArray[np.int64], chosen: slice) -> tuple[torch.Tensor, list[int]]:
        """float32 [T, layers chosen, H] of these sentences, and how many words each has."""
        rows = self.part.reading.rows
        found = [self.layers[rows[s] : rows[s + 1], chosen] for s in sentences]
        return torch.from_numpy(np.concatenate(found)).float(), [len(own) for own in found]

    def targets(self, sentences: NDArray[np.int64]) -> torch.Tensor:
        """int64 [T]."""
        rows, gold = self.part.reading.rows, self.part.examples.gold
        return torch.from_numpy(np.concatenate([gold[rows[s] : rows[s + 1]] for s in sentences]))


@dataclass(frozen=True)
class FeaturesResult:
    """Scores of each choice of layers.

    Attributes:
        run: the run folder.
        task: its name.
        metric: the main one.
        dev, test: scores of the metric over the seeds, by choice; test is empty without a file.
        notes: what was passed over or found in the files.
    """

    run: Path
    task: str
    metric: str
    dev: dict[str, list[float]]
    test: dict[str, list[float]]
    notes: tuple[str, ...]

    def table(self) -> str:
        """A row for each choice beside the paper's, in percent, as text."""
        table = Table(title=f"{self.task}: {self.metric} in percent", title_style="")
        for name in ("layers", "dev", *(["test"] if self.test else []), "dev, paper"):
            table.add_column(name, justify="left" if name == "layers" else "right")
        for choice, values in self.dev.items():
            test = [_percent(self.test[choice])] if self.test else []
            table.add_row(choice, _percent(values), *test, f"{PAPER[choice]:.1f}")  # type: ignore[index]
        text = io.StringIO()
        Console(file=text, width=100, markup=False, highlight=False).print(table)
        saved = f"saved in {self.run}"
        return "\n".join([text.getvalue().rstrip("\n"), _PAPER_NOTE, *self.notes, saved])


def _percent(values: list[float]) -> str:
    mean = f"{100 * statistics.fmean(values):.2f}"
    return f"{mean} ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else mean


def tag_by_features(config: FeaturesConfig) -> FeaturesResult:
    """Train and measure every choice of layers with every seed; finished ones are kept.

    Raises:
        ConfigError: options that make no task, or layers that the encoder has not.
        InputError, ModelError, LengthError: files or a folder that cannot be read as asked.
        RunError: the run folder was made by another recipe, or training diverged
            (:class:`DivergenceError`).
        DiskError: features or results cannot be written.
    """
    _check_asked(config)
    say = Console(markup=False, highlight=False, soft_wrap=True).print
    loaded = load_model(config.model)
    for choice in config.layers:
        chosen_layers(choice, loaded.model.config.layers)
    task, parts = _load(config, loaded)
    run, precision = _open(config, loaded)
    folder, fingerprint = run.folder, digest(run.record["recipe"])
    say(f"{task.name}: {len(parts['train'].rows):,} training sentences, {precision.reason}")
    for note in (notes := tuple(n for part in parts.values() for n in part.notes)):
        say(note)
    files = {}
    for name, part in parts.items():
        layers = keep_layers(
            folder / "features" / name,
            loaded.model,
            part.examples,
            fingerprint=fingerprint,
            dtype=precision.dtype,
            say=say,
        )
        files[name] = LayerFile(part, layers)
    dev: dict[str, list[float]] = {choice: [] for choice in config.layers}
    test: dict[str, list[float]] = {c: [] for c in config.layers} if "test" in files else {}
    for choice in config.layers:
        for seed in config.seeds:
            own = folder / choice / f"seed-{seed}"
            scores = _read_scores(own, fingerprint)
            if scores is None:
                scores = _train(config, task, files, choice, seed, own, loaded.model.config.layers)
                write_json(own / _SCORES, {"fingerprint": fingerprint, **scores})
            else:
                say(f"{choice} seed {seed}: finished before, kept")
            dev[choice].append(scores["dev"][task.metrics[0]])
            if test:
                test[choice].append(scores["test"][task.metrics[0]])
    result = FeaturesResult(folder, task.name, task.metrics[0], dev, test, notes)
    write_json(folder / "report.json", {"metric": result.metric, "dev": dev, "test": test})
    return result


def _check_asked(config: FeaturesConfig) -> None:
    asked = {"model": config.model, "run": config.run}
    asked |= {"task.train": config.task.train, "task.dev": config.task.dev}
    for name, value in asked.items():
        if not value:
            raise ConfigError(f"{name} is missing; name the file or folder.")
    if config.task.measure or config.task.predict:
        raise ConfigError(
            "task.measure and task.predict are for finetune; features has dev and test."
        )


def _load(config: FeaturesConfig, loaded: Loaded) -> tuple[TaggingTask, dict[str, TaggedPart]]:
    """The task, and its files with their words as the model reads them."""
    check_length(loaded.model, config.length)
    options = config.task
    train = TaggingTask.read(Path(options.train), options, labelled=True)
    task = TaggingTask.define(options, train)
    files = {"train": train, "dev": TaggingTask.read(Path(options.dev), options, labelled=True)}
    if options.test:
        files["test"] = TaggingTask.read(Path(options.test), options, labelled=True)
    return task, {
        name: task.encode(loaded.tokenizer, rows, length=config.length)
        for name, rows in files.items()
    }


def _open(config: FeaturesConfig, loaded: Loaded) -> tuple[Run, Choice]:
    """Start or continue the run folder; files and encoder count by content."""
    numerics = {"threads": set_threads(config.threads)}
    inputs = {
        f"task.{name}": sha256(Path(path))[:16] if path else ""
        for name in ("train", "dev", "test")
        for path in [getattr(config.task, name)]
    }
    inputs["model"] = model_digest(loaded, weights=True)
    choices: list[Choice] = []

    def resolve() -> dict[str, Any]:
        choices.append(choose_precision(config.precision))
        return {"precision": choices[0].name, **numerics}

    run = open_run(config.run, config, verb="features", inputs=inputs, resolve=resolve)
    name = run.resolved["precision"]
    precision = choices[0] if choices else Choice(name, f"{name}: as this run began")
    return run, precision


def _read_scores(folder: Path, fingerprint: str) -> dict[str, dict[str, float]] | None:
    """Scores of a choice and seed that is finished; None if it is not."""
    try:
        record: dict[str, Any] = json.loads((folder / _SCORES).read_text(encoding="utf-8"))
        return record if record["fingerprint"] == fingerprint else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _train(
    config: FeaturesConfig,
    task: TaggingTask,
    files: dict[str, LayerFile],
    choice: LayerChoice,
    seed: int,
    folder: Path,
    layers: int,
) -> dict[str, Any]:
    """Train one BiLSTM to the end; scores of the last epoch, by file."""
    chosen, train = chosen_layers(choice, layers), files["train"]
    model = FeatureTagger(
        chosen.stop - chosen.start,
        train.layers.shape[2],
        config.hidden,
        task.outputs,
        summed=choice.startswith("sum"),
        dropout=config.dropout,
        seed=seed,
    )
    optimizer = make_optimizer(model, config.optimizer)
    sentences = len(train.part.rows)
    total = -(-sentences // config.batch) * config.epochs
    start, step = time.monotonic(), 0
    found = dict[str, Measurement]()
    with Monitor(folder, total, f"{choice} seed {seed}") as monitor:
        for epoch in range(config.epochs):
            losses = []
            for batch in step_batches(sentences, config.batch, seed=seed, epoch=epoch):
                lr = learning_rate(step, total, config.optimizer)
                losses.append(_step(config, model, optimizer, train, batch, chosen, lr, seed, step))
                step += 1
            for name in ("dev", "test") if epoch + 1 == config.epochs else ("dev",):
                if name in files:
                    found[name] = _measure(task, model, files[name], chosen, folder / name)
            scores = {f"dev_{k}": v for k, v in found["dev"].scores.items()}
            monitor.log(step, {"epoch": epoch + 1, "loss": float(np.mean(losses)), **scores})
        shown = ", ".join(f"{n} {m.scores[task.metrics[0]]:.4f}" for n, m in found.items())
        monitor.say(f"{choice} seed {seed}: {task.metrics[0]} on {shown}")
    weights = None if model.sum is None else model.sum.weights.softmax(0).tolist()
    return {
        **{name: measured.scores for name, measured in found.items()},
        "notes": {name: list(measured.notes) for name, measured in found.items()},
        "layer_weights": weights,
        "seconds": round(time.monotonic() - start, 2),
    }


def _step(
    config: FeaturesConfig,
    model: FeatureTagger,
    optimizer: torch.optim.Optimizer,
    train: LayerFile,
    sentences: NDArray[np.int64],
    chosen: slice,
    lr: float,
    seed: int,
    step: int,
) -> float:
    """One optimizer step; its loss."""
    model.train()
    model.shared.dropout.reseed(derived_seed(seed, Purpose.DROPOUT, step, 0))
    x_TLH, lengths = train.words(sentences, chosen)
    total, _ = class_loss(model(x_TLH, lengths), train.targets(sentences))
    loss = total / len(x_TLH)
    loss.backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.clip)
    if not torch.isfinite(norm):
        raise DivergenceError(
            f"step {step + 1}: the gradient is {norm.item()}; training diverged. Lower "
            "optimizer.lr, in a new run folder (--run)."
        )
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())


def _measure(
    task: TaggingTask, model: FeatureTagger, file: LayerFile, chosen: slice, path: Path
) -> Measurement:
    """Scores on a file; its predictions are written beside."""
    predictions = task.decode(file.part, _outputs(model, file, chosen))
    write_predictions(
        path.with_name(f"{path.name}_predictions.conll"), task, file.part, predictions
    )
    return task.measure(file.part, predictions)


@torch.inference_mode()
def _outputs(model: FeatureTagger, file: LayerFile, chosen: slice) -> Outputs:
    """float32 [R, C], sentences of like length together."""
    model.eval()
    rows = file.part.reading.rows
    outputs = np.zeros((int(rows[-1]), model.output.out_features), dtype=np.float32)
    lengths = np.diff(rows)
    order = np.argsort(-lengths, kind="stable")
    cuts = np.flatnonzero(np.diff(np.cumsum(lengths[order]) // _PREDICT_WORDS)) + 1
    for part in np.split(order, cuts):
        x_TLH, sizes = file.words(part, chosen)
        found = model(x_TLH, sizes).numpy()
        for s, own in zip(part, np.split(found, np.cumsum(sizes)[:-1]), strict=True):
            outputs[rows[s] : rows[s + 1]] = own
    return outputs
