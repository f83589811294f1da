"""How a run was made, as a part of its page: command, data, settings, versions and date, from
run.json, so that the same run has the same page."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bothways.config.fields import Options, options_of, to_dict
from bothways.io import html
from bothways.training.runfolder import read_run

PAGE = "report.html"
"""The page of a run, in its folder."""


def origin_section(
    run: Path,
    kind: type[Options],
    data: Sequence[str] = (),
    usual: Mapping[str, Any] | None = None,
) -> list[str]:
    """Elements of a page.

    Args:
        run: its folder.
        kind: the class of the verb's options.
        data: elements about the data.
        usual: values of options that are as good as their defaults.
    """
    record = read_run(run)
    changed = changed_settings(record, kind, usual or {})
    every = [
        [name, _shown(value)]
        for part in ("recipe", "resolved", "versions")
        for name, value in record[part].items()
    ]
    versions = record["versions"]
    made = [f"bothways {versions.get('bothways', '')}", f"Python {versions.get('python', '')}"]
    made += [f"{name} {versions[name]}" for name in ("torch", "numpy") if name in versions]
    begun = [f"Begun {moment(record['started'])}"] if "started" in record else []
    return [
        html.heading("How this was made"),
        html.paragraph("; ".join([*begun, ", ".join(made)])),
        html.command(command_of(record["verb"], changed)),
        *data,
        html.heading("Settings that differ from the defaults", 3),
        html.table(("option", "value"), [[n, _shown(value)] for n, value in changed.items()]),
        html.folded("All settings and versions", html.table(("option", "value"), every)),
    ]


def changed_settings(
    record: Mapping[str, Any], kind: type[Options], usual: Mapping[str, Any]
) -> dict[str, Any]:
    """The options of a run's record that differ from their defaults; among
    them those that were chosen because they were not given.

    Args:
        record: the content of run.json.
        kind, usual: as for :func:`origin_section`.
    """
    values, changed = record.get("config", {}), {}
    for option in options_of(kind):
        value, default = values.get(option.name), to_dict(option.default)
        if option.name in values and value not in (default, usual.get(option.name, default)):
            changed[option.name] = value
    return changed


def command_of(verb: str, changed: Mapping[str, Any]) -> list[str]:
    """The command that makes a run, also if it was made from Python: the verb, and the words of
    each option, quoted for a shell."""
    words = [f"bothways {verb}"]
    for name, value in changed.items():
        items = value if isinstance(value, list) and not _holds_groups(value) else [value]
        words.append(shlex.join([f"--{name.replace('_', '-')}", *map(_shown, items)]))
    return words


def moment(started: str) -> str:
    """A time of a record, to the minute."""
    try:
        return f"{datetime.fromisoformat(started).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return started


def _holds_groups(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _shown(value: Any) -> str:
    """As on the command line."""
    if _holds_groups(value):
        return json.dumps(value).replace('"', "")  # YAML needs no quotes for names and numbers
    if isinstance(value, list):
        return " ".join(map(_shown, value)) or "none"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
