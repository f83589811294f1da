"""Integrated gradients: what each token contributes to a prediction (Sundararajan et al. 2017).

S copies of a text, T its tokens, E width of the embeddings, N rows of outputs, C outputs.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bothways.config.fields import require_count
from bothways.model.batch import Inputs, move
from bothways.model.encoder import Encoder
from bothways.model.engine import evaluating, exact_fp32, network_of
from bothways.model.model import EncoderModel
from bothways.runtime.folder import LoadedModel
from bothways.runtime.inspection import GRADIENTS, Attribution, Question, ask, refuse_ensemble

_TOGETHER = 1024  # tokens of copies that are computed at a time: all their activations are kept


def integrated_gradients(
    loaded: LoadedModel,
    a: str,
    b: str | None = None,
    *,
    target: str | None = None,
    steps: int = 50,
) -> Attribution:
    """What each token contributes to an output, by gradients along the straight line of token
    embeddings from those of hidden tokens to the text's, in fp32.

    The line is sampled at the points of Gauss and Legendre.

    Args:
        loaded: a model folder that torch's engine computes.
        a, b, target: as for :func:`bothways.runtime.inspection.ask`.
        steps: points on the line.

    Raises:
        ConfigError: another engine computes the model, or fewer than one step.
        ModelError, InputError: as :func:`bothways.runtime.inspection.ask`; an ensemble.
    """
    require_count("steps", steps)
    refuse_ensemble(loaded)
    network = network_of(loaded)
    asked = ask(loaded, a, b, target)
    own = asked.own
    ids = torch.tensor([asked.encoding.ids, asked.hidden(own)])
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    shares = torch.tensor((nodes + 1) / 2, dtype=torch.float32)
    device = network.device
    encoder = _for_gradients(network.encoder)
    with evaluating(network), exact_fp32():
        with torch.no_grad():
            rows_2TE = network.encoder.embeddings.tokens(ids.to(device)).float()
            ends = _outputs(network, encoder, asked, rows_2TE)
        there, blank = rows_2TE.detach().clone()
        total = torch.zeros_like(there)
        at_a_time = max(1, _TOGETHER // len(asked.encoding))
        halves = torch.tensor(weights / 2, dtype=torch.float32)  # the line is half of [-1, 1]
        parts = zip(torch.split(shares, at_a_time), torch.split(halves, at_a_time), strict=True)
        for part, weight in parts:
            share = move(part, device)[:, None, None]
            rows = (blank + share * (there - blank)).requires_grad_()
            (gradient,) = torch.autograd.grad(_outputs(network, encoder, asked, rows).sum(), rows)
            total += (move(weight, device)[:, None, None] * gradient).sum(0)
        scores_T = ((there - blank) * total).sum(-1).double().cpu().numpy()
    output, without = ends.double().tolist()
    delta = float(scores_T.sum() - (output - without))
    return asked.answer(scores_T[own], GRADIENTS, output, without, loaded.tokenizer, delta)


def _outputs(network: EncoderModel, encoder: Encoder, asked: Question, rows_STE: Tensor) -> Tensor:
    """The output that is explained, [S], of copies of the text with these token embeddings."""
    copies, count = len(rows_STE), len(asked.encoding)
    rows = rows_STE.flatten(0, 1)
    examples = asked.examples([asked.encoding.ids] * copies)
    batch = examples.batch(np.arange(copies), max_positions=network.config.positions)
    inputs = Inputs.of(batch.inputs).to(network.device)
    at = move(torch.from_numpy(batch.read_positions), network.device)
    inputs = replace(inputs, embedded=F.pad(rows, (0, 0, 0, len(inputs.tokens) - len(rows))))
    vectors = network.task_vectors(inputs, at, encoder=encoder)
    outputs_RC = network.task_logits(vectors).float()
    if len(outputs_RC) != copies:  # every token is read, and they are averaged
        outputs_RC = outputs_RC.view(copies, count, -1).mean(1)
    own = outputs_RC[:, asked.column]
    return own - outputs_RC[:, list(asked.others)].logsumexp(-1) if asked.others else own


def _for_gradients(encoder: Encoder) -> Encoder:
    """The same encoder; weights that were laid out for inference, of which torch gives no
    gradients, are copies."""
    if not any(parameter.is_inference() for parameter in encoder.layers.parameters()):
        return encoder
    made = copy.copy(encoder)
    made._modules = {**encoder._modules, "layers": copy.deepcopy(encoder.layers)}
    return made
