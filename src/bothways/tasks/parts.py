"""Parts of a file's examples: held out for dev and test, folds, and the first so many.

Labels are mixed alike in all parts, examples of one group stay together, and everything is a
function of the examples, the shares and a seed.

N examples, P parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InputError, Place
from bothways.io.broken import Broken
from bothways.io.terminal import counted
from bothways.randomness import Purpose, permutation
from bothways.tasks.task import Labelled

R = TypeVar("R", bound=Labelled)
_SHOWN = 6
# Counters of the draws, which no epoch of training has.
_OF_PARTS, _OF_EXAMPLES = 2**32 - 1, 2**32 - 2


def divide(
    groups: Sequence[Hashable],
    strata: Sequence[Collection[str]],
    shares: Sequence[float],
    *,
    seed: int,
    number: int = 0,
) -> NDArray[np.int64]:
    """Divide examples into parts, iteratively (Sechidis et al. 2011): the rarest label first, each
    group to the part that lacks most of that label.

    Args:
        groups: of each example; those of one group stay together.
        strata: the labels of each example, of which all parts shall have their share.
        shares: of the parts, [P], of which the sum is 1.
        seed: keys the order of the groups.
        number: of the division, of several.

    Returns:
        The part of each example, int64 [N].
    """
    members: dict[Hashable, list[int]] = {}
    for n, group in enumerate(groups):
        members.setdefault(group, []).append(n)
    totals = Counter(label for labels in strata for label in set(labels))
    of_group = list(members.values())
    counts = [Counter(label for n in group for label in set(strata[n])) for group in of_group]
    rarest = [min(((totals[label], label) for label in c), default=(0, "")) for c in counts]
    # Large groups are hard to place, so they come early.
    order = permutation(len(of_group), seed, Purpose.SHUFFLE, _OF_PARTS, number).tolist()
    order.sort(key=lambda g: (not counts[g], rarest[g], -len(of_group[g])))
    lacks = [{label: share * count for label, count in totals.items()} for share in shares]
    room = [share * len(groups) for share in shares]
    parts = np.zeros(len(groups), dtype=np.int64)
    for g in order:
        label = rarest[g][1]
        part = max(
            range(len(shares)),
            key=lambda p: (round(lacks[p].get(label, 0.0), 6), round(room[p], 6), -p),
        )
        parts[of_group[g]] = part
        room[part] -= len(of_group[g])
        for name, count in counts[g].items():
            lacks[part][name] -= count
    return parts


def first_examples(
    strata: Sequence[Collection[str]], count: int, *, seed: int
) -> NDArray[np.int64]:
    """So many of the examples, in their order, with the same mix of labels; those of a larger
    number include those of a smaller one."""
    order = permutation(len(strata), seed, Purpose.SHUFFLE, _OF_EXAMPLES)
    kinds = ["\n".join(sorted(labels)) for labels in strata]
    sizes, seen = Counter(kinds), Counter[str]()
    place = np.zeros(len(strata))
    for n in order.tolist():
        place[n] = (seen[kinds[n]] + 0.5) / sizes[kinds[n]]
        seen[kinds[n]] += 1
    chosen = order[np.argsort(place[order], kind="stable")[:count]]
    return np.sort(chosen)


_OF_OTHERS = ("passages",)


def taken(rows: R, indices: NDArray[np.int64], *, broken: bool = False) -> R:
    """The rows of some examples.

    Args:
        rows: of a file.
        indices: of the examples.
        broken: these rows stand for the file where lines were left out of it.
    """
    chosen: dict[str, Any] = {}
    for item in fields(rows):  # type: ignore[arg-type]
        value = getattr(rows, item.name)
        if isinstance(value, Broken) and not broken:
            chosen[item.name] = Broken()
        elif isinstance(value, list) and item.name not in _OF_OTHERS and value:
            chosen[item.name] = [value[n] for n in indices.tolist()]
    return replace(rows, **chosen)  # type: ignore[type-var]


def parts_of(
    rows: R,
    groups: Sequence[Hashable],
    strata: Sequence[Collection[str]],
    shares: Sequence[float],
    *,
    seed: int,
    number: int = 0,
) -> list[R]:
    """The rows of each part; arguments as for :func:`divide`.

    Raises:
        InputError: a part has no example.
    """
    parts = divide(groups, strata, shares, seed=seed, number=number)
    found = [np.flatnonzero(parts == p) for p in range(len(shares))]
    for share, indices in zip(shares, found, strict=True):
        if not len(indices):
            raise InputError(
                f"no example would be in a part of {share:.3g}: there are {len(rows):,} in "
                f"{len(set(groups)):,} groups, which stay together (equal texts, or those of "
                "group). Hold out more, or name a file.",
                place=Place(rows.path),
            )
    return [taken(rows, indices, broken=not p) for p, indices in enumerate(found)]


def shown_counts(strata: Sequence[Collection[str]]) -> str:
    """How many examples there are, and of each label: ``256 (complaint 26, fine 230)``."""
    counts = Counter(label for labels in strata for label in set(labels))
    labels = [f"{label} {count:,}" for label, count in sorted(counts.items())]
    more = ", ..." if len(labels) > _SHOWN else ""
    if not labels:
        return f"{len(strata):,}"
    return f"{len(strata):,} ({', '.join(labels[:_SHOWN])}{more})"


def overlaps(
    train: Sequence[Hashable],
    strata: Sequence[Collection[str]],
    others: Mapping[str, Sequence[Hashable]],
) -> list[str]:
    """What makes scores better or worse than they should be, as sentences: texts of other files
    that stand in train, and texts of train that have several labels.

    Args:
        train: the texts of each example.
        strata: its labels.
        others: the texts of other files, by name.
    """
    known = set(train)
    notes = []
    for name, texts in others.items():
        if seen := sum(text in known for text in texts):
            notes.append(
                f"{seen:,} of {len(texts):,} {name} examples have a text that stands in train, too"
            )
    labels: dict[Hashable, set[str]] = {}
    for text, own in zip(train, strata, strict=True):
        labels.setdefault(text, set()).add("\n".join(sorted(own)))
    if several := sum(len(found) > 1 for found in labels.values()):
        stand = "stands" if several == 1 else "stand"
        notes.append(f"{counted(several, 'text')} {stand} in train with different labels")
    return notes
