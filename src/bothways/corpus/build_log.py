"""Units of a build that are done, on disk beside the corpus until it is whole.

A log of records, each with its length and checksum, in the order of the text. A build that is
killed leaves a log whose last record may be cut off; the next build with the same options and
inputs reads it from the start, keeps the records that are sound up to the first that is not, and
goes on from the position behind them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import struct
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors.numpy import load, save

from bothways.corpus.encode import Counts, EncodedUnit
from bothways.corpus.sources import Position
from bothways.errors import StoreError
from bothways.files import PARTIAL

_LOG = "units.log"
_HEADER = struct.Struct("<Q32s")  # length and sha256 of a record
_FACTS = "facts"


class UnitLog:
    """The units that are done.

    Attributes:
        folder: holds the log, and has room for other temporary files.
        found: units taken over from an interrupted build.
        note: what happened to an interrupted build, in words; None where there was none.
        after: position behind the last unit.
        counts: of all units together.
        opened: when, in seconds of ``time.perf_counter``.
    """

    def __init__(self, out: Path, build: dict[str, Any]):
        """Open the log of the corpus ``out``, or begin one.

        Args:
            out: the corpus folder to be.
            build: all that decides what the units hold; a log of another build is thrown away.

        Raises:
            StoreError: another process is building this corpus.
            OSError: the disk refused.
        """
        self.opened = time.perf_counter()
        self.folder = out.with_name(f"{PARTIAL}units-{out.name}")
        self._scratch = self.folder / "scratch"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file = self._open()
        self.after = Position()
        self.counts = Counts()
        self.found = 0
        self.note: str | None = None
        self._records: list[tuple[int, int]] = []  # place of the payload, and its length
        begin = json.dumps(build, sort_keys=True).encode()
        self._recover(struct.pack("<Q", len(begin)) + begin)

    def _open(self) -> BinaryIO:
        descriptor = os.open(self.folder / _LOG, os.O_RDWR | os.O_CREAT, 0o666)
        file = os.fdopen(descriptor, "r+b")
        try:
            # The system lets go of the lock when the process ends, however it ends.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise StoreError(
                f"{self.folder}: another process is building this corpus. Wait for it, or choose "
                "another folder."
            ) from None
        return file

    def _recover(self, begin: bytes) -> None:
        old = os.fstat(self._file.fileno()).st_size
        if old and self._file.read(len(begin)) != begin:
            self.note = (
                "an interrupted build was found, but with other options, inputs or vocabulary: "
                "begun anew"
            )
            old = 0
        elif old:
            while (payload := self._read()) is not None:
                _, counts, after = _unpack(payload)
                self.counts.add(counts)
                self.after = after
            self.found = len(self._records)
            self.note = f"continuing an interrupted build: {self.found} units are done"
            damaged = old - self._end(len(begin))
            if damaged:
                self.note += f"; {damaged:,} bytes of it are damaged and are done again"
        self._file.seek(0)
        if not old:
            self._file.write(begin)
        self._file.truncate(self._end(len(begin)))
        self._file.seek(0, os.SEEK_END)

    def _end(self, begin: int) -> int:
        return sum(self._records[-1]) if self._records else begin

    def _read(self) -> bytes | None:
        """The next record, if it is sound."""
        header = self._file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return None
        length, checksum = _HEADER.unpack(header)
        at = self._file.tell()
        if length > os.fstat(self._file.fileno()).st_size - at:
            return None
        payload = self._file.read(length)
        if hashlib.sha256(payload).digest() != checksum:
            return None
        self._records.append((at, length))
        return payload

    def append(self, columns: EncodedUnit, counts: Counts, after: Position) -> None:
        """Add a unit; what was added before stays readable whatever happens.

        Raises:
            OSError: the disk refused.
        """
        facts = json.dumps({"counts": counts.to_dict(), "after": asdict(after)}).encode()
        payload = save({**vars(columns), _FACTS: np.frombuffer(facts, dtype=np.uint8)})
        self._file.write(_HEADER.pack(len(payload), hashlib.sha256(payload).digest()) + payload)
        self._file.flush()
        self._records.append((self._file.tell() - len(payload), len(payload)))
        self.counts.add(counts)
        self.after = after

    def __iter__(self) -> Iterator[EncodedUnit]:
        """The units in order, each read from disk."""
        for at, length in self._records:
            self._file.seek(at)
            yield _unpack(self._file.read(length))[0]

    def scratch(self) -> Path:
        """An empty folder for temporary files."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir()
        return self._scratch

    def close(self) -> None:
        """Leave the log for the next build to continue."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._file.close()

    def remove(self) -> None:
        """Delete the log: the corpus is whole, or can never be."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._file.close()


def _unpack(payload: bytes) -> tuple[EncodedUnit, Counts, Position]:
    arrays = load(payload)
    facts = json.loads(arrays.pop(_FACTS).tobytes())
    return EncodedUnit(**arrays), Counts.from_dict(facts["counts"]), Position(**facts["after"])
