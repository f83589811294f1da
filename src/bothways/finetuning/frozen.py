"""A linear head on an encoder that stays as it is, fitted by scikit-learn.

The head is the last layer of an ordinary one, so the model folder is like any other. It is fitted
on its own input: of classes, labels and scores the mean over a text's tokens, which commutes with
the layer, so that outputs for tokens may be averaged afterwards.

N items (texts, or words of tagging), H features, C outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax, logit

from bothways.errors import ConfigError
from bothways.finetuning.setup import FinetuningData, label_weights
from bothways.model.batch import item_means
from bothways.model.engine import TorchEngine, evaluating, fast_kernels
from bothways.model.heads import OutputHead
from bothways.model.model import EncoderModel
from bothways.runtime.batching import Computed, computed
from bothways.runtime.engine import layer_name
from bothways.tasks.examples import Examples

Features = NDArray[np.float64]

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Inverse strengths of regularisation that are tried, on standardised features."""
_USUAL_STRENGTH = 1e-2  # where a class has too few examples to try
_FOLDS = 3
_TRIED_EXAMPLES = 10_000
_CONSTANT = 1e-6
"""Times the largest deviation: an input of the head that varies less is constant."""
_RIDGE = (1.0, 10.0, 100.0, 1e3, 1e4)


def fit_head(model: EncoderModel, data: FinetuningData, class_weights: Sequence[str]) -> None:
    """Fit the last layer of a model's task head on the training examples, in place.

    Args:
        model: the encoder, with a new head.
        data: the files of the task, encoded.
        class_weights: as for fine-tuning.

    Raises:
        ConfigError: weights of labels that there are not.
    """
    task, examples = data.task, data.train.examples
    weights = label_weights(class_weights, task, data.train)
    x_NH = head_inputs(model, examples, averaged=task.options.reads == "tokens")
    gold = examples.gold
    mean, scale = x_NH.mean(0), x_NH.std(0)
    scale[scale <= _CONSTANT * scale.max()] = 1.0  # dividing by it would make noise a feature
    x_NH = (x_NH - mean) / scale
    if task.loss == "class":
        weight_CH, bias_C = _classes(x_NH, gold, task.outputs, weights)
    elif task.loss == "labels":
        ones = np.ones(task.outputs) if weights is None else weights
        fitted = [
            _classes(x_NH, (gold[:, c] > 0.5).astype(np.int64), 2, np.array([1.0, ones[c]]))
            for c in range(task.outputs)
        ]
        weight_CH = np.stack([w[1] - w[0] for w, _ in fitted])
        bias_C = np.array([b[1] - b[0] for _, b in fitted])
    elif task.loss == "score":
        weight_CH, bias_C = _scores(x_NH, gold.reshape(len(gold), -1).astype(np.float64))
    else:
        raise ConfigError("freeze fits a linear head for labels, scores and tags; leave it out.")
    weight_CH = weight_CH / scale
    bias_C = bias_C - weight_CH @ mean
    assert isinstance(model.task_head, OutputHead)
    with torch.no_grad():
        output = model.task_head.output
        output.weight.copy_(torch.from_numpy(weight_CH))
        output.bias.copy_(torch.from_numpy(bias_C))


def head_inputs(model: EncoderModel, examples: Examples, *, averaged: bool) -> Features:
    """The inputs of the last layer of a model's task head, float64 [N, H], in fp32 arithmetic.

    Args:
        model: the encoder with its head.
        examples: encoded for the task.
        averaged: of each item the mean over the tokens that are read; if not, each token's.
    """
    head, last = model.task_head, model.config.layers
    assert isinstance(head, OutputHead)
    rows = len(examples) if averaged else len(examples.read_positions)
    found = np.zeros((rows, head.output.in_features))
    engine = TorchEngine(model)

    def compute(indices: NDArray[np.int64]) -> Computed[np.float32]:
        batch = examples.batch(indices, max_positions=model.config.positions)
        states = engine.compute(batch.inputs, layers=(last,))[layer_name(last)]
        x_RH = torch.from_numpy(states[batch.read_positions]).to(model.device)
        x_RH = head.transformed(x_RH)
        if averaged:
            return item_means(x_RH, batch.bounds).cpu().numpy(), np.arange(len(indices) + 1)
        return x_RH.cpu().numpy(), batch.bounds

    rows_of = np.arange(rows + 1) if averaged else examples.output_bounds
    with fast_kernels(model), evaluating(model), torch.no_grad():
        for n, vectors in computed(engine, examples.lengths, compute):
            found[rows_of[n] : rows_of[n + 1]] = vectors
    return found


def _classes(
    x_NH: Features, gold: NDArray[np.int64], classes: int, weights: NDArray[np.floating] | None
) -> tuple[Features, Features]:
    """Weight [C, H] and bias [C] of a logistic regression; classes that no example has get the
    frequency of half an example."""
    gold = gold.astype(np.int64)
    of_row = np.ones(len(gold)) if weights is None else weights.astype(np.float64)[gold]
    counts = np.bincount(gold, minlength=classes)
    present = np.flatnonzero(counts)
    weight_CH = np.zeros((classes, x_NH.shape[1]))
    bias_C = np.array([logit((n + 0.5) / (len(gold) + 1)) for n in counts])
    if len(present) > 1:
        strength = _chosen_strength(x_NH, gold, of_row, counts)
        model = _logistic(strength).fit(x_NH, gold, sample_weight=of_row)
        weight, bias = model.coef_, model.intercept_
        if len(present) == 2:
            weight, bias = np.vstack([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
        weight_CH[present] = weight
        bias_C = np.where(counts > 0, 0.0, bias_C - bias_C[present].max())
        bias_C[present] = bias
    return weight_CH, bias_C


def _logistic(strength: float) -> Any:
    from sklearn.linear_model import LogisticRegression  # slow import

    return LogisticRegression(C=strength, max_iter=1000)


def _chosen_strength(
    x_NH: Features, gold: NDArray[np.int64], of_row: Features, counts: NDArray[np.int64]
) -> float:
    """The inverse strength with the lowest weighted loss in cross-validation within the training
    examples."""
    from sklearn.model_selection import StratifiedKFold  # slow import

    if counts[counts > 0].min() < _FOLDS:
        return _USUAL_STRENGTH
    some = np.arange(len(gold))
    if len(gold) > _TRIED_EXAMPLES:
        some = np.sort(np.random.default_rng(0).permutation(len(gold))[:_TRIED_EXAMPLES])
        if np.bincount(gold[some], minlength=len(counts))[counts > 0].min() < _FOLDS:
            return _USUAL_STRENGTH
    x_NH, gold, of_row = x_NH[some], gold[some], of_row[some]
    losses = dict.fromkeys(STRENGTHS, 0.0)
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=0)
    for train, dev in folds.split(x_NH, gold):
        for strength in STRENGTHS:
            model = _logistic(strength).fit(x_NH[train], gold[train], sample_weight=of_row[train])
            scores = model.decision_function(x_NH[dev])
            if scores.ndim == 1:
                scores = np.stack([np.zeros_like(scores), scores], 1)
            log_p = log_softmax(scores, axis=-1)
            column = np.searchsorted(model.classes_, gold[dev])
            losses[strength] -= float((of_row[dev] * log_p[np.arange(len(dev)), column]).sum())
    return min(losses, key=lambda strength: losses[strength])


def _scores(x_NH: Features, gold_NC: Features) -> tuple[Features, Features]:
    """Weight [C, H] and bias [C] of a ridge regression, its strength chosen by leaving out one
    example at a time."""
    from sklearn.linear_model import RidgeCV  # slow import

    model = RidgeCV(alphas=_RIDGE).fit(x_NH, gold_NC)
    outputs = gold_NC.shape[1]
    return model.coef_.reshape(outputs, -1), np.asarray(model.intercept_).reshape(outputs)
