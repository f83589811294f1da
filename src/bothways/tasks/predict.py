"""Predictions of a model folder's task head.

N texts, R tokens read, C outputs of the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from bothways.config import TaskOptions
from bothways.errors import InputError, LengthError, ModelError
from bothways.model.folder import Loaded
from bothways.model.heads import Bert
from bothways.tasks.choice import ChoiceTask, Probabilities, encode_choices, probabilities
from bothways.tasks.ensemble import Ensemble, combine
from bothways.tasks.examples import PREDICT_TOKENS, Examples, length_batches
from bothways.tasks.kinds import task_of
from bothways.tasks.metrics import Measurement
from bothways.tasks.questions import Questions
from bothways.tasks.readers import listed
from bothways.tasks.spans import Answer, SpanTask
from bothways.tasks.task import Outputs, Part, Task, read_outputs
from bothways.tasks.texts import ClassificationTask, TextTask

# Options of a task that belong to the model; the others say how a file is laid out.
_OF_THE_MODEL = ("kind", "labels", "metrics", "long", "windows", "spans")
_OF_THE_TAGGER = ("learn", "write", "context")


@dataclass(frozen=True)
class Prediction:
    """What a task head says about texts.

    Attributes:
        labels: the most probable label of each text; empty for regression.
        values: float64 [N, C]; probabilities in the order of ``names``, or scores, [N, 1].
        names: what the columns of ``values`` are: the labels, or "score".
        cut: texts that lost tokens to the length limit.
        several: texts that were read in more than one window.
        length: that limit, in tokens.
    """

    labels: list[str]
    values: NDArray[np.float64]
    names: tuple[str, ...]
    cut: int
    several: int
    length: int


def predict_texts(
    loaded: Loaded,
    a: Sequence[str],
    b: Sequence[str] | None = None,
    *,
    length: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Prediction:
    """Labels with probabilities, or scores, of texts or pairs of texts.

    Args:
        loaded: a model folder with a classification or regression head.
        a: the (first) texts.
        b: the second texts, for a model fine-tuned on pairs.
        length: longest sequence in tokens. If not given, the length the model was fine-tuned with,
            so that its measured scores apply; the encoder's limit where that is not known.
        dtype: arithmetic of the layers.

    Raises:
        ModelError: the model has another head or none, or its output is not finite.
        InputError: a text that is none, pairs for a model of single texts or the reverse.
        LengthError: ``length`` is beyond the encoder's positions.
    """
    task = task_of(loaded)
    if not isinstance(task, TextTask):
        raise ModelError(
            f"this model's task is of the kind {task.options.kind!r}, which is not predicted for "
            "single texts or pairs; give its kind of file (`bothways predict --file`)."
        )
    check_pairs(loaded, pair=b is not None)
    length = choose_length(loaded, length)
    examples = task.examples(loaded.tokenizer, a, b, length=length)
    outputs = outputs_of(loaded, task, examples, dtype=dtype)
    logits_NC = task.pooled(examples, outputs).astype(np.float64)
    read = (examples.cut, examples.several, length)
    if not isinstance(task, ClassificationTask):
        return Prediction([], logits_NC, ("score",), *read)
    values = softmax(logits_NC, axis=-1)
    labels = [task.labels[i] for i in values.argmax(-1)]
    return Prediction(labels, values, task.labels, *read)


def predict_choices(
    loaded: Loaded,
    contexts: Sequence[str],
    choices: Sequence[Sequence[str]],
    *,
    length: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Probabilities, int]:
    """Which of some texts continues another.

    Args:
        loaded: a model folder fine-tuned on choices.
        contexts: the texts that are continued, N.
        choices: of each, two or more; whole, with what they all begin with.
        length: as for :func:`predict_texts`.
        dtype: arithmetic of the layers.

    Returns:
        The probabilities of each context's choices, and how many contexts or choices were cut.

    Raises:
        ModelError: the model has another head or none, or its output is not finite.
        InputError: a text that is none, or fewer than two choices.
        LengthError: ``length`` is beyond the encoder's positions.
    """
    task = task_of(loaded)
    if not isinstance(task, ChoiceTask):
        raise ModelError(
            f"this model's task is of the kind {task.options.kind!r}, not choice; use `bothways "
            "predict`, or a model fine-tuned with --task.kind choice."
        )
    for n, own in enumerate(choices):
        if len(own) < 2:
            raise InputError(f"text {n + 1} has {len(own)} choices; give two or more.")
    check_segments(loaded.model, pair=True)
    length = choose_length(loaded, length)
    examples = encode_choices(loaded.tokenizer, contexts, choices, length=length)
    outputs = outputs_of(loaded, task, examples, dtype=dtype)
    return probabilities(examples, outputs), examples.cut


def answer_question(
    loaded: Loaded,
    question: str,
    passage: str,
    *,
    length: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[Answer]:
    """Answers to a question in a passage of any length, best first, with probabilities.

    "No answer", with an empty text, is among them if the model was fine-tuned on questions that may
    have none; it is the first where it passes the folder's threshold, and only there.

    Args:
        loaded: a model folder with a span head.
        question: what is asked.
        passage: where the answer is looked for; read in windows if need be.
        length: as for :func:`predict_texts`.
        dtype: arithmetic of the layers.

    Raises:
        ModelError: the model has another head or none, or its output is not finite.
        InputError: something that is no text.
        LengthError: ``length`` is beyond the encoder's positions, or leaves the passage no room.
    """
    task = task_of(loaded)
    if not isinstance(task, SpanTask):
        raise ModelError(
            f"this model's task is of the kind {task.options.kind!r}; answers are found by one "
            "that was fine-tuned on questions (task.kind spans)."
        )
    check_segments(loaded.model, pair=True)
    rows = Questions(Path("question"), [passage], ["1"], [question], [0])
    part = task.encode(loaded.tokenizer, rows, length=choose_length(loaded, length))
    found = task.decode(part, outputs_of(loaded, task, part.examples, dtype=dtype))
    (given,) = task.texts(found)
    return sorted(found[0].answers, key=lambda answer: answer.text != given)


def outputs_of(
    loaded: Loaded, task: Task[Any, Any], examples: Examples, *, dtype: torch.dtype
) -> Outputs:
    """Outputs of a model folder's task head, or of all of an ensemble, averaged.

    Args:
        loaded: of :func:`load_model` or :func:`load_ensemble`.
        task: says what is averaged.
        examples: encoded for that task.
        dtype: arithmetic of the layers.

    Returns:
        float32 [R, C], as :func:`predict_outputs`.

    Raises:
        ModelError: an output is not finite, or a folder of the ensemble cannot be loaded.
    """
    if not isinstance(loaded, Ensemble):
        return predict_outputs(loaded.model, examples, dtype=dtype)
    outputs = [predict_outputs(model, examples, dtype=dtype) for model in loaded.models()]
    return combine(task.loss, outputs, examples)


def predict_outputs(model: Bert, examples: Examples, *, dtype: torch.dtype) -> Outputs:
    """Outputs of the task head, dropout off, in the order of the examples.

    Returns:
        float32 [R, C], before any softmax.

    Raises:
        ModelError: an output is not finite.
    """
    was_training = model.training
    model.eval()
    outputs = np.zeros((len(examples.places), model.task_outputs), dtype=np.float32)
    with torch.inference_mode():
        for indices in length_batches(examples.lengths, PREDICT_TOKENS):
            batch = examples.batch(indices, max_positions=model.config.positions)
            read = read_outputs(model, batch.to(model.device), dtype)
            found = read.float().cpu().numpy()
            for n, rows in zip(indices, np.split(found, batch.bounds[1:-1]), strict=True):
                outputs[examples.rows[n] : examples.rows[n + 1]] = rows
    model.train(was_training)
    if not np.isfinite(outputs).all():
        row = int(np.flatnonzero(~np.isfinite(outputs).all(-1))[0])
        n = int(examples.owners[np.searchsorted(examples.rows, row, side="right") - 1])
        raise ModelError(
            f"the model's output for example {n + 1} is not finite; its weights are damaged, or "
            "training diverged (lower optimizer.lr)."
        )
    return outputs


def read_part(
    loaded: Loaded,
    path: str | Path,
    *,
    labelled: bool,
    options: TaskOptions | None = None,
    length: int | None = None,
) -> tuple[Task[Any, Any], Part[Any]]:
    """A file as a model folder's task reads it.

    Args:
        loaded: a model folder with a task head.
        path: in the task's format.
        labelled: read the labels too.
        options: columns and metrics; those the model was fine-tuned with, if not given.
        length: as for :func:`predict_texts`.

    Raises:
        ModelError: no task head, or not known which columns it was trained on.
        InputError: the file or a line of it cannot be read as asked.
    """
    task = task_of(loaded)
    if options is None and task.needs_columns and not loaded.about.get("options"):
        raise ModelError(
            "the model folder does not say which columns its task has (bothways.json: options), as "
            "folders that `bothways finetune` wrote do; name the task (--task mrpc, or a .yaml "
            "file of its form), or give the texts themselves to `bothways predict`."
        )
    kind, notes = type(task), tuple[str, ...]()
    if options is not None:
        if task.options.kind == "choice":  # how files spell a choice, and not what outputs are
            labels = options.labels or task.options.labels
        else:
            labels, notes = match_labels(task.options.labels, options.labels)
        metrics = options.metrics or task.options.metrics
        own = replace(task.options, labels=labels, metrics=metrics)
        kept = {name: getattr(own, name) for name in _OF_THE_MODEL}
        if loaded.about.get("options"):  # it was fine-tuned here, and knows how it reads
            tagging = {name: getattr(own.tagging, name) for name in _OF_THE_TAGGER}
            if own.tagging.scheme == "none":  # else it is the file's
                tagging["scheme"] = "none"
            kept["tagging"] = replace(options.tagging, **tagging)
        else:
            del kept["spans"]
        task = kind(replace(options, **kept))
    check_segments(loaded.model, pair=task.pair)
    rows = kind.read(Path(path), task.options, labelled=labelled)
    task = kind.define(task.options, rows)
    part = task.encode(loaded.tokenizer, rows, length=choose_length(loaded, length))
    return task, replace(part, notes=(*notes, *part.notes))


def match_labels(
    outputs: Sequence[str], wanted: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a task calls the outputs of a model that may call them otherwise.

    Labels that differ in case alone are the same. Of other names nothing says which is which: they
    are taken in their order, and that is told.

    Args:
        outputs: the model's labels, in the order of its outputs.
        wanted: the task's; the model's own if there are none.

    Returns:
        The labels in the order of the outputs, and notes.

    Raises:
        ModelError: there are more or fewer of them.
    """
    if not wanted or set(wanted) == set(outputs):
        return tuple(outputs), ()
    if len(wanted) != len(outputs):
        raise ModelError(
            f"the model has {len(outputs)} labels ({listed(outputs)}), the task {len(wanted)} "
            f"({listed(wanted)})."
        )
    folded = {label.casefold(): label for label in wanted}
    if {label.casefold() for label in outputs} == folded.keys():
        return tuple(folded[label.casefold()] for label in outputs), ()
    pairs = ", ".join(f"{o!r} as {w!r}" for o, w in zip(outputs, wanted, strict=True))
    return tuple(wanted), (f"labels by their order, for the names say nothing: {pairs}",)


def evaluate_file(
    loaded: Loaded,
    path: str | Path,
    *,
    options: TaskOptions | None = None,
    length: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Measurement:
    """Measure a fine-tuned model on a labelled file.

    Args:
        loaded: a model folder with a task head.
        path: in the task's format.
        options: columns and metrics; those the model was fine-tuned with, if not given.
        length: as for :func:`predict_texts`.
        dtype: arithmetic of the layers.

    Raises:
        ModelError, InputError: see :func:`read_part`.
    """
    task, part = read_part(loaded, path, labelled=True, options=options, length=length)
    outputs = outputs_of(loaded, task, part.examples, dtype=dtype)
    found = task.measure(part, task.decode(part, outputs))
    return replace(found, notes=(*found.notes, *part.notes))


def write_predictions(path: Path, task: Task[Any, Any], part: Part[Any], predictions: Any) -> None:
    """Write predictions as the task has it: a TSV under a header, a line an example, and what forms
    of its own its kind has.

    Args:
        path: replaced whole.
        task: whose predictions they are.
        part: the file predicted.
        predictions: as the task decodes them.

    Raises:
        DiskError: it could not be written.
    """
    task.write(path, part, predictions)


def check_pairs(loaded: Loaded, *, pair: bool) -> None:
    """Refuse pairs where single texts were learned, and the reverse.

    Raises:
        InputError: the model folder says what it was fine-tuned on, and it is the other.
        ModelError: pairs for an encoder with one segment.
    """
    trained = loaded.about.get("pair")
    if trained is not None and trained != pair:
        raise InputError(
            "this model was fine-tuned on pairs of texts; give the second text of each (text_b)."
            if trained
            else "this model was fine-tuned on single texts; leave the second text (text_b) out."
        )
    check_segments(loaded.model, pair=pair)


def check_segments(model: Bert, *, pair: bool) -> None:
    """Refuse pairs for an encoder without a second segment embedding.

    Raises:
        ModelError: that is so.
    """
    if pair and model.config.segments < 2:
        raise ModelError(
            f"this encoder has {model.config.segments} segment embedding; pairs of texts need 2."
        )


def check_length(model: Bert, length: int) -> None:
    """Refuse a length beyond the encoder's positions.

    Raises:
        LengthError: that is so.
    """
    if length > model.config.positions:
        raise LengthError(
            f"a length of {length} tokens; this encoder has positions for "
            f"{model.config.positions}. Choose length {model.config.positions} or less."
        )


def choose_length(loaded: Loaded, length: int | None) -> int:
    """The length asked for, or that of fine-tuning, or the encoder's limit.

    Raises:
        LengthError: beyond the encoder's positions.
    """
    positions = loaded.model.config.positions
    if length is None:
        return min(int(loaded.about.get("length") or positions), positions)
    check_length(loaded.model, length)
    return length
