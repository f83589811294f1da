"""What the server refuses: one error each, with its status, and the limit that was exceeded.

No message has a part of an input in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from bothways.errors import BothwaysError, NonFiniteError

B = TypeVar("B")
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


_NO_TEXTS = re.compile(
    r"Expected `str[^`]*`, got `(?:int|array)` - at `\$.*?\.?(\w+)(?:\[[\d.]*\])+`"
)
"""Where texts are meant in a list, and something is of another kind."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_PAIRS = re.compile(rb"\[\]|\{\}")
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?\Z)', re.DOTALL)  # the last may lack its end
_FIELD = re.compile(
    r"unknown field `(?![a-z_]{1,40}`(?: - at `\$|$)).*?`(?= - at `\$|$)", re.DOTALL
)
"""Of a name that may be a text which a client has put where a name belongs."""
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def decode(decoder: msgspec.json.Decoder[B], body: bytes, depth: int) -> B:
    """The content of a request's body.

    Raises:
        RefusedError: it is no JSON, JSON of another shape, or nested more deeply than ``depth``.
    """
    try:
        found = decoder.decode(body)
    except RecursionError:
        raise _too_deep(depth) from None
    except msgspec.ValidationError as error:
        if is_deeper(body, depth):  # rather that than where in it something is wrong
            raise _too_deep(depth) from None
        raise RefusedError("invalid", _of_shape(str(error))) from None
    except UnicodeDecodeError:
        raise RefusedError("malformed", "the body is not UTF-8; send JSON in UTF-8.") from None
    except msgspec.DecodeError as error:
        if _SURROGATE.search(body):
            what = "it has an escape of a surrogate without its other half, which is no character"
        else:
            what = str(error).partition(":")[0].lower()
        raise RefusedError("malformed", f"the body is not JSON that can be read: {what}.") from None
    if is_deeper(body, depth):
        raise _too_deep(depth)
    return found


def _too_deep(depth: int) -> RefusedError:
    return RefusedError("too_large", f"the body is nested more than {depth} deep.", limit=depth)


def is_deeper(body: bytes, depth: int) -> bool:
    """Whether JSON is nested more deeply, in time that does not depend on how it is nested."""
    if body.count(b"[") + body.count(b"{") <= depth:
        return False
    brackets = _STRINGS.sub(b"", body).translate(None, _NOT_BRACKETS)
    for _ in range(depth):
        brackets = _PAIRS.sub(b"", brackets)
    return bool(brackets)


def _of_shape(message: str) -> str:
    """A message of msgspec without values of the request."""
    if found := _NO_TEXTS.match(message):
        return (
            f"{found[1]} has numbers or lists where texts are meant; send one list of texts, not "
            "token ids, as this server tokenizes itself (LangChain's OpenAIEmbeddings: "
            "check_embedding_ctx_length=False)."
        )
    message = re.sub(r"Invalid enum value .*?(?= - at|$)", "Not one of the choices", message)
    message = _FIELD.sub("a field of another name", message)
    message = re.sub(r"`\$(\[\.\.\.\]|\.\.\.)?`", "the body", message)
    return f"the body is not as the route takes it ({message[:200]}); see /openapi.json."


def of_error(error: BothwaysError, texts: Sequence[str]) -> RefusedError:
    """What a model refuses.

    Args:
        error: raised for a request.
        texts: the request's, of which nothing may be said.
    """
    if isinstance(error, NonFiniteError):
        return RefusedError(
            "internal", "the model's output is not finite; its weights are damaged."
        )
    message = str(error)
    for number, text in enumerate(texts, start=1):  # as messages for who has the texts show them
        message = message.replace(repr(text[:60]), f"text {number}")
    shown = [text[:12] if len(text) > 3 else repr(text) for text in texts if text]
    if any(part in message for part in (*shown, *(repr(text)[:12] for text in texts))):
        return RefusedError("invalid", f"the model refuses an input ({type(error).__name__}).")
    return RefusedError("invalid", message)


def check_items(items: Sequence[Sequence[str]], most: int, what: str) -> None:
    """Refuse a request without inputs, with too many, or with characters that no text has.

    Args:
        items: the texts of each input.
        most: inputs that a request may have.
        what: they are called.

    Raises:
        RefusedError: naming the limit.
    """
    if not items:
        raise RefusedError("invalid", f"{what} is empty; give one or more.", limit=most, given=0)
    if len(items) > most:
        raise RefusedError(
            "too_large",
            f"{len(items)} {what} in one request; send at most {most} at a time.",
            limit=most,
            given=len(items),
        )
    for number, item in enumerate(items, start=1):
        for text in item:
            if "\0" in text:
                raise RefusedError("invalid", f"input {number} has a NUL character; remove it.")
