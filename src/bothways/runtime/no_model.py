"""What a folder is that holds no model, and where one is instead."""

from __future__ import annotations

import glob
import re
from pathlib import Path

from bothways.errors import nearest
from bothways.io.base_folder import ADAPTER
from bothways.io.folder_files import first_bytes, is_there
from bothways.io.hub import cache
from bothways.io.lines import listed
from bothways.io.run_folders import RUN_FILE, checkpoints_of_run, models_of_run
from bothways.runtime.original_files import SETTINGS
from bothways.runtime.sentence_modules import other_first_module
from bothways.runtime.stored import OLD_WEIGHTS
from bothways.shipped import SHIPPED

_CONFIG = "config.json"
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.zst", ".7z", ".rar")
_ALIKE = re.compile(r"config( ?\(\d+\))?\.json(\.txt)?", re.IGNORECASE)
"""Names that downloads and other systems make of config.json."""


def runs_in(folder: Path) -> list[Path]:
    """The run folders in a folder, in order of their names."""
    return sorted(path.parent for path in folder.glob(f"*/{RUN_FILE}"))


def models_in(folder: Path) -> list[Path]:
    """The folders in a folder that hold a model or an adapter, such as a trainer's checkpoints; the
    newest first."""
    found = {path.parent for name in (_CONFIG, ADAPTER) for path in folder.glob(f"*/{name}")}
    found = {path for path in found if not re.match(r"\d_", path.name)}  # of modules
    return sorted(found, key=lambda path: (-path.stat().st_mtime, path.name))


# A head that SetFit has beside an encoder: of scikit-learn, pickled.
_HEADS = ("model_head.pkl", "model_head.joblib")


def heads_beside(folder: Path) -> list[str]:
    """That a classifier of another library lies beside an encoder, as a sentence."""
    return [
        f"{folder / name} is a classifier of scikit-learn that SetFit trained on the encoder's "
        "vectors; it is pickled, and not read here. Use SetFit to predict with it; or fine-tune "
        "this encoder on the same labels (`bothways finetune`)"
        for name in _HEADS
        if is_there(folder / name)
    ]


def what_it_is(folder: Path) -> str:
    """What a folder without config.json is instead of a model folder, and the remedy."""
    if ours := _of_ours(folder):
        return ours
    old = sorted(folder.glob("*.ckpt*"))
    if old and old[0].is_file() and first_bytes(old[0], 4).startswith((b"PK", b"\x80")):
        return (
            f"{old[0].name} is a checkpoint of PyTorch, such as Lightning writes. For a model "
            f"folder, put {_CONFIG} and the tokenizer's files of its encoder beside it, and name "
            f"it {OLD_WEIGHTS}"
        )
    if old:
        return (
            f"{old[0].name} seems to be a checkpoint of TensorFlow, of which the file *.index or "
            f"{SETTINGS} is missing; copy all files of the checkpoint"
        )
    if kind := other_first_module(folder):
        return (
            f"it is a folder of sentence-transformers whose first module is {kind}, which bothways "
            "does not compute: it reads a Transformer, with Pooling and Normalize. Use "
            "sentence-transformers"
        )
    if inside := models_in(folder):
        names = listed([path.name for path in inside], 4)
        return f"it holds folders of models; name one of them: {names}"
    if runs := runs_in(folder):
        names = listed([path.name for path in runs], 4)
        return f"it holds the folders of runs; name one of them: {names}"
    if (folder / "meta.json").exists() and (folder / "config.cfg").exists():
        return (
            "it is a pipeline of spaCy, whose weights and names are its own; use spaCy, or take "
            "the folder of the encoder that it was made from"
        )
    if alike := [p.name for p in sorted(folder.glob("*")) if _ALIKE.fullmatch(p.name)]:
        return f"if {alike[0]} is it, name it {_CONFIG}"
    if folder.is_file():
        return _of_file(folder)
    beside = [] if folder.exists() else [path.name for path in sorted(folder.parent.glob("*/"))]
    close = nearest(folder.name, [*SHIPPED, *beside])
    near = close if close is None or close in SHIPPED else folder.parent / close
    of_hub = sorted(cache().glob(f"models--*--{glob.escape(folder.name)}"))
    if of_hub and folder.parent == Path() and not folder.exists():  # named without its owner
        near = Path(of_hub[0].name.split("--")[1]) / folder.name
    return (
        ("" if near is None or folder.exists() else f"did you mean {str(near)!r}? ")
        + "a model folder holds config.json and model.safetensors; models available by name: "
        f"{', '.join(SHIPPED)}, and those in the cache of the Hugging Face Hub ({cache()}); "
        "a model of the Hub that is not there is named with its owner, such as "
        "sentence-transformers/all-MiniLM-L6-v2"
    )


def _of_ours(folder: Path) -> str:
    """What it is if it is a run, a corpus or a vocabulary of ours; empty if not."""
    if (folder / RUN_FILE).exists():
        if models := models_of_run(folder):
            names = ", ".join(map(str, models[:4]))
            which = "its models are several" if len(models) > 1 else "it is not finished"
            return f"this is a run folder, and {which}; name a model in it: {names}"
        if saved := checkpoints_of_run(folder):
            return (
                "this is the folder of a run that is not finished, without a model yet; name what "
                f"was saved on the way, {saved[-1]}, or finish it: the same command goes on"
            )
        return (
            "this is the folder of a run that is not finished, without a model yet; finish it: the "
            "same command goes on"
        )
    if (folder / "corpus.json").is_file():
        return (
            "this is a corpus folder, and what is wanted is a model: pre-train one on it "
            "(`bothways pretrain --corpus`), or name another"
        )
    weights = [
        path for end in ("safetensors", "bin", "ckpt*", "onnx") for path in folder.glob(f"*.{end}")
    ]
    if not weights and any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt")):
        return (
            "this is the folder of a vocabulary alone, and what is wanted is a model: pre-train "
            "one with it (`bothways corpus`, `bothways pretrain`), or name another"
        )
    return ""


def _of_file(path: Path) -> str:
    """What a file in the place of a folder is, and the remedy."""
    if path.name.lower().endswith(_ARCHIVES):
        return "this is an archive; unpack it, and name the folder that was in it"
    if is_there(path.parent / _CONFIG):
        return f"this is a file of a model, which is named by its folder: {path.parent}"
    what = " (a recipe)" if path.suffix in (".yaml", ".yml") else ""
    return (
        f"this is a file{what}, and a model is a folder; where a verb takes both, the model is "
        "first"
    )
