"""The held-out sequences that models are measured on, during a run and after it."""

from __future__ import annotations

from typing import Any

import torch

from bothways.config import Phase, PretrainConfig
from bothways.corpus.store import TokenStore
from bothways.errors import StoreError
from bothways.model.batch import PretrainingBatch
from bothways.model.bert import Bert
from bothways.pretraining.batches import PairBatches
from bothways.pretraining.instances import store_problem
from bothways.pretraining.objective import HeldOut, measure

_SEED = 20190610  # the same held-out sequences for every run on a corpus
_MICRO_BATCH = 64


def heldout_batches(config: PretrainConfig, store: TokenStore, say: Any) -> list[PretrainingBatch]:
    """The held-out micro-batches of a run, the same for every run on this corpus."""
    folder = config.evaluate.corpus or store.folder
    heldout, kind = TokenStore.open(folder, "heldout"), config.pairs.kind
    if store_problem(heldout, kind) and heldout.fingerprint != store.fingerprint:
        heldout = TokenStore.open(folder)  # another corpus is read whole if nothing is held out
    if heldout.tokenizer.fingerprint != store.tokenizer.fingerprint:
        raise StoreError(
            f"{folder} was built with another vocabulary than {store.folder}; build it again with "
            f"--tokenizer {store.folder}."
        )
    if problem := store_problem(heldout, kind):
        say(f"no held-out evaluation: {problem}")
        return []
    first = config.phases[0]
    return evaluation_batches(
        heldout,
        first.length,
        config.evaluate.sequences,
        config,
        micro_batch=min(_MICRO_BATCH, first.micro_batch),
    )


def measure_store(
    model: Bert, store: TokenStore, config: PretrainConfig, *, length: int, sequences: int
) -> HeldOut:
    """Measure a model on a store, in fp32.

    Args:
        model: with the heads that ``config`` trains.
        store: of the model's vocabulary.
        config: decides the pairs and the masks.
        length: tokens of a sequence.
        sequences: how many; at most one pass over the store.

    Raises:
        StoreError: the store gives no such sequences.
    """
    batches = evaluation_batches(store, length, sequences, config)
    return measure(model, batches, torch.float32, config.pairs.kind)


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
    source = PairBatches(
        store,
        Phase(length=length, batch=micro_batch, micro_batch=micro_batch),
        pairs=config.pairs,
        masking=config.masking,
        seed=_SEED,
    )
    return source.first(sequences)
