"""Ensembles: the outputs of several fine-tuned models averaged (the paper has one of 7 for SQuAD).

R tokens read, C outputs of the head.

What is averaged is a probability where the head gives one, and the score where it gives a score:

* ``class``: the probabilities of each row's classes,
* ``place``: for each output, the probabilities of the places of an item (of a window of a passage,
  or of the choices of an example),
* ``score``: the score itself.

Probabilities go back to logits, at the mean of the models' levels (the logarithm of the sum, which
a softmax takes away): so windows of one passage stay comparable as they are in a single model, and
models that agree give what one of them gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from bothways.config import TaskOptions, from_dict, to_dict
from bothways.errors import ModelError
from bothways.model.folder import CONFIG, Loaded, load_model, read_json
from bothways.model.heads import Bert
from bothways.shipped import model_folder
from bothways.tasks.examples import Examples
from bothways.tasks.kinds import task_of
from bothways.tasks.task import LossKind, Outputs
from bothways.training.runfolder import RUN_FILE

_REPORT = "report.json"


@dataclass
class Ensemble(Loaded):
    """A model folder, and others whose outputs are averaged with its own.

    Attributes:
        others: their folders; each is loaded when it is needed and not kept.
    """

    others: tuple[Path, ...] = ()

    def models(self) -> Iterator[Bert]:
        """One after the other."""
        yield self.model
        for folder in self.others:
            yield load_model(folder).model.to(self.model.device)


def load_ensemble(folders: Sequence[str | Path]) -> Loaded:
    """Load model folders to be used as one; a single one is loaded as it is.

    Args:
        folders: model folders with task heads, or run folders of `bothways finetune`, which stand
            for the models of all their seeds (of a search: of the setting chosen).

    Raises:
        ModelError: a folder cannot be loaded, or they differ in tokenizer, task, labels or length.
    """
    paths = [path for folder in folders for path in model_folders(model_folder(folder))]
    first = load_model(paths[0])
    if len(paths) == 1:
        return first
    options = [to_dict(task_of(first).options)]
    for path in paths[1:]:
        other = load_model(path)
        _check_alike(first, other, paths[0], path)
        options.append(to_dict(task_of(other).options))
    about = first.about
    if about.get("options"):
        about = {**about, "options": to_dict(_pooled(options, paths))}
    return Ensemble(
        first.model, first.tokenizer, about, first.unused, first.fresh, tuple(paths[1:])
    )


def model_folders(folder: Path) -> list[Path]:
    """The models that a folder stands for: itself, or those of a fine-tuning run's seeds.

    Raises:
        ModelError: a run folder without a finished report.
    """
    if (folder / CONFIG).exists() or not (folder / RUN_FILE).exists():
        return [folder]
    remedy = "name a model folder, or finish the fine-tuning run (the same command continues it)"
    models = read_json(folder / _REPORT, remedy).get("models")
    if not models:
        raise ModelError(f"{folder / _REPORT} names no models; {remedy}.")
    return [folder / str(name) for name in models]


def combine(kind: LossKind, outputs: Sequence[Outputs], examples: Examples) -> Outputs:
    """The outputs of an ensemble.

    Args:
        kind: what a row of outputs was trained on; decides what is averaged.
        outputs: of each model, float32 [R, C].
        examples: what they were given, for the items that rows belong to.

    Returns:
        float32 [R, C], to be decoded as a single model's.
    """
    stacked = np.stack([found.astype(np.float64) for found in outputs])  # [models, R, C]
    averaged = stacked.mean(0)
    if kind == "class":
        averaged = _averaged(stacked, axis=-1)
    elif kind == "place":
        averaged = _averaged_places(stacked, examples)
    return np.asarray(averaged, dtype=np.float32)


def _averaged_places(logits: NDArray[np.float64], examples: Examples) -> NDArray[np.float64]:
    """Over the places of each item, for each output."""
    averaged = np.zeros(logits.shape[1:])
    for start, end in zip(examples.rows[:-1], examples.rows[1:], strict=True):
        averaged[start:end] = _averaged(logits[:, start:end], axis=1)
    return averaged


def _averaged(logits: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """Logits [models, ...] as those of the mean probabilities over an axis, at the mean level."""
    levels = logsumexp(logits, axis=axis, keepdims=True)
    mean = logsumexp(logits - levels, axis=0) - np.log(len(logits))
    found: NDArray[np.float64] = mean + levels.mean(0)
    return found


def _check_alike(first: Loaded, other: Loaded, one: Path, two: Path) -> None:
    tasks = task_of(first), task_of(other)
    for what, ours, theirs in (
        ("vocabularies", first.tokenizer.fingerprint, other.tokenizer.fingerprint),
        ("kinds of task", *(task.options.kind for task in tasks)),
        ("labels", *(list(task.options.labels) for task in tasks)),
        ("numbers of outputs", *(task.outputs for task in tasks)),
        ("lengths", first.about.get("length"), other.about.get("length")),
        ("inputs (single texts or pairs)", first.about.get("pair"), other.about.get("pair")),
    ):
        if ours != theirs:
            raise ModelError(
                f"{one} and {two} have different {what}: {ours} and {theirs}; an ensemble needs "
                "models of one task and vocabulary, fine-tuned at one length."
            )


def _pooled(options: Sequence[dict[str, Any]], paths: Sequence[Path]) -> TaskOptions:
    """One task's options: numbers that were tuned for each model (a threshold) are averaged."""

    def pool(values: Sequence[Any], name: str) -> Any:
        if isinstance(values[0], dict):
            return {key: pool([v[key] for v in values], f"{name}.{key}") for key in values[0]}
        if all(value == values[0] for value in values) or name in _OWN:
            return values[0]
        if all(isinstance(value, float) for value in values):
            return float(np.mean(values))
        raise ModelError(
            f"the models of {', '.join(map(str, paths))} differ in {name}: "
            f"{', '.join(map(str, values))}; an ensemble needs models of one task."
        )

    return from_dict(TaskOptions, pool(options, "task"))


# What each model may call its own without being another task's.
_OWN = ("task.name", "task.metrics")
