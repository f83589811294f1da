"""The log of finished units, kept on disk next to the corpus until the build is complete.

The log is a sequence of records, each with its length and checksum, in the order of the text. A
build that is killed leaves a log whose last record may be cut off. The next build with the same
options and inputs reads it from the start, keeps the records up to the first damaged one, and
resumes from the position after them.
"""

from __future__ import annotations

import contextlib
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
from bothways.io.files import lock_open_file

_LOG = "units.log"
_HEADER = struct.Struct("<Q32s")  # length and sha256 of a record
_FACTS = "facts"  # counts and position, next to the arrays of a record


class BuildLog:
    """The finished units of a build.

    Attributes:
        folder: holds the log and other temporary files.
        recovered: number of units recovered from an interrupted build.
        note: a message about the interrupted build; None if there was none.
        after: position after the last unit.
        counts: of all units together.
        opened_at: in seconds of ``time.perf_counter``.
    """

    def __init__(self, out: Path, build: dict[str, Any]):
        """Open the log for the corpus ``out``, or start one.

        Args:
            out: the corpus folder to build.
            build: everything that determines the content of the units; the log of a different build
                is discarded.

        Raises:
            StoreError: another process is building this corpus.
            OSError: the log could not be written.
        """
        self.opened_at = time.perf_counter()
        # No name that `new_folder` gives to a corpus beside this one.
        self.folder = out.with_name(f".units-{out.name}")
        self._scratch = self.folder / "scratch"
        self._file = self._open()
        self.after = Position()
        self.counts = Counts()
        self.recovered = 0
        self.note: str | None = None
        self._records: list[tuple[int, int]] = []  # offset of the payload, and its length
        identity = json.dumps(build, sort_keys=True).encode()
        self._recover(struct.pack("<Q", len(identity)) + identity)

    def _open(self) -> BinaryIO:
        """The log, locked."""
        while True:
            self.folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                file = self._locked()
                if _has_path(file, self.folder / _LOG):
                    return file
                file.close()  # another build finished and removed it before it was locked here

    def _locked(self) -> BinaryIO:
        descriptor = os.open(self.folder / _LOG, os.O_RDWR | os.O_CREAT, 0o666)
        file = os.fdopen(descriptor, "r+b")
        try:
            # The log itself is locked, so no lock file can be left behind. The system releases the
            # lock when the process ends, however it ends.
            lock_open_file(file)
        except BlockingIOError:
            file.close()
            raise StoreError(
                f"{self.folder}: another process is building this corpus. Wait for it, or choose "
                "another folder."
            ) from None
        return file

    def _recover(self, preamble: bytes) -> None:
        """Read the records of an interrupted build, and cut off what follows the intact ones."""
        old_size = os.fstat(self._file.fileno()).st_size
        if old_size and self._file.read(len(preamble)) != preamble:
            self.note = (
                "an interrupted build was found, but with other options, inputs or vocabulary: "
                "starting over"
            )
            old_size = 0
        elif old_size:
            while (payload := self._read()) is not None:
                _, counts, after = _unpack(payload)
                self.counts.add(counts)
                self.after = after
            self.recovered = len(self._records)
            self.note = f"continuing an interrupted build: {self.recovered} units are finished"
            damaged = old_size - self._end(len(preamble))
            if damaged:
                self.note += f"; {damaged:,} bytes of it are damaged and will be redone"
        self._file.seek(0)
        if not old_size:
            # Emptied before the new preamble is written: the records of another build must never
            # stand behind it, whenever the process is killed.
            self._file.truncate(0)
            self._file.write(preamble)
            self._file.flush()
        self._file.truncate(self._end(len(preamble)))
        self._file.seek(0, os.SEEK_END)

    def _end(self, preamble_size: int) -> int:
        """Where the last intact record ends."""
        return sum(self._records[-1]) if self._records else preamble_size

    def _read(self) -> bytes | None:
        """The payload of the next record; None if it is missing or damaged."""
        header = self._file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return None
        length, checksum = _HEADER.unpack(header)
        offset = self._file.tell()
        if length > os.fstat(self._file.fileno()).st_size - offset:
            return None
        payload = self._file.read(length)
        if hashlib.sha256(payload).digest() != checksum:
            return None
        self._records.append((offset, length))
        return payload

    def append(self, unit: EncodedUnit, counts: Counts, after: Position) -> None:
        """Add a unit; units added before stay readable whatever happens.

        Raises:
            OSError: the log could not be written.
        """
        facts = json.dumps({"counts": counts.to_dict(), "after": asdict(after)}).encode()
        payload = save({**vars(unit), _FACTS: np.frombuffer(facts, dtype=np.uint8)})
        self._file.write(_HEADER.pack(len(payload), hashlib.sha256(payload).digest()) + payload)
        self._file.flush()
        self._records.append((self._file.tell() - len(payload), len(payload)))
        self.counts.add(counts)
        self.after = after

    def __iter__(self) -> Iterator[EncodedUnit]:
        """The units in order, each read from disk."""
        for offset, length in self._records:
            self._file.seek(offset)
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
        """Delete the log: the corpus is complete, or cannot be built at all."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._file.close()


def _has_path(file: BinaryIO, path: Path) -> bool:
    """Whether an open file is still the one at this path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _unpack(payload: bytes) -> tuple[EncodedUnit, Counts, Position]:
    arrays = load(payload)
    facts = json.loads(arrays.pop(_FACTS).tobytes())
    return EncodedUnit(**arrays), Counts.from_dict(facts["counts"]), Position(**facts["after"])
