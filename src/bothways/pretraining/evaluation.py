"""The held-out sequences that models are measured on, during a run and after it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bothways.batch import round_up
from bothways.corpus.store import TokenStore
from bothways.errors import ModelError, StoreError
from bothways.families.heads import NEXT_SENTENCE
from bothways.model.batch import PretrainingBatch
from bothways.model.engine import evaluating, network_of
from bothways.model.model import EncoderModel
from bothways.objectives.kinds import language_model
from bothways.objectives.objective import Objective, PretrainingObjective, Sums, Term
from bothways.pretraining.batches import PhaseBatches
from bothways.pretraining.instances import store_problem, texts_of
from bothways.pretraining.options import PairOptions, PretrainConfig
from bothways.pretraining.start import objective_of
from bothways.runtime.folder import LoadedModel
from bothways.training.options import Phase
from bothways.training.ranks import SINGLE_PROCESS, Ranks
from bothways.training.trainer import total_counts

# --------------------------------------------------------------------------------
# Measurements of the pre-training objectives on held-out sequences.


@dataclass(frozen=True)
class Score:
    """A loss on held-out sequences.

    Attributes:
        term: which.
        loss: mean cross-entropy, nats.
        accuracy: share of targets predicted correctly, or what the term's ``measure`` says.
        baseline: the accuracy of the best constant prediction. Of next sentences it is above a
            half: a chunk of one sentence has no second half and gets a random one, as in the
            original.
        targets: how many targets.
    """

    term: Term
    loss: float
    accuracy: float
    baseline: float
    targets: int


@dataclass(frozen=True)
class HeldOut:
    """Measurements on held-out sequences.

    Attributes:
        scores: of each loss of the objective, that of the language model first.
        sequences: number of sequences.
    """

    scores: tuple[Score, ...]
    sequences: int

    @property
    def words(self) -> Score:
        """The language model's; with a generator, the generator's."""
        return self.scores[0]

    @property
    def second(self) -> Score | None:
        """The other loss, if the objective has one."""
        return self.scores[1] if len(self.scores) > 1 else None

    @property
    def perplexity(self) -> float:
        """exp of the language model's loss; comparable only within one vocabulary."""
        return math.exp(min(self.words.loss, 100))

    def sentence(self) -> str:
        """The measurements as printed in the log."""
        measured = [_measured(score) for score in self.scores]
        measured[0] = f"perplexity {self.perplexity:.1f}, {measured[0]}"
        named = zip(self.scores, measured, strict=True)
        return "held-out " + "; ".join(f"{score.term.title} {text}" for score, text in named)

    def record(self) -> dict[str, float]:
        """For metrics.jsonl."""
        record: dict[str, float] = {}
        for score in self.scores:
            key = f"heldout_{score.term.key}"
            record[f"{key}_loss"] = score.loss
            record.setdefault("heldout_perplexity", self.perplexity)
            record[f"{key}_{score.term.measure}"] = score.accuracy
            if score.term.measure == "accuracy":
                record[f"{key}_baseline"] = score.baseline
        return record


def _measured(score: Score) -> str:
    term = score.term
    if term.measure != "accuracy":
        return f"{term.measure.replace('_', ' ')} {score.accuracy:.4f}"
    return f"accuracy {score.accuracy:.1%} ({term.constant} {score.baseline:.1%})"


@torch.no_grad()
def measure(
    model: EncoderModel,
    batches: Sequence[PretrainingBatch],
    dtype: torch.dtype,
    objective: Objective[PretrainingBatch],
    ranks: Ranks = SINGLE_PROCESS,
) -> HeldOut:
    """Evaluate a model on fixed batches, so that measurements are comparable.

    Args:
        model: with the heads that the batches have targets for.
        batches: sequences of the objective's kind.
        dtype: arithmetic of the layers.
        objective: its losses are measured.
        ranks: the processes that divide the batches; each has all of them.
    """
    device, terms = model.device, objective.terms
    totals = torch.zeros(3 * len(terms), dtype=torch.float64, device=device)
    none = torch.zeros((), device=device)
    with evaluating(model):
        for number in range(ranks.rank, round_up(len(batches), ranks.size), ranks.size):
            # In the last round some processes have no batch of their own, but a sharded model needs
            # all of them to compute.
            batch = batches[number % len(batches)].to(device)
            found = model.compute(objective.sums, batch, dtype)
            if number < len(batches):
                sums = [found.get(term.key, Sums(none, none)) for term in terms]
                parts = [(s.loss, s.right, none if s.ones is None else s.ones) for s in sums]
                totals += torch.stack([x.double() for own in parts for x in own])
    totals = ranks.sum(totals)
    counts = total_counts(objective, batches)
    frequent = objective.most_frequent(batches)
    scores: list[Score] = []
    for term, (loss, right, ones) in zip(terms, totals.view(-1, 3).tolist(), strict=True):
        count = counts[term.key]
        if not count and scores:
            continue  # sequences of one segment have no pairs
        majority = frequent.get(term.key, max(ones, count - ones))
        share = max(count, 1)
        scores.append(Score(term, loss / share, right / share, majority / share, count))
    return HeldOut(tuple(scores), sequences=sum(b.inputs.sequences for b in batches))


_SEED = 20190610  # the same held-out sequences for every run on a corpus
_MICRO_BATCH = 64
_EVALUATION_SEQUENCES = 10_000
_EVALUATION_LENGTH = 128


def heldout_batches(config: PretrainConfig, store: TokenStore, say: Any) -> list[PretrainingBatch]:
    """The held-out micro-batches of a run, the same for every run on this corpus."""
    heldout = _heldout_store(config, store)
    if problem := store_problem(heldout, config.pairs.kind):
        say(f"no held-out evaluation: {problem}")
        return []
    first = config.phases[0]
    micro_batch = min(_MICRO_BATCH, first.micro_batch)
    return evaluation_batches(
        heldout, first.length, config.evaluate.sequences, config, micro_batch=micro_batch
    )


def count_heldout(config: PretrainConfig, store: TokenStore) -> int:
    """How many sequences :func:`heldout_batches` gives."""
    heldout = _heldout_store(config, store)
    if store_problem(heldout, config.pairs.kind):
        return 0
    source = _source(heldout, config.phases[0].length, config, _MICRO_BATCH)
    return min(config.evaluate.sequences, len(source.instances(0)))


def _heldout_store(config: PretrainConfig, store: TokenStore) -> TokenStore:
    folder = config.evaluate.corpus or store.folder
    heldout = TokenStore.open(folder, "heldout")
    if store_problem(heldout, config.pairs.kind) and heldout.fingerprint != store.fingerprint:
        heldout = TokenStore.open(folder)  # another corpus is read whole if nothing is held out
    if heldout.tokenizer.fingerprint != store.tokenizer.fingerprint:
        raise StoreError(
            f"{folder} was built with another vocabulary than {store.folder}; build it again with "
            f"--tokenizer {store.folder}."
        )
    return heldout


def measure_store(
    model: EncoderModel,
    store: TokenStore,
    config: PretrainConfig,
    *,
    length: int,
    sequences: int,
    objective: PretrainingObjective | None = None,
) -> HeldOut:
    """Measure a model on a store, in fp32.

    Args:
        model: with the heads that the objective trains.
        store: of the model's vocabulary.
        config: decides the pairs and the masks.
        objective: default: that of ``config``.
        length: tokens of a sequence.
        sequences: how many; at most one pass over the store.

    Raises:
        StoreError: the store gives no such sequences.
    """
    objective = objective or objective_of(config)
    batches = _source(store, length, config, _MICRO_BATCH, objective).first(sequences)
    return measure(model, batches, torch.float32, objective)


def evaluation_batches(
    store: TokenStore,
    length: int,
    sequences: int,
    config: PretrainConfig,
    *,
    micro_batch: int = _MICRO_BATCH,
) -> list[PretrainingBatch]:
    """Sequences of a store, at most one pass over it, drawn with a seed that no run shares.

    The size of the micro-batches changes results by rounding only.
    """
    return _source(store, length, config, micro_batch).first(sequences)


def _source(
    store: TokenStore,
    length: int,
    config: PretrainConfig,
    micro_batch: int,
    objective: PretrainingObjective | None = None,
) -> PhaseBatches:
    return PhaseBatches(
        store,
        Phase(length=length, batch=micro_batch, micro_batch=micro_batch),
        pairs=config.pairs,
        masking=config.masking,
        objective=objective or objective_of(config),
        seed=_SEED,
    )


def evaluate_pretraining(
    loaded: LoadedModel, corpus: str | Path, *, sequences: int = _EVALUATION_SEQUENCES
) -> str:
    """Evaluate the pre-training objectives, masked LM and next sentence or their variants, on the
    held-out split of a corpus, or on all of it if it has none.

    Args:
        loaded: a model with a masked-LM head.
        corpus: a corpus folder with the same vocabulary.
        sequences: number of sequences, at most one pass over the text, of 128 tokens (or the
            encoder's maximum length).

    Raises:
        ModelError: the model lacks a pre-training head.
        StoreError: the corpus is damaged, too small, or has another vocabulary.
    """
    recipe = _pretraining_recipe(loaded)
    objective = language_model(recipe.pairs.kind, causal=loaded.config.left_to_right)
    head = objective.heads[0]
    if head in loaded.refused:
        raise ModelError(loaded.refused[head])
    if head not in loaded.heads:
        raise ModelError(
            f"{corpus} is a folder, and this model lacks the pre-training heads that evaluating on "
            "a corpus needs; use a model that `bothways pretrain` wrote, or name a labelled file "
            "(.tsv or .jsonl)."
        )
    kind = recipe.pairs.kind
    store = TokenStore.open(corpus, "heldout")
    split = "held-out split"
    if store_problem(store, kind):
        store = TokenStore.open(corpus)
        split = "the training documents, because the held-out split is empty or too small"
    if store.tokenizer.fingerprint != loaded.tokenizer.fingerprint:
        raise StoreError(
            f"{corpus} was built with a different vocabulary than the model's; build it again with "
            "the model folder as --tokenizer."
        )
    length = min(_EVALUATION_LENGTH, loaded.config.positions)
    network = network_of(loaded)
    result = measure_store(
        network, store, recipe, length=length, sequences=sequences, objective=objective
    )
    unit = "sequences" if result.second is None else "pairs"
    line = (
        f"{corpus} ({split}), {result.sequences:,} {unit}, {result.words.targets:,} "
        f"targets: {result.sentence()}"
    )
    if result.second is None:
        return line
    accuracy = result.second.accuracy
    error = (accuracy * (1 - accuracy) / result.sequences) ** 0.5
    return f"{line} (standard error {error:.2%})"


def _pretraining_recipe(loaded: LoadedModel) -> PretrainConfig:
    """The kind of pairs that a model was pre-trained with; if its folder does not record it, the
    paper's, or single segments for a model without a next-sentence head. Masks are the original's
    whatever it was trained with, so that models compare."""
    pairs = PairOptions(kind=loaded.about.get("pairs", "next"))
    if texts_of(pairs.kind) == 2 and NEXT_SENTENCE not in loaded.heads:
        pairs = PairOptions(kind="single")
    return PretrainConfig(pairs=pairs)
