"""Reading the files of a tokenizer; ``pieces`` has the checks of their content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from bothways.errors import ModelError


def read_library_file(path: Path) -> tokenizers.Tokenizer:
    """Read a tokenizer.json.

    Raises:
        ModelError: the file is damaged.
    """
    try:
        return tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare Exception for every kind of damage
        raise ModelError(
            f"{path}: cannot be read as a tokenizer: {error}. If the folder has an intact "
            "vocab.txt, name that file instead."
        ) from error


def read_settings(path: Path) -> dict[str, Any]:
    """Read a tokenizer_config.json; empty if there is none.

    Raises:
        ModelError: the file is damaged, or a setting has the wrong type.
    """
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: not JSON: {error}. Repair it or remove it.") from error
    if not isinstance(settings, dict):
        raise ModelError(f"{path}: expected an object of settings. Repair it or remove it.")
    for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars"):
        if settings.get(name) is None:
            settings.pop(name, None)  # null means the default, as if it were absent
        elif not isinstance(settings[name], bool):
            raise ModelError(f"{path}: {name} is {settings[name]!r}; it must be true or false.")
    if settings.get("normalization", "bert") not in ("bert", "composed"):
        raise ModelError(
            f"{path}: normalization is {settings['normalization']!r}; it must be bert or composed."
        )
    return settings


def read_vocabulary(path: Path) -> list[str]:
    """Read the pieces of a vocab.txt.

    Raises:
        ModelError: the file is not UTF-8.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            # Iteration splits lines at \n, \r\n and \r only: pieces may contain other separators.
            pieces = [line.removesuffix("\n") for line in file]
    except UnicodeDecodeError as error:
        raise ModelError(
            f"{path}: byte {error.start} is not UTF-8; a vocab.txt is UTF-8, one piece per line."
        ) from error
    while pieces and not pieces[-1]:
        pieces.pop()
    return pieces
