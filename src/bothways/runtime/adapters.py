"""Adapter folders: the weights of a LoRA merged into those of its base, everything else named.

``adapter_config.json`` and ``adapter_model.safetensors`` are what the library PEFT writes. A matrix
W of the base becomes W + B A * alpha / rank (Hu et al. 2021, section 4.1), which is what the pair
computes beside it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bothways.errors import InputError, ModelError
from bothways.io.base_folder import ADAPTER, adapter_settings, base_folder
from bothways.io.folder_files import checked, is_there
from bothways.runtime.stored import Stored, map_safetensors, read_pickled
from bothways.runtime.weights import has_weights, stored_weights, weight_files

_WEIGHTS, _OLD = "adapter_model.safetensors", "adapter_model.bin"
_BEFORE = "base_model.model."
_PAIR = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])(\.default)?\.weight")
# Whole modules that were trained and kept beside the pairs.
_WHOLE = re.compile(r"\.(modules_to_save\.default|base_layer|original_module)(?=\.)")
_USUAL: Mapping[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "fan_in_fan_out": (False, None),
    "layer_replication": (None,),
    "alora_invocation_tokens": (None,),
    "use_bdlora": (None, False),
    "target_parameters": (None, []),
    "trainable_token_indices": (None,),
    "lora_bias": (False, None),
    # Others change the base as well, before it is trained: pissa, olora, corda, loftq ...
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva"),
    "use_qalora": (False, None),
    "arrow_config": (None,),
}
"""Settings that change what is computed -> the values with which it is the above."""
_KNOWN = frozenset(
    """
    peft_type peft_version auto_mapping base_model_name_or_path revision task_type inference_mode r
    target_modules exclude_modules lora_alpha lora_dropout use_rslora modules_to_save bias
    layers_to_transform layers_pattern rank_pattern alpha_pattern megatron_config megatron_core
    loftq_config eva_config corda_config lora_ga_config runtime_config qalora_group_size
    ensure_weight_tying trainable_token_indices
    """.split()
)
"""The others, which are read, or matter in training alone."""
_RANK = _ALPHA = 8
"""PEFT's defaults."""
_PART = r"(?:[\w.-]|\\[.d]|\[[\w-]+\])*"
_PATTERN = re.compile(rf"\^?{_PART}(?:[*+]{_PART}){{0,2}}\$?")
"""An alternative of a pattern that is matched in bounded time: a name, with at most two repeats."""
_MOST_PATTERNS = 4096
_Patterns = Sequence[tuple[re.Pattern[str], Any]]


@dataclass(frozen=True)
class Adapted:
    """A base with its adapter merged.

    Attributes:
        base: its folder.
        path: the file of the adapter's weights, for messages.
        weights: by the base's names.
        classes: of transformers that the adapter says it is for, by the end of their names.
        notes: what a user should know, as sentences.
    """

    base: Path
    path: Path
    weights: dict[str, Stored]
    classes: str
    notes: list[str] = field(default_factory=list)


_CLASSES = {
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
}


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter instead of a model; some have its base's config.json."""
    return is_there(folder / ADAPTER) and not has_weights(folder)


def left_beside(folder: Path) -> list[str]:
    """That a folder of a model has an adapter, too, as a sentence."""
    if not is_there(folder / ADAPTER):
        return []
    return [
        f"{folder} holds an adapter, too ({ADAPTER}), which is not merged into its weights; put it "
        "into a folder of its own and name that for the model with it, or remove it if it is merged"
    ]


def read_adapter(folder: Path) -> Adapted:
    """Merge a LoRA into its base.

    Args:
        folder: of the adapter, which names its base: a folder beside it or here, or a model of the
            Hub.

    Raises:
        ModelError: another kind of adapter, a base that is not at hand, or weights that are not the
            base's.
    """
    values = _settings(folder)
    base, path = base_folder(folder, values), _file(folder)
    try:
        checked(path)
        theirs = map_safetensors(path) if path.name == _WEIGHTS else read_pickled(path, [])
    except InputError as error:
        raise ModelError(str(error)) from None
    _, weights = stored_weights(base)
    where = folder / ADAPTER
    ranks, alphas = (_patterns(values, f"{name}_pattern", where) for name in ("rank", "alpha"))
    pairs: dict[str, dict[str, Stored]] = {}
    for name, value in theirs.items():
        short = name.removeprefix(_BEFORE)
        if found := _PAIR.fullmatch(short):
            pairs.setdefault(found["module"], {})[found["part"]] = value
        elif "lora_" in short or "original_module" in short:
            raise ModelError(
                f"{path}: {name} is not of a pair of matrices beside a linear map, which is all "
                f"that is merged here. {_REMEDY}"
            )
        else:
            weights[_WHOLE.sub("", short)] = value
    for module, pair in pairs.items():
        name = _in_base(f"{module}.weight", weights)
        if not name or set(pair) != {"A", "B"}:
            raise ModelError(
                f"{path}: {module} is not among the weights of {base}, or has one matrix of two; "
                "the adapter is of another base."
            )
        rank = _of_module(module, ranks, values.get("r", _RANK))
        alpha = _of_module(module, alphas, values.get("lora_alpha", _ALPHA))
        _check_rank(module, pair["A"].shape[0], rank, alpha, where)
        scale = float(alpha) / (math.sqrt(rank) if values.get("use_rslora") else rank)
        weights[name] = _merged(weights[name], pair, scale, path, name)
    others = sorted(n for n, v in values.items() if v and n not in _KNOWN and n not in _USUAL)
    notes = [f"{folder / ADAPTER} has keys that are not known here: {', '.join(others)}"]
    classes = _CLASSES.get(str(values.get("task_type")), "")
    return Adapted(base, path, weights, classes, notes if others else [])


def adapter_files(folder: Path) -> list[Path]:
    """The file of an adapter's weights, and those of its base.

    Raises:
        ModelError: as :func:`read_adapter`.
    """
    return [_file(folder), *weight_files(base_folder(folder, _settings(folder)))]


def _file(folder: Path) -> Path:
    for name in (_WEIGHTS, _OLD):
        if is_there(folder / name):
            return folder / name
    raise ModelError(
        f"{folder} holds no weights; an adapter's weights are in {_WEIGHTS} or {_OLD}. Copy them."
    )


_REMEDY = "Merge it with the library that made it (merge_and_unload), and save the whole model."


def _settings(folder: Path) -> dict[str, Any]:
    values, path = adapter_settings(folder), folder / ADAPTER
    kind = values.get("peft_type")
    if kind != "LORA":
        raise ModelError(
            f"{path}: this folder holds an adapter{f' of the type {kind}' if kind else ''}, not a "
            f"model; bothways merges LoRA only. {_REMEDY}"
        )
    for key, usual in _USUAL.items():
        if values.get(key, usual[0]) not in usual:
            raise ModelError(
                f"{path}: {key} is {values[key]!r}, which is not merged here. {_REMEDY}"
            )
    if values.get("bias", "none") not in ("none", "all", "lora_only"):
        raise ModelError(f"{path}: bias is {values['bias']!r}; it must be none, all or lora_only.")
    return values


def _in_base(name: str, weights: Mapping[str, Stored]) -> str:
    """The name in the base's file; empty without one. Of the two, only one may have been saved with
    a head, and so have the encoder's prefix."""
    ends = [other for other in weights if other.endswith("." + name)]
    for found in (name, name.partition(".")[2], *(ends if len(ends) == 1 else ())):
        if found in weights:
            return str(found)
    return ""


def _check_rank(module: str, rank: int, said: Any, alpha: Any, path: Path) -> None:
    """Refuse settings without a number for a module, or of another rank than its matrices."""
    for name, value in (("r", said), ("lora_alpha", alpha)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{path}: {name} is {value!r} for {module}; it must be a number.")
    if said != rank:
        raise ModelError(
            f"{path}: the rank of {module} is {said}, but its matrices have {rank}; the files do "
            "not belong together. Copy the adapter again."
        )


def _patterns(values: Mapping[str, Any], name: str, path: Path) -> _Patterns:
    """Patterns of names of modules with their values, as PEFT matches them.

    Raises:
        ModelError: it is no map of patterns, or matching one might take for ever.
    """
    given = values.get(name) or {}
    if not isinstance(given, dict) or len(given) > _MOST_PATTERNS:
        raise ModelError(
            f"{path}: {name} is no map of at most {_MOST_PATTERNS:,} patterns to numbers; copy the "
            "file again."
        )
    compiled = []
    for key, value in given.items():
        try:
            if not all(map(_PATTERN.fullmatch, key.split("|"))):
                raise re.error("it might be matched for ever")
            compiled.append((re.compile(rf"(.*\.)?({key})$"), value))
        except re.error as error:
            raise ModelError(
                f"{path}: {name} has the pattern {key[:40]!r}, which is not read here ({error}); "
                "write names of modules, with | between them."
            ) from None
    return compiled


def _of_module(module: str, patterns: _Patterns, usual: Any) -> Any:
    """The value of the first pattern that a module's name ends in."""
    return next((value for pattern, value in patterns if pattern.match(module)), usual)


def _merged(
    whole: Stored, pair: Mapping[str, Stored], scale: float, path: Path, name: str
) -> Stored:
    for part in pair.values():
        if "float" not in part.dtype:
            raise ModelError(
                f"{path}: the matrices for {name} are of the type {part.dtype}, which are no "
                f"weights. {_REMEDY}"
            )
    a, b = pair["A"].values(), pair["B"].values()
    if (
        a.ndim != 2
        or b.ndim != 2
        or (b.shape[0], a.shape[1]) != whole.shape
        or (a.shape[0] != b.shape[1])
    ):
        raise ModelError(
            f"{path}: the matrices for {name} have the shapes {b.shape} and {a.shape}, its own is "
            f"{whole.shape}; the adapter is of another base."
        )
    return Stored(whole.values() + np.float32(scale) * (b @ a), "float32")
