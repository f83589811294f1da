"""Words that a pre-trained model puts in for hidden ones, as a sample of what it has learned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bothways.corpus.store import TokenStore
from bothways.errors import BothwaysError
from bothways.runtime.folder import LoadedModel, load_model
from bothways.runtime.masks import mask_probabilities
from bothways.tokenization.tokenizer import Tokenizer

_SAMPLES, _TRIED, _SHORTEST, _LONGEST = 3, 50, 6, 24
_TOP = 4


@dataclass(frozen=True)
class Sample:
    """A sentence with a hidden word.

    Attributes:
        text: with the mask in the word's place.
        word: that was hidden.
        fillings: the likeliest pieces with their probabilities, the first the likeliest.
    """

    text: str
    word: str
    fillings: tuple[tuple[str, float], ...]

    @property
    def shown(self) -> str:
        """The fillings on one line."""
        return ", ".join(f"{piece} {probability:.0%}" for piece, probability in self.fillings)


@dataclass(frozen=True)
class Samples:
    """What is shown of a model.

    Attributes:
        fillings: of some sentences; none of a model that hides no words.
        why_none: what went wrong, as a sentence.
    """

    fillings: tuple[Sample, ...] = ()
    why_none: str = ""


def samples_of(model: str | Path, corpus: str | Path) -> Samples:
    """Fillings of some sentences of a corpus, held-out ones if there are any.

    Args:
        model: a model folder with a masked-LM head.
        corpus: of its vocabulary.
    """
    try:
        loaded = load_model(model)
        return Samples(tuple(_filled(loaded, text, word) for text, word in hidden_words(corpus)))
    except BothwaysError as error:
        return Samples(why_none=str(error))


def _filled(loaded: LoadedModel, text: str, word: str) -> Sample:
    tokenizer = loaded.tokenizer
    encoding = tokenizer.encode(text)
    assert tokenizer.mask_id is not None
    at = encoding.ids.index(tokenizer.mask_id)
    (shares_V,) = mask_probabilities(loaded, encoding, [at])
    order = np.argsort(-shares_V, kind="stable")
    best = order[~np.isin(order, tokenizer.special_ids)][:_TOP].tolist()
    return Sample(text, word, tuple((tokenizer.piece(id), float(shares_V[id])) for id in best))


def hidden_words(corpus: str | Path) -> Iterator[tuple[str, str]]:
    """Some sentences of a corpus, held-out ones if there are any, each with a word hidden that is
    one piece: the text and the word."""
    for split in ("heldout", "train"):
        store = TokenStore.open(corpus, split)
        bounds = store.sentence_bounds
        lengths = bounds[1:] - bounds[:-1]
        fitting = ((lengths >= _SHORTEST) & (lengths <= _LONGEST)).nonzero()[0]
        found: dict[str, str] = {}
        for part in range(_SAMPLES):  # of the beginning, the middle and the end
            for place in fitting[part * len(fitting) // _SAMPLES :][:_TRIED].tolist():
                ids = store.tokens_between(int(bounds[place]), int(bounds[place + 1])).tolist()
                hidden = _hide(ids, store.tokenizer)
                if hidden and hidden[0] not in found:
                    found[hidden[0]] = hidden[1]
                    break
        if found:
            yield from found.items()
            return


def _hide(ids: list[int], tokenizer: Tokenizer) -> tuple[str, str] | None:
    """A sentence with its longest word of one piece hidden; None if it has none."""
    whole = [
        place
        for place in range(1, len(ids) - 1)
        if tokenizer.starts_word[ids[place]]
        and tokenizer.starts_word[ids[place + 1]]
        and tokenizer.text_of(ids[place]).isalpha()
    ]
    if not whole or tokenizer.mask_id is None:
        return None
    place = max(whole, key=lambda p: len(tokenizer.text_of(ids[p])))
    before, after = tokenizer.decode(ids[:place]), tokenizer.decode(ids[place + 1 :])
    return f"{before} {tokenizer.roles.mask} {after}", tokenizer.text_of(ids[place])
