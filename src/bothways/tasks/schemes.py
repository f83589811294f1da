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


_SEPARATORS = "-_.:/|=\u2010\u2011\u2012\u2013\u2014\u2212"
_OUTSIDE_SPELLINGS = frozenset(
    ("o", "out", "outside", "0", "other", "others", "none", "null", "nil", "_", "-")
)
_WORDS = {"BEGIN": "B", "BEG": "B", "INSIDE": "I", "IN": "I", "END": "E", "LAST": "E"}
_WORDS |= {"SINGLE": "S", "SINGLETON": "S", "UNIT": "S", "WHOLE": "S", "MIDDLE": "I", "MID": "I"}
_LETTERS = frozenset(_PREFIXES) | _OTHER_LETTERS.keys()


def standard_spelling(
    counts: Mapping[str, int], *, without_letters: bool = True
) -> tuple[dict[str, str], str]:
    """How the tags of a file that follow a scheme in another spelling are written here.

    Read are prefixes in lower case, as words or with another separator (``b-per``, ``BEGIN-PER``,
    ``B_PER``), letters after the type (``PER-B``), other names of O (``0``, ``_``, ``OTHER``), and
    types without any letter beside O, each run of which is an entity.

    Args:
        counts: of each tag in the file.
        without_letters: whether types without any letter are read.

    Returns:
        The spelling of each tag here, and a sentence about it; both empty if the tags need none, or
        follow no scheme.
    """
    outside = [tag for tag in counts if tag.casefold() in _OUTSIDE_SPELLINGS]
    outside = [OUTSIDE] if OUTSIDE in outside else outside  # others are types then
    types = [tag for tag in counts if tag not in outside]
    if len(outside) != 1 or not types:
        return {}, ""
    if outside == [OUTSIDE] and any(parse_tag(tag)[0] != OUTSIDE for tag in types):
        return {}, ""
    letters = {tag: tag.upper() for tag in types}
    if outside == ["o"] and {*letters.values()} <= _LETTERS:
        found = {tag: _OTHER_LETTERS.get(own, own) for tag, own in letters.items()}
        return found | {"o": OUTSIDE}, "its tags are in small letters; they are read in capitals"
    for separator in _SEPARATORS:
        for at in (0, -1):
            spelt = {tag: _respelt(tag, separator, at) for tag in types}
            if all(spelt.values()):
                found = {tag: own for tag, own in spelt.items() if own is not None}
                first = next(iter(found))
                return found | {outside[0]: OUTSIDE}, (
                    f"its tags are spelt like {first!r}; they are read as {found[first]!r}"
                    if any(tag != own for tag, own in found.items())
                    else f"its tag {outside[0]!r} is read as {OUTSIDE!r}, beside {first!r}"
                )
    if undashed := _undashed(types):
        return undashed | {outside[0]: OUTSIDE}, (
            f"its tags are spelt like {types[0]!r}; they are read as {undashed[types[0]]!r}"
        )
    words = all(len(tag) > 1 and tag[0].isalpha() and tag not in _LETTERS for tag in types)
    most_common = max(counts, key=counts.__getitem__)
    if without_letters and words and most_common == outside[0]:
        return {tag: f"I-{tag}" for tag in types} | {outside[0]: OUTSIDE}, (
            f"its tags have no prefix, such as {types[0]!r} beside {outside[0]}; every run of one "
            f"is read as an entity, {'I-' + types[0]!r} (task.tagging.scheme none: tags of single "
            "words)"
        )
    return {}, ""


def _undashed(types: Sequence[str]) -> dict[str, str]:
    """Tags with nothing between letter and type (``BPER``), in the usual spelling; none if not all
    are such, or no type both begins and goes on, as it may be with words in capitals."""
    if not all(re.fullmatch("[BIESLUMW][A-Z]{2,}", tag) for tag in types):
        return {}
    begun, going_on = ({tag[1:] for tag in types if tag[0] == letter} for letter in "BI")
    if not begun & going_on:
        return {}
    return {tag: f"{_OTHER_LETTERS.get(tag[0], tag[0])}-{tag[1:]}" for tag in types}


def _respelt(tag: str, separator: str, at: int) -> str | None:
    """A tag whose letter of the scheme comes first (0) or last (-1), in the usual spelling."""
    parts = tag.split(separator, 1) if at == 0 else tag.rsplit(separator, 1)
    if len(parts) != 2 or not all(parts):
        return None
    letter, entity_type = (parts[0], parts[1]) if at == 0 else (parts[1], parts[0])
    letter = _WORDS.get(letter.upper(), letter.upper())
    if letter not in _LETTERS:
        return None
    return f"{_OTHER_LETTERS.get(letter, letter)}-{entity_type}"


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
    breaking = []
    parsed = [(OUTSIDE, ""), *map(parse_tag, tags), (OUTSIDE, "")]
    for word, (previous, current) in enumerate(pairwise(parsed)):
        unknown = word < len(tags) and current[0] == OUTSIDE and tags[word] != OUTSIDE
        if unknown or not _allowed(previous, current, scheme):
            breaking.append(min(word, len(tags) - 1))
    return sorted(set(breaking))


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


def find_scheme(sentences: Iterable[Sequence[str]]) -> Scheme:
    """The scheme of a file: the one that its tags break least often.

    Tags without a prefix among them have none. A file without entities is IOB2.
    """
    seen: set[str] = set()
    breaking: Counter[Scheme] = Counter()
    for tags in sentences:
        seen.update(tags)
        breaking["iob2"] += len(scheme_violations(tags, "iob2"))
        breaking["iob1"] += len(scheme_violations(tags, "iob1"))
    has_prefixes = any("-" in tag and parse_tag(tag)[0] != OUTSIDE for tag in seen)
    if not has_prefixes and not seen <= {OUTSIDE, *_PREFIXES}:
        return "none"
    if any(parse_tag(tag)[0] in ("E", "S") for tag in seen):
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
