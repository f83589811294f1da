"""Each row of the reports of `bothways vocab` and `corpus` is explained, in help and on a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bothways import cli
from bothways.cli.report_rows import CORPUS, VOCABULARY

PAGE = Path(__file__).parents[2] / "docs" / "vocabulary-and-corpus.md"


def rows_of(printed: str) -> list[str]:
    """The names in the first column of a table."""
    cells = [line.split("│")[1].strip() for line in printed.splitlines() if line.startswith("│")]
    return [cell for cell in cells if cell]


def is_explained(row: str, rows: dict[str, str]) -> bool:
    starts = [name.removesuffix("...") for name in rows if name.endswith("...")]
    return row in rows or any(row.startswith(start.rstrip()) for start in starts)


def test_every_row_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts").mkdir()
    text = "배우들 연기는 좋은데 스토리가 지루하다.\nThe house is by the sea 漢.\n\nA title\n\n"
    Path("texts/a.txt").write_bytes((text * 40).encode() + b"caf\xe9 by the sea\n")
    Path("texts/old.doc").write_text("no text")
    files = ["--files", "texts", "--broken", "replace"]
    words = ["vocab", *files, "--heldout", "texts/a.txt", "--size", "200", "--out", "v"]
    assert cli.main([*words, "--alphabet", "30"]) == 0
    shown = capsys.readouterr()
    assert "what the rows mean: bothways help vocab learn" in shown.err
    rows = rows_of(shown.out)
    assert {"vocabulary pieces", "learned from broken lines", "heldout words"} < {*rows}
    assert [row for row in rows if not is_explained(row, VOCABULARY)] == []
    assert cli.main(["corpus", *files, "--tokenizer", "v", "--out", "c"]) == 0
    shown = capsys.readouterr()
    assert "what the rows mean: bothways help corpus build" in shown.err
    rows = rows_of(shown.out)
    assert {"train tokens", "most repeated 1", "broken lines"} < {*rows}
    assert [row for row in rows if not is_explained(row, CORPUS)] == []


@pytest.mark.parametrize(("verb", "rows"), [("vocab learn", VOCABULARY), ("corpus build", CORPUS)])
def test_help_and_page_have_them(
    verb: str, rows: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["help", *verb.split()]) == 0
    words = " ".join(capsys.readouterr().out.split())
    page = PAGE.read_text()
    for name, text in rows.items():
        assert f"{name} {text}" in words
        assert f"| {name} | {text} |" in page
    options = re.findall(r"--(\w+)", " ".join(rows.values()))
    assert cli.main(["help", *verb.split(), "all"]) == 0
    every = capsys.readouterr().out
    assert [option for option in options if f"--{option} " not in every] == []
