"""The files of BERT's authors: a checkpoint of TensorFlow 1, bert_config.json and vocab.txt, in a
folder or in the zip that is downloaded; read, and written, without TensorFlow.

``bert_model.ckpt.meta`` describes a graph of TensorFlow, which nothing needs that reads weights by
name; it is neither read nor written. Matrices of layers lie transposed: ``kernel`` [inputs,
outputs].
"""

from __future__ import annotations

import contextlib
import glob
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.errors import InputError, ModelError
from bothways.families import FAMILIES, Family, ModelConfig, family_of
from bothways.io.files import write_json, write_text
from bothways.io.folder_files import is_there
from bothways.io.tensor_bundle import INDEX, Variable, read_bundle, write_bundle
from bothways.io.text import read_whole
from bothways.tokenization.tokenizer import Tokenizer

SETTINGS, VOCABULARY, CHECKPOINT = "bert_config.json", "vocab.txt", "bert_model.ckpt"
_STATE = "checkpoint"  # which of a folder's checkpoints is the last, as TensorFlow writes it
_SLOTS = (
    *("/adam_m", "/adam_v", "/lamb_m", "/lamb_v", "/Adam", "/Adam_1"),
    *("/AdamWeightDecayOptimizer", "/AdamWeightDecayOptimizer_1"),
)
"""What an optimizer adds to a variable's name for its moments: those of the original and of
repositories that began as it, and TensorFlow's own."""
_OTHERS = ("albert_config.json", "electra_config.json", "xlnet_config.json")
_MOST_SMALLER = 50  # times; weights hardly get smaller in a zip
_KEYS = (
    *("attention_probs_dropout_prob", "hidden_act", "hidden_dropout_prob", "hidden_size"),
    *("initializer_range", "intermediate_size", "max_position_embeddings"),
    *("num_attention_heads", "num_hidden_layers", "type_vocab_size", "vocab_size"),
)
_NORM_EPS = 1e-12  # of the code, not a setting


# ------------------------------------------------------------------------------------ what is there


def original_family() -> Family:
    """The family of these files."""
    return next(family for family in FAMILIES.values() if family.original)


def checkpoint_in(folder: Path) -> Path | None:
    """What the names of a folder's checkpoint begin with; None if there is none.

    Of several, the file ``checkpoint``, which TensorFlow writes, says which is the last.

    Raises:
        ModelError: there are several, and nothing says which is meant.
    """
    found = sorted(folder.glob(f"*{INDEX}"))
    if len(found) > 1 and is_there(folder / _STATE):
        with contextlib.suppress(InputError):
            named = re.search(r'^model_checkpoint_path: "(.+)"', read_whole(folder / _STATE), re.M)
            last = PurePosixPath(named[1]).name + INDEX if named else ""
            found = [path for path in found if path.name == last] or found
    if len(found) > 1:
        names = ", ".join(path.name.removesuffix(INDEX) for path in found)
        raise ModelError(f"{folder} holds several checkpoints; name one of them: {names}.")
    return found[0].with_name(found[0].name.removesuffix(INDEX)) if found else None


def named_checkpoint(path: Path) -> tuple[Path, Path] | None:
    """A folder of these files and the checkpoint in it, of what a user names: the folder, or the
    beginning of its files' names; None if it names neither.

    Raises:
        ModelError: there are several checkpoints and nothing says which is meant, or none; or the
            files are those of another family's authors.
    """
    name = path.name.removesuffix(INDEX)
    if not path.is_dir():
        beginning = path.with_name(name + INDEX).is_file()
        return (path.parent, path.with_name(name)) if path.name and beginning else None
    for other in _OTHERS:
        if is_there(path / other):
            raise ModelError(
                f"{path / other}: of their authors' TensorFlow files, those of "
                f"{original_family().title} alone are read here; take a folder of transformers "
                "with the same weights (on the Hugging Face Hub), or convert this one there."
            )
    checkpoint = checkpoint_in(path)
    if checkpoint is None and is_there(path / SETTINGS):
        old = next(iter(sorted(path.glob("*.ckpt*"))), None)
        beside = f" ({old.name} alone is none; its {INDEX} is missing)" if old else ""
        raise ModelError(
            f"{path} has {SETTINGS}, but no checkpoint{beside}; copy {CHECKPOINT}{INDEX} and "
            f"{CHECKPOINT}.data-00000-of-00001 there."
        )
    return None if checkpoint is None else (path, checkpoint)


def is_original(named: Path) -> bool:
    """Whether a user names these files: their folder, their zip, or their checkpoint."""
    if named.is_file() and named.suffix.lower() == ".zip":
        return True
    return is_there(named / SETTINGS) or (
        not named.is_dir() and named_checkpoint(named) is not None
    )


def checkpoint_files(checkpoint: Path) -> list[Path]:
    """The index of a checkpoint, and the files with its values."""
    name = glob.escape(checkpoint.name)
    return [
        checkpoint.with_name(checkpoint.name + INDEX),
        *sorted(checkpoint.parent.glob(f"{name}.data-*-of-*")),
    ]


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """A zip of these files as a folder, for the block; what is mapped from it stays.

    Raises:
        ModelError: the zip is damaged, or does not hold one checkpoint.
    """
    # Mapped files can be removed, but on Windows, where they stay behind.
    with tempfile.TemporaryDirectory(prefix="bothways-zip-", ignore_cleanup_errors=True) as folder:
        _unpack(path, Path(folder))
        try:
            yield Path(folder)
        except ModelError as error:
            raise ModelError(str(error).replace(folder, str(path))) from None


def _unpack(path: Path, to: Path) -> None:
    own = (SETTINGS, VOCABULARY, _STATE, "bothways.json")
    wanted = {*own, "tokenizer_config.json", "tokenizer.json", *_OTHERS}
    try:
        with zipfile.ZipFile(path) as archive:
            names = [PurePosixPath(info.filename).name for info in archive.infolist()]
            if "config.json" in names and not any(name.endswith(INDEX) for name in names):
                raise ModelError(
                    f"{path} holds no checkpoint of TensorFlow, which is all that is read from a "
                    "zip; unpack it, and name the folder that was in it."
                )
            members = [
                info
                for info in archive.infolist()
                if (name := PurePosixPath(info.filename).name) in wanted
                or name.endswith(INDEX)
                or ".data-" in name
            ]
            folders = {PurePosixPath(info.filename).parent for info in members}
            if len(folders) != 1:
                found = ", ".join(sorted(map(str, folders))) or "none"
                raise ModelError(
                    f"{path} should hold one folder with a checkpoint, and holds {found}; unpack "
                    "it, and name the folder."
                )
            for info in members:
                if info.file_size > _MOST_SMALLER * (info.compress_size + 2**20):
                    raise ModelError(
                        f"{path}: {info.filename} would be {info.file_size / 2**20:,.0f} MiB, "
                        "which no weights become from so little; the zip is damaged."
                    )
                target = to / PurePosixPath(info.filename).name
                with archive.open(info) as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file, 2**20)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise ModelError(f"{path} is damaged or truncated ({error}); download it again.") from None


# --------------------------------------------------------------------------------- names of weights


def original_name(family: Family, name: str) -> tuple[str, bool]:
    """A weight's name in these files, and whether it lies transposed there."""
    if name in family.original:
        return family.original[name], False
    stem, _, kind = re.sub(r"\.(\d+)\.", r"_\1.", name).rpartition(".")
    path = stem.replace(".", "/")
    if path.endswith("Norm"):
        return f"{path}/{'gamma' if kind == 'weight' else 'beta'}", False
    return (f"{path}/kernel", True) if kind == "weight" else (f"{path}/{kind}", False)


def modern_name(family: Family, name: str) -> tuple[str, bool]:
    """The inverse of :func:`original_name`; names of other things stay as they are."""
    by_original = {theirs: ours for ours, theirs in family.original.items()}
    if name in by_original:
        return by_original[name], False
    root, _, _ = name.partition("/")
    if root not in {ours.partition(".")[0] for ours in family.original} or name.endswith(_SLOTS):
        return name, False
    stem, _, kind = re.sub(r"_(\d+)/", r"/\1/", name).rpartition("/")
    path = stem.replace("/", ".")
    kinds = {"kernel": "weight", "gamma": "weight", "beta": "bias"}
    return f"{path}.{kinds.get(kind, kind)}", kind == "kernel"


def read_original(checkpoint: Path) -> dict[str, Variable]:
    """A checkpoint's weights by the names of transformers, and what else it has.

    Args:
        checkpoint: the beginning of its files' names.

    Raises:
        ModelError: a file is damaged or missing, or holds none of the family's weights.
    """
    family = original_family()
    variables = read_bundle(checkpoint, unchecked=_SLOTS)
    found = {}
    for theirs, (values, kind) in variables.items():
        name, transposed = modern_name(family, theirs)
        found[name] = (values.T if transposed else values, kind)
    if f"{family.prefix}.{family.tokens}" not in found:
        some = ", ".join(list(variables)[:3]) or "nothing"
        raise ModelError(
            f"{checkpoint}{INDEX} does not hold {family.title}'s variables, but {some}. Of "
            "encoders of another family, take a folder of transformers with the same weights."
        )
    return found


def summed_up(unused: list[str]) -> list[str]:
    """Names of what is not used, with those of an optimizer as one."""
    moments = [name for name in unused if name.endswith(_SLOTS)]
    others = [name for name in unused if not name.endswith(_SLOTS)]
    if not moments:
        return others
    return [*others, f"{len(moments):,} moments of the optimizer, such as {moments[0]}"]


# ------------------------------------------------------------------------------------------ writing


def refuse_others(config: ModelConfig, tokenizer: Tokenizer, values: Mapping[str, Any]) -> None:
    """Refuse a network that the original code does not compute.

    Args:
        config: the shape.
        tokenizer: of the model.
        values: of config.json.

    Raises:
        ModelError: naming what it does not have.
    """
    family = original_family()
    if family_of(config) is not family or values.get("model_type") != family.model_type:
        raise ModelError(
            f"the files of {family.title}'s authors hold that network alone, and this is "
            f"{values.get('model_type')}; leave out --to."
        )
    problems = {
        "reads left to right": config.left_to_right,
        f"has layer_norm_eps {config.norm_eps:g}, not {_NORM_EPS:g}": config.norm_eps != _NORM_EPS,
        f"has the activation {values['hidden_act']}": values["hidden_act"]
        not in ("gelu", "relu", "tanh"),
        "has a tokenizer of another kind than WordPiece": tokenizer.kind != "wordpiece",
    }
    if wrong := [what for what, is_so in problems.items() if is_so]:
        raise ModelError(
            f"this model {' and '.join(wrong)}, which the code of {family.title}'s authors does "
            "not compute; leave out --to."
        )


def write_original(
    folder: Path,
    weights: Mapping[str, NDArray[np.float32]],
    tokenizer: Tokenizer,
    values: Mapping[str, Any],
) -> None:
    """Write these files, of a network that :func:`refuse_others` accepts.

    Args:
        folder: exists.
        weights: by the names of transformers.
        tokenizer: with WordPiece, as this code has it.
        values: of config.json.

    Raises:
        DiskError: it could not be written.
    """
    family, found = original_family(), {}
    for name, value in weights.items():
        theirs, transposed = original_name(family, name)
        found[theirs] = np.ascontiguousarray(value.T if transposed else value)
    write_bundle(folder / CHECKPOINT, found)
    write_json(folder / SETTINGS, {key: values[key] for key in _KEYS})
    tokenizer.save(folder, max_length=values["max_position_embeddings"])
    write_text(
        folder / _STATE,
        f'model_checkpoint_path: "{CHECKPOINT}"\nall_model_checkpoint_paths: "{CHECKPOINT}"\n',
    )
