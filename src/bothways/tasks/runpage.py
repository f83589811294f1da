"""The reports of a fine-tuning run: report.json for programs, report.html for people.

The page is one file without scripts or anything from elsewhere. It shows scores and curves of every
run, and what the best one on dev does with single examples: the panels and errors that its kind of
task gives, kept in its folder as ``dev_report.json``.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from bothways import page
from bothways.files import write_json, write_text
from bothways.tasks.report import FinetuneResult, SearchResult
from bothways.tasks.report_panels import (
    Cell,
    Panel,
    length_panel,
    panel_from_record,
    panel_record,
    worst,
)
from bothways.tasks.task import Part, Task
from bothways.training.monitor import METRICS, read_metrics
from bothways.training.plots import Curves, draw_panels, draw_scatter
from bothways.training.runfolder import read_run

DEV_REPORT, REPORT, PAGE = "dev_report.json", "report.json", "report.html"

Points = list[tuple[float, float]]


def describe(task: Task[Any, Any], part: Part[Any], predictions: Any) -> dict[str, Any]:
    """What a task has to show of predictions for a labelled file, as JSON-able data.

    Returns:
        ``panels``, with scores by length if the task measures single examples; ``errors``, the
        worst ones; and how many there were.
    """
    panels = list(task.panels(part, predictions))
    each = task.each(part, predictions)
    if each is not None and len(each.values):
        examples = part.examples
        lengths = np.bincount(examples.owners, weights=examples.lengths, minlength=len(each.values))
        panels.append(length_panel(lengths.astype(np.int64), each))
    errors = task.errors(part, predictions)
    return {
        "panels": [panel_record(panel) for panel in panels],
        "errors_total": len(errors),
        "errors": worst(errors),
    }


def write_reports(result: FinetuneResult) -> None:
    """report.json and report.html of a setting's run folder.

    Raises:
        DiskError: they could not be written.
    """
    curves = {run.name: read_curves(run.folder) for run in result.seeds}
    shown = read_dev_report(result.best.folder)
    record = {**result.report(), "curves": curves, "best_run": {"name": result.best.name, **shown}}
    write_json(result.run / REPORT, record)
    main, runs = result.metrics[0], len(result.seeds)
    pieces = [
        page.heading(f"{result.task}: fine-tuning", 1),
        page.paragraph(
            f"{runs} run{'' if runs == 1 else 's'}, measured on {result.dev_examples:,} dev "
            f"examples: {main} {result.mean():.4f} on average, {result.baseline[main]:.4f} for "
            "always giving the same answer. The best run is chosen on dev, so its score is above "
            "what new data will give."
        ),
        page.table(result.cells()[0], [*result.cells()[1:], *result.summary()]),
        page.listing(result.lines()),
        *_curve_pieces(result, curves),
        *_shown_pieces(result.best.name, shown),
        *_settings(result.run),
    ]
    write_text(result.run / PAGE, page.page(f"{result.task}: fine-tuning", pieces))


def write_search_reports(result: SearchResult) -> None:
    """report.json and report.html of a search; its page leads to those of the settings.

    Raises:
        DiskError: they could not be written.
    """
    write_json(result.run / REPORT, result.report())
    header, *rows = result.cells()
    links = [f"{setting.name}/{PAGE}" for setting in result.ranked]
    named = [[s.name, *row] for s, row in zip(result.ranked, rows, strict=True)]
    pieces = [
        page.heading(f"{result.chosen.task}: search over settings", 1),
        page.listing(result.lines()),
        page.heading("Settings, by mean"),
        page.table(["setting", *header], named, links=links),
        *_settings(result.run),
    ]
    title = f"{result.chosen.task}: search over settings"
    write_text(result.run / PAGE, page.page(title, pieces))


def read_curves(folder: Path) -> dict[str, Points]:
    """The training loss by step, and the scores on dev after each epoch, from a run's records."""
    curves: dict[str, Points] = {}
    for record in read_metrics(folder / METRICS):
        for name, value in record.items():
            if (name == "loss" or name.startswith("dev_")) and value is not None:
                curves.setdefault(name, []).append((record["step"], value))
    return curves


def read_dev_report(folder: Path) -> dict[str, Any]:
    """What :func:`describe` said of a run; nothing where it is missing or damaged."""
    try:
        found = json.loads((folder / DEV_REPORT).read_text(encoding="utf-8"))
        for panel in found["panels"]:
            panel_from_record(panel)
        return {name: found[name] for name in ("panels", "errors_total", "errors")}
    except (OSError, ValueError, KeyError, TypeError):
        return {"panels": [], "errors_total": 0, "errors": []}


def _curve_pieces(result: FinetuneResult, curves: dict[str, dict[str, Points]]) -> list[str]:
    """Loss and main scores of all runs over the steps, as one picture; scores from two epochs on,
    for those of one are in the table."""
    drawn: dict[str, Curves] = {}
    for name, title in [("loss", "training loss"), *((f"dev_{m}", m) for m in result.metrics[:2])]:
        points = {run: own[name] for run, own in curves.items() if len(own.get(name, ())) > 1}
        if not points:
            continue
        panel = {run: ([x for x, _ in own], [y for _, y in own]) for run, own in points.items()}
        if name == "loss":
            drawn[title] = panel
        else:
            always = ([0.0], [result.baseline[title]])
            drawn[f"{title} on dev"] = {**panel, "always the same": always}
    if not drawn:
        return []
    return [page.heading("Curves"), page.picture(draw_panels(drawn), "loss and scores by step")]


def _shown_pieces(name: str, shown: dict[str, Any]) -> list[str]:
    """Panels and errors of one run."""
    pieces = []
    if shown["panels"] or shown["errors"]:
        pieces.append(page.paragraph(f"What follows is of the best run on dev, {name}."))
    for record in shown["panels"]:
        pieces += _panel_pieces(panel_from_record(record))
    errors = shown["errors"]
    if errors:
        title = f"Errors: the worst {len(errors)} of {shown['errors_total']:,}"
        note = "With the number of the example, from 0, as in the run's dev_predictions."
        pieces += [page.heading(title), page.paragraph(note)]
    for error in errors:
        texts = "<br>".join(
            page.long_text(f"{column}: {text}" if len(error["texts"]) > 1 else text)
            for column, text in error["texts"]
        )
        verdict = (
            f"{error['example']}: predicted {error['predicted']}, right is {error['gold']} "
            f"({error['shown']})"
        )
        pieces.append(f"{page.heading(verdict, 4)}<p>{texts}</p>")
    return pieces


def _panel_pieces(panel: Panel) -> list[str]:
    pieces = [page.heading(panel.title)]
    if panel.chart == "scatter":
        x, y = ([float(row[column]) for row in panel.rows] for column in (0, 1))
        labels = {"x_label": panel.header[0], "y_label": panel.header[1]}
        pieces.append(page.picture(draw_scatter(x, y, **labels), panel.title))
    else:
        shades = []
        if panel.chart == "heat":
            totals = [sum(float(cell) for cell in row[1:]) or 1 for row in panel.rows]
            shades = [
                [0.8 * float(cell) / total for cell in row[1:]]
                for row, total in zip(panel.rows, totals, strict=True)
            ]
        rows = [[_figure(cell) for cell in row] for row in panel.rows]
        pieces.append(page.table(panel.header, rows, shades=shades))
    return [*pieces, page.paragraph(panel.note)] if panel.note else pieces


def _settings(run: Path) -> list[str]:
    """Options and versions, as run.json has them."""
    record = read_run(run)
    rows = [
        [name, str(value)]
        for part in ("recipe", "resolved", "versions")
        for name, value in record[part].items()
    ]
    return [page.heading("Settings"), page.table(("option", "value"), rows)]


def _figure(cell: Cell) -> str:
    if isinstance(cell, float):
        return "-" if math.isnan(cell) else f"{cell:.4f}"
    return f"{cell:,}" if isinstance(cell, int) else cell
