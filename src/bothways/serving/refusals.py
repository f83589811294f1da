"""What the server refuses: one error each, with its status, and the limit that was exceeded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec

from bothways.errors import BothwaysError, NonFiniteError

F = TypeVar("F")
STATUS = {
    "malformed": 400,
    "unauthorized": 401,
    "not_found": 404,
    "method": 405,
    "receipt_timeout": 408,
    "too_large": 413,
    "unsupported": 415,
    "invalid": 422,
    "overloaded": 429,
    "internal": 500,
    "unavailable": 503,
    "deadline": 504,
}
"""The status of each type of error."""


class ErrorOfOpenAI(msgspec.Struct):
    """What OpenAI's client reads of an error."""

    message: str
    type: str
    param: None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, omit_defaults=True):
    """The answer to a request that is refused."""

    error: str | ErrorOfOpenAI
    error_type: str
    limit: float | None = None
    given: float | None = None


class RefusedError(Exception):
    """A request that is not answered.

    Args:
        error_type: a key of :data:`STATUS`.
        error: what is wrong, and the remedy.
        limit: that was exceeded.
        given: what exceeds it.
        headers: of the answer.
    """

    def __init__(
        self,
        error_type: str,
        error: str,
        *,
        limit: float | None = None,
        given: float | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(error)
        self.status = STATUS[error_type]
        self.headers = dict(headers or {})
        self.body = ErrorBody(error, error_type, limit, given)

    def encoded(self, *, openai: bool = False) -> bytes:
        """The body, as JSON; for OpenAI's client its message is where that looks for it."""
        if not openai:
            return msgspec.json.encode(self.body)
        body = msgspec.structs.replace(
            self.body, error=ErrorOfOpenAI(str(self), self.body.error_type)
        )
        return msgspec.json.encode(body)


def invalid(message: str) -> RefusedError:
    """The answer to a request that asks for what is not done."""
    return RefusedError("invalid", message)


def too_large(message: str, limit: float, given: float | None = None) -> RefusedError:
    """The answer to a request that exceeds a limit."""
    return RefusedError("too_large", message, limit=limit, given=given)


_decoder: Callable[[Any], Any] = cache(msgspec.json.Decoder)


def decode(form: type[F], body: bytes) -> F:
    """The content of a request's body.

    Raises:
        RefusedError: it is no JSON, or JSON of another shape.
    """
    try:
        found: F = _decoder(form).decode(body)
        return found
    except msgspec.ValidationError as error:
        raise of_shape(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError(
            "malformed", f"the body is not JSON that can be read: {error}."
        ) from None


def of_shape(error: msgspec.ValidationError) -> RefusedError:
    """The answer to a body that is not as a route takes it."""
    return invalid(f"the body is not as the route takes it ({error}); see /openapi.json.")


def of_error(error: BothwaysError) -> RefusedError:
    """What a model refuses."""
    if isinstance(error, NonFiniteError):
        return RefusedError(
            "internal", "the model's output is not finite; its weights are damaged."
        )
    return invalid(str(error))


def check_items(items: Sequence[object], most: int, what: str) -> None:
    """Refuse a request without inputs or with too many.

    Args:
        items: the inputs.
        most: inputs that a request may have.
        what: they are called.

    Raises:
        RefusedError: naming the limit.
    """
    if not items:
        raise invalid(f"{what} is empty; give one or more.")
    if len(items) > most:
        message = f"{len(items)} {what} in one request; send at most {most} at a time."
        raise too_large(message, most, len(items))
