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
            assert f"`{shown}`" in page, option
    for name in bothways.__all__:
        assert f"| `{name}" in page
    assert "| `fill_mask(" in page
    assert "\\|false]" not in page


def test_every_row_of_the_page_says_something(names: Any) -> None:
    page = names.page()
    assert not [
        line for line in page.splitlines() if line.startswith("| `") and line.endswith("|  |")
    ]
