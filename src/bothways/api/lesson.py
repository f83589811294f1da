"""One step of pre-training to look at: a batch, its targets, the losses, the gradients."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bothways.api.corpus import Corpus, store_of
from bothways.api.model import Model
from bothways.config.fields import require_count
from bothways.config.parsing import options_from
from bothways.corpus.store import TokenStore
from bothways.errors import ConfigError, LengthError, type_of
from bothways.io import html
from bothways.io.hub import model_folder
from bothways.pretraining.options import PretrainConfig
from bothways.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bothways.model.batch import PretrainingBatch
    from bothways.model.model import EncoderModel
    from bothways.objectives.objective import PretrainingObjective


@dataclass(frozen=True)
class Target:
    """A token to predict.

    Attributes:
        sequence: its sequence in the batch, from 0.
        position: its place in the sequence.
        shown: the token that the encoder sees there.
        original: the token to predict.
    """

    sequence: int
    position: int
    shown: str
    original: str


@dataclass(frozen=True, repr=False)
class TrainingStep:
    """A step of pre-training, computed and not yet taken.

    Attributes:
        tokens: the tokens of each sequence as the encoder sees them.
        ids: the same as numbers.
        segments: of each token, 0 or 1.
        targets: the tokens to predict.
        follows: for each sequence of a pair, whether the second text follows the first; None where
            the model has no such loss.
        losses: by name, each a mean over its targets, and the accuracies.
        loss: their weighed sum, which is what training lowers.
        gradients: of the loss, by the name of the weights, in their shapes.
    """

    tokens: list[list[str]]
    ids: list[list[int]]
    segments: list[list[int]]
    targets: list[Target]
    follows: list[bool] | None
    losses: dict[str, float]
    loss: float
    gradients: dict[str, NDArray[np.float32]]
    _network: Any = field(default=None, repr=False)

    @property
    def gradient_norm(self) -> float:
        """The length of the gradient as one vector, which training clips to 1."""
        squares = sum(float((g.astype(np.float64) ** 2).sum()) for g in self.gradients.values())
        return math.sqrt(squares)

    def descend(self, rate: float) -> None:
        """Take the step: move the weights of the model against the gradient, ``rate`` times its
        length (plain gradient descent; training uses Adam).

        Raises:
            ConfigError: ``rate`` is no number.
        """
        if not isinstance(rate, Real):
            raise ConfigError(f"rate is {rate!r}; it must be a number, such as 0.1.")
        import torch

        with torch.no_grad():
            for name, parameter in self._network.named_parameters():
                if name in self.gradients:
                    parameter -= rate * torch.from_numpy(self.gradients[name]).to(parameter)

    def __repr__(self) -> str:
        return "\n".join([*self._summary(), *(" ".join(self._marked(n)) for n in self._shown)])

    def _repr_html_(self) -> str:
        at = {(t.sequence, t.position): t for t in self.targets}
        parts = [html.paragraph(line) for line in self._summary()]
        for n in self._shown:
            line = []
            for place, token in enumerate(self.tokens[n]):
                target = at.get((n, place))
                below = "" if target is None else target.original
                note = f"id {self.ids[n][place]}, segment {self.segments[n][place]}"
                line.append((token, below, note, None if target is None else 1))
            parts.append(html.tokens(line))
        return html.fragment("One step of pre-training", *parts)

    @property
    def _shown(self) -> range:
        return range(min(4, len(self.tokens)))

    def _marked(self, sequence: int) -> list[str]:
        marked = [*self.tokens[sequence]]
        for target in self.targets:
            if target.sequence == sequence:
                marked[target.position] += f"{{{target.original}}}"
        return marked

    def _summary(self) -> list[str]:
        losses = ", ".join(f"{name} {value:.4f}" for name, value in self.losses.items())
        return [
            f"{len(self.tokens)} sequences, {sum(map(len, self.tokens)):,} tokens, "
            f"{len(self.targets):,} of them to predict",
            f"loss {self.loss:.4f} ({losses}); gradient norm {self.gradient_norm:.3f}",
        ]


def new_model(tokenizer: Any, size: str = "tiny", *, seed: int = 0, **options: Any) -> Model:
    """An encoder with random weights and the heads of pre-training.

    Args:
        tokenizer: a :class:`Tokenizer`, its folder, or a :class:`Corpus` or :class:`Model` that has
            one.
        size: ``tiny``, ``mini``, ``small`` ... as for `bothways pretrain`.
        seed: of the weights.
        **options: those of `bothways pretrain`: ``layers``, ``hidden``, ``heads`` ...,
            ``pairs_kind`` (``next``, ``full`` ...), ``objective="left_to_right"``.

    Raises:
        ConfigError: an option that there is not, or out of range.
    """
    given = {"seed": seed, "size": size, "phases": [{"length": 32}], **options}
    config = options_from(PretrainConfig, given)
    if isinstance(tokenizer, Corpus | Model):
        tokenizer = tokenizer.tokenizer
    elif isinstance(tokenizer, str | os.PathLike):
        tokenizer = Tokenizer.from_folder(model_folder(os.fspath(tokenizer)))
    elif not isinstance(tokenizer, Tokenizer):
        raise ConfigError(
            f"tokenizer is {type_of(tokenizer)}; give a tokenizer, its folder, a corpus or a model."
        )
    from bothways.model.engine import as_loaded
    from bothways.pretraining.start import fitted_shape
    from bothways.pretraining.start import new_model as make

    network = make(config, fitted_shape(config, tokenizer))
    return Model(as_loaded(network.eval(), tokenizer, {"made_by": "bothways.new_model"}))


def pretraining_step(
    model: Model,
    corpus: Any,
    *,
    step: int = 0,
    batch: int = 8,
    length: int | None = None,
    seed: int = 0,
    dropout: bool = False,
    **options: Any,
) -> TrainingStep:
    """What one step of pre-training computes: a batch, its targets, the losses, the gradients.

    Nothing is changed; :meth:`TrainingStep.descend` takes the step.

    Args:
        model: with the heads of pre-training: :func:`new_model`, or a pre-trained one.
        corpus: a :class:`Corpus` or its folder, made with the model's tokenizer.
        step: which batch of the training, from 0.
        batch: sequences in it.
        length: limit of a sequence in tokens; None: 64, or the encoder's positions if fewer.
        seed: of pairs, masks and order.
        dropout: compute with dropout, as training does.
        **options: ``objective``, ``masking_rate``, ``pairs_kind`` ..., as for `bothways corpus
            show`.

    Raises:
        ConfigError: the tokenizers differ, the objective needs attention in the other direction,
            the model lacks a head, or something is of another type.
        LengthError: ``length`` is beyond the encoder's positions.
        StoreError: the corpus cannot be read.
    """
    if not isinstance(model, Model):
        raise ConfigError(
            f"model is {type_of(model)}; give what bw.new_model or bw.load gives, and the corpus "
            "after it."
        )
    require_count("batch", batch)
    positions = model.loaded.config.positions
    length = min(64, positions) if length is None else length
    require_count("length", length)
    if length > positions:
        raise LengthError(f"length {length} exceeds the {positions} positions of this encoder.")
    phase = {"length": length, "batch": batch, "micro_batch": batch}
    given = {"phases": [phase], "seed": seed, "positions": max(length, 8), **options}
    config = options_from(PretrainConfig, given)
    store = TokenStore.open(store_of(corpus))
    if store.tokenizer.fingerprint != model.tokenizer.fingerprint:
        raise ConfigError(
            "corpus and model have different tokenizers, so the ids would mean other tokens; build "
            "the corpus with the model's tokenizer, or make the model with the corpus's."
        )
    from bothways.pretraining.batches import PhaseBatches
    from bothways.pretraining.start import check_direction, objective_of

    remedy = "Give bw.new_model the same objective"
    check_direction(config, model.loaded.config, "the model", remedy)
    objective = objective_of(config)
    source = PhaseBatches(
        store,
        config.phases[0],
        pairs=config.pairs,
        masking=config.masking,
        objective=objective,
        seed=seed,
    )
    (made,) = source.micro_batches(step)
    losses, loss, gradients = _gradients(model.network, made, objective, dropout=dropout)
    return _described(made, store.tokenizer, losses, loss, gradients, model.network)


def _gradients(
    network: EncoderModel,
    batch: PretrainingBatch,
    objective: PretrainingObjective,
    *,
    dropout: bool,
) -> tuple[dict[str, float], float, dict[str, NDArray[np.float32]]]:
    import torch

    from bothways.model.device import borrowed_process
    from bothways.training.trainer import step_loss

    if missing := [name for name in objective.heads if name not in network.heads]:
        raise ConfigError(
            f"the model has no head {', '.join(missing)}; use bw.new_model, or a pre-trained "
            "model, or pairs={'kind': 'full'} for one without a second loss."
        )
    modes = {module: module.training for module in network.modules()}
    frozen = {p: p.requires_grad for p in network.parameters()}
    with borrowed_process(), torch.enable_grad():
        network.train(dropout)
        try:
            for parameter in network.parameters():
                parameter.requires_grad_(True)
            own = dict(network.named_parameters())
            value, stats = step_loss([batch], objective)(network, batch, torch.float32)
            found = torch.autograd.grad(value, list(own.values()), allow_unused=True)
        finally:
            for module, mode in modes.items():
                module.training = mode
            for parameter, needs in frozen.items():
                parameter.requires_grad_(needs)
    gradients = {
        name: g.detach().float().numpy().copy()
        for name, g in zip(own, found, strict=True)
        if g is not None
    }
    losses = {name: float(value) for name, value in stats.items()}
    return losses, float(value.detach()), gradients


def _described(
    batch: PretrainingBatch,
    tokenizer: Tokenizer,
    losses: Mapping[str, float],
    loss: float,
    gradients: dict[str, NDArray[np.float32]],
    network: EncoderModel,
) -> TrainingStep:
    bounds = batch.inputs.bounds.tolist()
    places = list(pairwise(bounds))
    ids = [batch.inputs.tokens[start:stop].tolist() for start, stop in places]
    segments = [batch.inputs.segments[start:stop].tolist() for start, stop in places]
    tokens = [[tokenizer.pieces[id] for id in row] for row in ids]
    targets = []
    count = batch.masked.count
    for at, original in zip(
        batch.masked.positions[:count].tolist(), batch.masked.ids[:count].tolist(), strict=True
    ):
        sequence = int(np.searchsorted(batch.inputs.bounds, at, side="right")) - 1
        position = at - bounds[sequence]
        shown = tokens[sequence][position]
        targets.append(Target(sequence, position, shown, tokenizer.pieces[original]))
    labels = batch.random_next
    follows = None if labels is None else [label == 0 for label in labels.tolist()]
    return TrainingStep(
        tokens, ids, segments, targets, follows, dict(losses), loss, gradients, network
    )
