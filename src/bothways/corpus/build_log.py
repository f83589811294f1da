"""The finished units of a build, kept on disk next to the corpus until it is complete.

Each unit is a file with its checksum, numbered in the order of the text. The next build with the
same options and inputs keeps the units up to the first that is missing or damaged, and resumes from
the position after them. (The units are a function of options and inputs, so later ones that are
still there may be overwritten or found again.)
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from bothways.corpus.encode import Counts, EncodedUnit
from bothways.corpus.sources import Position
from bothways.io.files import as_json, write_bytes

_BUILD = "build.json"
_FACTS = "facts"  # counts and position, next to the arrays of a unit
_CHECKSUM = 32  # bytes of sha256 before a unit


class BuildLog:
    """The finished units of a build; one process at a time may use it.

    Attributes:
        folder: holds the units and other temporary files.
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
            OSError: the log could not be written.
        """
        self.opened_at = time.perf_counter()
        # No name that `new_folder` gives to a corpus beside this one.
        self.folder = out.with_name(f".units-{out.name}")
        self.after, self.counts = Position(), Counts()
        self.note: str | None = None
        self._units = 0
        content, path = as_json(build), self.folder / _BUILD
        if path.is_file() and path.read_bytes() == content:
            while (found := self._read(self._units)) is not None:
                _, counts, self.after = found
                self.counts.add(counts)
                self._units += 1
            self.note = f"continuing an interrupted build: {self._units} units are finished"
        else:
            if self.folder.exists():
                self.note = (
                    "an interrupted build was found, but with other options, inputs or "
                    "vocabulary: starting over"
                )
                shutil.rmtree(self.folder)
            write_bytes(path, content)
        self.recovered = self._units

    def _path(self, number: int) -> Path:
        return self.folder / f"unit-{number:08}"

    def _read(self, number: int) -> tuple[EncodedUnit, Counts, Position] | None:
        """A unit; None if it is missing or damaged."""
        if not self._path(number).is_file():
            return None
        data = self._path(number).read_bytes()
        checksum, payload = data[:_CHECKSUM], data[_CHECKSUM:]
        if hashlib.sha256(payload).digest() != checksum:
            return None
        arrays = load(payload)
        facts = json.loads(arrays.pop(_FACTS).tobytes())
        counts, after = Counts.from_dict(facts["counts"]), Position(**facts["after"])
        return EncodedUnit(**arrays), counts, after

    def append(self, unit: EncodedUnit, counts: Counts, after: Position) -> None:
        """Add a unit; units added before stay readable whatever happens.

        Raises:
            OSError: the log could not be written.
        """
        facts = json.dumps({"counts": counts.to_dict(), "after": asdict(after)}).encode()
        payload = save({**vars(unit), _FACTS: np.frombuffer(facts, dtype=np.uint8)})
        path = self._path(self._units)
        partial = path.with_suffix(".partial")
        partial.write_bytes(hashlib.sha256(payload).digest() + payload)
        partial.replace(path)
        self._units += 1
        self.counts.add(counts)
        self.after = after

    def __iter__(self) -> Iterator[EncodedUnit]:
        """The units in order, each read from disk.

        Raises:
            OSError: one is missing or damaged.
        """
        for number in range(self._units):
            found = self._read(number)
            if found is None:
                raise OSError(f"{self._path(number)} is missing or damaged")
            yield found[0]

    def remove(self) -> None:
        """Delete the log: the corpus is complete, or cannot be built at all."""
        shutil.rmtree(self.folder, ignore_errors=True)
