"""Warnings about a tokenizer whose files are not consistent, or are used otherwise elsewhere."""

from __future__ import annotations

from pathlib import Path

from bothways.io.folder_files import is_there
from bothways.tokenization.reading import SETTINGS_FILE, TOKENIZER_FILE, VOCABULARY_FILE
from bothways.tokenization.tokenizer import Tokenizer
from bothways.tokenization.tokenizer_files import read_settings, read_vocabulary

_MANY = 100  # pieces of which one can tell whether they should have capitals


def doubts(tokenizer: Tokenizer, where: str, *, pad: object = None) -> list[str]:
    """Warnings about a vocabulary of another model, missing special tokens, and missing capitals.

    Args:
        tokenizer: of the vocabulary.
        where: the folder.
        pad: the id of the padding piece that the model's configuration names, if it does.
    """
    found = []
    if isinstance(pad, int) and tokenizer.roles.pad and pad != tokenizer.pad_id:
        found.append(
            f"{where}: config.json says that the padding piece has the id {pad}, in the vocabulary "
            f"{tokenizer.roles.pad} has {tokenizer.pad_id}; the vocabulary may be another model's"
        )
    if tokenizer.roles.cls and not tokenizer.template.cost():
        found.append(
            f"{where}: texts get no special tokens, as tokenizer.json has no post-processor; if "
            f"the model was trained with {tokenizer.roles.cls}, name its tokenizer_class in "
            "tokenizer_config.json"
        )
    pieces = {*tokenizer.pieces} - {*tokenizer.roles.items().values(), *tokenizer.added}
    own = [piece for piece in pieces if piece[:1] != "["]  # [unused1]
    with_case = sum(piece.upper() != piece for piece in own)
    if (
        tokenizer.kind == "wordpiece"
        and not tokenizer.lowercase
        and max(_MANY, len(own) / 2) <= with_case
        and not any(piece.lower() != piece for piece in own)
    ):
        found.append(
            f"{where}: text is not lower-cased, but no piece has a capital, so that words with one "
            f'become {tokenizer.roles.unk}; if the model is uncased, write "do_lower_case": true '
            "to its tokenizer_config.json"
        )
    return found


def disagreements(folder: Path, tokenizer: Tokenizer) -> list[str]:
    """A warning if vocab.txt has other pieces than tokenizer.json, which is what is read.

    Args:
        folder: of the tokenizer.
        tokenizer: read from its tokenizer.json.

    Raises:
        ModelError: a file is damaged.
    """
    path = folder / VOCABULARY_FILE
    if not (is_there(path) and is_there(folder / TOKENIZER_FILE)):
        return []
    own, used = read_vocabulary(path), tokenizer.pieces
    if own == used[: len(own)] and tokenizer.added.issuperset(used[len(own) :]):
        return []
    return [f"{path}: has other pieces than {TOKENIZER_FILE}, which is used; remove or restore it"]


def cut_elsewhere(folder: Path, positions: int | None) -> list[str]:
    """Warnings where transformers cuts texts shorter, or at their beginning.

    Args:
        folder: of the tokenizer.
        positions: that the model has; None where something else says how long texts may be.

    Raises:
        ModelError: the settings are damaged.
    """
    settings, found = read_settings(folder / SETTINGS_FILE), []
    if settings.get("truncation_side") == "left":
        found.append(
            f"{folder}: truncation_side is left, so that transformers cuts off the beginning of a "
            "long text; here its end is cut off"
        )
    limit = settings.get("model_max_length")
    if positions and isinstance(limit, int | float) and 0 < limit < positions:
        found.append(
            f"{folder / SETTINGS_FILE}: model_max_length is {limit:g}, where transformers cuts a "
            f"text; here up to {positions} tokens are read, as config.json has positions for"
        )
    return found
