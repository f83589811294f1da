"""Explain why a path could not be opened as a model folder; run only after that failed."""

from __future__ import annotations

import glob
import re
from pathlib import Path

from bothways.errors import nearest
from bothways.io.base_folder import ADAPTER
from bothways.io.folder_files import is_there
from bothways.io.hub import cache
from bothways.io.lines import listed
from bothways.io.run_folders import RUN_FILE, checkpoints_of_run, models_of_run
from bothways.shipped import SHIPPED

_CONFIG = "config.json"
_OTHERS = (
    ("zero_to_fp32.py", "a checkpoint of DeepSpeed: run python zero_to_fp32.py . . in it"),
    ("*/*.distcp", "a checkpoint of FSDP: run accelerate merge-weights on it"),
    ("tf_model.h5", "weights of TensorFlow: save them with transformers 4 (from_tf=True)"),
    ("flax_model*", "weights of Flax: save them with transformers 4 (from_flax=True)"),
    ("*.onnx", "a graph, which is read as onnx/model.onnx"),
    ("onnx/*.onnx", "a graph, which is read as onnx/model.onnx"),
    ("*-of-*.safetensors", "a part of the weights, whose index is missing: copy it too"),
    ("*-of-*.bin", "a part of the weights, whose index is missing: copy it too"),
    ("adapter_model.*", "an adapter, whose adapter_config.json is missing: copy it too"),
)
"""Files of another form of weights, and what to do with them."""
_BESIDE_WEIGHTS = re.compile(
    r"training_args|optimizer|scheduler|scaler|rng_state|random_states"
    r"|.*\.(json|jsonl|jinja|txt|md|model|py|ya?ml|lock)$|[^.]*$"
)
"""Files that no weights are in."""


def runs_in(folder: Path) -> list[Path]:
    """The run folders in a folder, in order of their names."""
    return sorted(path.parent for path in folder.glob(f"*/{RUN_FILE}"))


def models_in(folder: Path) -> list[Path]:
    """The folders in a folder that hold a model or an adapter, such as a trainer's checkpoints; the
    newest first."""
    found = {path.parent for name in (_CONFIG, ADAPTER) for path in folder.glob(f"*/{name}")}
    found = {path for path in found if not re.match(r"\d_", path.name)}  # of modules
    return sorted(found, key=lambda path: (-path.stat().st_mtime, path.name))


def instead_of_weights(folder: Path) -> str:
    """What a model folder without weights has instead; empty if nothing is known."""
    for pattern, what in _OTHERS:
        if found := sorted(folder.glob(pattern)):
            return f"{found[0].relative_to(folder).as_posix()} is {what}"
    if folder.parent.name == "snapshots":
        return "the download is incomplete; run it again (without HF_HUB_OFFLINE)"
    names = sorted(path.name for path in folder.glob("*") if path.is_file())
    unknown = [name for name in names if not _BESIDE_WEIGHTS.match(name)]
    return f"{listed(unknown, 4)}: not read as weights under this name" if unknown else ""


def diagnose(path: Path) -> str:
    """What a path without a config.json is instead of a model folder, and the remedy."""
    if (path / RUN_FILE).exists():
        models = models_of_run(path)
        if found := models or checkpoints_of_run(path)[-1:]:
            names = listed([inside.relative_to(path).as_posix() for inside in found], 4)
            return f"this is a run folder; name a model in it: {names}"
        return "this run is not finished and has no model yet; the same command continues it"
    if (path / "corpus.json").is_file():
        return "this is a corpus, not a model; pre-train one on it (`bothways pretrain --corpus`)"
    for found, what in ((models_in(path), "models"), (runs_in(path), "runs")):
        if found:
            names = listed([inside.name for inside in found], 4)
            return f"it holds folders of {what}; name one of them: {names}"
    if any((path / name).is_file() for name in ("tokenizer.json", "vocab.txt")):
        return f"it holds a vocabulary, and no model: {_CONFIG} and model.safetensors are missing"
    if path.is_file() and is_there(path.parent / _CONFIG):
        return f"this is a file of a model; name its folder: {path.parent}"
    if path.is_file():
        return "this is a file; a model is a folder (unpack an archive)"
    holds = f"a model folder holds {_CONFIG} and model.safetensors"
    if path.exists():
        inside = sorted(child.name for child in path.glob("*"))
        return f"{holds}, and this one {listed(inside, 4) or 'nothing'}"
    known = [*SHIPPED, *(child.name for child in sorted(path.parent.glob("*/")))]
    of_hub = sorted(cache().glob(f"models--*--{glob.escape(path.name)}"))
    if path.parent == Path() and of_hub:  # named without its owner
        near = f"{of_hub[0].name.split('--')[1]}/{path.name}"
    elif near := nearest(path.name, known) or "":
        near = near if near in SHIPPED else str(path.parent / near)
    meant = f"did you mean {near!r}? " if near else ""
    return (
        f"{meant}{holds}; models available by name: {', '.join(SHIPPED)}, and OWNER/NAME in the "
        f"cache of the Hugging Face Hub ({cache()})"
    )
