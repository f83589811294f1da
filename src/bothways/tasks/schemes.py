"""Entities as tags, one for each word: the schemes IOB1, IOB2 and BIOES, and conlleval's scores.

A tag is O, or a prefix and a type: B- begins an entity, I- goes on, E- ends one, S- is one alone.
IOB1 writes B- only where an entity follows another of its type directly, IOB2 always, and BIOES
marks ends too. Whatever the scheme, and however broken the tags, entities are read by one rule,
that of conlleval (the scorer of the CoNLL shared tasks), with S added as other scorers have it.

W words of a sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from bothways.config import Scheme

OUTSIDE = "O"
_PREFIXES = ("B", "I", "E", "S")


class Phrase(NamedTuple):
    """An entity: the words ``start`` to ``end - 1`` of a sentence."""

    type: str
    start: int
    end: int


def parse(tag: str) -> tuple[str, str]:
    """Prefix and type of a tag; what has neither is outside."""
    prefix, _, kind = tag.partition("-")
    return (prefix, kind) if prefix in _PREFIXES else (OUTSIDE, "")


def phrases(tags: Sequence[str]) -> list[Phrase]:
    """The entities that conlleval sees in the tags of a sentence, in order."""
    found: list[Phrase] = []
    start = 0
    parsed = [(OUTSIDE, ""), *map(parse, tags), (OUTSIDE, "")]
    for at, (before, now) in enumerate(pairwise(parsed)):
        if _ends(before, now):
            found.append(Phrase(before[1], start, at))
        if _starts(before, now):
            start = at
    return found


def _ends(before: tuple[str, str], now: tuple[str, str]) -> bool:
    if before[0] == OUTSIDE:
        return False
    return before[0] in "ES" or now[0] in ("B", "S", OUTSIDE) or before[1] != now[1]


def _starts(before: tuple[str, str], now: tuple[str, str]) -> bool:
    if now[0] == OUTSIDE:
        return False
    return now[0] in "BS" or before[0] in ("E", "S", OUTSIDE) or before[1] != now[1]


def write_tags(found: Iterable[Phrase], words: int, scheme: Scheme) -> list[str]:
    """Tags for the words of a sentence.

    Args:
        found: entities that do not overlap, in order.
        words: W.
        scheme: one that marks entities.
    """
    tags = [OUTSIDE] * words
    last = Phrase("", -1, -1)
    for phrase in found:
        kind, start, end = phrase
        tail = f"-{kind}" if kind else ""
        tags[start:end] = ["I" + tail] * (end - start)
        if scheme != "iob1" or (last.end == start and last.type == kind):
            tags[start] = "B" + tail
        if scheme == "bioes":
            tags[end - 1] = ("S" if end - start == 1 else "E") + tail
        last = phrase
    return tags


def scheme_tags(types: Iterable[str], scheme: Scheme) -> tuple[str, ...]:
    """Every tag that a scheme has for these types, O first."""
    prefixes = "BIES" if scheme == "bioes" else "BI"
    tails = [f"-{kind}" if kind else "" for kind in sorted(set(types))]
    return (OUTSIDE, *(prefix + tail for tail in tails for prefix in prefixes))


def breaks(tags: Sequence[str], scheme: Scheme) -> list[int]:
    """The words whose tags a scheme does not allow where they stand."""
    if scheme == "none":
        return []
    found = []
    parsed = [(OUTSIDE, ""), *map(parse, tags), (OUTSIDE, "")]
    for at, (before, now) in enumerate(pairwise(parsed)):
        unknown = at < len(tags) and now[0] == OUTSIDE and tags[at] != OUTSIDE
        if unknown or not _allowed(before, now, scheme):
            found.append(min(at, len(tags) - 1))
    return sorted(set(found))


def _allowed(before: tuple[str, str], now: tuple[str, str], scheme: Scheme) -> bool:
    inside = before[0] in ("B", "I")
    same = inside and before[1] == now[1]
    if scheme == "bioes":
        goes_on = now[0] in ("I", "E")
        return goes_on == inside and (same or not inside)
    if now[0] in ("E", "S"):
        return False
    if scheme == "iob1":
        return now[0] != "B" or same
    return now[0] != "I" or same


def find_scheme(sentences: Iterable[Sequence[str]]) -> Scheme:
    """The scheme of a file: that which its tags break least often.

    Tags without a B-, I-, E- or S- among them are no scheme's. A file without entities is IOB2.
    """
    counted: Counter[str] = Counter()
    breaking: Counter[Scheme] = Counter()
    for tags in sentences:
        counted.update(tags)
        breaking["iob2"] += len(breaks(tags, "iob2"))
        breaking["iob1"] += len(breaks(tags, "iob1"))
    kinds = set(counted)
    marked = any(tag[1:2] == "-" and tag[0] in _PREFIXES for tag in kinds)
    if not marked and not kinds <= {OUTSIDE, *_PREFIXES}:
        return "none"
    if any(parse(tag)[0] in ("E", "S") for tag in kinds):
        return "bioes"
    return min(("iob2", "iob1"), key=lambda scheme: breaking[scheme])


@dataclass(frozen=True)
class EntityScores:
    """Precision, recall and F1 of entities, as fractions; 0 where there is nothing to divide by.

    Attributes:
        correct: entities whose type, first and last word are all right.
        predicted: all that were predicted.
        gold: all that are in the data.
    """

    correct: int
    predicted: int
    gold: int

    @property
    def precision(self) -> float:
        """Share of what was predicted that is right."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Share of what is there that was found."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Their harmonic mean."""
        total = self.predicted + self.gold
        return 2 * self.correct / total if total else 0.0


def score_entities(
    predicted: Iterable[Sequence[str]], gold: Iterable[Sequence[str]]
) -> tuple[EntityScores, dict[str, EntityScores]]:
    """Entity scores over all sentences, and for each type, as conlleval counts them.

    Args:
        predicted: tags of each sentence, in any scheme.
        gold: as many, in any scheme.
    """
    counts: dict[str, Counter[str]] = {name: Counter() for name in ("right", "predicted", "gold")}
    for ours, theirs in zip(predicted, gold, strict=True):
        found, there = phrases(ours), phrases(theirs)
        counts["predicted"].update(phrase.type for phrase in found)
        counts["gold"].update(phrase.type for phrase in there)
        counts["right"].update(phrase.type for phrase in set(found) & set(there))
    types = sorted({*counts["predicted"], *counts["gold"]})
    by_type = {
        t: EntityScores(counts["right"][t], counts["predicted"][t], counts["gold"][t])
        for t in types
    }
    total = EntityScores(*(sum(counts[name].values()) for name in ("right", "predicted", "gold")))
    return total, by_type
