"""A file that is too large for memory, written in parts that a kill does not undo.

The parts lie in a folder beside the file, each written to a temporary name and renamed; at the end
they are joined and the folder is removed. A part says what it was made from, by a digest: what
makes another digest, another command or another input, is made anew. Parts rather than one growing
file: they may be of any format, are complete or not there, and may be written in any order. They
take the file's room on the disk a second time while they are joined.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bothways.errors import InputError, RunError
from bothways.io.files import (
    explain_disk_errors,
    lock_open_file,
    new_file,
    write_bytes,
    write_json,
)
from bothways.io.json_files import read_json_file
from bothways.io.written import ARROW, write_tables

if TYPE_CHECKING:
    import pyarrow as pa

Content = Any
"""Of a part: bytes, or a table of Arrow."""


class Parts:
    """The parts of a file. To be used as a context: no other process then writes them.

    Args:
        out: the file that they become.
        asked: what all parts depend on, as plain data.

    Raises:
        RunError: another process is writing them.
    """

    def __init__(self, out: Path, asked: dict[str, Any]):
        self._out, self._asked = out, asked
        self._suffix = out.suffix.lower()
        self._folder = out.with_name(f"{out.name}.parts")
        self.resumed = False
        """Whether there were parts of the same command."""
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Parts:
        asked = self._folder / "asked.json"
        if self._out.is_dir():
            raise RunError(f"{self._out} is a folder; choose another --out.")
        self._refuse_others()
        with explain_disk_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = self._stack.enter_context((self._folder / "lock").open("ab"))
        try:
            lock_open_file(lock)
        except BlockingIOError:
            self._stack.close()
            raise RunError(
                f"another process is writing {self._out}; wait for it, or choose another --out."
            ) from None
        known = None
        with contextlib.suppress(InputError):
            known = read_json_file(asked)
        self.resumed = known == json.loads(json.dumps(self._asked))
        if not self.resumed:
            for file in self._folder.iterdir():
                if file.name != "lock":
                    file.unlink()
            write_json(asked, self._asked)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _refuse_others(self) -> None:
        """Parts are removed; what somebody else has there must not be."""
        others = {*self._folder.iterdir()} if self._folder.is_dir() else set()
        if others - {self._folder / "lock"} and not (self._folder / "asked.json").is_file():
            raise RunError(
                f"{self._folder} is for parts of {self._out}, and holds other files; move it away, "
                "or choose another --out."
            )

    def known(self, number: int, digest: str) -> dict[str, Any] | None:
        """What was said of a part, if it is there and was made from what has this digest."""
        if not self._data(number).exists():
            return None
        with contextlib.suppress(InputError):
            about: dict[str, Any] = read_json_file(self._about(number))
            return about if about["digest"] == digest else None
        return None

    def add(self, number: int, digest: str, content: Content, about: dict[str, Any]) -> None:
        """Write a part.

        Raises:
            DiskError: it could not be written.
        """
        data = self._data(number)
        data.unlink(missing_ok=True)  # of another digest
        write_json(self._about(number), {**about, "digest": digest})
        if self._suffix in ARROW:
            with new_file(data) as file:
                write_tables(file, ".arrow", lambda: [content])
        else:
            write_bytes(data, content)

    def join(self, count: int, head: bytes = b"") -> None:
        """Write the file, of this many parts, and remove them.

        Raises:
            DiskError: it could not be written; the parts are kept.
        """
        with new_file(self._out) as file:
            if self._suffix in ARROW:
                write_tables(file, self._suffix, lambda: map(self._table, range(count)))
            else:
                file.write(head)
                for number in range(count):
                    with self._data(number).open("rb") as part:
                        shutil.copyfileobj(part, file, 2**20)
        self._stack.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _table(self, number: int) -> pa.Table:
        import pyarrow as pa

        with pa.memory_map(str(self._data(number))) as file:
            return pa.ipc.open_file(file).read_all()

    def _data(self, number: int) -> Path:
        return self._folder / f"{number:08d}{self._suffix}"

    def _about(self, number: int) -> Path:
        return self._folder / f"{number:08d}.json-about"
