"""TensorBoard event files, written synchronously.

The usual writer hands events to a background thread, where an error such as a full disk only prints
a traceback and does not reach the program.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter


class EventFile:
    """An event file of scalars for TensorBoard.

    Args:
        folder: created if necessary; every writer creates a new file in it.
        done: steps already done. TensorBoard then hides later records of earlier files, which an
            interrupted run left.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, folder: Path, done: int):
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns()}.{os.getpid()}"
        # Unbuffered, so that records survive a kill.
        self._file = (folder / name).open("xb", buffering=0)
        self._records = RecordWriter(self)
        self._write(Event(file_version="brain.Event:2"))
        self._write(Event(step=done + 1, session_log=SessionLog(status=SessionLog.START)))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Record the values of a step."""
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(Event(step=step, summary=Summary(value=scalars)))

    def write(self, data: bytes) -> None:
        """Write bytes, all or with an error: the writer of records does not look."""
        if self._file.write(data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())
