"""Pre-trained models on held-out text: the same sequences and masks for every row of a table."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from bothways.config.fields import free
from bothways.corpus.store import TokenStore
from bothways.model.device import borrowed_process, choose_device, set_threads
from bothways.model.engine import load_network
from bothways.pretraining.evaluation import measure_store
from bothways.pretraining.options import MaskOptions, PairOptions, PretrainConfig


@dataclass(frozen=True)
class HeldOutOptions:
    """What is measured.

    Attributes:
        model: a pre-trained model.
        corpus: a corpus folder; its held-out part is read.
        sequences: at most this many.
        length: of a sequence, in tokens.
        pairs: what a sequence is made of.
        masking: what is predicted.
    """

    model: str = free("")
    corpus: str = free("")
    sequences: int = 4096
    length: int = 128
    pairs: PairOptions = field(default_factory=PairOptions)
    masking: MaskOptions = field(default_factory=MaskOptions)
    device: Literal["auto", "cpu", "cuda"] = free("auto")
    threads: int = free(0)


@borrowed_process()
def measure_heldout(options: HeldOutOptions) -> dict[str, float]:
    """Scores of a model on the held-out part of a corpus, computed in fp32.

    Returns:
        ``loss`` (nats per predicted piece), ``perplexity``, ``accuracy``, ``baseline`` (that of
        always predicting the most frequent piece), ``targets``, ``sequences``,
        ``bits_per_character``, and for pairs ``pair_accuracy`` and ``pair_baseline``. Bits per
        character are the mean loss of a piece times the text's pieces per character.

    Raises:
        StoreError, ModelError: the folders cannot be read, or do not fit the options.
    """
    set_threads(options.threads)
    store = TokenStore.open(options.corpus, "heldout")
    model = load_network(options.model).to(choose_device(options.device).torch)
    recipe = PretrainConfig(pairs=options.pairs, masking=options.masking)
    measured = measure_store(
        model, store, recipe, length=options.length, sequences=options.sequences
    )
    scores = {
        "loss": measured.words.loss,
        "perplexity": measured.perplexity,
        "accuracy": measured.words.accuracy,
        "baseline": measured.words.baseline,
        "targets": measured.words.targets,
        "sequences": measured.sequences,
        "bits_per_character": measured.words.loss / math.log(2) * pieces_per_character(store),
    }
    if measured.second is not None:
        scores["pair_accuracy"] = measured.second.accuracy
        scores["pair_baseline"] = measured.second.baseline
    return scores


def pieces_per_character(store: TokenStore) -> float:
    """Of the text as the vocabulary sees it: cleaned, with a space before each word and mark."""
    tokens, tokenizer = store.tokens_between(0, store.tokens), store.tokenizer
    counts = np.bincount(tokens, minlength=tokenizer.vocab_size)
    lengths = [len(tokenizer.text_of(i)) for i in range(tokenizer.vocab_size)]
    characters = int(counts @ (np.array(lengths) + tokenizer.starts_word))
    return len(tokens) / max(characters, 1)
