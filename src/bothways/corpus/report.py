"""The report on a corpus: as numbers, and as a table for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.io.diagnostics import DAMAGED, LEAST
from bothways.io.terminal import counted
from bothways.tokenization.languages import SCRIPT_NAMES

DECOMPOSED = "decomposed"
"""What is said of text whose characters are decomposed."""

_QUANTILES = {"min": 0.0, "p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "max": 1.0}


@dataclass
class Lengths:
    """How often each length occurs, counted incrementally."""

    counts: Counter[int] = field(default_factory=Counter)

    def add(self, values: NDArray[Any]) -> None:
        """Count lengths."""
        self.counts.update(values.tolist())

    @property
    def number(self) -> int:
        """How many lengths were counted."""
        return self.counts.total()

    @property
    def total(self) -> int:
        """Their sum."""
        return sum(value * count for value, count in self.counts.items())

    def quantiles(self) -> dict[str, int]:
        """Quantiles that occur as values (the lower one between two); empty if there are none."""
        if not self.counts:
            return {}
        values = np.array(sorted(self.counts))
        ends = np.cumsum([self.counts[value] for value in values.tolist()])
        ranks = [int(share * (ends[-1] - 1)) for share in _QUANTILES.values()]
        quantiles = values[np.searchsorted(ends, ranks, side="right")]
        return {name: int(value) for name, value in zip(_QUANTILES, quantiles, strict=True)}

    def histogram(self) -> list[tuple[int, int]]:
        """(smallest length, count) of bins that double in width: 1, 2-3, 4-7, ..."""
        bins: Counter[int] = Counter()
        for value, count in self.counts.items():
            bins[1 << (value.bit_length() - 1) if value else 0] += count
        return sorted(bins.items())


def summarise_split(sentences: Lengths, documents: Lengths) -> dict[str, Any]:
    """Sizes and length quantiles of one split, from the tokens of its sentences and documents."""
    return {
        "documents": documents.number,
        "sentences": sentences.number,
        "tokens": documents.total,
        "sentence_tokens": sentences.quantiles(),
        "document_tokens": documents.quantiles(),
    }


def heldout_note(documents: int, share: float) -> str | None:
    """Why the held-out split cannot be used for evaluation, or None if it can."""
    if share == 0:
        return "No held-out split: heldout is 0."
    if documents < 2:
        return (
            f"The held-out split has {counted(documents, 'document')}, fewer "
            "than the 2 that next-sentence prediction needs, so it cannot be evaluated on. Give "
            "more documents or a larger heldout."
        )
    return None


def single_sentence_note(read: int, joined: int) -> str | None:
    """What to do if most documents were joined to others, or None if few were."""
    if 2 * joined <= read:
        return None
    return (
        "Most documents have one sentence and were joined to others. If they are unrelated, build "
        "with --single-sentence keep and pre-train with --pairs-kind single."
    )


def layout_notes(found: Mapping[str, tuple[int, str, str]]) -> dict[str, str]:
    """What was noticed of the layout of files: a sentence about the first, and how many there are.

    Args:
        found: the number of files, the first and what is said of it, by what it is about.
    """
    counted = dict.fromkeys((DECOMPOSED, *DAMAGED), "paragraphs")
    return {
        name: f"{source}: {said}"
        + (f" ({files:,} such {counted.get(name, 'files')})" if files > 1 else "")
        for name, (files, source, said) in found.items()
        if name not in DAMAGED or files >= LEAST
    }


def script_shares(scripts: Mapping[str, int]) -> dict[str, float]:
    """Each script's share of the letters, largest first.

    Args:
        scripts: from :func:`bothways.tokenization.languages.count_scripts`.
    """
    letters: Counter[str] = Counter()
    for name, count in scripts.items():
        letters[SCRIPT_NAMES.get(name, "other")] += count
    return {name: round(n / letters.total(), 6) for name, n in letters.most_common()}


def short_report(report: Mapping[str, Any]) -> dict[str, Any]:
    """The rows shown in the terminal: no histograms, no empty entries, and short lists."""
    hidden = ("histograms", "most_repeated", "broken", "duplicates", "layout")
    shown = {name: value for name, value in report.items() if name not in hidden}
    shown["scripts"] = ", ".join(
        f"{name} {share:.2%}" for name, share in report["scripts"].items() if share >= 0.00005
    )
    for what in ("documents", "paragraphs"):
        found = report["duplicates"][what]
        kept = "removed" if found["removed"] else "kept"
        shown[f"repeated {what}"] = f"{found['repeated']:,} of {found['read']:,}, {kept}"
    shown |= {f"layout: {name}": note for name, note in report.get("layout", {}).items()}
    broken = report["broken"]
    if broken["lines"]:
        shown["broken lines"] = broken["lines"]
        for place, (source, line, what) in enumerate(broken["first"][:5], 1):
            shown[f"broken {place}"] = f"{source}:{line}: {what}"
    return shown
