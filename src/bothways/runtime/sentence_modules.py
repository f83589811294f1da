"""How a folder of sentence-transformers makes vectors or scores from the encoder's outputs.

Its ``modules.json`` names the steps. The encoder is in the folder itself, or before version 2.0 in
a folder of its own (``0_BERT``, ``0_Transformer``). What a step would do and is not computed here
is said, and vectors are refused: others would not be those that the folder is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.arrays import expit
from bothways.errors import InputError, ModelError
from bothways.io.files import write_json
from bothways.io.folder_files import checked, inside, is_there
from bothways.io.json_files import read_json_file

_MODULES, _CONFIG = "modules.json", "config.json"
_SETTINGS = "sentence_bert_config.json"
_OLD_SETTINGS = "sentence_*_config.json"
_LIBRARY, _TOKENIZER = "config_sentence_transformers.json", "tokenizer_config.json"
OF_VECTORS = (
    *("pooling", "include_prompt", "normalize", "prompts", "prompt", "cut_at"),
    *("modules_left_out", "settings_left_out"),
)
"""Entries of ``about`` that say how vectors are made."""
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
_ENCODERS = ("Transformer", "BERT", "RoBERTa", "XLMRoBERTa", "ALBERT", "DistilBERT")
_VECTOR = "sentence_embedding"
GIVES_SCORES = "a Transformer that gives scores, not vectors"
"""A step that is left out where vectors are wanted, and is what ranks texts."""
_OF_TOKENIZER = ("processor_kwargs", "tokenizer_args")
_HARMLESS = {"model_max_length", "padding_side", "use_fast", "trust_remote_code"}
# Settings of the encoder's step -> the values with which it gives the last layer's states.
_USUAL: Mapping[str, tuple[Any, ...]] = {
    "transformer_task": ("feature-extraction", None),
    "module_output_name": ("token_embeddings", None),
    "processing_kwargs": ({}, None),
    "tokenizer_name_or_path": (None,),
}


def has_modules(folder: Path) -> bool:
    """Whether a folder says how vectors are made, as sentence-transformers does."""
    return is_there(folder / _MODULES)


def encoder_folder(folder: Path) -> Path:
    """Where the encoder of a folder is: in itself, or where its ``modules.json`` says.

    Raises:
        ModelError: the file is damaged, or leads out of the folder.
    """
    if not is_there(folder / _MODULES):
        return folder
    encoders = (path for kind, path, _ in _steps(folder) if kind in _ENCODERS)
    # A config.json beside modules.json may be the library's own, or another model's.
    whole = is_there(folder / _CONFIG)
    return next((p for p in encoders if not whole or is_there(p / _CONFIG)), folder)


def read_sentence_modules(
    folder: Path, *, lowercase: bool, positions: int, hidden: int
) -> dict[str, Any]:
    """Entries for ``about``.

    Args:
        folder: with modules.json.
        lowercase: whether its tokenizer lower-cases text.
        positions: of the encoder.
        hidden: size of its states.

    Returns:
        ``pooling``: ``mean``, ``cls``, or what the folder says that bothways does not have.
        ``include_prompt``: false if the tokens of a prompt are left out of pooling.
        ``normalize``: true if vectors are scaled to unit length.
        ``prompts``: texts by name; ``prompt``: the one that is put before each text.
        ``modules_left_out``: the types of layers after pooling, if there are any; they are not
        computed here.
        ``settings_left_out``: what else would be done with texts and is not done here.
        ``cut_at``: to how many tokens texts are cut, at most those that the encoder reads.

    Raises:
        ModelError: a file is damaged.
    """
    prompts, prompt = _prompts(folder)
    about: dict[str, Any] = {"pooling": f"not named in {folder / _MODULES}"}
    about |= {name: value for name, value in (("prompts", prompts), ("prompt", prompt)) if value}
    left_out: list[str] = []
    pooled = False
    settings_left_out = []
    for kind, path, settings in _steps(folder):
        if kind in _ENCODERS:
            if settings.get("do_lower_case") and not lowercase:
                settings_left_out.append("texts are lower-cased (do_lower_case)")
            left_out += _unusual(settings)
            left_out += ["a second encoder"] if "cut_at" in about else []
            about["cut_at"] = min(_length(path, settings), positions)
        elif kind == "Pooling" and pooled:
            left_out.append("a second Pooling")
        elif kind == "Pooling":
            about["pooling"], pooled = _pooling(settings, path / _CONFIG), True
            if settings.get("include_prompt") is False:
                about["include_prompt"] = False
        elif kind == "Normalize" and settings.get("module_input_name", _VECTOR) == _VECTOR:
            # Before Pooling there is no vector yet; under another name it is not the result.
            writes = pooled and settings.get("module_output_name") in (None, _VECTOR)
            about["normalize"] = writes or about.get("normalize", False)
        elif kind != "Dropout":  # which does nothing but in training
            left_out.append(kind)
    size = _object(folder / _LIBRARY).get("truncate_dim")
    if isinstance(size, int) and size < hidden:
        settings_left_out.append(f"vectors are cut to {size} numbers (truncate_dim)")
    told = {"modules_left_out": left_out, "settings_left_out": settings_left_out}
    return about | {name: value for name, value in told.items() if value}


def write_sentence_modules(folder: Path, about: Mapping[str, Any], hidden: int) -> None:
    """Say in sentence-transformers' files how vectors are made, as :func:`read_sentence_modules`
    reads it; nothing is written where it is not known, or where the folder says so already.

    Args:
        folder: exists, with the encoder in it.
        about: ``pooling`` (the mean if it is absent), ``include_prompt``, ``normalize``,
            ``prompts``, ``prompt``, ``cut_at``.
        hidden: size of the vectors.

    Raises:
        DiskError: a file could not be written.
    """
    mode = about.get("pooling", "mean")
    known = mode in _POOLING.values() and not about.get("modules_left_out")
    if not known or about.get("settings_left_out") or is_there(folder / _MODULES):
        return
    types = [("Transformer", ""), ("Pooling", "1_Pooling")]
    types += [("Normalize", "2_Normalize")] if about.get("normalize") else []
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(types)
    ]
    modes = {name: of == mode for name, of in _POOLING.items()}
    modes |= {} if about.get("include_prompt", True) else {"include_prompt": False}
    for _, path in types[1:]:
        (folder / path).mkdir(exist_ok=True)
    write_json(folder / "1_Pooling" / _CONFIG, {"word_embedding_dimension": hidden, **modes})
    if about.get("normalize"):
        write_json(folder / "2_Normalize" / _CONFIG, {})
    if prompts := about.get("prompts"):
        default = next((n for n, text in prompts.items() if text == about.get("prompt")), None)
        write_json(folder / _LIBRARY, {"prompts": prompts, "default_prompt_name": default})
    if length := about.get("cut_at"):
        write_json(folder / _SETTINGS, {"max_seq_length": length, "do_lower_case": False})
    write_json(folder / _MODULES, modules)  # last: it makes the folder one of that library


def _steps(folder: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """The modules in order: their class, folder, and settings there; a class that is not of
    sentence-transformers has its whole name."""
    modules = _read(folder / _MODULES)
    if not (isinstance(modules, list) and all(isinstance(module, dict) for module in modules)):
        raise _damaged(folder / _MODULES, "it does not hold a list of modules.")
    for module in modules:
        name, place = str(module.get("type", "")), str(module.get("path", ""))
        try:
            path = inside(folder, place)
        except InputError as error:
            raise _damaged(folder / _MODULES, str(error)) from None
        kind = name.rpartition(".")[2]
        if not name.startswith(("sentence_transformers.", "models.")):
            kind = name or "without a type"  # of somebody's own
        yield kind, path, _object(_settings_of(path) if kind in _ENCODERS else path / _CONFIG)


def _settings_of(encoder: Path) -> Path:
    """The file of an encoder's settings, which early versions named by the family."""
    named = encoder / _SETTINGS
    return named if is_there(named) else next(iter(sorted(encoder.glob(_OLD_SETTINGS))), named)


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
        ``prompt``: what is put before each query, if anything is.

    Raises:
        ModelError: a file is damaged.
    """
    newest, newer = _read(folder / _LIBRARY), config.get("sentence_transformers")
    named = [own.get("activation_fn") for own in (newest, newer) if isinstance(own, dict)]
    named.append(config.get("sbert_ce_default_activation_function"))
    activation = next((str(name) for name in named if name), _DEFAULT_ACTIVATION)
    found: dict[str, Any] = {"activation": _TORCHS.get(activation, activation)}
    if prompt := _prompts(folder)[1]:
        found["prompt"] = prompt
    length = _length(folder, _read(_settings_of(folder)))
    return found | ({"length": length} if length < _NO_LIMIT else {})


_NO_LIMIT = 1 << 31


def _length(folder: Path, settings: Any) -> int:
    """The longest sequence in tokens that an encoder's settings name, or else its tokenizer's
    files."""
    own = settings if isinstance(settings, dict) else {}
    of_tokenizer = [own.get(key) for key in _OF_TOKENIZER]
    sources = [
        *((values, "model_max_length") for values in of_tokenizer),
        (own, "max_seq_length"),
        (_read(folder / _TOKENIZER), "model_max_length"),
    ]
    limits = [values.get(key) for values, key in sources if isinstance(values, dict)]
    # Without a limit, transformers writes 10^30.
    return next((n for n in limits if isinstance(n, int) and 0 < n < _NO_LIMIT), _NO_LIMIT)


def _prompts(folder: Path) -> tuple[dict[str, str], str]:
    """Texts by name, and that which is put before each text; empty without one."""
    path = folder / _LIBRARY
    settings = _object(path)
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(
        isinstance(text, str | None) for text in prompts.values()
    ):
        raise _damaged(path, "prompts is not a map of texts.")
    found = {str(name): text or "" for name, text in prompts.items()}
    name = settings.get("default_prompt_name")
    if name is not None and name not in prompts:
        raise _damaged(path, f"default_prompt_name is {name!r}, which prompts does not have.")
    return found, found.get(str(name), "") if name is not None else ""


def _unusual(settings: dict[str, Any]) -> list[str]:
    """What an encoder's step takes of the encoder but the last layer's states."""
    if settings.get("transformer_task") == "sequence-classification":
        return [GIVES_SCORES]
    found = [
        f"Transformer with {key} {settings[key]!r}"
        for key, usual in _USUAL.items()
        if key in settings and settings[key] not in usual
    ]
    for key in ("config_kwargs", "config_args", *_OF_TOKENIZER):  # handed on to transformers
        given = settings.get(key) or {}
        others = given.keys() - _HARMLESS if isinstance(given, dict) else {str(given)}
        found += [f"Transformer with {key} ({', '.join(sorted(others))})"] if others else []
    modes = settings.get("modality_config") or {}
    text = modes.get("text") if isinstance(modes, dict) else None
    output = text.get("method_output_name") if isinstance(text, dict) else None
    if output not in (None, "last_hidden_state"):
        found.append(f"Transformer with method_output_name {output!r}")
    return found


def _pooling(settings: dict[str, Any], path: Path) -> str:
    """From ``pooling_mode: cls``, or as before version 6 ``pooling_mode_cls_token: true``."""
    if not is_there(path):  # not the mean by default: what it says is not known
        return f"in {path}, which cannot be read"
    named = settings.get("pooling_mode")
    if named is not None:
        return ", ".join(map(str, named)) if isinstance(named, list) else str(named)
    modes = [
        _POOLING.get(name, name)
        for name, on in settings.items()
        if name.startswith("pooling_mode_") and isinstance(on, int) and on
    ]
    if not modes and not any(name.startswith("pooling_mode_") for name in settings):
        return "mean"  # the default of sentence-transformers
    return ", ".join(modes) or "none of the modes"


def _object(path: Path) -> dict[str, Any]:
    settings = _read(path)
    if not isinstance(settings, dict):
        raise _damaged(path, "it does not hold an object of settings.")
    return settings


def _read(path: Path) -> Any:
    """A JSON file; an empty object if it is missing.

    Raises:
        ModelError: it is damaged.
    """
    try:
        return read_json_file(checked(path)) if is_there(path) else {}
    except InputError as error:
        raise _damaged(error.place or path, error.problem) from None


def _damaged(where: object, problem: str) -> ModelError:
    return ModelError(
        f"{where}: {problem} Without it, vectors would not be those of sentence-transformers. "
        f"Complete the download, or remove {_MODULES} to get plain vectors of the encoder."
    )
