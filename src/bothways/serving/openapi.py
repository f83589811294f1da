"""The description of the routes, as OpenAPI 3.1, from their tables and forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bothways.serving.refusals import ErrorBody
from bothways.serving.routes import ASKS, HOSTED, OF_HOSTED, Look, paths_of
from bothways.serving.served import TASKS


def describe(models: Sequence[str], looks: Mapping[str, Look], *, key: bool) -> dict[str, Any]:
    """The description of a server with models of these names.

    Args:
        models: their names.
        looks: what is told of the server, by path.
        key: whether clients must send one.
    """
    asks = [*HOSTED.values(), *ASKS.values()]
    types: list[Any] = [ErrorBody, *(kind for ask in asks for kind in (ask.form, ask.found))]
    types += [look.found for look in looks.values()]
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    schema = dict(zip(map(repr, types), schemas, strict=True))
    error = {"description": "the request is refused", **_content(schema[repr(ErrorBody)])}
    parameters = {"model": {"enum": list(models)}, "task": {"examples": list(TASKS)}}
    paths: dict[str, Any] = {}

    def add(path: str, method: str, summary: str, answer: dict[str, Any], **more: Any) -> None:
        responses = {"200": {"description": "the answer", **answer}, "default": error}
        item = paths.setdefault(path, {})
        item[method] = {"summary": summary.strip(), "responses": responses, **more}
        item["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", **about}}
            for name, about in parameters.items()
            if f"{{{name}}}" in path
        ]

    def any_of(kinds: Sequence[Any]) -> dict[str, Any]:
        found = [schema[repr(kind)] for kind in kinds]
        return _content({"anyOf": found} if len(found) > 1 else found[0])

    routes = [(path, [ask]) for path, ask in ASKS.items()]
    for path, several in [*routes, *((path, [*HOSTED.values()]) for path in OF_HOSTED)]:
        body = {"required": True, **any_of([ask.form for ask in several])}
        summary = several[0].form.__doc__ or "" if len(several) == 1 else "Hugging Face's API."
        for one in paths_of(path):
            add(one, "post", summary, any_of([ask.found for ask in several]), requestBody=body)
    for path, look in looks.items():
        free: dict[str, Any] = {"security": []} if key and look.free else {}
        for one in paths_of(path):
            add(one, "get", look.summary, _content(schema[repr(look.found)], look.media), **free)
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
