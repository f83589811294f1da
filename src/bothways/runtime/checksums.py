"""checksums.json of a model folder of ours: sizes and SHA-256 of its files, and its vocabulary.

It is written last. A folder that another library saves into keeps it, so what has changed since can
be told; a flipped bit of a weight, too, which no format notices.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from bothways.errors import InputError
from bothways.io.files import PARTIAL, as_json, sha256, write_json
from bothways.io.folder_files import checked, is_there
from bothways.io.json_files import read_json_file
from bothways.tokenization.tokenizer import Tokenizer

CHECKSUMS = "checksums.json"
_FOR_PEOPLE = "README.md"
"""What people may change: it has no checksum."""
_MAY_LACK = "bothways.json"
"""What may have been removed: without it, the folder is one made elsewhere."""
NOT_LISTED = f"is not among the files of {CHECKSUMS}"
"""What is different of a file that came into a folder later."""
NOT_LISTED_REMEDY = (
    "it was put there since bothways wrote the folder, and may be of any model. Export the model "
    f"again (`bothways export`); or if you know that it is of this one, remove {CHECKSUMS}."
)
READ_ON_LOAD = 64
"""MiB of a file that is compared whenever a folder is opened; of larger ones the size is."""


def write_checksums(folder: Path) -> None:
    """Add the checksums of a folder's files to it.

    Args:
        folder: complete. Its tokenizer is recorded as it will be read from there.

    Raises:
        DiskError: it could not be written.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    sums = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in files
        if path.name not in (CHECKSUMS, _FOR_PEOPLE) and not path.name.startswith(PARTIAL)
    }
    vocabulary = Tokenizer.from_folder(folder).fingerprint
    write_json(folder / CHECKSUMS, {"format": 1, "vocabulary": vocabulary, "files": sums})


def changed_files(
    folder: Path, *, whole: bool, of: str = "", computed: Collection[str] = ()
) -> dict[str, str]:
    """The files of a folder that are not as they were written -> what is different.

    Args:
        folder: of a model; empty for one without checksums.
        whole: compare every byte of every file, instead of where that is cheap.
        of: how the names start of the files that are compared.
        computed: names of files in it that a model is computed from, which have to be listed: one
            that was put there later may be of any model.
    """
    path = folder / CHECKSUMS
    if not is_there(path):
        return {}
    try:
        values = read_json_file(checked(path))
        recorded = _recorded(values)
    except InputError as error:
        return {CHECKSUMS: f"cannot be read ({error.problem.rstrip('.')})"}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {CHECKSUMS: "does not hold checksums of files"}
    changed = {name: NOT_LISTED for name in computed if name not in recorded}
    if whole and path.read_bytes() != as_json(values):
        changed[CHECKSUMS] = "is not as bothways writes it, though it says the same"
    for name, (size, checksum) in recorded.items():
        if not name.startswith(of):
            continue
        file = folder / name
        try:
            if not file.is_file():
                if name != _MAY_LACK:
                    changed[name] = "is missing"
            elif (found := file.stat().st_size) != size:
                changed[name] = f"has {found:,} bytes, and {size:,} when it was written"
            elif (whole or size <= READ_ON_LOAD * 2**20) and sha256(file) != checksum:
                changed[name] = "does not match its checksum"
        except OSError as error:
            changed[name] = f"cannot be read ({error.strerror})"
    return changed


def _recorded(values: Any) -> dict[str, tuple[int, str]]:
    """Names -> (bytes, SHA-256); of other content, one of several errors is raised."""
    if values["format"] != 1 or not values["vocabulary"]:
        raise ValueError
    found = {
        str(name): (int(entry["bytes"]), str(entry["sha256"]))
        for name, entry in values["files"].items()
    }
    if any(part in ("", "..") for name in found for part in name.split("/")):
        raise ValueError
    return found


def recorded_vocabulary(folder: Path) -> str:
    """The fingerprint of the tokenizer that a model was written with; empty if none is recorded."""
    try:
        return str(read_json_file(checked(folder / CHECKSUMS))["vocabulary"])
    except (InputError, KeyError, TypeError):
        return ""
