"""Writing files so that a reader never sees half of one.

A file or folder is written beside its final place, flushed to the disk, and renamed. A process
killed at any moment leaves either the old content or the new, plus at most a ``.partial-*`` name
that the next writer removes.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bothways.errors import ConfigError, DiskError

PARTIAL = ".partial-"

# <fcntl.h> and <linux/fs.h>
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_bytes(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``, atomically and durably.

    Raises:
        DiskError: nothing could be written; the previous content of ``path`` is intact.
    """
    partial = path.with_name(PARTIAL + path.name)
    with explain_disk_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            _sync_folder(path.parent)
        except OSError:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


def write_text(path: Path, text: str) -> None:
    """:func:`write_bytes` for UTF-8 text."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """:func:`write_bytes` for indented JSON with a closing newline. Names of files that are not
    UTF-8, which Python has as halves of characters, are escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    write_bytes(path, text.encode("utf-8", errors="backslashreplace"))


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill; on success it becomes ``path``, replacing what was there.

    Raises:
        DiskError: a write inside failed; the previous ``path`` is intact.
    """
    refuse_working_folder(path)
    path = path.resolve()  # a link to a folder stays one, and its folder is replaced
    partial = path.with_name(PARTIAL + path.name)
    aside = path.with_name(PARTIAL + "set-aside-" + path.name)
    with explain_disk_errors(path):
        if aside.exists() and not path.exists():
            aside.rename(path)  # killed between the two renames of _replace
        for leftover in (partial, aside):
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            yield partial
            sync_files(partial)
            _replace(path, partial, aside)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _sync_folder(path.parent)
        for old in (partial, aside):
            shutil.rmtree(old, ignore_errors=True)


def refuse_working_folder(path: Path) -> None:
    """A folder is made beside its place and takes it when it is whole; whoever works in the old one
    would stand in a folder that is gone.

    Raises:
        ConfigError: the path is the folder that this process works in.
    """
    if path.resolve() == Path.cwd():
        raise ConfigError(f"{path} is the folder you are in; name a folder in it, or another one.")


def _replace(path: Path, new: Path, aside: Path) -> None:
    """Give the folder ``new`` the name ``path``; an old one ends up under one of the other names.

    A folder cannot be renamed over a full one. Where the system can exchange two names in one step,
    ``path`` is never missing; elsewhere it is for a moment, and :func:`new_folder` puts the old one
    back if a kill falls into it.
    """
    if not path.exists():
        new.rename(path)
    elif not _exchange(path, new):
        path.rename(aside)
        try:
            new.rename(path)
        except OSError:
            aside.rename(path)
            raise


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False where system or file system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    status: int = rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE)
    return status == 0


def sync_files(folder: Path) -> None:
    """Flush every file under ``folder`` to the disk."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
    _sync_folder(folder)


@contextlib.contextmanager
def explain_disk_errors(path: Path) -> Iterator[None]:
    """Turn an :class:`OSError` met while writing ``path`` into a :class:`DiskError`."""
    try:
        yield
    except OSError as error:
        free = ""
        with contextlib.suppress(OSError):
            existing = next(p for p in (path, *path.parents) if p.exists())
            free = f" ({shutil.disk_usage(existing).free / 2**20:,.0f} MiB free there)"
        raise DiskError(
            f"{path}: cannot be written: {error.strerror or error}{free}. What was there before is "
            "intact; free some space or choose another folder, then run the same command again."
        ) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
