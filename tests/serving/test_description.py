"""/openapi.json describes every route with every status that it answers, and nothing else."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from bothways.serving import app, wire
from bothways.serving.batching import past_deadline
from bothways.serving.options import KEY
from bothways.serving.refusals import STATUS, RefusedError
from bothways.serving.routes import ASKS
from bothways.serving.served import ServedModel
from serving_examples import Running, make_folders, running

BODIES: dict[type[wire.Form], dict[str, Any]] = {
    wire.Inference: {"inputs": "w1"},
    wire.Embed: {"inputs": "w1"},
    wire.Predict: {"inputs": "w1"},
    wire.Rerank: {"query": "w1", "texts": ["w2"]},
    wire.Similarity: {"inputs": {"source_sentence": "w1", "sentences": ["w2"]}},
    wire.Tokenize: {"inputs": "w1"},
    wire.Decode: {"ids": [1]},
    wire.Choices: {"context": "w1", "choices": ["w2", "w3"]},
    wire.Pair: {"text": "w1", "text_pair": "w2"},
    wire.Attend: {"text": "w1"},
    wire.Attribute: {"text": "w1"},
    wire.Embeddings: {"input": "w1", "model": "classes"},
    wire.RankDocuments: {"query": "w1", "documents": ["w2"]},
}
FORMS = {path: ask.form for ask in ASKS for path in ask.paths}
OF_CONNECTIONS = {"400", "408", "503"}
"""What any request may get before a route has it: test_limits.py."""


@pytest.fixture(scope="module", params=["", "s3cret"], ids=["without a key", "with a key"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    folders = make_folders(tmp_path_factory.mktemp("models"), "classes", "vectors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY, request.param)
        with running(folders, body=20_000) as found:
            yield found


def described(server: Running) -> dict[str, Any]:
    found: dict[str, Any] = Client(server).send("GET", "/openapi.json").json()
    return found


def operations(server: Running) -> list[tuple[str, str]]:
    routes: Any = app.application(server.server).routes
    return [(method, route.path) for route in routes for method in sorted(route.methods)]


def test_it_has_every_route_and_method(server: Running) -> None:
    paths = described(server)["paths"]
    found = {
        (method.upper(), path)
        for path, item in paths.items()
        for method in item.keys() - {"parameters"}
    }
    assert found == {*operations(server)}
    for path, item in paths.items():
        named = [one["name"] for one in item.get("parameters", [])]
        assert sorted(named) == sorted(part[1:-1] for part in path.split("/") if "{" in part)


class Client:
    """Sends requests to every route, and notes the status of each answer."""

    def __init__(self, server: Running):
        self.server = server
        self.authorization = f"Bearer {server.server.key or 'none'}"
        self.answered: dict[tuple[str, str], set[str]] = defaultdict(set)

    def send(
        self, method: str, path: str, content: Any = None, model: str = "classes", **headers: str
    ) -> httpx.Response:
        filled = path.replace("{model}", model).replace("{task}", headers.pop("task", "ner"))
        body = content if isinstance(content, bytes | None) else json.dumps(content).encode()
        headers = {"Authorization": self.authorization, **headers}
        answer = self.server.client.request(method, filled, content=body, headers=headers)
        self.answered[method, path].add(str(answer.status_code))
        return answer

    def send_all(self, **more: str) -> None:
        """Good requests to all routes."""
        for method, path in operations(self.server):
            self.send(method, path, BODIES[FORMS[path]] if method == "POST" else None, **more)

    def send_bad(self) -> None:
        """Bodies that are refused, to all routes that take one."""
        for path, form in FORMS.items():
            self.send("POST", path, b"{")
            self.send("POST", path, {"w77": 1})
            self.send("POST", path, {**BODIES[form], "inputs": "w77 " * 9_000})
            self.send("POST", path, b"", **{"content-encoding": "gzip"})
            if "model" in form.__struct_fields__ and "{model}" not in path:
                self.send("POST", path, {**BODIES[form], "model": "w77"})


def answering(error: Exception | None) -> Any:
    """In place of :meth:`ServedModel.run`."""

    async def answer(*_: Any) -> bytes:
        if error is not None:
            raise error
        return b"{}"

    return answer


def refuse(*_: Any) -> None:
    raise RefusedError("overloaded", "later")


def test_it_has_every_status(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, client = described(server)["paths"], Client(server)
    client.send_bad()
    client.send_all(model="w77")
    client.send_all(task="w77")
    for model in ("classes", "w77"):
        client.send_all(model=model, Authorization="Bearer other")
    monkeypatch.setattr(ServedModel, "refuse_other", lambda *_: None)
    monkeypatch.setattr(server.server.models["vectors"], "tasks", ())  # routes mean the other
    for outcome in (None, past_deadline(), ValueError()):
        monkeypatch.setattr(ServedModel, "run", answering(outcome))
        client.send_all()
    monkeypatch.setattr(ServedModel, "admit", refuse)
    client.send_all()
    monkeypatch.setattr(server.server, "ends_at", time.monotonic() + 60)  # not ready
    client.send_all()
    monkeypatch.setattr(app, "_check_key", lambda *_: 1 / 0)
    client.send_all()

    documented = {
        (method, path): {*paths[path][method.lower()]["responses"]}
        for method, path in operations(server)
    }
    assert {one: found | OF_CONNECTIONS for one, found in client.answered.items()} == documented
    assert "503" in client.answered["GET", "/ready"]
    assert "503" in client.answered["GET", "/models/{model}/ready"]
    every = {
        str(status)
        for name, status in STATUS.items()
        if server.server.key or name != "unauthorized"
    }
    # A method that a route does not have is no operation of it.
    assert set().union(*documented.values()) == every - {"405"} | {"200"}


def test_what_it_refers_to_is_there(server: Running) -> None:
    found = described(server)
    references = []

    def visit(value: Any) -> None:
        if isinstance(value, dict):
            references.extend([value["$ref"]] if "$ref" in value else [])
        for one in value.values() if isinstance(value, dict) else value:
            if isinstance(one, dict | list):
                visit(one)

    visit(found)
    names = {reference.removeprefix("#/components/schemas/") for reference in references}
    assert names == {*found["components"]["schemas"]}


def test_it_says_where_a_key_is_needed(server: Running) -> None:
    found = described(server)
    free = {"/", "/health", "/ready", "/models/{model}/health", "/models/{model}/ready"}
    if not server.server.key:
        assert "security" not in json.dumps(found)
        return
    assert found["security"] == [{"key": []}]
    assert found["components"]["securitySchemes"].keys() == {"key"}
    for path, item in found["paths"].items():
        for method, operation in item.items():
            if method in ("get", "head"):
                assert ("security" in operation) == (path in free)
            assert method != "post" or "security" not in operation
