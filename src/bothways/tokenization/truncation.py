"""Truncation of texts and pairs that are longer than the limit."""

from __future__ import annotations

from bothways.errors import LengthError
from bothways.tokenization.template import Template


def truncated_lengths(sizes: list[int], max_length: int | None, template: Template) -> list[int]:
    """How many tokens each segment keeps, given their sizes without special tokens.

    Raises:
        LengthError: the limit has no room for the special tokens.
    """
    specials = template.cost(len(sizes))
    if max_length is None or sum(sizes) + specials <= max_length:
        return sizes
    room = template.room(max_length, len(sizes))
    if room < 0:
        raise LengthError(f"the limit of {max_length} tokens has no room for {template.names}.")
    if len(sizes) == 1:
        return [room]
    return _longest_first(sizes, room)


def _longest_first(sizes: list[int], room: int) -> list[int]:
    """Shorten the longer of two segments to the other's length, then both, as ``tokenizers`` does.

    If the room is odd, the longer segment keeps one token more; B if both are equally long.
    """
    shorter, longer = sorted(sizes)
    if shorter <= room // 2:
        kept_shorter, kept_longer = shorter, min(longer, room - shorter)
    else:
        kept_shorter, kept_longer = room // 2, room - room // 2
    return [kept_longer, kept_shorter] if sizes[0] > sizes[1] else [kept_shorter, kept_longer]
