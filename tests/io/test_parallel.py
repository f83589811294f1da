"""A worker's own exception is what is reported; memory, only where the system killed a worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from threading import Lock
from typing import Any

import pytest

from bothways.errors import InputError, Place, RunError
from bothways.io.parallel import in_processes


class OfTwoError(Exception):
    """Pickled, but not to be made again from its pickle."""

    def __init__(self, path: str, line: int):
        super().__init__(f"{path}:{line}: broken")


class Damaged:
    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise ValueError("not to be made again")


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def ended() -> None:
    os._exit(3)


def with_place() -> None:
    raise InputError("not a number", place=Place("a.tsv", 7))


def of_two() -> None:
    raise OfTwoError("a.tsv", 7)


def with_a_lock() -> None:
    raise ValueError("it holds", Lock())


def damaged_result() -> object:
    return Damaged()


def takes(_: object) -> None:
    pass


@pytest.mark.parametrize(
    ("function", "item", "kind", "message"),
    [
        (killed, (), RunError, r"was killed, most likely because memory .* fewer --workers\.$"),
        (ended, (), RunError, r"^a worker process ended unexpectedly: .*EXIT\(3\)"),
        (with_place, (), InputError, r"^a\.tsv:7: not a number$"),
        (of_two, (), RuntimeError, r"^OfTwoError: a\.tsv:7: broken$"),
        (with_a_lock, (), RuntimeError, r"^ValueError: \('it holds', <unlocked"),
        (damaged_result, (), RunError, r"^a worker process was lost: ValueError: not to be made"),
        (takes, (Damaged(),), RunError, r"^a worker process was lost: ValueError: not to be made"),
    ],
)
def test_what_is_said_of_a_worker(
    function: Callable[..., Any], item: tuple[Any, ...], kind: type[Exception], message: str
) -> None:
    with (
        pytest.raises(kind, match=message),
        in_processes(function, [item] * 2, workers=2, lost=RunError) as results,
    ):
        list(results)
