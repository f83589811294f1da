"""The pieces of a vocabulary: the special ones, the marks for places in a word, and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bothways.errors import ModelError
from bothways.tokenization.template import Roles

PAD, UNK, CLS, SEP, MASK = SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BERT_ROLES = Roles(pad=PAD, unk=UNK, cls=CLS, sep=SEP, mask=MASK)
"""The special pieces of vocabularies learned here, and of BERT's."""
CONTINUES = "##"
"""Prefix of pieces that continue a word."""
BYTE_SPACE = "\u0120"
"""Prefix of byte-level pieces that start a word: the visible character for a space."""
META_SPACE = "\u2581"
"""The same in vocabularies of SentencePiece."""


def ids_of(pieces: Sequence[str], source: str | Path, roles: Roles = BERT_ROLES) -> dict[str, int]:
    """The id of each piece, its index.

    Raises:
        ModelError: a piece is empty, has a line break or is a duplicate; a special piece is
            missing.
    """
    ids: dict[str, int] = {}
    for i, piece in enumerate(pieces):
        if not piece or "\n" in piece or "\r" in piece:
            raise ModelError(
                f"{source}: piece {i} (line {i + 1} of a vocab.txt) is "
                f"{'empty' if not piece else 'broken over lines'}; write a placeholder such as "
                "[unused1], as line numbers are ids."
            )
        if piece in ids:
            raise ModelError(
                f"{source}: {piece!r} occurs twice, as pieces {ids[piece]} and {i} (lines "
                f"{ids[piece] + 1} and {i + 1} of a vocab.txt); rename the first, which BERT does "
                "not use."
            )
        ids[piece] = i
    check_special_pieces(ids, source, roles)
    return ids


def pieces_by_id(ids: dict[str, int], source: str | Path) -> list[str]:
    """The pieces in the order of their ids.

    Raises:
        ModelError: the ids have gaps or duplicates.
    """
    pieces = sorted(ids, key=lambda piece: ids[piece])
    for expected, piece in enumerate(pieces):
        if ids[piece] != expected:
            raise ModelError(
                f"{source}: after id {expected - 1} comes {piece!r} with id {ids[piece]}; the ids "
                "have a gap, or two pieces share one."
            )
    return pieces


def check_special_pieces(
    ids: Mapping[str, int], source: str | Path, roles: Roles = BERT_ROLES
) -> None:
    """Raise :class:`ModelError` if a special piece is missing."""
    missing = [piece for piece in roles.pieces if piece not in ids]
    if missing:
        raise ModelError(
            f"{source}: {', '.join(missing)} not among the {len(ids)} pieces; this may be the "
            "vocabulary of another kind of model."
        )
