"""The description of the routes, as OpenAPI 3.1, from their tables and forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from bothways.serving.refusals import STATUS, ErrorBody
from bothways.serving.routes import ASKS, LOOKS, Ask, Look
from bothways.serving.served import TASKS

_OF_ANY = ("malformed", "receipt_timeout", "internal", "unavailable")
"""What any request may be refused for: it is no HTTP or comes too slowly, the server has a defect
or too many connections."""
_OF_ASKS = ("too_large", "unsupported", "invalid", "overloaded", "deadline")
"""What those with a body may be refused for, too."""


def describe(models: Sequence[str], *, key: bool) -> dict[str, Any]:
    """The description of a server with models of these names.

    Args:
        models: their names.
        key: whether clients must send one.
    """
    types: list[Any] = [ErrorBody, *(kind for ask in ASKS for kind in (ask.form, ask.found))]
    types += [look.found for look in LOOKS]
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    schema = dict(zip(map(repr, types), schemas, strict=True))
    error = schema[repr(ErrorBody)]
    paths: dict[str, Any] = {}
    for ask in ASKS:
        for path in ask.paths:
            paths.setdefault(path, {})["post"] = {
                "summary": (ask.form.__doc__ or "").strip(),
                "requestBody": {"required": True, **_content(schema[repr(ask.form)])},
                "responses": {
                    "200": {"description": "the answer", **_content(schema[repr(ask.found)])},
                    **_refused(ask, path, error, key=key),
                },
            }
    for look in LOOKS:
        answer = {"description": "the answer", **_content(schema[repr(look.found)], look.media)}
        for path in look.paths:
            responses = {"200": answer, **_refused(look, path, error, key=key)}
            if look.or_unready:
                either = {"anyOf": [schema[repr(look.found)], error]}
                responses["503"] = {"description": "not ready, or unavailable", **_content(either)}
            free: dict[str, Any] = {"security": []} if key and look.free else {}
            get = {"summary": look.summary, "responses": responses, **free}
            bare = {code: {"description": one["description"]} for code, one in responses.items()}
            paths.setdefault(path, {}).update(get=get, head={**get, "responses": bare})
    for path, item in paths.items():
        if parameters := _parameters(path, models):
            item["parameters"] = parameters
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "bothways", "version": "1"},
        "paths": paths,
        "components": {"schemas": components},
    }
    if key:
        found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"key": []}]
    return found


def _content(schema: dict[str, Any], media: str = "application/json") -> dict[str, Any]:
    return {"content": {media: {"schema": schema}}}


def _refused(
    route: Ask | Look, path: str, error: dict[str, Any], *, key: bool
) -> dict[str, dict[str, Any]]:
    """The answers of a path to requests that are refused, by status."""
    kinds = {*_OF_ANY}
    names, free = "{" in path, False
    if isinstance(route, Ask):
        kinds.update(_OF_ASKS)
        names |= "model" in route.form.__struct_fields__  # of OpenAI's client
    else:
        free = route.free and not names  # without the key, nothing is said of other names
    if names:
        kinds.add("not_found")
    if key and not free:
        kinds.add("unauthorized")
    return {
        str(status): {"description": kind.replace("_", " "), **_content(error)}
        for kind, status in STATUS.items()
        if kind in kinds
    }


def _parameters(path: str, models: Sequence[str]) -> list[dict[str, Any]]:
    """Of a path, those in braces."""
    about: dict[str, dict[str, Any]] = {
        "model": {"schema": {"type": "string", "enum": list(models)}},
        "task": {
            "description": "One of these, or another name that people use for it, such as ner.",
            "schema": {"type": "string", "examples": list(TASKS)},
        },
    }
    return [
        {"name": name, "in": "path", "required": True, **more}
        for name, more in about.items()
        if f"{{{name}}}" in path
    ]
