"""How a folder of sentence-transformers makes vectors from the encoder's outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_MODULES = "modules.json"
_POOLING = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
_KNOWN = ("Transformer", "Pooling", "Normalize")


def read_sentence_modules(folder: Path) -> dict[str, Any]:
    """Entries for ``about``; empty for a folder of another library.

    Returns:
        ``pooling``: ``mean``, ``cls``, or what the folder says that bothways does not have.
        ``normalize``: true if vectors are scaled to unit length.
        ``modules_left_out``: the types of layers after pooling, if there are any; they are not
        computed here.
    """
    modules = _read(folder / _MODULES)
    if not isinstance(modules, list):
        return {}
    about: dict[str, Any] = {}
    left_out = []
    for module in (module for module in modules if isinstance(module, dict)):
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Pooling":
            path = folder / str(module.get("path", "")) / "config.json"
            settings = _read(path)
            if isinstance(settings, dict):
                about |= _pooling(settings)
            else:  # not the mean by default: what it says is not known
                about["pooling"] = f"in {path}, which cannot be read"
        elif kind == "Normalize":
            about["normalize"] = True
        elif kind not in _KNOWN:
            left_out.append(kind)
    return {**about, "modules_left_out": left_out} if left_out else about


def _pooling(settings: dict[str, Any]) -> dict[str, str]:
    """From ``pooling_mode: cls``, or as before version 6 ``pooling_mode_cls_token: true``."""
    modes = [
        _POOLING.get(name, name)
        for name, on in settings.items()
        if name.startswith("pooling_mode_") and on is True
    ]
    named = settings.get("pooling_mode") or []
    modes += [named] if isinstance(named, str) else map(str, named)
    return {"pooling": ", ".join(modes)} if modes else {}


def _read(path: Path) -> Any:
    """A JSON file; None if it is missing or damaged: the encoder loads without it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
