"""The files of a server's models, as they were when it began: a worker that is started later reads
the same folders, and must not answer with other models than those beside it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from bothways.errors import ModelError
from bothways.io.files import sha256
from bothways.io.hub import model_folder
from bothways.runtime.folder import files_read

_Seen = tuple[int, int, int]
"""Size, number and time of the last change of a file, which differ for one that was replaced. It is
not the time of its content, which copies keep."""
_NAMED = 3
"""Files that a message names."""


class ChangedError(ModelError):
    """A model is not the one any more that a server began with."""


class Sources:
    """The files that models are read from, as they are now.

    Args:
        folders: of the models, by name.

    Raises:
        ModelError: a folder cannot be read.
    """

    def __init__(self, folders: Mapping[str, str]):
        self._folders = dict(folders)
        self._seen = {name: _seen(folder) for name, folder in self._folders.items()}
        self._sums: dict[Path, str] = {}

    def sum_up(self) -> None:
        """Take the checksums of the files, by which one that was written again is the same. It
        takes seconds for gigabytes."""
        for files in self._seen.values():
            for path, seen in files.items():
                with suppress(OSError):  # it is gone, which matters when it is asked for
                    found = sha256(path)
                    if _seen_of(path) == seen:
                        self._sums[path] = found

    def refuse_changed(self) -> None:
        """Refuse models of other files than these.

        Raises:
            ChangedError: naming the model and the files that are others, new or gone.
        """
        for name, folder in self._folders.items():
            before, now = self._seen[name], dict[Path, _Seen]()
            with suppress(ModelError):  # the folder is gone
                now = _seen(folder)
            changed = [
                path
                for path in sorted(before.keys() | now.keys())
                if before.get(path) != now.get(path) and not self._is_same(path)
            ]
            if changed:
                more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
                raise ChangedError(
                    f"the files of the model {name} have changed since the server began "
                    f"({', '.join(map(str, changed[:_NAMED]))}{more}), and a worker that "
                    "reads them now would answer otherwise than the others. Start the server again."
                )

    def _is_same(self, path: Path) -> bool:
        """Whether a file that was written again has the same content."""
        with suppress(OSError):
            return self._sums.get(path) == sha256(path)
        return False


def _seen(folder: str) -> dict[Path, _Seen]:
    found = {}
    for path in files_read(model_folder(folder)):
        with suppress(OSError):  # it is gone, as it would be a moment later
            found[path] = _seen_of(path)
    return found


def _seen_of(path: Path) -> _Seen:
    about = path.stat()  # of what a link leads to
    return about.st_size, about.st_ino, about.st_ctime_ns
