"""Entities as tags, one for each word: the schemes IOB1, IOB2 and BIOES, and conlleval's scores.

A tag is O, or a prefix and a type: B- begins an entity, I- continues it, E- ends it, and S- is an
entity of one word. IOB1 writes B- only where an entity directly follows another of its type, IOB2
always, and BIOES marks ends too. Whatever the scheme, and however broken the tags, entities are
read by one rule, that of conlleval (the scorer of the CoNLL shared tasks), with S- treated as in
other scorers. BILOU and BMES are BIOES with other letters, and are read as such: L- is E-, U- is
S-, W- too, M- is I-.

W words of a sentence.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from bothways.tasks.options import Scheme

OUTSIDE = "O"
_PREFIXES = ("B", "I", "E", "S")
_OTHER_LETTERS = {"L": "E", "U": "S", "M": "I", "W": "S"}


class EntitySpan(NamedTuple):
    """An entity: the words ``start`` to ``end - 1`` of a sentence."""

    type: str
    start: int
    end: int


@lru_cache(4096)
def parse_tag(tag: str) -> tuple[str, str]:
    """Prefix and type of a tag; a tag without a known prefix is outside."""
    prefix, dash, entity_type = tag.partition("-")
    if dash:  # a single letter may be anything
        prefix = _OTHER_LETTERS.get(prefix, prefix)
    return (prefix, entity_type) if prefix in _PREFIXES else (OUTSIDE, "")


@lru_cache(4096)
def standard_tag(tag: str) -> str:
    """The tag in the letters of BIOES; a tag without a known prefix as it is."""
    prefix, entity_type = parse_tag(tag)
    return f"{prefix}-{entity_type}" if entity_type else tag


_OTHER_SPELLING = re.compile(r"\W?[BIESLUMW][-_:/|.]\w.*|\w.*[-_:/|.][BIESLUMW]\W?", re.IGNORECASE)


def is_other_spelling(tags: Iterable[str]) -> bool:
    """Whether tags seem to follow a scheme in a spelling that is not read: ``PER-B``, ``B_PER``,
    ``b-per``, ``"B-PER"``. One of them may be O's."""
    spelt = [_OTHER_SPELLING.fullmatch(tag) is not None for tag in tags]
    return any(spelt) and spelt.count(False) < 2


def without_prefixes(counts: Mapping[str, int]) -> list[str]:
    """The types of a file whose tags are O and types without a prefix, each run of which is an
    entity; none if its tags are no such.

    Args:
        counts: of each tag in the file.
    """
    types = [tag for tag in counts if tag != OUTSIDE]
    words = all(len(tag) > 1 and tag[0].isalpha() and parse_tag(tag)[0] == OUTSIDE for tag in types)
    most_common = max(counts, key=counts.__getitem__) == OUTSIDE
    return types if words and most_common and not is_other_spelling(types) else []


def entity_spans(tags: Sequence[str]) -> list[EntitySpan]:
    """The entities that conlleval sees in the tags of a sentence, in order."""
    entities: list[EntitySpan] = []
    start = 0
    parsed = [(OUTSIDE, ""), *map(parse_tag, tags), (OUTSIDE, "")]
    for word, (previous, current) in enumerate(pairwise(parsed)):
        if _ends_between(previous, current):
            entities.append(EntitySpan(previous[1], start, word))
        if _starts_between(previous, current):
            start = word
    return entities


def _ends_between(previous: tuple[str, str], current: tuple[str, str]) -> bool:
    """Whether an entity ends with the previous word."""
    if previous[0] == OUTSIDE:
        return False
    return previous[0] in "ES" or current[0] in ("B", "S", OUTSIDE) or previous[1] != current[1]


def _starts_between(previous: tuple[str, str], current: tuple[str, str]) -> bool:
    """Whether an entity starts with the current word."""
    if current[0] == OUTSIDE:
        return False
    return current[0] in "BS" or previous[0] in ("E", "S", OUTSIDE) or previous[1] != current[1]


def write_tags(entities: Iterable[EntitySpan], words: int, scheme: Scheme) -> list[str]:
    """Tags for the words of a sentence.

    Args:
        entities: in order, without overlaps.
        words: W.
        scheme: one that marks entities.
    """
    tags = [OUTSIDE] * words
    previous = EntitySpan("", -1, -1)
    for entity in entities:
        entity_type, start, end = entity
        suffix = f"-{entity_type}" if entity_type else ""
        tags[start:end] = ["I" + suffix] * (end - start)
        if scheme != "iob1" or (previous.end == start and previous.type == entity_type):
            tags[start] = "B" + suffix
        if scheme == "bioes":
            tags[end - 1] = ("S" if end - start == 1 else "E") + suffix
        previous = entity
    return tags


def scheme_tags(types: Iterable[str], scheme: Scheme) -> tuple[str, ...]:
    """Every tag that a scheme has for these types, O first."""
    prefixes = "BIES" if scheme == "bioes" else "BI"
    suffixes = [f"-{entity_type}" if entity_type else "" for entity_type in sorted(set(types))]
    return (OUTSIDE, *(prefix + suffix for suffix in suffixes for prefix in prefixes))


def scheme_violations(tags: Sequence[str], scheme: Scheme) -> list[int]:
    """The words whose tag the scheme does not allow after the tag before it."""
    if scheme == "none":
        return []
    pairs = enumerate(pairwise((OUTSIDE, *tags, OUTSIDE)))
    breaking = {min(word, len(tags) - 1) for word, pair in pairs if not allows(scheme, *pair)}
    return sorted(breaking)


def tag_pairs(sentences: Iterable[Sequence[str]]) -> Counter[tuple[str, str]]:
    """How often each tag follows another; O is before and after each sentence."""
    pairs: Counter[tuple[str, str]] = Counter()
    for tags in sentences:
        pairs.update(pairwise((OUTSIDE, *tags, OUTSIDE)))
    return pairs


def allows(scheme: Scheme, previous: str, current: str) -> bool:
    """Whether a scheme allows a tag after another."""
    unknown = current != OUTSIDE and parse_tag(current)[0] == OUTSIDE
    return not unknown and _allowed(parse_tag(previous), parse_tag(current), scheme)


def _allowed(previous: tuple[str, str], current: tuple[str, str], scheme: Scheme) -> bool:
    inside = previous[0] in ("B", "I")
    same_entity = inside and previous[1] == current[1]
    if scheme == "bioes":
        continues = current[0] in ("I", "E")
        return continues == inside and (same_entity or not inside)
    if current[0] in ("E", "S"):
        return False
    if scheme == "iob1":
        return current[0] != "B" or same_entity
    return current[0] != "I" or same_entity


def find_scheme(pairs: Mapping[tuple[str, str], int]) -> Scheme:
    """The scheme of a file: the one that its tags break least often.

    Tags without a prefix among them have none. A file without entities is IOB2.

    Args:
        pairs: of its tags (:func:`tag_pairs`).
    """
    seen = {tag for pair in pairs for tag in pair}
    has_prefixes = any("-" in tag and parse_tag(tag)[0] != OUTSIDE for tag in seen)
    if not has_prefixes and not seen <= {OUTSIDE, *_PREFIXES}:
        return "none"
    if any(parse_tag(tag)[0] in ("E", "S") for tag in seen):
        return "bioes"

    def breaks(scheme: Scheme) -> int:
        return sum(count for pair, count in pairs.items() if not allows(scheme, *pair))

    return min(("iob2", "iob1"), key=breaks)


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
        """Share of the predicted entities that are right."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Share of the gold entities that were predicted."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
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
    for predicted_tags, gold_tags in zip(predicted, gold, strict=True):
        predicted_entities, gold_entities = entity_spans(predicted_tags), entity_spans(gold_tags)
        counts["predicted"].update(entity.type for entity in predicted_entities)
        counts["gold"].update(entity.type for entity in gold_entities)
        counts["right"].update(
            entity.type for entity in set(predicted_entities) & set(gold_entities)
        )
    types = sorted({*counts["predicted"], *counts["gold"]})
    by_type = {
        t: EntityScores(counts["right"][t], counts["predicted"][t], counts["gold"][t])
        for t in types
    }
    total = EntityScores(*(sum(counts[name].values()) for name in ("right", "predicted", "gold")))
    return total, by_type
