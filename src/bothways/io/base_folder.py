"""The folder of the model that an adapter belongs to, by the adapter's settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bothways.errors import InputError, ModelError
from bothways.io.folder_files import checked, is_there
from bothways.io.hub import model_folder
from bothways.io.json_files import read_json_file

ADAPTER = "adapter_config.json"
"""The file that makes a folder an adapter's."""
_NAME = "base_model_name_or_path"


def adapter_settings(folder: Path) -> dict[str, Any]:
    """What the settings of an adapter say.

    Raises:
        ModelError: they cannot be read.
    """
    path = folder / ADAPTER
    try:
        values = read_json_file(checked(path))
    except InputError as error:
        raise ModelError(str(error)) from None
    if not isinstance(values, dict):
        raise ModelError(f"{path} does not hold an object of settings; copy the adapter again.")
    return values


def base_folder(folder: Path, values: Mapping[str, Any]) -> Path:
    """The base of an adapter.

    Args:
        folder: of the adapter, which names its base: a folder beside it or here, or a model of the
            Hub.
        values: its settings.

    Raises:
        ModelError: the base is not named, or not at hand.
    """
    named = values.get(_NAME)
    if not isinstance(named, str) or not named:
        raise ModelError(f"{folder / ADAPTER} does not name its base ({_NAME}).")
    beside, revision = folder / named, values.get("revision")
    if revision and not is_there(Path(named)):  # of a model of the Hub
        named = f"{named}@{revision}"
    try:
        base = beside if is_there(beside / "config.json") else model_folder(named)
    except ModelError as error:
        raise ModelError(f"{folder} is an adapter of {named}. {error}") from None
    if not is_there(base / "config.json"):
        raise ModelError(
            f"{folder} holds an adapter of {named}, which is no model folder here; put the base "
            f"where {ADAPTER} names it ({_NAME})."
        )
    return base
