"""Predictions of a model folder's task head.

N texts, C outputs of the head.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from bothways.config import TaskOptions
from bothways.errors import InputError, LengthError, ModelError
from bothways.files import write_text
from bothways.model.folder import Loaded
from bothways.model.heads import Bert
from bothways.tasks.examples import PREDICT_TOKENS, Examples, encode_examples, length_batches
from bothways.tasks.metrics import Measurement
from bothways.tasks.readers import read_rows
from bothways.tasks.task import Task, define_task


@dataclass(frozen=True)
class Prediction:
    """What a task head says about texts.

    Attributes:
        labels: the most probable label of each text; empty for regression.
        values: float64 [N, C]; probabilities in the order of ``names``, or scores, [N, 1].
        names: what the columns of ``values`` are: the labels, or "score".
        cut: texts that lost tokens to the length limit.
        length: that limit, in tokens.
    """

    labels: list[str]
    values: NDArray[np.float64]
    names: tuple[str, ...]
    cut: int
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
        loaded: a model folder with a task head.
        a: the (first) texts.
        b: the second texts, for a model fine-tuned on pairs.
        length: longest sequence in tokens. If not given, the length the model was fine-tuned with,
            so that its measured scores apply; the encoder's limit where that is not known.
        dtype: arithmetic of the layers.

    Raises:
        ModelError: the model has no task head, or its output is not finite.
        InputError: a text that is none, pairs for a model of single texts or the reverse.
        LengthError: ``length`` is beyond the encoder's positions.
    """
    names, regression = _outputs(loaded)
    check_pairs(loaded, pair=b is not None)
    length = _length(loaded, length)
    examples = encode_examples(loaded.tokenizer, a, b, length=length)
    logits_NC = predict_examples(loaded.model, examples, dtype=dtype).astype(np.float64)
    if regression:
        return Prediction([], logits_NC, names, examples.cut, length)
    values = softmax(logits_NC, axis=-1)
    labels = [names[i] for i in values.argmax(-1)]
    return Prediction(labels, values, names, examples.cut, length)


def predict_examples(model: Bert, examples: Examples, *, dtype: torch.dtype) -> NDArray[np.float32]:
    """Outputs of the task head, dropout off, in the order of the examples.

    Returns:
        float32 [N, C], before any softmax.

    Raises:
        ModelError: an output is not finite.
    """
    was_training = model.training
    model.eval()
    outputs = np.zeros((len(examples), classes_of(model)), dtype=np.float32)
    with torch.inference_mode():
        for indices in length_batches(examples.lengths, PREDICT_TOKENS):
            inputs = examples.inputs(indices, max_positions=model.config.positions)
            (x_BH,) = model.encoder.read(inputs.to(model.device), inputs.starts, dtype=dtype)
            logits = model.class_logits(x_BH)
            outputs[indices] = logits.float().cpu().numpy()
    model.train(was_training)
    if not np.isfinite(outputs).all():
        n = int(np.flatnonzero(~np.isfinite(outputs).all(-1))[0])
        raise ModelError(
            f"the model's output for example {n + 1} is not finite; its weights are damaged, or "
            "training diverged (lower optimizer.lr)."
        )
    return outputs


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
        path: TSV or JSONL.
        options: columns and metrics; those the model was fine-tuned with, if not given.
        length: as for :func:`predict_texts`.
        dtype: arithmetic of the layers.

    Raises:
        ModelError: no task head, or not known which columns it was trained on.
        InputError: the file or a line of it cannot be read as asked.
    """
    names, regression = _outputs(loaded)
    options = dataclasses.replace(
        options or stored_options(loaded),
        kind="regression" if regression else "classification",
        labels=() if regression else names,
    )
    rows = read_rows(path, options, labelled=True)
    task = define_task(options, rows)
    check_pairs(loaded, pair=task.pair)
    targets = task.targets(rows)
    length = _length(loaded, length)
    examples = encode_examples(loaded.tokenizer, rows.a, rows.b, length=length)
    logits_NC = predict_examples(loaded.model, examples, dtype=dtype)
    found = task.measure(task.predictions(logits_NC), targets)
    if examples.cut:
        note = f"{examples.cut:,} of {len(rows):,} examples were cut to {length} tokens"
        found = dataclasses.replace(found, notes=(*found.notes, note))
    return found


def write_predictions(
    path: Path, task: Task, logits_NC: NDArray[np.float32], gold: NDArray[Any] | None = None
) -> None:
    """Write a TSV of one line an example: index from 0, prediction, gold if known, probabilities.

    Args:
        path: replaced whole.
        task: whose labels they are.
        logits_NC: float32 [N, C], the head's outputs.
        gold: classes or scores [N].

    Raises:
        DiskError: it could not be written.
    """
    regression = task.kind == "regression"
    shown = [[] if regression else [f"p({label})" for label in task.labels]]
    values = logits_NC if regression else softmax(logits_NC.astype(np.float64), axis=-1)
    shown += [[] if regression else [f"{p:.6f}" for p in row] for row in values]

    def name(value: Any) -> str:
        return f"{float(value):.6g}" if regression else task.labels[int(value)]

    columns = [["index", *map(str, range(len(values)))]]
    columns.append(["prediction", *map(name, task.predictions(logits_NC))])
    if gold is not None:
        columns.append(["gold", *map(name, gold)])
    lines = ["\t".join([*row, *extra]) for *row, extra in zip(*columns, shown, strict=True)]
    write_text(path, "\n".join(lines) + "\n")


def stored_options(loaded: Loaded) -> TaskOptions:
    """The columns, header and metrics a model was fine-tuned with.

    Raises:
        ModelError: the folder does not say.
    """
    stored: Any = loaded.about.get("options")
    try:
        return TaskOptions(**{**stored, "metrics": tuple(stored["metrics"])})
    except (TypeError, KeyError):
        raise ModelError(
            "the model folder does not say which columns its task has (bothways.json: options), as "
            "folders that `bothways finetune` wrote do; give the texts themselves to "
            "`bothways predict`, or fine-tune from this folder."
        ) from None


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


def _outputs(loaded: Loaded) -> tuple[tuple[str, ...], bool]:
    """Names of the head's outputs, and whether they are scores."""
    if loaded.model.classifier is None:
        raise ModelError(
            "this model folder has no classification or regression head; fine-tune it first "
            "(`bothways finetune`), then predict with the folder that writes."
        )
    classes = classes_of(loaded.model)
    if loaded.about.get("kind") == "regression":
        return ("score",), True
    names = tuple(loaded.about.get("labels") or (f"LABEL_{i}" for i in range(classes)))
    if len(names) != classes:
        raise ModelError(
            f"bothways.json names {len(names)} labels, but the head has {classes} outputs; the "
            "folder's files do not belong together."
        )
    return names, False


def classes_of(model: Bert) -> int:
    """C: outputs of the task head; 0 without one."""
    return 0 if model.classifier is None else model.classifier.output.out_features


def _length(loaded: Loaded, length: int | None) -> int:
    positions = loaded.model.config.positions
    if length is None:
        return min(int(loaded.about.get("length") or positions), positions)
    check_length(loaded.model, length)
    return length
