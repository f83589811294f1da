"""Writing files and folders atomically, so that a reader never sees half of one.

A file or folder is written under a temporary name next to its final path, flushed to disk, and
renamed. A process killed at any moment leaves either the old content or the new, plus at most a
``.partial-*`` name that the next writer removes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from bothways.errors import ConfigError, DiskError
from bothways.io.pipes import open_file

PARTIAL = ".partial-"

# <fcntl.h> and <linux/fs.h>
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes, without reading it into memory at once; a pipe stays to be
    read."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def real_path(path: Path) -> Path:
    """The absolute path that a path leads to, through all links; of a link in a circle, its own.

    (``Path.resolve`` raises for a circle, before Python 3.13.)
    """
    return Path(os.path.realpath(path))


def expanded(path: str) -> Path:
    """A path that may begin with ``~``, and have variables in it; for a user who has no home, such
    as one without a name in a container, one where nothing is and nothing can be written."""
    try:
        return Path(os.path.expandvars(path)).expanduser()
    except RuntimeError:
        return Path(os.devnull, "no home")


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the content of ``path`` by ``data``, atomically and durably.

    Raises:
        DiskError: the file could not be written; its previous content is intact.
    """
    with new_file(path) as file:
        file.write(data)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Replace the content of ``path`` by what is written to the file that this gives, atomically
    and durably.

    Raises:
        DiskError: the file could not be written; its previous content is intact.
    """
    with explain_disk_errors(path):
        if path.exists() and not path.is_file() and not path.is_dir():  # such as /dev/stdout
            with path.open("wb") as file:
                yield file
            return
        if path.is_symlink():
            path = real_path(path)  # the link stays
    partial = path.with_name(PARTIAL + path.name)
    with explain_disk_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            _sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


def write_text(path: Path, text: str) -> None:
    """:func:`write_bytes` for a text, by :func:`as_utf8`."""
    write_bytes(path, as_utf8(text))


def as_utf8(text: str) -> bytes:
    """A text's bytes. Where Python has surrogates, for what is not of the locale in the names of
    files and in arguments, those bytes are the text's own if they are UTF-8, and else escaped."""
    try:
        data = text.encode("utf-8", errors="surrogateescape")
        data.decode("utf-8")
    except UnicodeError:
        return text.encode("utf-8", errors="backslashreplace")
    return data


def write_json(path: Path, value: Any) -> None:
    """:func:`write_bytes` for indented JSON with a final newline; paths are written as text."""
    write_bytes(path, as_json(value))


def as_json(value: Any) -> bytes:
    """The bytes that :func:`write_json` writes.

    File names that are not UTF-8, which Python represents with surrogates, are escaped.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, default=os.fspath) + "\n"
    return text.encode("utf-8", errors="backslashreplace")


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder; on success it becomes ``path``, replacing any previous folder.

    Raises:
        DiskError: a write in the folder failed, or another process is writing it; the previous
            ``path`` is intact.
    """
    refuse_working_folder(path)
    path = real_path(path)  # of a symbolic link, the target is replaced and the link kept
    partial = path.with_name(PARTIAL + path.name)
    aside = _aside(path)
    with explain_disk_errors(path):
        restore_set_aside(path)
        with _folder_of_ones_own(partial, path):
            shutil.rmtree(aside, ignore_errors=True)
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


@contextlib.contextmanager
def _folder_of_ones_own(folder: Path, path: Path) -> Iterator[None]:
    """Make a folder, in which ``path`` is written, in place of one that a killed process left, and
    keep other processes from doing the same.

    Raises:
        DiskError: another process has it.
    """
    with contextlib.ExitStack() as held:
        try:
            if folder.exists():
                with _locked_folder(folder):
                    shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            held.enter_context(_locked_folder(folder))
        except (BlockingIOError, FileExistsError):
            raise DiskError(
                f"{path}: another process is writing it; wait until it has ended, or choose "
                "another folder."
            ) from None
        yield


@contextlib.contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder, where the system has such.

    Raises:
        BlockingIOError: another process holds it.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            lock_open_file(descriptor)
        except OSError as error:  # otherwise a file system without locks
            if isinstance(error, BlockingIOError):
                raise
        yield
    finally:
        with contextlib.suppress(OSError):  # a process that was forked meanwhile has it, too
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def restore_set_aside(path: Path) -> None:
    """Bring back the folder ``path`` if a process was killed while it replaced it, between the two
    renames that this takes where names cannot be exchanged."""
    aside = _aside(path)
    if aside.exists() and not path.exists():
        aside.rename(path)


def _aside(path: Path) -> Path:
    return path.with_name(PARTIAL + "set-aside-" + path.name)


def refuse_working_folder(path: Path) -> None:
    """Refuse to replace the current working folder: this process would be left in a deleted one;
    and a link in a circle, which leads to no folder.

    Raises:
        ConfigError: ``path`` is one of these.
    """
    if real_path(path).is_symlink():
        raise ConfigError(f"{path} is a link in a circle; remove it, or name another folder.")
    if real_path(path) == Path.cwd():
        raise ConfigError(f"{path} is the folder you are in; name a folder in it, or another one.")


def _replace(path: Path, new: Path, aside: Path) -> None:
    """Rename the folder ``new`` to ``path``; a previous folder is left as ``new`` or ``aside``.

    A folder cannot be renamed over one that is not empty. If the system can exchange two names
    atomically, ``path`` always exists. Otherwise it is missing for a moment; if the process is
    killed then, the next :func:`new_folder` restores the previous folder.
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
    """Exchange two names atomically; False if the system or file system does not support it."""
    # Elsewhere there is no such call, and on Windows no library of the process to ask.
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    rename = getattr(library, "renameat2", None)
    if rename is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    status: int = rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE)
    return status == 0


def lock_open_file(file: BinaryIO | int) -> None:
    """Keep other processes from locking an open file until it is closed, or this process ends;
    nothing on Windows.

    Raises:
        BlockingIOError: another process has locked it.
    """
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def sync_files(folder: Path) -> None:
    """Flush every file in ``folder``, at any depth, to disk."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
    _sync_folder(folder)


def reserve_space(file: Path, size: int) -> None:
    """Take this many bytes of the disk for a file, without writing them, where the system can.

    Raises:
        OSError: the disk is too full, or a quota does not allow it.
    """
    if hasattr(os, "posix_fallocate") and size:
        with file.open("r+b") as opened:
            try:
                os.posix_fallocate(opened.fileno(), 0, size)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # not by this file system
                    raise


@contextlib.contextmanager
def explain_disk_errors(
    path: Path, remedy: str = "free some space or choose another folder"
) -> Iterator[None]:
    """Turn an :class:`OSError` met while writing ``path`` into a :class:`DiskError`."""
    try:
        yield
    except OSError as error:
        free = ""
        with contextlib.suppress(OSError):
            existing = next(p for p in (path, *path.parents) if p.exists())
            free = f" ({shutil.disk_usage(existing).free / 2**20:,.0f} MiB free there)"
        raise DiskError(
            f"{path}: cannot be written: {error.strerror or error}{free}. The previous content is "
            f"intact; {remedy}, then run the same command again."
        ) from error


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":
        return  # a folder cannot be opened there
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
