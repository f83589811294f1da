"""Classification of texts longer than the encoder: read in windows, whose outputs are combined.

A window is an item like any other (``Examples.owners`` says whose). In training each window has the
label of its text, so that a long text counts as often as it has windows; what a text is said to be
is decided from all of them.

N texts, W windows of all of them, C outputs of the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.config import WindowOptions
from bothways.tasks.examples import CHUNK, Examples, check_room, joined
from bothways.tasks.windows import Window, cut_windows
from bothways.tokenization.tokenizer import Tokenizer

Segments = tuple[list[int], ...]
"""The pieces of A, or of A and B, without [CLS] and [SEP]."""


def encode_windows(
    tokenizer: Tokenizer,
    a: Sequence[str],
    b: Sequence[str] | None,
    *,
    length: int,
    stride: int | None = None,
) -> Examples:
    """Encode texts or pairs, those beyond the limit in several windows.

    Of a pair the text with more pieces (B if they have as many) is cut into windows, and the other
    stands in each of them; of the other only the first half of the room is kept, and
    ``Examples.cut`` counts the pairs in which that was too little.

    Args:
        tokenizer: the model's.
        a: the (first) texts.
        b: the second texts, as many; None for single texts.
        length: limit of a window in tokens, [CLS] and [SEP] included.
        stride: pieces from the start of a window to that of the next; half of the window's room if
            not given.

    Raises:
        LengthError: the limit leaves no room for a text.
        InputError: something that is no text.
    """
    check_room(length, pair=b is not None)
    tokens: list[NDArray[np.int32]] = []
    segments: list[NDArray[np.int8]] = []
    lengths: list[int] = []
    owners: list[int] = []
    cut = 0
    for start in range(0, len(a), CHUNK):
        part = slice(start, start + CHUNK)
        first = tokenizer.encode_plain(a[part])
        second = None if b is None else tokenizer.encode_plain(b[part])
        rows, kinds = [], []
        for n, own in enumerate(first, start):
            text: Segments = (own,) if second is None else (own, second[n - start])
            windows, whole = _windows(text, length, stride)
            cut += not whole
            for window in windows:
                ids = [[*pieces, tokenizer.sep_id] for pieces in window]
                ids[0].insert(0, tokenizer.cls_id)
                rows.append([id for segment in ids for id in segment])
                kinds.append([kind for kind, segment in enumerate(ids) for _ in segment])
                owners.append(n)
        tokens.append(joined(rows, np.int32))
        segments.append(joined(kinds, np.int8))
        lengths.extend(map(len, rows))
    return Examples.of_sequences(
        np.concatenate([np.zeros(0, np.int32), *tokens]),
        np.concatenate([np.zeros(0, np.int8), *segments]),
        np.cumsum([0, *lengths], dtype=np.int64),
        owners=np.array(owners, dtype=np.int64),
        cut=cut,
    )


def _windows(text: Segments, length: int, stride: int | None) -> tuple[list[Segments], bool]:
    """The windows of a text or pair, and whether they show all of it."""
    room = length - len(text) - 1
    if sum(map(len, text)) <= room:
        return [text], True
    if len(text) == 1:
        return [(text[0][s:e],) for s, e in _cut(text[0], room, stride)], True
    second = len(text[1]) >= len(text[0])
    longer, shorter = (text[1], text[0]) if second else text
    kept = shorter[: room // 2]
    windows = [longer[s:e] for s, e in _cut(longer, room - len(kept), stride)]
    found: list[Segments] = [(kept, w) if second else (w, kept) for w in windows]
    return found, len(kept) == len(shorter)


def _cut(pieces: list[int], room: int, stride: int | None) -> list[Window]:
    return cut_windows(len(pieces), room, stride or (room + 1) // 2)


def pool_windows(
    outputs_WC: NDArray[Any], examples: Examples, pooling: WindowOptions
) -> NDArray[Any]:
    """One row for each text, from those of its windows.

    Args:
        outputs_WC: a row for each item.
        examples: whose ``owners`` say which text an item is a window of.
        pooling: how.

    Returns:
        [N, C], of the same dtype; where no text has several windows, the rows as they are.
    """
    firsts = examples.firsts
    if pooling.pooling == "first" or len(firsts) == len(examples):
        return outputs_WC[firsts]
    if pooling.pooling == "max":
        found: NDArray[Any] = np.maximum.reduceat(outputs_WC, firsts)
        return found
    counts = np.diff([*firsts, len(examples)])[:, np.newaxis]
    sums = np.add.reduceat(outputs_WC.astype(np.float64), firsts)
    mean: NDArray[Any] = (sums / counts).astype(outputs_WC.dtype)
    return mean


def windows_note(name: str, examples: Examples, length: int, pooling: str) -> list[str]:
    """Sentences about texts in several windows and pairs that were cut all the same."""
    texts = len(examples.firsts)
    several = examples.several
    notes = []
    if several:
        windows = len(examples) - texts + several
        how = {"mean": "the mean of their", "max": "the highest of their", "first": "the first's"}
        notes.append(
            f"{name}: {several:,} of {texts:,} texts are longer than {length} tokens, read in "
            f"{windows:,} windows; {how[pooling]} outputs decide"
        )
    if examples.cut:
        notes.append(
            f"{name}: in {examples.cut:,} of {texts:,} pairs both texts are long; the shorter one "
            f"was cut to {(length - 3) // 2} tokens"
        )
    return notes
