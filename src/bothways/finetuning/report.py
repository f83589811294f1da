"""The reports of a fine-tuning run: report.json for programs, report.html for people.

The page is a single file without scripts or external resources. It shows scores and curves of every
seed, and for the seed that is best on dev the panels and errors of its kind of task; then how it
was made: command, data, settings, versions and date, as the run's record has them, so that the same
run has the same page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bothways.finetuning.options import FinetuneConfig
from bothways.finetuning.results import FinetuneResult, SearchResult
from bothways.finetuning.setup import FinetuningData
from bothways.io import html
from bothways.io.files import write_json, write_text
from bothways.io.terminal import counted
from bothways.runtime.model_card import write_scores
from bothways.tasks.options import share, traits_of
from bothways.tasks.report_panels import (
    Cell,
    Panel,
    length_panel,
    panel_from_record,
    panel_record,
    worst,
)
from bothways.tasks.task import EncodedFile, Task
from bothways.training.monitor import (
    curve_section,
    draw_scatter,
)
from bothways.training.origin import PAGE, origin_section
from bothways.training.runfolder import read_run

REPORT = "report.json"


def describe(task: Task[Any, Any], file: EncodedFile[Any], predictions: Any) -> dict[str, Any]:
    """What a report shows about predictions for a labelled file, as JSON-able data.

    Returns:
        ``panels``, with scores by length if the task measures single examples; ``errors``, the
        worst ones; and ``errors_total``, how many there were.
    """
    panels = list(task.panels(file, predictions))
    scores = task.example_scores(file, predictions)
    if scores is not None and len(scores.values):
        panels.append(length_panel(task.example_lengths(file), scores))
    errors = task.errors(file, predictions)
    return {
        "panels": [panel_record(panel) for panel in panels],
        "errors_total": len(errors),
        "errors": worst(errors),
    }


def write_reports(result: FinetuneResult, data: FinetuningData) -> None:
    """Write report.json and report.html of a setting.

    Args:
        result: of the setting.
        data: the files that it was trained and measured on.

    Raises:
        DiskError: they could not be written.
    """
    best = result.best.examples
    record = {**result.report(), "best_run": {"name": result.best.name, **best}}
    write_json(result.run / REPORT, record)
    main, runs = result.metrics[0], len(result.seeds)
    where = f"{result.dev_examples:,} dev examples"
    chosen = ""
    if result.folds:
        where = f"{result.dev_examples:,} examples in {result.folds} folds"
        chosen = " Each run is measured on its fold."
    elif runs > 1:
        others = "; the scores on other files are not" if result.further else ""
        chosen = f" The best run is chosen on dev, so its dev score is optimistic{others}."
    sections = [
        html.heading(f"{result.task}: fine-tuning", 1),
        html.paragraph(
            f"{counted(runs, 'run')}, measured on {where}: {main} {result.mean():.4f}"
            f"{' on average' if runs > 1 else ''}, {result.baseline[main]:.4f} for a constant "
            f"prediction.{chosen}"
        ),
        html.table(result.cells()[0], [*result.cells()[1:], *result.summary()]),
        html.listing(result.lines()),
        *curve_section(result.curves(2)),
        *_example_sections(result.best.name if runs > 1 else "", best),
        *_origin(result.run, data),
    ]
    write_text(result.run / PAGE, html.page(f"{result.task}: fine-tuning", sections))
    # Seconds, the last column, are of the machine and not of the model.
    scores = [row[:-1] for row in [*result.cells(), *result.summary()]]
    for seed in result.seeds:
        notes = [f"measured on {where}", f"this model is {seed.name}", *result.lines()]
        write_scores(seed.model, scores, notes)


def write_search_reports(result: SearchResult) -> None:
    """Write report.json and report.html of a search; the page links to those of its settings.

    Raises:
        DiskError: they could not be written.
    """
    write_json(result.run / REPORT, result.report())
    header, *rows = result.cells()
    links = [f"{setting.name}/{PAGE}" for setting in result.ranked]
    named_rows = [[s.name, *row] for s, row in zip(result.ranked, rows, strict=True)]
    sections = [
        html.heading(f"{result.chosen.task}: search over settings", 1),
        html.listing(result.lines()),
        html.heading("Settings, by mean"),
        html.table(["setting", *header], named_rows, links=links),
        *_origin(result.run),
    ]
    title = f"{result.chosen.task}: search over settings"
    write_text(result.run / PAGE, html.page(title, sections))


def _example_sections(name: str, report: dict[str, Any]) -> list[str]:
    """Panels and errors of one seed, which is named if there are others."""
    sections = []
    if name and (report["panels"] or report["errors"]):
        sections.append(html.paragraph(f"The rest of this page is about the best run, {name}."))
    for record in report["panels"]:
        sections += _panel_section(panel_from_record(record))
    errors = report["errors"]
    if errors:
        title = f"Errors: the worst {len(errors)} of {report['errors_total']:,}"
        note = "Examples are numbered from 0, as in the run's dev_predictions."
        sections += [html.heading(title), html.note(note)]
        if any(error.get("marked") for error in errors):
            legend = [("right", "right", "as predicted"), (" · ", "", "")]
            legend += [("wrong", "wrong", "predicted, not gold"), (" · ", "", "")]
            legend += [("missed", "missed", "gold, not predicted")]
            sections.append(f"<p>{html.marked(legend)}</p>")
    for error in errors:
        texts = [
            html.long_text(f"{column}: {text}" if len(error["texts"]) > 1 else text)
            for column, text in error["texts"]
        ]
        if marked := error.get("marked"):
            named = [(f"{error['texts'][-1][0]}: ", "", "")] if len(texts) > 1 else []
            texts[-1] = html.marked([*named, *marked])
        verdict = (
            f"{error['example']}: predicted: {error['predicted']}; gold: {error['gold']} "
            f"({error['shown']})"
        )
        if error.get("marked") and len(texts) == 1:  # the marks say what the heading would
            verdict = f"{error['example']} ({error['shown']})"
        sections.append(f"{html.heading(verdict, 3)}<p>{'<br>'.join(texts)}</p>")
    return sections


def _panel_section(panel: Panel) -> list[str]:
    sections = [html.heading(panel.title)]
    if panel.chart == "scatter":
        x, y = ([float(row[column]) for row in panel.rows] for column in (0, 1))
        labels = {"x_label": panel.header[0], "y_label": panel.header[1]}
        sections.append(html.picture(draw_scatter(x, y, **labels), panel.title))
    else:
        shades = []
        if panel.chart == "heat":
            totals = [sum(float(cell) for cell in row[1:]) or 1 for row in panel.rows]
            shades = [
                [0.8 * float(cell) / total for cell in row[1:]]
                for row, total in zip(panel.rows, totals, strict=True)
            ]
        rows = [[_figure(cell) for cell in row] for row in panel.rows]
        sections.append(html.table(panel.header, rows, shades=shades))
    return [*sections, html.note(panel.note)] if panel.note else sections


def _origin(run: Path, data: FinetuningData | None = None) -> list[str]:
    record = read_run(run)
    kind = record.get("config", {}).get("kind", "")
    usual = {"max_length": traits_of(kind).length}
    return origin_section(run, FinetuneConfig, _data_section(record, data), usual)


def _data_section(record: Mapping[str, Any], data: FinetuningData | None) -> list[str]:
    if data is None:
        return []
    task = record.get("config", {})
    train, rows = str(task.get("train", "")), []
    for name, file in {"train": data.train, "dev": data.dev, **data.extra.files}.items():
        path = task[name] if task.get(name) else getattr(file.rows, "path", "")
        if name == "dev" and task.get("folds"):
            path = f"{train}, each part in turn"
        elif share(str(path)):
            path = f"{train}, {path} held out"
        rows.append([name, str(path), f"{len(file.rows):,}"])
    table = html.table(("part", "file", "examples"), rows)
    return [html.heading("Data", 3), table, *([html.note(data.split)] if data.split else [])]


def _figure(cell: Cell) -> str:
    if isinstance(cell, float):
        return "-" if math.isnan(cell) else f"{cell:.4f}"
    return f"{cell:,}" if isinstance(cell, int) else cell
