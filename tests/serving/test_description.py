"""/openapi.json describes every route with what it takes and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from bothways.serving import app
from bothways.serving.options import KEY
from bothways.serving.routes import ASKS
from serving_examples import Running, make_folders, running


@pytest.fixture(scope="module", params=["", "s3cret"], ids=["without a key", "with a key"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    folders = make_folders(tmp_path_factory.mktemp("models"), "classes", "vectors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY, request.param)
        with running(folders) as found:
            yield found


def described(server: Running) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {server.server.key or 'none'}"}
    found: dict[str, Any] = server.get("/openapi.json", headers=headers).json()
    return found


def test_it_has_every_route_and_method(server: Running) -> None:
    paths = described(server)["paths"]
    routes: Any = app.application(server.server).routes
    assert {
        (method.upper(), path)
        for path, item in paths.items()
        for method in {*item} - {"parameters"}
    } == {
        (method, route.path.replace("{model:path}", "{model}"))
        for route in routes
        for method in route.methods - {"HEAD"}
    }
    for path, item in paths.items():
        named = [one["name"] for one in item["parameters"]]
        assert sorted(named) == sorted(part[1:-1] for part in path.split("/") if "{" in part)
        for operation in (item[method] for method in {*item} - {"parameters"}):
            assert operation["responses"].keys() == {"200", "default"}
    for path, ask in ASKS.items():
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert body == {"$ref": f"#/components/schemas/{ask.form.__name__}"}


def test_what_it_refers_to_is_there(server: Running) -> None:
    found = described(server)
    references = set()

    def visit(value: Any) -> None:
        if isinstance(value, dict):
            references.update([value["$ref"]] if "$ref" in value else [])
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
        for method in {*item} - {"parameters"}:
            assert ("security" in item[method]) == (method == "get" and path in free)
            refused = server.client.request(method, path.replace("{model}", "classes"), json={})
            assert (refused.status_code == 401) != (method == "get" and path in free)
