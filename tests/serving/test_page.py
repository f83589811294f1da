"""docs/serve.md holds: what it shows runs, and its limits are the defaults."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bothways import cli
from bothways.serving.options import Limits, ServeConfig
from serving_examples import Running, running

PAGE = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [
    line.removeprefix("$ ")
    for kind, text in BLOCKS
    if kind == "console"
    for line in text.splitlines()
]
URL = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running({"mini-en": "mini-en"}) as found:
        yield found


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("bothways")])
def test_commands_are_taken(command: str) -> None:
    words = shlex.split(command)[2:]
    verb = cli.VERBS["serve"]
    assert isinstance(verb, cli.Verb)
    config = verb.words("serve").parse(words)
    assert isinstance(config, ServeConfig)
    assert config.folders


@pytest.mark.skipif(shutil.which("curl") is None, reason="without curl")
@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("curl")])
def test_curl(server: Running, command: str) -> None:
    words = shlex.split(command.replace(URL, server.url))
    found = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
    assert "error" not in json.loads(found.stdout)


@pytest.mark.parametrize("code", [text for kind, text in BLOCKS if kind == "python"])
def test_python(server: Running, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code.replace(URL, server.url), "docs/serve.md", "exec"), {})
    assert capsys.readouterr().out


def test_limits() -> None:
    rows = re.findall(r"\| `limits_(\w+)` \| ([\d,]+) ", PAGE)
    assert {name: float(value.replace(",", "")) for name, value in rows} == vars(Limits())


def test_routes(server: Running) -> None:
    """The page names every route, but for those below ``/models/NAME`` of which it says so."""
    described = {
        path.replace("{model}", "NAME").replace("{task}", "TASK")
        for path in server.get("/openapi.json").json()["paths"]
    }
    named = {
        path for path in re.findall(r"`(/[\w/.-]*)`", PAGE) if path not in ("/v1", "/hf-inference")
    }
    assert named <= described
    assert {path.removeprefix("/models/NAME") or "/" for path in described} <= named
