"""How a folder of sentence-transformers makes vectors or scores from the encoder's outputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from bothways.errors import InputError, ModelError
from bothways.io.json_files import read_json_file

_MODULES = "modules.json"
_SETTINGS = "config_sentence_transformers.json"
_TOKENIZER, _TRANSFORMER = "tokenizer_config.json", "sentence_bert_config.json"
ACTIVATIONS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "sigmoid": expit,
    "identity": lambda scores: scores,
    "tanh": np.tanh,
}
"""Functions of a reranker's output, by name."""
_DEFAULT_ACTIVATION = "torch.nn.modules.activation.Sigmoid"
_TORCHS = {
    _DEFAULT_ACTIVATION: "sigmoid",
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.Tanh": "tanh",
}
_POOLING = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}


def read_sentence_modules(folder: Path, *, lowercase: bool) -> dict[str, Any]:
    """Entries for ``about``; empty for a folder of another library.

    Args:
        folder: of the model.
        lowercase: whether its tokenizer lower-cases text.

    Returns:
        ``pooling``: ``mean``, ``cls``, or what the folder says that bothways does not have.
        ``normalize``: true if vectors are scaled to unit length.
        ``modules_left_out``: the types of layers after pooling, if there are any; they are not
        computed here.
        ``settings_left_out``: what else would be done with texts and is not done here.
    """
    modules = _read(folder / _MODULES)
    if not isinstance(modules, list):
        return {}
    about: dict[str, Any] = {}
    left_out, settings_left_out = [], _default_prompt(folder)
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
        elif kind == "Transformer":
            settings = _read(folder / str(module.get("path", "")) / _TRANSFORMER)
            if isinstance(settings, dict) and settings.get("do_lower_case") and not lowercase:
                settings_left_out.append("texts are lower-cased (do_lower_case)")
        else:
            left_out.append(kind)
    for name, values in (("modules", left_out), ("settings", settings_left_out)):
        if values:
            about[f"{name}_left_out"] = values
    return about


def read_reranker(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """How a folder with one output scores a query and a text, as a CrossEncoder of
    sentence-transformers would, by its files of any version.

    Args:
        folder: of the model.
        config: the content of its config.json.

    Returns:
        ``activation``: of the output; a name of :data:`ACTIVATIONS`, or what the folder says that
        bothways does not have.
        ``length``: the longest pair in tokens, if the tokenizer's files limit it.
    """
    newest, newer = _read(folder / _SETTINGS), config.get("sentence_transformers")
    named = [own.get("activation_fn") for own in (newest, newer) if isinstance(own, dict)]
    named.append(config.get("sbert_ce_default_activation_function"))
    activation = next((str(name) for name in named if name), _DEFAULT_ACTIVATION)
    found: dict[str, Any] = {"activation": _TORCHS.get(activation, activation)}
    tokenizer, module = (_read(folder / name) for name in (_TOKENIZER, _TRANSFORMER))
    limits = [
        values.get(key)
        for values, key in ((tokenizer, "model_max_length"), (module, "max_seq_length"))
        if isinstance(values, dict)
    ]
    # Without a limit, transformers writes 10^30.
    lengths = [limit for limit in limits if isinstance(limit, int) and 0 < limit < 1 << 31]
    return found | ({"length": min(lengths)} if lengths else {})


def _default_prompt(folder: Path) -> list[str]:
    settings = _read(folder / _SETTINGS)
    if not isinstance(settings, dict) or not (name := settings.get("default_prompt_name")):
        return []
    prompts = settings.get("prompts")
    prompt = prompts.get(name) if isinstance(prompts, dict) else None
    return [f"each text has the prompt {prompt!r} before it"] if prompt else []


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
    """A JSON file; None if it is missing: the encoder loads without it.

    Raises:
        ModelError: it is damaged.
    """
    try:
        return read_json_file(path) if path.exists() else None
    except InputError as error:
        raise ModelError(
            f"{error} Without it, vectors would not be those of sentence-transformers. Complete "
            "the download, or remove the file to get plain vectors of the encoder."
        ) from None
