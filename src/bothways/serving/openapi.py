"""The description of the routes, as OpenAPI 3.1, from their forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from bothways.serving import wire
from bothways.serving.refusals import STATUS, ErrorBody
from bothways.serving.routes import ASKS

_GETS = {
    "/health": ("Whether the server is alive.", wire.Health),
    "/ready": ("Whether all models compute.", wire.Health),
    "/info": ("What the first model is and takes.", wire.Info),
    "/models/{model}/info": ("What a model is and takes.", wire.Info),
    "/models": ("What all models are and take.", list[wire.Info]),
    "/v1/models": ("The models.", wire.ModelList),
}


def describe(models: Sequence[str]) -> dict[str, Any]:
    """The description of a server with models of these names."""
    types: list[Any] = [ErrorBody]
    for ask in ASKS:
        types += [ask.form, ask.found]
    types += [found for _, found in _GETS.values()]
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    schema = dict(zip(map(repr, types), schemas, strict=True))
    refused = {
        str(status): _answer(schema[repr(ErrorBody)], name.replace("_", " "))
        for name, status in STATUS.items()
    }
    paths: dict[str, Any] = {}
    for ask in ASKS:
        operation = {
            "summary": (ask.form.__doc__ or "").strip(),
            "requestBody": {"required": True, **_content(schema[repr(ask.form)])},
            "responses": {"200": _answer(schema[repr(ask.found)], "the answer"), **refused},
        }
        for path in ask.paths:
            paths[path] = {"post": {**operation, **_parameters(path, models)}}
    for path, (summary, found) in _GETS.items():
        answers = {"200": _answer(schema[repr(found)], "the answer")}
        operation = {"summary": summary, "responses": answers, **_parameters(path, models)}
        paths.setdefault(path, {})["get"] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "bothways", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def _answer(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"description": description, **_content(schema)}


def _parameters(path: str, models: Sequence[str]) -> dict[str, Any]:
    """Of a path, those in braces."""
    schemas: dict[str, dict[str, Any]] = {
        "model": {"type": "string", "enum": list(models)},
        "task": {"type": "string"},
    }
    found = [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name, schema in schemas.items()
        if f"{{{name}}}" in path
    ]
    return {"parameters": found} if found else {}
