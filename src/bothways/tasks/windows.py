"""Windows over texts that are longer than the model's positions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.errors import LengthError
from bothways.tasks.examples import CHUNK, Examples, SequenceBuilder, check_room
from bothways.tasks.options import WindowOptions
from bothways.tokenization.normalization import check_texts, count_decomposed
from bothways.tokenization.tokenizer import Tokenizer

# --------------------------------------------------------------------------------
# Overlapping windows over texts longer than the encoder (as in the original run_squad.py).
#
# A piece in several windows is read in the one with the most context around it.

Window = tuple[int, int]
"""First piece, and the piece after the last."""


def cut_windows(pieces: int, room: int, stride: int) -> list[Window]:
    """Windows that cover all pieces of a text, in order.

    Args:
        pieces: how many the text has; an empty text has one empty window.
        room: how many pieces a window holds.
        stride: pieces from the start of a window to the start of the next, at least 1; windows do
            not overlap if it is ``room`` or more.

    Raises:
        LengthError: no room.
    """
    if room < 1:
        raise LengthError(
            f"a window has room for {room} pieces of the text; it needs at least 1. Choose a "
            "greater length."
        )
    starts = range(0, max(0, pieces - room) + min(stride, room), min(stride, room))
    return [(start, min(start + room, pieces)) for start in starts]


def best_window(windows: Sequence[Window], pieces: int) -> NDArray[np.int64]:
    """For each piece the window in which it has the most context.

    The context is the smaller number of pieces to its left and to its right, plus a hundredth of
    the window's length; the first of equally good windows wins.

    Args:
        windows: from :func:`cut_windows`.
        pieces: how many the text has.

    Returns:
        int64 [pieces]; the number of each piece's window.
    """
    best = np.zeros(pieces, dtype=np.int64)
    best_context = np.full(pieces, -1.0)
    for number, (start, end) in enumerate(windows):
        left = np.arange(end - start)
        right = left[::-1]
        context = np.minimum(left, right) + 0.01 * (end - start)
        better = context > best_context[start:end]
        best_context[start:end][better] = context[better]
        best[start:end][better] = number
    return best


# --------------------------------------------------------------------------------
# Classification of texts longer than the encoder, by combining the outputs of their windows.
#
# Each window is an item (``Examples.owners`` says of which text). In training each window has the
# label of its text, so a long text counts as often as it has windows; the prediction for a text
# combines those for all its windows.
#
# N texts, W windows of all of them, C outputs of the head.

Segments = tuple[list[int], ...]
"""Ids of the pieces of A, or of A and B, without special tokens."""


def encode_windows(
    tokenizer: Tokenizer,
    a: Sequence[str],
    b: Sequence[str] | None,
    *,
    length: int,
    stride: int | None = None,
) -> Examples:
    """Encode texts or pairs, those beyond the limit in several windows.

    The text of a pair with more pieces (B if they are equal) is cut into windows, and each window
    also shows the other text, of which at most half of the room is kept; ``Examples.cut`` counts
    the pairs that lost something by this.

    Args:
        tokenizer: the model's.
        a: the (first) texts.
        b: the second texts, as many; None for single texts.
        length: limit of a window in tokens, special tokens included.
        stride: pieces from the start of a window to the start of the next; half of the window's
            room if not given.

    Raises:
        LengthError: the limit leaves no room for a text.
        InputError: something that is not a text, a single text instead of a list, or different
            numbers of first and second texts.
    """
    check_texts(a, b)
    check_room(tokenizer, length, pair=b is not None)
    template, parts = tokenizer.template, 1 if b is None else 2
    room = template.room(length, parts)
    sequences = SequenceBuilder(tokenizer)
    owners: list[int] = []
    whole: list[int] = []
    cut = 0
    for start in range(0, len(a), CHUNK):
        chunk = slice(start, start + CHUNK)
        texts = [tokenizer.encode_plain(column[chunk]) for column in (a, b) if column is not None]
        for n, segments in enumerate(zip(*texts, strict=True), start):
            windows, complete = _windows(segments, room, stride)
            cut += not complete
            whole.append(sum(map(len, segments)) + template.cost(parts))
            for window in windows:
                sequences.add(*window)
                owners.append(n)
    examples = sequences.examples(owners=np.array(owners, dtype=np.int64), cut=cut)
    return examples.with_whole_lengths(whole)


def _windows(text: Segments, room: int, stride: int | None) -> tuple[list[Segments], bool]:
    """The windows of a text or pair, and whether they show all of it."""
    if sum(map(len, text)) <= room:
        return [text], True
    if len(text) == 1:
        return [(text[0][s:e],) for s, e in _cut(text[0], room, stride)], True
    second_is_longer = len(text[1]) >= len(text[0])
    longer, shorter = (text[1], text[0]) if second_is_longer else text
    kept = shorter[: room // 2]
    windows: list[Segments] = []
    for start, end in _cut(longer, room - len(kept), stride):
        shown = longer[start:end]
        windows.append((kept, shown) if second_is_longer else (shown, kept))
    return windows, len(kept) == len(shorter)


def _cut(pieces: list[int], room: int, stride: int | None) -> list[Window]:
    return cut_windows(len(pieces), room, stride or (room + 1) // 2)


def pool_windows(
    outputs_WC: NDArray[Any], examples: Examples, pooling: WindowOptions
) -> NDArray[Any]:
    """Combine the outputs of each text's windows.

    Args:
        outputs_WC: one row per window.
        examples: their ``owners`` say which text a window belongs to.
        pooling: how to combine.

    Returns:
        [N, C], of the same dtype; unchanged if no text has several windows.
    """
    first_items = examples.first_items
    if pooling.pooling == "first" or len(first_items) == len(examples):
        return outputs_WC[first_items]
    if pooling.pooling == "max":
        maximum: NDArray[Any] = np.maximum.reduceat(outputs_WC, first_items)
        return maximum
    counts = np.diff([*first_items, len(examples)])[:, np.newaxis]
    sums = np.add.reduceat(outputs_WC.astype(np.float64), first_items)
    mean: NDArray[Any] = (sums / counts).astype(outputs_WC.dtype)
    return mean


@dataclass(frozen=True)
class Reading:
    """How texts were read.

    Attributes:
        texts: or pairs, how many.
        several: of them were read in more than one window.
        windows: of those.
        cut: lost tokens to the length limit.
        empty: have no text.
        tokens: of all windows.
        unknown: of these are the piece for what is unknown.
        decomposed: texts or pairs that have other pieces than the same in composed form (NFC).
    """

    texts: int = 0
    several: int = 0
    windows: int = 0
    cut: int = 0
    empty: int = 0
    tokens: int = 0
    unknown: int = 0
    decomposed: int = 0

    @staticmethod
    def of(
        tokenizer: Tokenizer,
        examples: Examples,
        empty: int = 0,
        contents: Sequence[Hashable] = (),
    ) -> Reading:
        """Of encoded texts; ``contents``: of the examples (``Task.contents``)."""
        texts, several = len(examples.first_items), examples.windowed
        unknown = 0
        if tokenizer.unk_id is not None:
            unknown = int((examples.tokens == tokenizer.unk_id).sum())
        windows = len(examples) - texts + several
        size = len(examples.tokens)
        decomposed = count_decomposed(contents, tokenizer.normalize)
        return Reading(texts, several, windows, examples.cut, empty, size, unknown, decomposed)

    def __add__(self, other: Reading) -> Reading:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Reading(*(one + more for one, more in pairs))


def windows_note(
    tokenizer: Tokenizer, name: str, reading: Reading, length: int, pooling: str
) -> list[str]:
    """Notes on texts read in several windows, and on pairs that were cut nevertheless."""
    texts, several, windows = reading.texts, reading.several, reading.windows
    notes = []
    if several:
        how = {
            "mean": "their outputs are averaged",
            "max": "their highest outputs count",
            "first": "only the first window's outputs count",
        }
        notes.append(
            f"{name}: {several:,} of {texts:,} texts are longer than {length} tokens and are read "
            f"in {windows:,} windows; {how[pooling]}"
        )
    if reading.cut:
        notes.append(
            f"{name}: in {reading.cut:,} of {texts:,} pairs both texts are long; the shorter one "
            f"was cut to {tokenizer.template.room(length, 2) // 2} tokens"
        )
    return notes
