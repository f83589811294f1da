"""Adapters (LoRA) merged into their base; every other kind and setting is refused.

``adapter_config.json`` and ``adapter_model.safetensors`` are what the library PEFT writes. A matrix
W of the base becomes W + B A * alpha / rank (Hu et al. 2021, section 4.1).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bothways.errors import InputError, ModelError
from bothways.io.base_folder import ADAPTER, adapter_settings, base_folder
from bothways.io.folder_files import checked, is_there
from bothways.runtime.stored import Stored, read_tensors
from bothways.runtime.weights import has_weights, weight_files

_WEIGHTS, _OLD = "adapter_model.safetensors", "adapter_model.bin"
_BEFORE = "base_model.model."
_PAIR = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])(\.default)?\.weight")
# Whole modules that were trained and kept beside the pairs.
_WHOLE = re.compile(r"\.(modules_to_save\.default|base_layer|original_module)(?=\.)")
_USUAL: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", "all", "lora_only"),
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
"""Settings that change what is computed -> the values that are merged here, the default first."""
_KNOWN = frozenset(
    """
    peft_version auto_mapping base_model_name_or_path revision task_type inference_mode r
    target_modules exclude_modules lora_alpha lora_dropout use_rslora modules_to_save
    layers_to_transform layers_pattern rank_pattern alpha_pattern megatron_config megatron_core
    loftq_config eva_config corda_config lora_ga_config runtime_config qalora_group_size
    ensure_weight_tying
    """.split()
)
"""The others, which are read, or matter in training alone."""
_DEFAULTS = {"r": 8, "lora_alpha": 8}
_PART = r"(?:[\w.-]|\\[.d]|\[[\w-]+\])"
_PATTERN = re.compile(rf"\^?{_PART}+(?:[*+]{_PART}+)?(?:[*+]{_PART}*)?\$?")
"""An alternative of a pattern of modules that is matched in bounded time."""
_CLASSES = {
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
}
_REMEDY = "Merge it with the library that made it (merge_and_unload), and save the whole model."


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter instead of a model; some have its base's config.json."""
    return is_there(folder / ADAPTER) and not has_weights(folder)


def adapter_file(folder: Path) -> Path:
    """The file of an adapter's weights.

    Raises:
        ModelError: there is none.
    """
    for name in (_WEIGHTS, _OLD):
        if is_there(folder / name):
            return folder / name
    raise ModelError(f"{folder} holds no weights; an adapter's are in {_WEIGHTS} or {_OLD}.")


def adapter_files(folder: Path) -> list[Path]:
    """The file of an adapter's weights, and those of its base.

    Raises:
        ModelError: one is missing.
    """
    base = base_folder(folder, adapter_settings(folder))
    return [adapter_file(folder), *weight_files(base)]


def class_of_adapter(values: Mapping[str, Any]) -> str:
    """The end of the names of the classes that an adapter is for; may be empty."""
    return _CLASSES.get(str(values.get("task_type")), "")


def merge(
    folder: Path, values: Mapping[str, Any], weights: dict[str, Stored], notes: list[str]
) -> None:
    """Merge a LoRA into the weights of its base.

    Args:
        folder: of the adapter.
        values: its settings.
        weights: of the base by name; changed.
        notes: takes which settings are not known here.

    Raises:
        ModelError: another kind of adapter, or weights that are not the base's.
    """
    where, path = folder / ADAPTER, adapter_file(folder)
    for key, usual in _USUAL.items():
        if values.get(key, usual[0]) not in usual:
            raise ModelError(
                f"{where}: {key} is {values[key]!r}, which is not merged here. {_REMEDY}"
            )
    if others := sorted(n for n, v in values.items() if v and n not in _KNOWN and n not in _USUAL):
        notes.append(f"{where} has keys that are not known here: {', '.join(others)}")
    try:
        theirs = read_tensors(checked(path), notes)
    except InputError as error:
        raise ModelError(str(error)) from None
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
        if not name or set(pair) != {"A", "B"} or not _fits(weights[name], pair):
            raise ModelError(
                f"{path}: {module} does not fit the weights of the base; the adapter is of another "
                "base, or damaged."
            )
        rank = _setting(values, "r", "rank_pattern", module, where)
        alpha = _setting(values, "lora_alpha", "alpha_pattern", module, where)
        if rank != pair["A"].shape[0]:
            raise ModelError(
                f"{where}: the rank of {module} is {rank}, but its matrices have "
                f"{pair['A'].shape[0]}; the files do not belong together."
            )
        scale = np.float32(float(alpha) / (math.sqrt(rank) if values.get("use_rslora") else rank))
        product = pair["B"].values() @ pair["A"].values()
        weights[name] = Stored(weights[name].values() + scale * product, "float32")


def _fits(whole: Stored, pair: Mapping[str, Stored]) -> bool:
    a, b = pair["A"], pair["B"]
    return (
        len(a.shape) == len(b.shape) == 2
        and (b.shape[0], a.shape[1]) == whole.shape
        and a.shape[0] == b.shape[1]
        and all("float" in part.dtype for part in pair.values())
    )


def _in_base(name: str, weights: Mapping[str, Stored]) -> str:
    """The name in the base's file; empty without one. Of the two, only one may have been saved with
    a head, and so have the encoder's prefix."""
    ends = [other for other in weights if other.endswith("." + name)]
    for found in (name, name.partition(".")[2], *(ends if len(ends) == 1 else ())):
        if found in weights:
            return str(found)
    return ""


def _setting(values: Mapping[str, Any], name: str, patterns: str, module: str, where: Path) -> Any:
    """The number for a module: that of the first pattern that its name ends in, or that of all."""
    found, given = values.get(name, _DEFAULTS[name]), values.get(patterns) or {}
    try:
        for pattern, value in given.items():
            if not all(map(_PATTERN.fullmatch, pattern.split("|"))):
                raise re.error("not a plain pattern")
            if re.match(rf"(.*\.)?({pattern})$", module):
                found = value
                break
    except (AttributeError, re.error) as error:
        raise ModelError(
            f"{where}: {patterns} is no map of names of modules to numbers ({error})."
        ) from None
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ModelError(f"{where}: {name} is {found!r} for {module}; it must be a number.")
    return found
