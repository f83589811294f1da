"""Ensembles: averaged outputs of several fine-tuned models (the paper's for SQuAD has 7).

R tokens read, C outputs of the head.

What is averaged depends on the kind of loss:

* ``class``: the probabilities of each row's classes,
* ``labels``: the probability of each label,
* ``place``: for each output, the probabilities of the rows of an item (the tokens of a window, or
  the choices of an example),
* ``score``: the score itself, or each of several.

Mean probabilities are converted back to logits. Softmax removes the level of logits (their
logsumexp), so the mean level of the models is added: windows of one passage then stay comparable,
as in a single model, and models that agree give the outputs that each of them gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.arrays import log_expit, logsumexp
from bothways.config.fields import build, to_dict, values_of
from bothways.errors import ModelError
from bothways.io.files import real_path
from bothways.io.hub import named_folder
from bothways.io.run_folders import RUN_FILE
from bothways.runtime.engine import EngineOptions
from bothways.runtime.folder import CONFIG, LoadedModel, load_model, read_json
from bothways.tasks.examples import Examples
from bothways.tasks.options import TaskOptions
from bothways.tasks.task import LossKind, Outputs

_REPORT = "report.json"


@dataclass(eq=False)
class Ensemble(LoadedModel):
    """A loaded model, and other model folders whose outputs are averaged with its own.

    Attributes:
        others: the other folders; each is loaded whenever it is needed, and not kept.
    """

    others: tuple[Path, ...] = ()

    def models(self) -> Iterator[LoadedModel]:
        """The models, loaded one after the other."""
        yield self
        for folder in self.others:
            yield load_model(folder, options=self.options)


def load_ensemble(
    folders: Sequence[str | Path], options: EngineOptions | None = None
) -> LoadedModel:
    """Load model folders as one model; a single folder is loaded as it is.

    Args:
        folders: model folders with task heads, or run folders of `bothways finetune`, which stand
            for the models of all their seeds (after a search: of the chosen setting). A model that
            is named twice counts once.
        options: what computes them, as for :func:`bothways.runtime.folder.load_model`.

    Raises:
        ModelError: a folder cannot be loaded, or they differ in tokenizer, task, labels or length.
    """
    named = [path for folder in folders for path in model_folders(named_folder(folder))]
    paths: list[Path] = []
    for path in named:
        if not any(real_path(path) == real_path(known) for known in paths):
            paths.append(path)
    first = load_model(paths[0], options=options)
    if len(paths) == 1:
        return first
    of_tasks, notes = [values_of(first.task.options)], [*first.notes]
    for path in paths[1:]:
        other = load_model(path)
        _check_alike(first, other, paths[0], path)
        notes += [note for note in other.notes if note not in notes]
        of_tasks.append(values_of(other.task.options))
    about = first.about
    if about.get("options"):
        about = {**about, "options": to_dict(_pooled(of_tasks, paths))}
    own = {item.name: getattr(first, item.name) for item in fields(first)}
    return Ensemble(**{**own, "about": about, "notes": notes}, others=tuple(paths[1:]))


def model_folders(folder: Path) -> list[Path]:
    """The model folders that a folder stands for: itself, or those of a run's seeds.

    Raises:
        ModelError: a run folder without a finished report.
    """
    if (folder / CONFIG).exists() or not (folder / RUN_FILE).exists():
        return [folder]
    if (folder / "model" / CONFIG).exists():  # of pre-training, which has one model
        return [folder]  # load_model says where it is
    remedy = "name a model folder, or finish the fine-tuning run (the same command continues it)"
    models = read_json(folder / _REPORT, remedy).get("models")
    if not (models and isinstance(models, list)):
        raise ModelError(f"{folder / _REPORT} names no models; {remedy}.")
    return [folder / str(name) for name in models]


def combine(kind: LossKind, outputs: Sequence[Outputs], examples: Examples) -> Outputs:
    """The outputs of an ensemble.

    Args:
        kind: decides what is averaged.
        outputs: of each model, float32 [R, C].
        examples: the examples predicted, which tell the rows of each item.

    Returns:
        float32 [R, C], to be decoded like the outputs of a single model.
    """
    stacked = np.stack([logits.astype(np.float64) for logits in outputs])  # [models, R, C]
    averaged = stacked.mean(0)
    if kind == "labels":
        averaged = _average_labels(stacked)
    elif kind == "class":
        averaged = _average(stacked, axis=-1)
    elif kind == "place":
        averaged = _average_items(stacked, examples)
    return np.asarray(averaged, dtype=np.float32)


def _average_items(logits: NDArray[np.float64], examples: Examples) -> NDArray[np.float64]:
    """Average over the rows of each item, for each output."""
    averaged = np.zeros(logits.shape[1:])
    for start, end in zip(examples.output_bounds[:-1], examples.output_bounds[1:], strict=True):
        averaged[start:end] = _average(logits[:, start:end], axis=1)
    return averaged


def _average(logits: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """Average logits [models, ...] as probabilities over an axis, at the mean level."""
    levels = logsumexp(logits, axis=axis, keepdims=True)
    mean = logsumexp(logits - levels, axis=0) - np.log(len(logits))
    logits_of_mean: NDArray[np.float64] = mean + levels.mean(0)
    return logits_of_mean


def _average_labels(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average logits [models, R, C] as probabilities of labels, each by itself."""
    with_label = logsumexp(log_expit(logits), axis=0)
    without = logsumexp(log_expit(-logits), axis=0)
    logits_of_mean: NDArray[np.float64] = with_label - without
    return logits_of_mean


def _check_alike(first: LoadedModel, other: LoadedModel, one: Path, two: Path) -> None:
    """Refuse two models, loaded from the folders ``one`` and ``two``, that cannot be averaged."""
    tasks = first.task, other.task
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
    """The common task options; numbers tuned for each model (a threshold) are averaged."""

    def pool(values: Sequence[Any], name: str) -> Any:
        if all(value == values[0] for value in values) or name in _MAY_DIFFER:
            return values[0]
        if all(isinstance(value, float) for value in values):
            return float(np.mean(values))
        if name == "multilabel_thresholds" and len({len(value) for value in values}) == 1:
            return [float(mean) for mean in np.mean(values, axis=0)]
        raise ModelError(
            f"the models of {', '.join(map(str, paths))} differ in {name}: "
            f"{', '.join(map(str, values))}; an ensemble needs models of one task."
        )

    pooled = {name: pool([values[name] for values in options], name) for name in options[0]}
    return build(TaskOptions, pooled)


# Options that may differ between models of the same task.
_MAY_DIFFER = ("name", "metrics")
