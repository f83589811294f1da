"""The page of a pre-training run: what it gave, and how it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bothways.corpus.store import Split, TokenStore
from bothways.io import html
from bothways.io.files import write_text
from bothways.objectives.objective import Term
from bothways.pretraining.options import PretrainConfig
from bothways.pretraining.record import curves_of
from bothways.pretraining.samples import Samples
from bothways.training.monitor import METRICS, curve_section, read_metrics
from bothways.training.origin import PAGE, origin_section

_HELD_OUT = "heldout_"
_KINDS = {  # what is measured on held-out text, as read by people; the rest as it is called
    "loss": "loss (nats)",
    "baseline": "accuracy of a constant prediction",
}


def write_page(run: Path, corpus: str, terms: Sequence[Term], samples: Samples) -> Path:
    """Write report.html of a finished run.

    Args:
        run: its folder.
        corpus: what it was trained on.
        terms: its losses.
        samples: of its model.

    Returns:
        The file.

    Raises:
        DiskError: it could not be written.
    """
    title = f"Pre-training: {run.name}"
    records = read_metrics(run / METRICS)
    measured: dict[str, Any] = next(
        (r for r in reversed(records) if any(n.startswith(_HELD_OUT) for n in r)), {}
    )
    elements = [
        html.heading(title, 1),
        html.paragraph(_what(records)),
        *_held_out(measured, {term.key: term.title for term in terms}),
        *curve_section(curves_of(run, terms)),
        *_samples(samples),
        *origin_section(run, PretrainConfig, _data(corpus)),
    ]
    write_text(run / PAGE, html.page(title, elements))
    return run / PAGE


def _what(records: Sequence[Mapping[str, Any]]) -> str:
    last = records[-1] if records else {}
    parts = [f"{last.get('step', 0):,} steps"]
    if rates := [r["tokens_per_second"] for r in records if r.get("tokens_per_second")]:
        parts.append(f"about {sum(rates) / len(rates):,.0f} tokens a second")
    return "; ".join(parts) + "."


def _held_out(measured: Mapping[str, Any], titles: Mapping[str, str]) -> list[str]:
    rows = []
    for name, value in measured.items():
        if not name.startswith(_HELD_OUT) or not isinstance(value, int | float):
            continue
        term, _, kind = name.removeprefix(_HELD_OUT).partition("_")
        title = titles.get(term, term.replace("_", " "))
        shown = f"{value:,.1f}" if term == "perplexity" else f"{value:.4f}"
        rows.append([f"{title}: {_KINDS.get(kind, kind)}" if kind else title, shown])
    if not rows:
        return []
    title = f"On held-out text, at step {measured['step']:,}"
    return [html.heading(title), html.table(("score", "value"), rows)]


def _samples(samples: Samples) -> list[str]:
    if not samples.fillings and not samples.why_none:
        return []
    rows = [[sample.text, sample.word, sample.shown] for sample in samples.fillings]
    return [
        html.heading("Words put in for a hidden one"),
        html.table(("sentence", "hidden", "the likeliest"), rows)
        if rows
        else html.note(f"None: {samples.why_none}"),
    ]


def _data(corpus: str) -> list[str]:
    rows = []
    titles: dict[Split, str] = {"train": "trained on", "heldout": "held out"}
    for split, title in titles.items():
        store = TokenStore.open(corpus, split)
        counts = (store.documents, store.sentences, int(store.sentence_bounds[-1]))
        rows.append([title, corpus, *(f"{count:,}" for count in counts)])
    header = ("part", "corpus", "documents", "sentences", "tokens")
    return [html.heading("Data", 3), html.table(header, rows)]
