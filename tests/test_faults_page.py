"""docs/faults.md is true: its commands run, and its limits are those of the code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from bothways import cli
from bothways.corpus.options import CorpusConfig
from bothways.families import config
from bothways.io import broken, folder_files
from bothways.runtime import stored

ROOT = Path(__file__).parents[1]


PAGE = (ROOT / "docs/faults.md").read_text(encoding="utf-8")


def test_its_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts").mkdir()
    lines = [f"The judge sold boat {n}.\nMy aunt found {n} letters.\n".encode() for n in range(40)]
    Path("texts/a.txt").write_bytes(b"\n".join([*lines, b"One caf\xe9 is open.\n"]))
    blocks = re.findall(r"^```console\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    commands = [line[2:] for block in blocks for line in block.splitlines()]
    assert len(commands) == 3
    for command in commands:
        assert cli.main(shlex.split(command)[1:]) == 0, capsys.readouterr().err
    assert Path("corpus/corpus.json").exists()


def test_its_limits() -> None:
    limits = dict(
        re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", PAGE.split("## Limits")[1], re.MULTILINE)
    )
    most = config._AT_MOST
    shape = ", ".join(f"{most[name]:,}" for name in ("layers", "hidden", "positions"))
    line = f"{CorpusConfig.max_line_mib:g} MiB, `max_line_mib`"
    header = f"{stored._MOST_HEADER / 2**20:g} MiB, {stored._MOST_TENSORS:,}"
    assert {
        "a line to learn from (`corpus`, `vocab`)": line,
        "a line that a model is to read": f"{broken.TEXT.mib:g} MiB",
        "config.json and other settings": f"{folder_files.MOST_SETTINGS} MiB",
        "a file with a vocabulary": f"{folder_files.MOST_VOCABULARY} MiB",
        "layers, hidden size, positions of a config.json": shape,
        "positions that no table of weights has": f"{config._MOST_COMPUTED:,}",
        "header of a safetensors file, tensors in a file": header,
    }.items() <= limits.items()
