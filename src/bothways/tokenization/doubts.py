"""What in a tokenizer's files tells that ids or texts are others than those of the training."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from bothways.io.folder_files import is_there
from bothways.io.lines import listed
from bothways.tokenization.reading import SETTINGS_FILE, TOKENIZER_FILE, VOCABULARY_FILE
from bothways.tokenization.tokenizer import Tokenizer
from bothways.tokenization.tokenizer_files import named_tokens, read_settings, read_vocabulary

_MANY, _SORTED = 100, 0.97
"""Pieces of which one can tell the order; the share of neighbours in alphabetical order."""
_CAPITALS = 0.1
"""The share of pieces with capitals from which a vocabulary is hardly uncased."""
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
    if tokenizer.roles.cls and not tokenizer.template.cost():
        found.append(
            f"{where}: texts get no special tokens, as tokenizer.json has no post-processor that "
            f"puts them; if the model was trained with {tokenizer.roles.cls}, write the "
            "tokenizer_class that it had, such as BertTokenizer, to its tokenizer_config.json"
        )
    layout = tokenizer.template.single
    first = [special.piece for special in layout.gaps[0][:1]]
    if tokenizer.roles.cls in {special.piece for special in layout.specials} - {*first}:
        found.append(
            f"{where}: tokenizer.json puts {tokenizer.roles.cls} behind other tokens "
            f"({' '.join(layout.spelled)}), and heads read the first token, here as in "
            "transformers; if the model was trained so, use the library that trained it"
        )
    if tokenizer.kind == "wordpiece":  # others begin in the order of bytes, and have ids written
        rising = sum(one < other for one, other in pairwise(pieces))
        if len(pieces) >= _MANY and rising >= _SORTED * (len(pieces) - 1):
            found.append(
                f"{where}: the pieces are in alphabetical order, as if the vocabulary had been "
                "sorted; line numbers are ids, so the order must be that of training"
            )
        found += _about_pieces(tokenizer, where)
    return found


def _about_pieces(tokenizer: Tokenizer, where: str) -> list[str]:
    """Sentences on pieces that no text becomes, and on a case that they do not have."""
    found, apart = [], {*tokenizer.roles.items().values(), *tokenizer.added}
    own = [p for p in tokenizer.pieces if p not in apart and p[:1] != "["]  # [unused1]
    words = [p for p in own if any(map(str.isalpha, p))]
    capitals = [p for p in own if p.lower() != p]
    with_case = sum(word.upper() != word for word in words)
    has_case = len(words) >= _MANY and with_case >= _WITH_CASE * len(words)
    if not tokenizer.lowercase and has_case and not capitals:
        found.append(
            f"{where}: text is read as it is, but no piece has a capital, so that words with one "
            f'become {tokenizer.roles.unk}; if the model is uncased, write "tokenizer_class": '
            '"BertTokenizer" and "do_lower_case": true to its tokenizer_config.json'
        )
    spaced = [p for p in own if len(p) > 1 and any(map(str.isspace, p))]
    if spaced:
        found.append(
            f"{where}: of the pieces {len(spaced):,} hold white space, such as {spaced[0]!r}; text "
            "is divided there, so none becomes one. Take it out of the vocabulary's file"
        )
    if tokenizer.lowercase and len(capitals) > _CAPITALS * len(words):
        found.append(
            f"{where}: text is read in lower case, but {len(capitals):,} pieces have capitals, "
            f"such as {capitals[0]!r}, and no text becomes one; if the model is cased, write "
            '"do_lower_case": false to its tokenizer_config.json'
        )
    return found


def disagreements(folder: Path, tokenizer: Tokenizer) -> list[str]:
    """Sentences on files of a tokenizer that say the same thing differently.

    Args:
        folder: with a tokenizer.json, which is what is read; others have nothing to say here.
        tokenizer: read from it.

    Raises:
        ModelError: a file is damaged.
    """
    text_file, json_file = folder / VOCABULARY_FILE, folder / TOKENIZER_FILE
    if not is_there(json_file):
        return []
    found = []
    if is_there(text_file) and (problem := _other_pieces(text_file, tokenizer)):
        remedy = f"{TOKENIZER_FILE} is the one in use; remove {VOCABULARY_FILE} or restore it"
        found.append(f"{text_file}{problem}; {remedy}")
    settings = read_settings(folder / SETTINGS_FILE)
    said, alone = settings.get("do_lower_case"), tokenizer.file_lowercases
    if None not in (said, alone) and said != alone:
        how = "in lower case" if tokenizer.lowercase else "as it is"
        found.append(
            f"{folder / SETTINGS_FILE}: do_lower_case is {str(said).lower()}, and "
            f"{TOKENIZER_FILE} says the opposite; text is read {how}, as transformers does by "
            f"tokenizer_class {settings.get('tokenizer_class')}. Make the two agree"
        )
    return found


def cut_elsewhere(folder: Path, tokenizer: Tokenizer, positions: int | None) -> list[str]:
    """Sentences where transformers cuts texts shorter or at their beginning, or takes special
    tokens in a text for letters, which is not done here; and on tokens that have no row.

    Args:
        folder: of the tokenizer.
        tokenizer: read from it.
        positions: that the model has; None where something else says how long texts may be.

    Raises:
        ModelError: the settings are damaged.
    """
    settings, found = read_settings(folder / SETTINGS_FILE), []
    side = settings.get("truncation_side", tokenizer.file_cuts)
    if side == "left":
        found.append(
            f"{folder}: truncation_side is left (or the direction of its tokenizer.json), so that "
            "transformers cuts off the beginning of a long text; where one is cut here, its end is"
        )
    pieces = {*tokenizer.pieces, *tokenizer.added}
    unknown = [t for t in named_tokens(settings, folder / SETTINGS_FILE) if t not in pieces]
    if unknown:
        found.append(
            f"{folder}: the special tokens {listed(list(dict.fromkeys(unknown)), 4)} are named in "
            "the tokenizer's settings, and the model's embedding has no row for them: in a text "
            "they are read as letters. If it was trained with them, get the weights that have them"
        )
    limit = settings.get("model_max_length")
    if positions and isinstance(limit, int | float) and 0 < limit < positions:
        found.append(
            f"{folder / SETTINGS_FILE}: model_max_length is {limit:g}, where transformers cuts a "
            f"text if it cuts any; here up to {positions} tokens are read, as config.json has "
            "positions for. If the model was not trained on longer texts, divide them"
        )
    if settings.get("split_special_tokens") is True:
        found.append(
            f"{folder / SETTINGS_FILE}: split_special_tokens is true, so that transformers reads a "
            "special token in a text as its letters; here it is the token"
        )
    return found


def _other_pieces(path: Path, tokenizer: Tokenizer) -> str:
    """How a vocab.txt differs from the pieces in use; empty if it does not, but for added ones."""
    own, used = read_vocabulary(path), tokenizer.pieces
    for i, (piece, other) in enumerate(zip(own, used, strict=False)):
        if piece != other:
            return f": id {i} is {piece!r}, but {other!r} in {TOKENIZER_FILE}"
    if len(own) > len(used) or not tokenizer.added.issuperset(used[len(own) :]):
        return f" has {len(own)} pieces, {TOKENIZER_FILE} {len(used)}"
    return ""
