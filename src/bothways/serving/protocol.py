"""HTTP on a connection, with what uvicorn lacks: a deadline for receiving a request, a limit of
connections that slow ones cannot use up, and errors as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import time
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from bothways.serving.refusals import RefusedError

if TYPE_CHECKING:
    from bothways.serving.app import Server

_LINGER = 1.0
"""Seconds in which a client may still send after it was refused: it reads the answer only if what
it sends is taken."""
_RECEIVED = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR)


class LimitedProtocol(H11Protocol):
    """A connection of a server, whose lifespan names it in its state."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        server: Server = self.app_state["server"]
        self.limits, self.metrics = server.limits, server.metrics
        self.waits_since = time.monotonic()
        """When the connection began to wait for a whole request; infinity while it does not."""
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close the slowest connection if there are too many."""
        super().connection_made(transport)
        # An answer is sent in two parts, and the second would wait for the client to acknowledge
        # the first: 40 ms. asyncio asks for this only where a socket names its protocol.
        with contextlib.suppress(OSError):  # it is closed
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._await_request()
        if len(self.connections) > self.limits.connections:
            slowest: Any = min(self.connections, key=lambda c: c.waits_since)  # type: ignore[union-attr]
            slowest.refuse(
                RefusedError(
                    "unavailable",
                    "too many connections; the one that waited longest is closed.",
                    limit=self.limits.connections,
                )
            )

    def data_received(self, data: bytes) -> None:
        """Read, and look whether the request is whole."""
        if self._refused:
            return
        if self._deadline is None and self.conn.their_state is h11.IDLE:
            self._await_request()
        super().data_received(data)
        if self.conn.their_state in _RECEIVED:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """The rest of the request may still be coming, or a further one have begun."""
        super().on_response_complete()
        if self._unread is not None:
            self._unread.cancel()
        self._await_reader()
        state = self.conn.their_state
        if state in _RECEIVED:
            self._stop_waiting()
        elif state is h11.IDLE and not self.conn.trailing_data[0]:
            self._stop_waiting()
            self.waits_since = time.monotonic()  # idle, and closed first if there are too many
        elif self._deadline is None:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """No deadline any more."""
        self._stop_waiting()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, or has too long headers."""
        self.refuse(RefusedError("malformed", f"{msg.rstrip('.')}; or its headers are too long."))

    def shutdown(self) -> None:
        """The server ends."""
        if self._refused:
            self.transport.close()
        else:
            super().shutdown()

    def _await_request(self) -> None:
        self._stop_waiting()
        self.waits_since = time.monotonic()
        self._deadline = self.loop.call_later(self.limits.receipt, self._late)

    def _await_reader(self, before: float = math.inf) -> None:
        """Drop the connection if nothing of what is left of an answer has been taken since it was
        so many bytes: else a client that does not read would hold them for ever."""
        self._unread = None
        left = self.transport.get_write_buffer_size()
        if left >= before:
            self.metrics.refused.labels("unread").inc()
            self.transport.abort()
        elif left:
            wait = self.limits.deadline
            self._unread = self.loop.call_later(wait, self._await_reader, left)

    def _stop_waiting(self) -> None:
        self.waits_since = float("inf")
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self.refuse(
            RefusedError(
                "receipt_timeout",
                f"the request did not arrive within {self.limits.receipt:g} seconds.",
                limit=self.limits.receipt,
            )
        )

    def refuse(self, refusal: RefusedError) -> None:
        """Answer with an error, unless an answer has begun, and close."""
        self._stop_waiting()
        if self._refused:
            return
        if self.transport.is_closing():  # when its client has read an answer
            self.transport.abort()
            return
        self._refused = True
        self.metrics.refused.labels(refusal.body.error_type).inc()
        begun = self.cycle is not None and self.cycle.response_started
        begun = begun and not self.cycle.response_complete
        if not begun and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [
                (b"content-type", b"application/json"),
                (b"connection", b"close"),
            ]
            body = refusal.encoded()
            headers.append((b"content-length", str(len(body)).encode()))
            reason = STATUS_PHRASES[refusal.status]
            event = h11.Response(status_code=refusal.status, headers=headers, reason=reason)
            for part in (event, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(part) or b"")
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # the application is told, and sends nothing
            self.cycle.message_event.set()
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        self.transport.write_eof()
        self._deadline = self.loop.call_later(_LINGER, self.transport.close)
