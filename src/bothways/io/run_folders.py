"""Run folders: what makes a folder one, and the models in it.

A run folder that holds one model stands for it wherever a model is asked for, and so does the
folder of one of its seeds. The names of the files are those that trainings write.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

RUN_FILE = "run.json"
"""The file that makes a folder one of a run."""
_CONFIG = "config.json"
_MODEL = "model"
_PASSING: ContextVar[bool] = ContextVar("passing", default=False)


@contextlib.contextmanager
def passing_runs() -> Iterator[None]:
    """Runs in the block are in a folder that is gone after it, so nobody is sent there."""
    token = _PASSING.set(True)
    try:
        yield
    finally:
        _PASSING.reset(token)


def runs_stay() -> bool:
    """Whether a run folder of here can be used later."""
    return not _PASSING.get()


def model_of_seed(folder: Path) -> Path:
    """The model in the folder of one seed of a fine-tuning; any other folder itself."""
    above = (folder.parent, folder.parent.parent)  # of a search, those of its settings
    is_seed = (
        not any((folder / name).exists() for name in (_CONFIG, RUN_FILE))
        and (folder / _MODEL / _CONFIG).is_file()
        and any((one / RUN_FILE).is_file() for one in above)
    )
    return folder / _MODEL if is_seed else folder


def models_of_run(folder: Path) -> list[Path]:
    """The models in a run folder: that of pre-training, or those of the seeds of a fine-tuning;
    after a search, of the chosen setting. Of a run that is not finished, those that are there."""
    if (folder / _MODEL / _CONFIG).is_file():
        return [folder / _MODEL]
    named = _read(folder / "report.json").get("models")
    if isinstance(named, list):
        found = [folder / str(name) for name in named]
        if found and all((model / _CONFIG).is_file() for model in found):
            return found
    patterns = (f"seed-*/{_MODEL}/{_CONFIG}", f"*/seed-*/{_MODEL}/{_CONFIG}")
    return [path.parent for name in patterns for path in sorted(folder.glob(name))]


def checkpoints_of_run(folder: Path) -> list[Path]:
    """The models that a pre-training saved on its way, the newest last."""
    found = [path.parent for path in folder.glob(f"checkpoints/*/{_CONFIG}")]
    return sorted(found, key=lambda path: path.stat().st_mtime)


def model_of_run(folder: Path) -> Path:
    """The model that a folder stands for, if it is a finished run of one, or one of its seeds; else
    the folder."""
    if (folder / _CONFIG).exists() or not (folder / RUN_FILE).is_file():
        return model_of_seed(folder)
    whole = (folder / _MODEL / _CONFIG).is_file() or (folder / "report.json").is_file()
    models = models_of_run(folder) if whole else []
    return models[0] if len(models) == 1 else folder


def _read(path: Path) -> dict[str, Any]:
    """The content of a file of JSON; nothing if it is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
