"""The site's page of names has every verb, option and public Python name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bothways
from bothways.config.fields import option_types


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "scripts"))
    import write_names

    return write_names


def test_the_page_leaves_nothing_out(names: Any) -> None:
    page = names.page()
    for name, verb in names.verbs().items():
        assert f"\n### {name}\n" in page
        for option in option_types(verb.config):
            shown = option.upper() if option in verb.positional else option
            assert f"| `{shown}` |" in page, option
    for name in bothways.__all__:
        assert f"| `{name}" in page
    assert "| `fill_mask(" in page
    for line in (line for line in page.splitlines() if line.startswith("And ")):
        assert len({*line.split(", ")}) == len(line.split(", ")), line
    assert "\\|false]" not in page


def test_the_options_of_a_verb_are_listed_with_it(names: Any) -> None:
    sections = dict(
        part.partition("\n")[::2] for part in names.page().split("\n## ")[1].split("\n### ")[1:]
    )
    assert "| `snapshots` |" in sections["pretrain"]
    assert "| `ranks` |" not in sections["pretrain"]
    assert "And those of pretrain, " in sections["plan"]
    assert "| `snapshots` |" not in sections["plan"]


def test_every_row_of_the_page_says_something(names: Any) -> None:
    page = names.page()
    assert not [
        line for line in page.splitlines() if line.startswith("| `") and line.endswith("|  |")
    ]
