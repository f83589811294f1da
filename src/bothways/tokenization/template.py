"""Roles of special pieces, and the one template by which texts become sequences.

A tokenizer's special pieces have roles: the piece that opens a sequence (``cls``), the one that
closes a text (``sep``), padding, an unknown character, a hidden token. Any may be absent, and two
may be the same piece. Where they stand differs by family:

    BERT       [CLS] A [SEP]          [CLS] A [SEP] B [SEP]           segments 0 and 1
    RoBERTa    <s> A </s>             <s> A </s></s> B </s>           one segment
    bare       A                      A B

Everything that follows from this is asked here: how many tokens a text may have so that a sequence
fits, how to build sequences (one, or many at once in NumPy), where in a sequence the texts lie.
No other module counts special tokens.

S spans of text, T tokens of all sequences, B sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bothways.arrays import ranges
from bothways.errors import LengthError, ModelError

Ints = NDArray[np.int64]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Roles:
    """The piece of each role; None if a tokenizer has none.

    Attributes:
        pad: fills up rows of a batch; only other libraries need it.
        unk: stands for what the vocabulary cannot spell.
        cls: opens a sequence.
        sep: closes a text.
        mask: hides a token.
    """

    pad: str | None = None
    unk: str | None = None
    cls: str | None = None
    sep: str | None = None
    mask: str | None = None

    def items(self) -> dict[str, str | None]:
        """The pieces by role."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def pieces(self) -> tuple[str, ...]:
        """The pieces that have a role, each once."""
        return tuple(dict.fromkeys(piece for piece in self.items().values() if piece is not None))


@dataclass(frozen=True)
class Special:
    """A special token of a sequence."""

    piece: str
    id: int
    segment: int = 0

    def at(self, segment: int) -> Special:
        """The same token in another segment."""
        return Special(self.piece, self.id, segment)


Gap = tuple[Special, ...]


@dataclass(frozen=True)
class Layout:
    """A sequence of one text, or of two.

    Attributes:
        gaps: the special tokens before each text, and those after the last.
        segments: of each text.
    """

    gaps: tuple[Gap, ...]
    segments: tuple[int, ...]

    @cached_property
    def specials(self) -> Gap:
        """All special tokens, in order."""
        return tuple(chain.from_iterable(self.gaps))

    @cached_property
    def gap_arrays(self) -> tuple[tuple[NDArray[np.int32], NDArray[np.int8]], ...]:
        """The ids and the segments of each gap."""
        return tuple(
            (np.array(ids, np.int32), np.array(own, np.int8)) for ids, own in self.gap_lists
        )

    @cached_property
    def gap_lists(self) -> tuple[tuple[list[int], list[int]], ...]:
        """The same as lists."""
        return tuple(([s.id for s in gap], [s.segment for s in gap]) for gap in self.gaps)

    @cached_property
    def last_segment(self) -> int:
        """The highest segment."""
        return max([0, *self.segments, *(special.segment for special in self.specials)])

    @property
    def spelled(self) -> list[str]:
        """Its parts in the words of a tokenizer.json's TemplateProcessing: ``[CLS]:0 $A:0``."""
        spelled: list[str] = []
        texts = [f"${name}:{segment}" for name, segment in zip("AB", self.segments, strict=False)]
        for gap, text in zip(self.gaps, (*texts, ""), strict=True):
            spelled += [f"{special.piece}:{special.segment}" for special in gap]
            spelled += [text] if text else []
        return spelled

    def in_one_segment(self) -> Layout:
        """The same tokens, all in segment 0."""
        gaps = tuple(tuple(special.at(0) for special in gap) for gap in self.gaps)
        return Layout(gaps, (0,) * len(self.segments))


@dataclass(frozen=True)
class WrappedSpans:
    """Sequences laid end to end.

    Attributes:
        tokens, segments: int64 [T].
        bounds: int64 [B + 1].
    """

    tokens: Ints
    segments: Ints
    bounds: Ints


@dataclass(frozen=True)
class Template:
    """How texts and pairs of texts become sequences.

    Attributes:
        single: a sequence of one text.
        pair: a sequence of two; None if there is no such form.
        border: what separates documents that one text is packed from (RoBERTa's FULL-SENTENCES).
    """

    single: Layout
    pair: Layout | None = None
    border: Gap = ()

    @classmethod
    def segmented(cls, opening: Special, closing: Special) -> Template:
        """BERT's: the second text of a pair, and what closes it, is segment 1."""
        return cls(
            Layout(((opening,), (closing,)), (0,)),
            Layout(((opening,), (closing,), (closing.at(1),)), (0, 1)),
            (closing,),
        )

    @classmethod
    def doubled(cls, opening: Special, closing: Special) -> Template:
        """RoBERTa's: two closing tokens between the texts of a pair, and one segment."""
        return cls(
            Layout(((opening,), (closing,)), (0,)),
            Layout(((opening,), (closing, closing), (closing,)), (0, 0)),
            (closing,),
        )

    @classmethod
    def bare(cls) -> Template:
        """Texts without special tokens."""
        return cls(Layout(((), ()), (0,)), Layout(((), (), ()), (0, 0)))

    def in_one_segment(self) -> Template:
        """The same for an encoder with a single segment embedding."""
        pair = None if self.pair is None else self.pair.in_one_segment()
        return Template(self.single.in_one_segment(), pair, tuple(s.at(0) for s in self.border))

    # ------------------------------------------------------------------------------------ sizes

    def layout(self, texts: int) -> Layout:
        """The form of a sequence of one text or two.

        Raises:
            ModelError: two, and the tokenizer has no form for pairs.
            ValueError: another number.
        """
        if texts == 1:
            return self.single
        if texts != 2:
            raise ValueError(f"a sequence has one text or two, not {texts}")
        if self.pair is None:
            raise ModelError(
                "this tokenizer has no form for pairs of texts (its post-processor has none); give "
                "single texts."
            )
        return self.pair

    def cost(self, texts: int = 1) -> int:
        """How many special tokens a sequence of one text or two has."""
        return len(self.layout(texts).specials)

    def room(self, length: int, texts: int = 1) -> int:
        """How many tokens of text fit into a sequence of ``length``; negative if not even the
        special tokens do."""
        return length - self.cost(texts)

    def shortest(self, texts: int = 1) -> int:
        """The length of a sequence with one token of each text."""
        return self.cost(texts) + texts

    def kept(self, sizes: list[int], length: int | None) -> list[int]:
        """How many tokens of each text, of which ``sizes`` says how many they have, stay in a
        sequence of ``length``; all without one.

        Of two texts the longer is shortened to the other's size, then both, as ``tokenizers`` does.

        Raises:
            LengthError: the limit has no room for the special tokens.
        """
        if length is None or sum(sizes) + self.cost(len(sizes)) <= length:
            return sizes
        room = self.room(length, len(sizes))
        if room < 0:
            raise LengthError(f"the limit of {length} tokens has no room for {self.names}.")
        if len(sizes) == 1:
            return [room]
        # If the room is odd, the longer text keeps one token more; the second if both are as long.
        shorter = min(*sizes, room // 2)
        return [room - shorter, shorter] if sizes[0] > sizes[1] else [shorter, room - shorter]

    @property
    def border_cost(self) -> int:
        """How many special tokens stand between two documents in one sequence."""
        return len(self.border)

    @cached_property
    def segments(self) -> int:
        """How many segments it tells apart."""
        return 1 + max(layout.last_segment for layout in (self.single, self.pair) if layout)

    @property
    def pair_segments(self) -> int:
        """How many segments a pair has.

        Raises:
            ModelError: the tokenizer has no form for pairs.
        """
        return 1 + self.layout(2).last_segment

    @cached_property
    def ids(self) -> frozenset[int]:
        """The ids of all special tokens that it places."""
        specials = (*self.single.specials, *(self.pair.specials if self.pair else ()))
        return frozenset(special.id for special in specials)

    @cached_property
    def names(self) -> str:
        """Its special pieces, for messages: ``[CLS] and [SEP]``."""
        pieces = dict.fromkeys(special.piece for special in self.single.specials)
        return " and ".join(pieces) or "special tokens"

    # ----------------------------------------------------------------------------------- places

    @property
    def opens(self) -> bool:
        """Whether a special token, with no text before it, opens a sequence. Its vector can then
        stand for the sequence."""
        return bool(self.single.gaps[0])

    def content(self, *sizes: int) -> tuple[slice, ...]:
        """Where the texts lie in a sequence, given how many tokens each has."""
        places, position = [], 0
        for gap, size in zip(self.layout(len(sizes)).gaps, sizes, strict=False):
            position += len(gap)
            places.append(slice(position, position + size))
            position += size
        return tuple(places)

    def opening(self, texts: int = 1) -> int:
        """How many special tokens stand before the first text."""
        return len(self.layout(texts).gaps[0])

    def closing(self, texts: int = 1) -> int:
        """How many special tokens stand after the last text."""
        return len(self.layout(texts).gaps[-1])

    # --------------------------------------------------------------------------------- building

    def surround(self, texts: Sequence[Sequence[_T]], special: _T) -> list[_T]:
        """The values of all texts in the order of a sequence's tokens, ``special`` for others."""
        values: list[_T] = []
        for gap, text in zip(self.layout(len(texts)).gaps, (*texts, ()), strict=True):
            values += [special] * len(gap)
            values += text
        return values

    def wrap(self, *texts: ArrayLike) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
        """The tokens and segments of a sequence of one text or two, given as ids of pieces."""
        layout = self.layout(len(texts))
        tokens: list[NDArray[np.int32]] = []
        segments: list[NDArray[np.int8]] = []
        for (ids, own), text, segment in zip(
            layout.gap_arrays, (*texts, ()), (*layout.segments, 0), strict=True
        ):
            tokens += [ids, np.asarray(text, np.int32)]
            segments += [own, np.full(len(tokens[-1]), segment, np.int8)]
        return np.concatenate(tokens), np.concatenate(segments)

    def wrap_lists(self, texts: Sequence[list[int]]) -> tuple[list[int], list[int]]:
        """:meth:`wrap` with lists, which is faster for a few dozen tokens."""
        layout = self.layout(len(texts))
        tokens: list[int] = []
        segments: list[int] = []
        for (ids, own), text, segment in zip(
            layout.gap_lists, (*texts, []), (*layout.segments, 0), strict=True
        ):
            tokens += ids
            tokens += text
            segments += own
            segments += [segment] * len(text)
        return tokens, segments

    def wrap_spans(
        self, text: Ints, lengths: Ints, sequence: Ints, *, pairs: bool = False
    ) -> WrappedSpans:
        """Many sequences at once.

        Args:
            text: int64; the tokens of all spans, end to end.
            lengths: int64 [S]; of the spans.
            sequence: int64 [S]; the sequence that each belongs to, from 0, increasing by at most 1.
            pairs: each sequence is a pair, of two spans. Otherwise its spans are documents of one
                text, with a border between them.
        """
        layout = self.layout(2 if pairs else 1)
        between = layout.gaps[1] if pairs else self.border
        first = np.diff(sequence, prepend=-1) > 0
        last = np.append(first[1:], True)
        before = np.where(first, len(layout.gaps[0]), len(between))
        after = np.where(last, len(layout.gaps[-1]), 0)
        ends = np.cumsum(before + lengths + after)
        stops = ends - after
        starts = stops - lengths
        tokens = np.empty(ends[-1], dtype=np.int64)
        segments = np.zeros(len(tokens), dtype=np.int64)
        is_text = np.ones(len(tokens), dtype=bool)
        parts = (first, ~first) if pairs else (np.ones_like(first),)
        for segment, spans in zip(layout.segments, parts, strict=True):
            if segment:
                segments[ranges(starts[spans], stops[spans])] = segment
        for gap, places in (
            (layout.gaps[0], (starts - before)[first]),
            (between, (starts - before)[~first]),
            (layout.gaps[-1], stops[last]),
        ):
            for offset, special in enumerate(gap):
                tokens[places + offset] = special.id
                segments[places + offset] = special.segment
                is_text[places + offset] = False
        tokens[is_text] = text
        return WrappedSpans(tokens, segments, np.append((starts - before)[first], len(tokens)))

    def span_places(self, lengths: Sequence[int], *, pairs: bool = False) -> list[slice]:
        """The tokens of one sequence of :meth:`wrap_spans`, cut behind the special tokens that
        close or separate its spans: each part shows a span with its own special tokens."""
        layout = self.layout(2 if pairs else 1)
        between = layout.gaps[1] if pairs else self.border
        places, position = [], 0
        for number, length in enumerate(lengths):
            size = length + (len(layout.gaps[0]) if number == 0 else 0)
            size += len(layout.gaps[-1] if number == len(lengths) - 1 else between)
            places.append(slice(position, position + size))
            position += size
        return places
