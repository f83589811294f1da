"""Checkpoints of BERT's authors (TensorFlow 1), read without TensorFlow.

Matrices of layers lie transposed: ``kernel`` [inputs, outputs]. The graph in ``.meta`` is not read.
"""

from __future__ import annotations

import contextlib
import glob
import re
from pathlib import Path, PurePosixPath

from bothways.errors import InputError, ModelError
from bothways.families import FAMILIES, Family
from bothways.io.folder_files import is_there
from bothways.io.tensor_bundle import INDEX, Variable, read_bundle
from bothways.io.text import read_whole

SETTINGS = "bert_config.json"
_STATE = "checkpoint"  # names the last of a folder's checkpoints
_SLOTS = (
    *("/adam_m", "/adam_v", "/lamb_m", "/lamb_v", "/Adam", "/Adam_1"),
    *("/AdamWeightDecayOptimizer", "/AdamWeightDecayOptimizer_1"),
)
"""Ends of the names of optimizer moments."""


def original_family() -> Family:
    """The family of these files."""
    return next(family for family in FAMILIES.values() if family.original)


def named_checkpoint(path: Path) -> tuple[Path, Path] | None:
    """The folder and prefix of a TensorFlow checkpoint; None if the path names no checkpoint.

    Args:
        path: a folder, or the prefix of a checkpoint in it. Of several checkpoints in a folder, the
            file ``checkpoint`` says which is the last.

    Raises:
        ModelError: the folder holds several checkpoints, and nothing says which is meant.
    """
    if not path.is_dir():
        prefix = path.with_name(path.name.removesuffix(INDEX)) if path.name else path
        return (path.parent, prefix) if prefix.with_name(prefix.name + INDEX).is_file() else None
    found = sorted(path.glob(f"*{INDEX}"))
    if len(found) > 1 and is_there(path / _STATE):
        with contextlib.suppress(InputError):
            named = re.search(r'^model_checkpoint_path: "(.+)"', read_whole(path / _STATE), re.M)
            last = PurePosixPath(named[1]).name + INDEX if named else ""
            found = [file for file in found if file.name == last] or found
    if len(found) > 1:
        names = ", ".join(file.name.removesuffix(INDEX) for file in found)
        raise ModelError(f"{path} holds several checkpoints; name one of them: {names}.")
    return (path, found[0].with_suffix("")) if found else None


def is_original(named: Path) -> bool:
    """Whether a path names these files: their folder or a checkpoint."""
    if named.is_dir():
        return is_there(named / SETTINGS)
    return named_checkpoint(named) is not None


def checkpoint_files(prefix: Path) -> list[Path]:
    """The index of a checkpoint, and the files with its values."""
    shards = sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*-of-*"))
    return [prefix.with_name(prefix.name + INDEX), *shards]


def modern_name(family: Family, name: str) -> tuple[str, bool]:
    """transformers' name of a variable, and whether it lies transposed in these files; names of
    other things stay as they are."""
    by_original = {theirs: ours for ours, theirs in family.original.items()}
    if name in by_original:
        return by_original[name], False
    root, _, _ = name.partition("/")
    if root not in {ours.partition(".")[0] for ours in family.original} or name.endswith(_SLOTS):
        return name, False
    stem, _, kind = re.sub(r"_(\d+)/", r"/\1/", name).rpartition("/")
    kinds = {"kernel": "weight", "gamma": "weight", "beta": "bias"}
    return f"{stem.replace('/', '.')}.{kinds.get(kind, kind)}", kind == "kernel"


def read_original(prefix: Path) -> dict[str, Variable]:
    """A checkpoint's weights by the names of transformers, and what else it has.

    Raises:
        ModelError: a file is damaged or missing, or holds none of the family's weights.
    """
    family = original_family()
    variables = read_bundle(prefix)
    found = {}
    for theirs, (values, kind) in variables.items():
        name, transposed = modern_name(family, theirs)
        found[name] = (values.T if transposed else values, kind)
    if f"{family.prefix}.{family.tokens}" not in found:
        some = ", ".join(list(variables)[:3]) or "nothing"
        raise ModelError(
            f"{prefix}{INDEX} does not hold {family.title}'s variables, but {some}; of other "
            "families, take a folder of transformers with the same weights."
        )
    return found


def summed_up(unused: list[str]) -> list[str]:
    """Names of unused weights, optimizer moments as one entry."""
    moments = [name for name in unused if name.endswith(_SLOTS)]
    others = [name for name in unused if not name.endswith(_SLOTS)]
    if moments:
        others.append(f"{len(moments):,} moments of the optimizer, such as {moments[0]}")
    return others
