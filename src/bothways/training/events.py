"""TensorBoard event files, written in this thread.

The usual writer hands events to a thread of its own, where a full disk ends in a traceback that the
program never hears of. A record at a time needs no thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter


class EventFile:
    """Scalars for TensorBoard.

    Args:
        folder: made if need be; every writer makes a file of its own there.
        done: steps already done. Later records of earlier files, left by an interrupted run, are
            then not shown.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, folder: Path, done: int):
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns()}.{os.getpid()}"
        # Unbuffered: what was recorded is there after a kill.
        self._file = (folder / name).open("xb", buffering=0)
        self._records = RecordWriter(self._file)
        self._write(Event(file_version="brain.Event:2"))
        self._write(Event(step=done + 1, session_log=SessionLog(status=SessionLog.START)))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Record numbers for a step."""
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(Event(step=step, summary=Summary(value=scalars)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())
