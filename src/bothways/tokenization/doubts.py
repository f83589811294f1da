"""What about a vocabulary tells that it is not the one that a model was trained with."""

from __future__ import annotations

from itertools import pairwise

from bothways.tokenization.tokenizer import Tokenizer

_MANY, _SORTED = 100, 0.97
"""Pieces of which one can tell the order; the share of neighbours in alphabetical order."""
_WITH_CASE = 0.5
"""Of the pieces with letters, the share in scripts with capitals from which there must be some."""


def doubts(tokenizer: Tokenizer, where: str, *, pad: object = None) -> list[str]:
    """Sentences on an order that is not that of ids, and on a case that the pieces do not have.

    Args:
        tokenizer: of the vocabulary.
        where: the folder.
        pad: the id of the padding piece that the model's configuration names, if it does.
    """
    found, pieces = [], tokenizer.pieces
    if isinstance(pad, int) and tokenizer.roles.pad and pad != tokenizer.pad_id:
        found.append(
            f"{where}: config.json says that the padding piece has the id {pad}, in the vocabulary "
            f"{tokenizer.roles.pad} has {tokenizer.pad_id}; the vocabulary may be another model's, "
            "or in another order"
        )
    rising = sum(one < other for one, other in pairwise(pieces))
    if len(pieces) >= _MANY and rising >= _SORTED * (len(pieces) - 1):
        found.append(
            f"{where}: the pieces are in alphabetical order, as if the vocabulary had been "
            "sorted; line numbers are ids, so the order must be that of training"
        )
    if tokenizer.kind == "wordpiece" and not tokenizer.lowercase and _has_no_capitals(tokenizer):
        found.append(
            f"{where}: text is read as it is, but no piece has a capital, so that words with one "
            f'become {tokenizer.roles.unk}; if the model is uncased, write "tokenizer_class": '
            '"BertTokenizer" and "do_lower_case": true to its tokenizer_config.json'
        )
    return found


def _has_no_capitals(tokenizer: Tokenizer) -> bool:
    special = set(tokenizer.roles.items().values())
    pieces = [
        p for p in tokenizer.pieces if p not in special and not p.startswith("[")
    ]  # [unused1]
    if any(piece.lower() != piece for piece in pieces):  # of a cased vocabulary soon
        return False
    words = [piece for piece in pieces if any(map(str.isalpha, piece))]
    with_case = sum(word.upper() != word for word in words)
    return len(words) >= _MANY and with_case >= _WITH_CASE * len(words)
