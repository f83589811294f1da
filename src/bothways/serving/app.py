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
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

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
from bothways.runtime.inspection import shown_page
from bothways.runtime.pipeline import choose_length
from bothways.serving import wire
from bothways.serving.metrics import Metrics
from bothways.serving.openapi import describe
from bothways.serving.options import Limits
from bothways.serving.refusals import (
    RefusedError,
    check_items,
    decode,
    invalid,
    of_error,
    of_shape,
    too_large,
)
from bothways.serving.routes import ASKS, HOSTED, OF_HOSTED, Ask, Look, paths_of
from bothways.serving.served import (
    ANSWERS,
    CLASSES,
    MAIN,
    PLAIN,
    SIMILARITY,
    ServedModel,
    Threads,
    task_named,
)
from bothways.tasks.spans import SpanTask
from bothways.tasks.texts import LabelTask

log = logging.getLogger("bothways.serving")
Endpoint = Callable[[Request], Awaitable[Response]]
_OPENAI = "/v1/"
_ROUTER = "/hf-inference"
_READ_ON = 4
"""Times the limit up to which a body that is too long is read, to be answered."""
_CLOSE = {"Connection": "close"}


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

    @property
    def draining(self) -> bool:
        """Whether the server ends soon: it is not ready any more."""
        return self.ends_at < math.inf

    def model(self, name: str | None, task: str = PLAIN) -> ServedModel:
        """A model by its name; if None, the first whose main task this is, or the only one that
        does it, or of a task that all do the first.

        Raises:
            RefusedError: there is none of that name, or several may be meant.
        """
        if name is not None:
            found = self.models.get(name) or self.models.get(name.rpartition("/")[2])
            if found is None:  # with its owner before it, or without
                known = ", ".join(self.models)
                raise RefusedError("not_found", f"no such model; there are: {known}.")
            return found
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
        started()
        yield {"server": server}

    looks = _looks(server)
    own = [(path, look.free, "GET", _telling(look)) for path, look in looks.items()]
    own += [(path, False, "POST", _asking(server, ask)) for path, ask in ASKS.items()]
    own += [(path, False, "POST", _asking(server)) for path in OF_HOSTED]
    routes = []
    for path, free, method, endpoint in own:
        for one in paths_of(path):
            guarded = _guarded(server, one, endpoint, free=free or not server.key)
            routes.append(Route(one.replace("{model}", "{model:path}"), guarded, methods=[method]))
    # A name may have its owner before it, and so would take the rest of a longer path.
    routes.sort(key=lambda route: -route.path.count("/"))
    middleware = [Middleware(_HostedPaths)]
    if server.origins:
        cross_origin = Middleware(
            CORSMiddleware,
            allow_origins=[*server.origins],
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["*"],  # clients add their own
            expose_headers=["Retry-After"],
        )
        middleware.append(cross_origin)
    app = Starlette(routes=routes, lifespan=lifespan, middleware=middleware)
    app.router.redirect_slashes = False

    def unrouted(request: Request, error: HTTPException) -> Response:
        kind = "method" if error.status_code == 405 else "not_found"
        refusal = RefusedError(kind, "there is no such route; see /openapi.json.")
        refusal.headers |= _CLOSE | dict(error.headers or {})
        return _refuse(server, refusal, request.url.path)

    app.add_exception_handler(HTTPException, unrouted)  # type: ignore[arg-type]
    return app


class _HostedPaths:
    """Takes paths of Hugging Face's router, and with a slash at the end, as those of the routes.
    Starlette would redirect the latter, with the client's key, to an address of the request."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] == "http":
            path = scope["path"].removeprefix(_ROUTER).rstrip("/")
            scope = {**scope, "path": path or "/"}
        await self._app(scope, receive, send)


# --------------------------------------------------------------------------------- around an answer


def _guarded(server: Server, path: str, endpoint: Endpoint, *, free: bool) -> Endpoint:
    """The endpoint of a path, whose errors are answers, and whose answers are counted; ``free``
    requests need no key."""

    async def guarded(request: Request) -> Response:
        started = time.monotonic()
        try:
            if {"content-length", "transfer-encoding"} <= {*request.headers}:
                # A proxy may have believed the other length (RFC 9112, 6.1).
                message = "the request has Content-Length and Transfer-Encoding; send one of them."
                raise RefusedError("malformed", message, headers=_CLOSE)
            if not free:
                _check_key(server.key, request)
            with server.metrics.in_flight.track_inprogress():
                response = await endpoint(request)
        except RefusedError as refusal:
            response = _refuse(server, refusal, path)
        except ClientDisconnect:
            response = Response(status_code=499)  # nobody reads it
        except Exception as error:
            # Neither the message nor values: either may have a part of an input.
            places = "".join(traceback.format_tb(error.__traceback__))
            log.error("%s: %s\n%s", path, type(error).__name__, places)
            defect = RefusedError("internal", "an error of the server; see its log.")
            response = _refuse(server, defect, path)
        name = request.path_params.get("model", "")
        name = name if name in server.models else ""
        server.metrics.requests.labels(path, name, str(response.status_code)).inc()
        server.metrics.seconds.labels(path).observe(time.monotonic() - started)
        return response

    return guarded


def _refuse(server: Server, refusal: RefusedError, path: str) -> Response:
    server.metrics.refused.labels(refusal.body.error_type).inc()
    body = refusal.encoded(openai=_OPENAI in path)
    return Response(body, refusal.status, refusal.headers, "application/json")


def _check_key(key: str, request: Request) -> None:
    """Refuse a request without the key."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    # Bytes of a header come as Latin-1, whatever they are; those of a key are UTF-8.
    same = hmac.compare_digest(
        given.strip().encode("latin-1"), key.encode(errors="surrogateescape")
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
    headers = request.headers
    if headers.get("content-encoding", "identity").lower() != "identity":
        message = "the body is compressed; send plain JSON."
        raise RefusedError("unsupported", message, headers=_CLOSE)
    parts, size = bytearray(), int(headers.get("content-length", 0))
    refusal = too_large(f"the body has more than {limit} bytes; send less at a time.", limit)
    refusal.headers |= _CLOSE
    if size > _READ_ON * limit:
        raise refusal
    size = 0
    async for part in request.stream():
        size += len(part)
        if size <= limit:
            parts += part
        elif size > _READ_ON * limit:  # the client may never end
            break
    if size > limit:
        raise refusal
    return bytes(parts)


class _Shape(msgspec.Struct):
    inputs: Any = None


def _task_of(body: bytes) -> str:
    """What a request of Hugging Face's API asks by the shape of its inputs; empty if any task."""
    inputs = decode(_Shape, body).inputs
    names = {"source_sentence": SIMILARITY, "question": ANSWERS}
    return next((names[n] for n in names if isinstance(inputs, dict) and n in inputs), PLAIN)


def _asking(server: Server, ask: Ask | None = None) -> Endpoint:
    """The endpoint that asks a model; without ``ask``, what Hugging Face's API does."""

    async def endpoint(request: Request) -> Response:
        body = await _body(request, server.limits.body)
        name, named = (request.path_params.get(part) for part in ("model", "task"))
        if name is not None:
            name = server.model(name).name
        if ask is None:
            task = task_named(named) if named else _task_of(body)
            served = server.model(name, task)
            task = task or served.task
            if (asked := HOSTED.get(task)) is None:
                raise invalid(f"{task} has a route of its own; see /openapi.json.")
            form = decode(asked.form, body)
        else:
            asked, task = ask, ask.task
            form = decode(asked.form, body)
            wanted = getattr(form, "model", None)
            if name is not None and wanted is not None and server.model(wanted).name != name:
                raise invalid(f"model must be {name}, as the path has it.")
            served = server.model(name or wanted, task)
        try:
            items = form.items()
        except msgspec.ValidationError as error:
            raise of_shape(error) from None
        check_items(items, server.limits.inputs, asked.what)
        if task not in (PLAIN, *served.tasks):
            able = ", ".join(served.tasks)
            raise invalid(f"the model {served.name} does not do {task}; it does {able}.")
        ticket = served.admit(items, task)
        ticket.deadline = min(ticket.deadline, server.ends_at)

        def answer(model: Any) -> bytes:
            return msgspec.json.encode(asked.answer(model, form))

        try:
            return Response(await served.run(ticket, answer), media_type="application/json")
        except BothwaysError as error:
            raise of_error(error) from None

    return endpoint


# ------------------------------------------------------------------------------- about the server


def _telling(look: Look) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        found = look.tell(request.path_params.get("model"))
        body = found if isinstance(found, bytes) else msgspec.json.encode(found)
        status = 503 if found == _NOT_READY else 200
        return Response(body, status, look.headers, look.media)

    return endpoint


_NOT_READY = wire.Health("not ready")


def _looks(server: Server) -> dict[str, Look]:
    """What is told of a server, by path."""
    page = shown_page().encode()
    headers = {"Content-Security-Policy": _policy(page), "X-Content-Type-Options": "nosniff"}

    def wanted(name: str | None) -> list[ServedModel]:
        return [*server.models.values()] if name is None else [server.model(name)]

    def health(name: str | None, *, ready: bool = False) -> wire.Health:
        good = not server.draining and all(served.ready for served in wanted(name))
        return wire.Health("ok") if good or not ready else _NOT_READY

    def cards(name: str | None) -> list[wire.ModelCard]:
        return [wire.ModelCard(served.name) for served in wanted(name)]

    def infos(name: str | None) -> list[wire.Info]:
        return [_info(server, served) for served in wanted(name)]

    start, card, found = "A page with a form for each task.", wire.ModelCard, dict[str, Look]()
    found["/"] = Look(start, str, lambda _: page, "text/html", free=True, headers=headers)
    found["/health"] = Look("Whether the server is alive.", wire.Health, health, free=True)
    ready = partial(health, ready=True)
    found["/ready"] = Look("Whether models compute (503: not).", wire.Health, ready, free=True)
    found["/info"] = Look("The first model, or one.", wire.Info, lambda n: infos(n)[0])
    found["/models"] = Look("What all models are and take.", list[wire.Info], infos)
    listed, every = "The models, for OpenAI's client.", wire.ModelList
    found["/v1/models"] = Look(listed, every, lambda name: every(cards(name)))
    found["/v1/models/{model}"] = Look("A model.", card, lambda name: cards(name)[0])
    counted = "Counters for Prometheus."
    found["/metrics"] = Look(counted, str, lambda _: server.metrics.text(), "text/plain")
    found["/openapi.json"] = Look("This description.", dict[str, Any], lambda _: description)
    description = describe(list(server.models), found, key=bool(server.key))
    return found


def _policy(page: bytes) -> str:
    """What a browser may do with the page: its own style and script, by their digests, and requests
    to this server."""
    found = re.findall(rb"<(style|script)>(.*?)</\1>", page, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(content).digest()).decode() for _, content in found]
    own = [f"{kind.decode()}-src 'sha256-{d}'" for (kind, _), d in zip(found, digests, strict=True)]
    return "; ".join(
        [
            *("default-src 'none'", *own, "connect-src 'self'", "img-src data:"),
            *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
        ]
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
        max_input_length=loaded.about.get("cut_at") or choose_length(loaded, None),
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
