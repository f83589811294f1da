"""Files of model, vocabulary and corpus folders: what they may be, before they are read.

What is read here came from elsewhere: by download, by copying, out of an archive. A pipe in place
of a file would wait for ever, a device never ends, and a pointer of git-lfs is 130 bytes of text
where gigabytes are meant; each is named. Sizes beyond any real file are refused before memory is
taken. (Files that a user names, such as texts to label, may be pipes.)
"""

from __future__ import annotations

import mmap
import os
import re
import stat
from pathlib import Path

from bothways.errors import InputError, Place

MOST_SETTINGS = 64
"""MiB of a JSON file of settings, such as config.json."""
MOST_VOCABULARY = 512
"""MiB of a file that holds a vocabulary."""

VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt")
"""Names of files that hold a vocabulary, or merges of its pieces."""
_SETTINGS = ".json"
_POINTER = b"version https://git-lfs.github.com/spec/"
_ANSWER = re.compile(
    rb"<(!doctype|html|\?xml)|{\s*\"(error|message|detail)\"|(\d{3}:? )?(\w+ )?not found"
    rb"|invalid username|access to model",
    re.IGNORECASE,
)
"""What servers answer in place of a file."""
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a named pipe"}


def is_there(path: Path) -> bool:
    """Whether there is anything of this name, even if it cannot be read: a link that leads nowhere
    stands for a file that is missed."""
    return os.path.lexists(path)


def checked(path: Path) -> Path:
    """The path of a file in a folder, if it is one that can be read.

    Raises:
        InputError: it is missing, no regular file, larger than any such file, a pointer of git-lfs,
            a link to a text outside of its folder, or its permissions keep it from being read.
    """
    size = refuse_no_file(path)
    limit = _most(path.name)
    if limit and path.is_symlink() and not _stays(path):  # messages may show lines of it
        raise InputError(
            "is a link out of its folder; put the file itself there.", place=Place(path)
        )
    if limit and size > limit * 2**20:
        raise InputError(
            f"has {size / 2**20:,.0f} MiB; such a file has at most {limit}. It is damaged "
            "or another file.",
            place=Place(path),
        )
    try:
        head = first_bytes(path, 200)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}.", place=Place(path)) from None
    if head.startswith(_POINTER):
        raise InputError(
            "is a pointer of git-lfs, not the file that it stands for; run `git lfs pull`.",
            place=Place(path),
        )
    if _ANSWER.match(head.lstrip()):
        shown = " ".join(head.decode("utf-8", "replace").split())[:60]
        raise InputError(
            f"is what a server answers in place of a file ({shown}); download the file again.",
            place=Place(path),
        )
    return path


def _stays(link: Path) -> bool:
    """Whether a link leads into its own folder, or to a file in the Hub's cache."""
    target = Path(os.path.realpath(link))
    in_cache = target.parent.name == "blobs" and target.parents[1].name.startswith("models--")
    return in_cache or target.is_relative_to(os.path.realpath(link.parent))


def inside(folder: Path, name: str) -> Path:
    """The path of what a file in a folder names.

    Raises:
        InputError: it leads out of the folder, or is no path.
    """
    path = folder / name
    if "\0" in name or not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise InputError(f"the path {name[:100]!r} leads out of the folder, or is none.")
    return path


def first_bytes(path: Path, count: int) -> bytes:
    """The first bytes of a file, which tell its kind."""
    with path.open("rb") as file:
        return file.read(count)


def map_file(path: Path) -> mmap.mmap:
    """A file in memory, to be read.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is empty.
    """
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def refuse_no_file(path: Path) -> int:
    """The size of a file in bytes.

    Raises:
        InputError: there is nothing, or a folder, a device, a socket, a named pipe or a link that
            leads nowhere.
    """
    try:
        about = path.stat()
    except (OSError, ValueError) as error:  # a NUL in the name
        problem = f"cannot be read: {getattr(error, 'strerror', error)}"
        problem = "is a link that leads nowhere" if path.is_symlink() else problem
        problem = problem if is_there(path) else "does not exist"
        raise InputError(f"{problem}.", place=Place(path)) from None
    if not stat.S_ISREG(about.st_mode):
        kind = _KINDS.get(stat.S_IFMT(about.st_mode), "a device")
        raise InputError(f"is {kind}, not a file.", place=Place(path))
    return about.st_size


def count_lines(path: Path) -> int:
    """How many lines a file has: line feeds, or carriage returns if it has no others."""
    feeds = returns = 0
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            feeds += chunk.count(b"\n")
            returns += chunk.count(b"\r")
    return feeds or returns


def _most(name: str) -> int:
    """MiB; 0 for files whose size the model decides."""
    if name in VOCABULARIES:
        return MOST_VOCABULARY
    return MOST_SETTINGS if name.endswith(_SETTINGS) else 0
