"""The application: routes, and what happens around every answer."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import math
import re
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from threading import Event, Thread
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from bothways.errors import BothwaysError
from bothways.runtime.embeddings import own_length
from bothways.runtime.inspection import shown_page
from bothways.runtime.pipeline import choose_length
from bothways.serving import answers, wire
from bothways.serving.metrics import Metrics
from bothways.serving.openapi import describe
from bothways.serving.options import Limits
from bothways.serving.refusals import RefusedError, check_items, decode, of_error
from bothways.serving.routes import ASKS, LOOKS, Ask
from bothways.serving.served import (
    ANSWERS,
    CLASSES,
    MAIN,
    PLAIN,
    ServedModel,
    Threads,
    task_named,
)
from bothways.tasks.spans import SpanTask
from bothways.tasks.texts import LabelTask

log = logging.getLogger("bothways.serving")
Endpoint = Callable[[Request], Awaitable[Response]]
_OPENAI = "/v1/"
_ROUTER = "/hf-inference/"
_READ_ON = 4
"""Times the limit up to which a body that is too long is read, to be answered."""
_CLOSE = {"Connection": "close"}
_PROBE = 1.0  # seconds between looks at the models
_FREE = {path for look in LOOKS if look.free for path in look.paths}
"""Paths that need no key, to GET or HEAD."""


@dataclass
class Server:
    """What the routes share.

    Attributes:
        models: by name.
        threads: that work for requests.
        limits: of requests.
        metrics: of the process.
        key: that clients must send; none if empty.
        origins: of other pages whose scripts may read answers; ``*`` is any.
        ends_at: by ``time.monotonic``, when what is accepted must be answered because the server
            ends; infinity until then.
    """

    models: Mapping[str, ServedModel]
    threads: Threads
    limits: Limits
    metrics: Metrics
    key: str = ""
    origins: Sequence[str] = ()
    ends_at: float = math.inf
    _answering: int = 0

    def count(self, change: int) -> None:
        """Count a request that comes into the server's hands, or leaves them."""
        self._answering += change
        self.metrics.in_flight.set(self._answering)

    @property
    def draining(self) -> bool:
        """Whether the server ends soon: it is not ready any more."""
        return self.ends_at < math.inf

    @property
    def ready(self) -> bool:
        """Whether all models compute."""
        return not self.draining and all(served.ready for served in self.models.values())

    def model(self, name: str | None, task: str = PLAIN) -> ServedModel:
        """A model by its name; if None, the first whose main task this is, or the only one that
        does it, or of a task that all do the first.

        Raises:
            RefusedError: there is none of that name, or several may be meant.
        """
        if name is not None:
            if name not in self.models:
                known = ", ".join(self.models)
                raise RefusedError("not_found", f"no such model; there are: {known}.")
            return self.models[name]
        models = [*self.models.values()]
        main = [one for one in models if one.task == MAIN.get(task, task)]
        able = main[:1] or [one for one in models if task in one.tasks]
        if len(able) > 1:
            names = ", ".join(one.name for one in able)
            raise RefusedError("invalid", f"several models do {task}; name one of them: {names}.")
        return able[0] if able else models[0]


def application(server: Server, started: Callable[[], object] = lambda: None) -> Starlette:
    """The ASGI application of a server; ``started`` is called in the loop that runs it."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[dict[str, Server]]:
        ended = Event()
        watchdog = Thread(target=_watch, args=(server, ended), name="watchdog", daemon=True)
        watchdog.start()
        started()
        try:
            yield {"server": server}
        finally:
            ended.set()

    # Of two routes with the same path, Starlette would answer for the second with the first's
    # methods; so one route has both.
    endpoints: dict[str, dict[str, Endpoint]] = {}
    for ask in ASKS:
        for path in ask.paths:
            endpoints[path] = {"POST": _asking(server, ask)}
    telling = _telling(server)
    for look in LOOKS:
        for path in look.paths:
            both = dict.fromkeys(("GET", "HEAD"), telling[look.name])
            endpoints.setdefault(path, {}).update(both)
    app = Starlette(
        routes=[
            Route(path, _guarded(server, path, by_method), methods=list(by_method))
            for path, by_method in endpoints.items()
        ],
        lifespan=lifespan,
        middleware=[
            Middleware(_OneFraming, server=server),
            *_cross_origin(server.origins),
            Middleware(_PlainTarget, names=tuple(server.models)),
        ],
    )
    app.router.redirect_slashes = False
    app.add_exception_handler(
        HTTPException, lambda request, error: _of_http(server, request, error)
    )
    return app


def _cross_origin(origins: Sequence[str]) -> list[Middleware]:
    """What lets scripts of other pages ask."""
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=[*origins],
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["*"],  # clients add their own
            expose_headers=["Retry-After"],
        )
    ]


class _OneFraming:
    """Refuses a request that says twice how long its body is, and closes its connection: a proxy
    may have believed the other, and taken for the body what is a further request here (RFC 9112,
    6.1).

    Args:
        app: that answers.
        server: whose metrics count it.
    """

    def __init__(self, app: ASGIApp, server: Server):
        self._app, self._server = app, server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        app = self._app
        names = {name for name, _ in scope.get("headers", ())}
        if {b"content-length", b"transfer-encoding"} <= names:
            refusal = RefusedError(
                "malformed",
                "the request has Content-Length and Transfer-Encoding; send one of them.",
                headers=_CLOSE,
            )
            app = _refuse(self._server, refusal)
        await app(scope, receive, send)


class _PlainTarget:
    """Takes a request's target in absolute form, ``http://host/path``, as its path: a server must
    (RFC 9112, 3.2.2), and uvicorn does not. A slash at the end is nothing: Starlette would send the
    client, with its key and its texts, to a ``http`` address that the request names. Addresses of
    Hugging Face's own servers are those of the routes.

    Args:
        app: that answers.
        names: of the models.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]):
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] == "http" and not scope["path"].startswith("/"):
            raw: bytes = scope["raw_path"]
            scheme, separator, rest = raw.partition(b"://")
            if separator and scheme.lower() in (b"http", b"https"):
                raw = b"/" + rest.partition(b"/")[2]
                scope = {**scope, "raw_path": raw, "path": unquote(raw.decode("ascii"))}
        if scope["type"] == "http" and scope["path"].endswith("/") and scope["path"] != "/":
            scope = {**scope, "path": scope["path"][:-1]}
        if scope["type"] == "http":
            scope = {**scope, "path": _route_of(scope["path"], self._names)}
        await self._app(scope, receive, send)


def _route_of(path: str, names: Collection[str]) -> str:
    """The path of a route for one of Hugging Face's servers: below its router's name of the
    provider, and with the owner before a model's name."""
    if path.startswith(_ROUTER):
        path = path.removeprefix(_ROUTER.rstrip("/"))
    match path.split("/"):
        case ["", "pipeline", task, _, name]:
            return f"/pipeline/{task}/{name}"
        case ["", "v1", "models", _, name]:
            return f"/v1/models/{name}"
        case ["", "models", owner, name, *rest] if owner not in names and name in names:
            return "/".join(["/models", name, *rest])
    return path


def _watch(server: Server, ended: Event) -> None:
    """Have the models compute their known answers, until the server ends."""
    while not ended.wait(_PROBE):
        for served in server.models.values():
            try:
                served.probe()
            except Exception as error:
                log.error("the known answer of %s: %s", served.name, type(error).__name__)


# --------------------------------------------------------------------------------- around an answer


def _guarded(server: Server, path: str, by_method: Mapping[str, Endpoint]) -> Endpoint:
    """The endpoint of a path, whose errors are answers, and whose answers are counted."""

    async def guarded(request: Request) -> Response:
        started = time.monotonic()
        server.count(+1)
        try:
            _check_key(server, request, path)
            response = await by_method[request.method](request)
        except RefusedError as refusal:
            response = _refuse(server, refusal, path)
            if (read := getattr(request.state, "read", None)) is not None:
                server.metrics.refusal_seconds.observe(time.monotonic() - read)
        except ClientDisconnect:
            response = Response(status_code=499)  # nobody reads it
        except Exception as error:
            # Neither the message nor values: either may have a part of an input.
            places = "".join(traceback.format_tb(error.__traceback__))
            log.error("%s: %s\n%s", path, type(error).__name__, places)
            defect = RefusedError("internal", "an error of the server; see its log.")
            response = _refuse(server, defect, path)
        finally:
            server.count(-1)
        name = request.path_params.get("model", "")
        name = name if name in server.models else ""
        server.metrics.requests.labels(path, name, str(response.status_code)).inc()
        server.metrics.seconds.labels(path).observe(time.monotonic() - started)
        return response

    return guarded


def _refuse(server: Server, refusal: RefusedError, path: str = "") -> Response:
    server.metrics.refused.labels(refusal.body.error_type).inc()
    return _json(refusal.encoded(openai=_OPENAI in path), refusal.status, refusal.headers)


def _of_http(server: Server, request: Request, error: HTTPException) -> Response:
    """The answer where no route takes a request."""
    try:
        if error.status_code == 405:
            raise RefusedError("method", "the route takes another method; see /openapi.json.")
        match request.url.path.split("/"):
            case ["", "models", name, *_] if name not in server.models:
                # Perhaps with an owner before it, which would be taken for the name of a route.
                _check_key(server, request, request.url.path)
                server.model(name)
        raise RefusedError("not_found", "there is no such route; see /openapi.json.")
    except RefusedError as found:
        refusal = found
    refusal.headers |= dict(error.headers or {})
    return _refuse(server, refusal, request.url.path)


def _json(found: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer with what was found; bytes are JSON already."""
    body = found if isinstance(found, bytes) else msgspec.json.encode(found)
    return Response(body, status, headers, "application/json")


def _check_key(server: Server, request: Request, path: str) -> None:
    """Refuse a request without the key, unless the path of its route needs none."""
    free = request.method in ("GET", "HEAD") and path in _FREE
    # Of models that there are not, nothing is said without the key.
    if not server.key or (free and request.path_params.get("model") in (None, *server.models)):
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    # Bytes of a header come as Latin-1, whatever they are; those of a key are UTF-8.
    same = hmac.compare_digest(
        given.strip().encode("latin-1"), server.key.encode(errors="surrogateescape")
    )
    if scheme.lower() != "bearer" or not same:
        raise RefusedError(
            "unauthorized",
            "send the server's key: Authorization: Bearer KEY.",
            headers={"WWW-Authenticate": "Bearer"},
        )


async def _body(request: Request, limit: int) -> bytes:
    """The body of a request.

    Raises:
        RefusedError: it is compressed, or longer than the limit. The rest is read, within bounds: a
            client that is still sending would not see the answer.
    """
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise RefusedError(
            "unsupported", "the body is compressed; send plain JSON.", headers=_CLOSE
        )
    declared, waits = int(request.headers.get("content-length", 0)), "expect" in request.headers
    if declared > (limit if waits else _READ_ON * limit):  # not worth reading
        raise _too_long(limit, declared, _CLOSE)
    parts, size, headers = bytearray(), 0, dict[str, str]()
    async for part in request.stream():
        size += len(part)
        if size <= limit:
            parts += part
        elif size > _READ_ON * limit:  # the client may never end, so the rest stays unread
            headers = _CLOSE
            break
    if size > limit:
        raise _too_long(limit, size, headers)
    return bytes(parts)


def _too_long(limit: int, size: int, headers: Mapping[str, str]) -> RefusedError:
    return RefusedError(
        "too_large",
        f"the body has more than {limit} bytes; send less at a time.",
        limit=limit,
        given=size,
        headers=headers,
    )


def _asking(server: Server, ask: Ask) -> Endpoint:
    """The endpoint that asks a model."""
    decoder = msgspec.json.Decoder(ask.form)

    async def endpoint(request: Request) -> Response:
        limits = server.limits
        body = await _body(request, limits.body)
        request.state.read = time.monotonic()
        name, named = (request.path_params.get(part) for part in ("model", "task"))
        server.model(name)
        task = task_named(named) if named else ask.task
        form = decode(decoder, body, limits.depth)
        if name is not None and form.wanted_model not in (None, name):
            raise RefusedError("invalid", f"model must be {name}, as the path has it.")
        if isinstance(form, wire.Inference):
            task = task or answers.task_of_inputs(form)
        served = server.model(name or form.wanted_model, task)
        try:
            items = form.items()
        except msgspec.ValidationError as error:
            raise RefusedError("invalid", f"{error}; see /openapi.json.") from None
        check_items(items, limits.inputs, ask.what)
        more: tuple[Any, ...] = ()
        if isinstance(form, wire.Inference):
            task = task or served.task
            more = (task,)
        if task != PLAIN:
            served.refuse_other(task, server.models.values())
        ticket = served.admit(items, task)
        ticket.deadline = min(ticket.deadline, server.ends_at)

        def answer(model: Any) -> bytes:
            return msgspec.json.encode(ask.answer(model, form, *more))

        try:
            characters = sum(len(text) for item in items for text in item)
            return _json(await served.run(ticket, answer, characters))
        except BothwaysError as error:
            raise of_error(error, [text for item in items for text in item]) from None

    return endpoint


# ------------------------------------------------------------------------------- about the server


def _telling(server: Server) -> dict[str, Endpoint]:
    """The endpoints that ask no model, by the names in :data:`LOOKS`."""
    page = shown_page().encode()
    policy = _policy(page)
    description = msgspec.json.encode(describe(list(server.models), key=bool(server.key)))

    async def health(request: Request) -> Response:
        server.model(request.path_params.get("model"))
        return _json(wire.Health("ok"))

    async def ready(request: Request) -> Response:
        name = request.path_params.get("model")
        served = server.model(name)
        good = server.ready if name is None else served.ready and not server.draining
        status = wire.Health("ok" if good else "not ready")
        return _json(status, 200 if good else 503)

    async def info(request: Request) -> Response:
        served = server.model(request.path_params.get("model"))
        return _json(_info(server, served))

    async def models(request: Request) -> Response:
        name = request.path_params.get("model")
        names = server.models if name is None else [server.model(name).name]
        return _json(wire.ModelList([*map(wire.ModelCard, names)]))

    async def model(request: Request) -> Response:
        return _json(wire.ModelCard(server.model(request.path_params["model"]).name))

    async def all_info(_: Request) -> Response:
        return _json([_info(server, served) for served in server.models.values()])

    async def metrics(_: Request) -> Response:
        return Response(server.metrics.text(), media_type="text/plain; version=0.0.4")

    async def openapi(_: Request) -> Response:
        return _json(description)

    async def start(_: Request) -> Response:
        headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}
        return Response(page, headers=headers, media_type="text/html")

    found = (start, health, ready, info, all_info, models, model, metrics, openapi)
    return {endpoint.__name__: endpoint for endpoint in found}


def _policy(page: bytes) -> str:
    """What a browser may do with the page: its own style and script, by their digests, and requests
    to this server."""
    kinds = {}
    for kind in ("style", "script"):
        (content,) = re.findall(rf"<{kind}>(.*?)</{kind}>".encode(), page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
        kinds[kind] = f"{kind}-src 'sha256-{digest}'"
    return (
        f"default-src 'none'; {kinds['script']}; {kinds['style']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _info(server: Server, served: ServedModel) -> wire.Info:
    loaded, limits = served.model.loaded, server.limits
    task = loaded.task if {CLASSES, ANSWERS} & {*served.tasks} else None
    threshold, thresholds = None, list[float]()
    if isinstance(task, SpanTask) and task.no_answer:
        threshold = task.options.spans.threshold
    if isinstance(task, LabelTask) and task.several:
        thresholds = task.thresholds.tolist()
    return wire.Info(
        model_id=served.name,
        model_pipeline_tag=served.task,
        tasks=list(served.tasks),
        model_dtype=served.batcher.precision,
        engine=served.batcher.name,
        max_input_length=own_length(loaded, tokens=False) or choose_length(loaded, None),
        max_batch_tokens=served.batcher.budget,
        max_client_batch_size=limits.inputs,
        max_queued_tokens=limits.tokens,
        version=version("bothways"),
        labels=[str(label) for label in loaded.about.get("labels") or []],
        models=list(server.models),
        mask=loaded.tokenizer.roles.mask,
        no_answer_threshold=threshold,
        thresholds=thresholds,
        pair=loaded.about.get("pair"),
        kind=task.options.kind if task else "",
    )
