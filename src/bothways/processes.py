"""Processes that must not outlive the one that started them, however that ended."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

_LOOK_EVERY = 1.0  # seconds


def exit_with(parent: int) -> None:
    """End this worker process soon after its parent has ended; the first thing that workers call.

    Args:
        parent: the parent's process id.
    """
    when_orphaned(parent, lambda: os._exit(1))


def when_orphaned(parent: int, action: Callable[[], object]) -> None:
    """Do something, in a thread, soon after this process's parent has ended.

    Args:
        parent: the parent's process id.
        action: what to do.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY)
        action()

    threading.Thread(target=watch, daemon=True).start()
