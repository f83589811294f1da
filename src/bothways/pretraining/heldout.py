"""The held-out sequences that a run is measured on."""

from __future__ import annotations

from typing import Any

from bothways.config import Phase, PretrainConfig
from bothways.corpus.store import TokenStore
from bothways.errors import StoreError
from bothways.model.batch import PretrainingBatch
from bothways.pretraining.batches import PairBatches
from bothways.pretraining.plan import unfit

_EVALUATION_SEED = 20190610  # held-out pairs are the same for every run on a corpus


def heldout_batches(config: PretrainConfig, store: TokenStore, say: Any) -> list[PretrainingBatch]:
    """The held-out micro-batches of a run, the same for every run on this corpus."""
    folder = config.evaluate.corpus or store.folder
    heldout, kind = TokenStore.open(folder, "heldout"), config.pairs.kind
    if unfit(heldout, kind) and heldout.fingerprint != store.fingerprint:
        heldout = TokenStore.open(folder)  # a corpus built for measuring need not be split
    if heldout.tokenizer.fingerprint != store.tokenizer.fingerprint:
        raise StoreError(
            f"{folder} was built with another vocabulary than {store.folder}; build it again with "
            f"--tokenizer {store.folder}."
        )
    if problem := unfit(heldout, kind):
        say(f"no held-out evaluation: {problem}")
        return []
    return evaluation_batches(heldout, config.phases[0].length, config.evaluate.sequences, config)


def evaluation_batches(
    store: TokenStore, length: int, sequences: int, config: PretrainConfig
) -> list[PretrainingBatch]:
    """This many sequences of a store, at most one pass over it, in micro-batches of 64, drawn by a
    seed of their own."""
    source = PairBatches(
        store,
        Phase(length=length, batch=64, micro_batch=64),
        pairs=config.pairs,
        masking=config.masking,
        seed=_EVALUATION_SEED,
    )
    return source.first(sequences)
