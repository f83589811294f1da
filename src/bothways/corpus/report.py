"""What is in a corpus: numbers for a program, a table for a terminal, and a page to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.corpus.unicode_scripts import SCRIPTS
from bothways.files import write_text
from bothways.page import bars, heading, listing, page, paragraph

PAGE = "report.html"
"""The page, in the corpus folder."""

_QUANTILES = {"min": 0.0, "p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "max": 1.0}


@dataclass
class Lengths:
    """How often each length occurs, counted as they come."""

    counts: dict[int, int] = field(default_factory=dict)

    def add(self, values: NDArray[Any]) -> None:
        """Count some lengths."""
        found = np.unique(values, return_counts=True)
        for value, count in zip(*(column.tolist() for column in found), strict=True):
            self.counts[value] = self.counts.get(value, 0) + count

    @property
    def number(self) -> int:
        """How many lengths were counted."""
        return sum(self.counts.values())

    @property
    def total(self) -> int:
        """Their sum."""
        return sum(value * count for value, count in self.counts.items())

    def quantiles(self) -> dict[str, int]:
        """Quantiles that are values themselves (the lower one between two); empty for none."""
        if not self.counts:
            return {}
        values = np.array(sorted(self.counts))
        ends = np.cumsum([self.counts[value] for value in values.tolist()])
        places = [int(share * (ends[-1] - 1)) for share in _QUANTILES.values()]
        found = values[np.searchsorted(ends, places, side="right")]
        return {name: int(value) for name, value in zip(_QUANTILES, found, strict=True)}

    def histogram(self) -> list[tuple[int, int]]:
        """(least length, how many) in classes that double: 1, 2-3, 4-7, ..."""
        classes: dict[int, int] = {}
        for value, count in self.counts.items():
            least = 1 << (value.bit_length() - 1) if value else 0
            classes[least] = classes.get(least, 0) + count
        return sorted(classes.items())


def summarise_split(sentences: Lengths, documents: Lengths) -> dict[str, Any]:
    """Sizes and length quantiles of one split, from its sentences' and documents' tokens."""
    return {
        "documents": documents.number,
        "sentences": sentences.number,
        "tokens": documents.total,
        "sentence_tokens": sentences.quantiles(),
        "document_tokens": documents.quantiles(),
    }


def heldout_note(documents: int, share: float) -> str | None:
    """Why held-out text cannot be measured on, or None where it can."""
    if share == 0:
        return "No held-out part: heldout is 0."
    if documents < 2:
        return (
            f"The held-out part has {documents} document{'' if documents == 1 else 's'}: fewer "
            "than the 2 that next sentence needs, so it cannot be measured on. Give more "
            "documents or a larger heldout."
        )
    return None


def script_shares(letters: NDArray[np.int64]) -> dict[str, float]:
    """Share of the letters that each script has, the largest first; without those that have none.

    Args:
        letters: [14] as :func:`bothways.corpus.unicode_scripts.count_scripts` counts.
    """
    total = max(int(letters.sum()), 1)
    found = [(name, n / total) for name, n in zip(SCRIPTS, letters.tolist(), strict=True) if n]
    return {name: round(share, 6) for name, share in sorted(found, key=lambda item: -item[1])}


def short_report(report: Mapping[str, Any]) -> dict[str, Any]:
    """What a terminal shows of a build's report: no histograms, lists cut short, nothing empty."""
    hidden = ("histograms", "most_repeated", "broken", "duplicates")
    shown = {name: value for name, value in report.items() if name not in hidden}
    if "scripts" in report:
        shares = report["scripts"].items()
        found = [f"{name} {share:.2%}" for name, share in shares if share >= 0.00005]
        shown["scripts"] = ", ".join(found)
    if "duplicates" in report:
        repeats = report["duplicates"]
        for what in ("documents", "paragraphs"):
            shown[f"repeated {what}"] = (
                f"{repeats[what]['repeated']:,} of {repeats[what]['read']:,}"
                + (", removed" if repeats[what]["removed"] else ", kept")
            )
        for place, row in enumerate(repeats["most_repeated"][:3], 1):
            text = row["text"] if len(row["text"]) <= 60 else row["text"][:59] + "…"
            shown[f"most repeated {place}"] = f"{row['times']:,} times: {text}"
    broken = report.get("broken", {"lines": 0})
    if broken["lines"]:
        shown["broken lines"] = broken["lines"]
        for place, (source, line, what) in enumerate(broken["first"][:5], 1):
            shown[f"broken {place}"] = f"{source}:{line}: {what}"
    return shown


def write_page(path: Path, report: Mapping[str, Any]) -> None:
    """One HTML page, without scripts or anything from elsewhere, that shows a report.

    Args:
        path: the HTML file.
        report: of :func:`bothways.corpus.build.build_corpus`; the time it took is not shown, so
            that the same corpus has the same page.

    Raises:
        DiskError: it cannot be written.
    """
    train, heldout = report["train"], report["heldout"]
    repeats, broken = report["duplicates"], report["broken"]
    head = (
        f"{train['documents']:,} documents, {train['sentences']:,} sentences and "
        f"{train['tokens']:,} tokens to train on; {heldout['documents']:,} documents and "
        f"{heldout['tokens']:,} tokens held out; {report['text_mb']:,.1f} MB of text; "
        f"{report['unknown_rate']:.3%} of the tokens are [UNK]."
    )
    lengths = [
        bars(f"{what.capitalize()} by length in tokens", _classes(rows))
        for what in ("sentences", "documents")
        if (rows := report["histograms"][f"{what}_by_tokens"])
    ]
    scripts = [(name, share, f"{share:.3%}") for name, share in report["scripts"].items()]
    found = repeats["paragraphs"]
    ranks = [(row["text"], row["times"], f"{row['times']:,}") for row in repeats["most_repeated"]]
    whole = repeats["documents"]
    repeated = (
        f"{found['repeated']:,} of {found['read']:,} paragraphs and {whole['repeated']:,} of "
        f"{whole['read']:,} documents repeat an earlier one."
    )
    body = [
        heading("Corpus", 1),
        paragraph(head),
        *lengths,
        bars("Scripts, share of the letters", scripts),
        bars("Most repeated paragraphs (how they begin)", ranks),
        paragraph(repeated),
        heading(f"Broken lines: {broken['lines']:,}"),
        listing(f"{source}:{line}: {what}" for source, line, what in broken["first"]),
    ]
    write_text(path, page("Corpus", body))


def _classes(rows: Sequence[tuple[int, int]]) -> list[tuple[str, float, str]]:
    """Rows of :meth:`Lengths.histogram` with their limits in words."""
    return [
        (f"{least:,}" if least <= 1 else f"{least:,} to {2 * least - 1:,}", many, f"{many:,}")
        for least, many in rows
    ]
