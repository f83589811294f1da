"""The held-out sequences that a run is measured on."""

from __future__ import annotations

from typing import Any

from bothways.config import Phase, PretrainConfig
from bothways.corpus.store import TokenStore
from bothways.errors import StoreError
from bothways.model.batch import PretrainingBatch
from bothways.pretraining.batches import PairBatches
from bothways.pretraining.instances import store_problem

_EVALUATION_SEED = 20190610  # held-out pairs are the same for every run on a corpus


_MOST = 64  # sequences of a micro-batch


def heldout_batches(config: PretrainConfig, store: TokenStore, say: Any) -> list[PretrainingBatch]:
    """The held-out micro-batches of a run, the same for every run on this corpus."""
    folder = config.evaluate.corpus or store.folder
    heldout, kind = TokenStore.open(folder, "heldout"), config.pairs.kind
    if store_problem(heldout, kind) and heldout.fingerprint != store.fingerprint:
        heldout = TokenStore.open(folder)  # a corpus built for measuring need not be split
    if heldout.tokenizer.fingerprint != store.tokenizer.fingerprint:
        raise StoreError(
            f"{folder} was built with another vocabulary than {store.folder}; build it again with "
            f"--tokenizer {store.folder}."
        )
    if problem := store_problem(heldout, kind):
        say(f"no held-out evaluation: {problem}")
        return []
    first = config.phases[0]
    sequences, most = config.evaluate.sequences, min(_MOST, first.micro_batch)
    return evaluation_batches(heldout, first.length, sequences, config, micro_batch=most)


def evaluation_batches(
    store: TokenStore,
    length: int,
    sequences: int,
    config: PretrainConfig,
    *,
    micro_batch: int = _MOST,
) -> list[PretrainingBatch]:
    """This many sequences of a store, at most one pass over it, drawn by a seed of their own. In
    how large micro-batches they are computed changes results by rounding alone."""
    source = PairBatches(
        store,
        Phase(length=length, batch=micro_batch, micro_batch=micro_batch),
        pairs=config.pairs,
        masking=config.masking,
        seed=_EVALUATION_SEED,
    )
    return source.first(sequences)
