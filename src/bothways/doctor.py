"""What is wrong with a folder: a model, a run, or a corpus."""

from __future__ import annotations

from pathlib import Path

from bothways.corpus.store import MANIFEST, verify_store
from bothways.errors import BothwaysError
from bothways.model.folder import CONFIG, load_model
from bothways.training.runfolder import RUN_FILE, read_run
from bothways.training.state import checkpoints, verify_checkpoint


def diagnose(folder: str | Path) -> list[str]:
    """Problems in words; empty when the folder is sound.

    A corpus's shards and a run's checkpoints are compared with their checksums; a model is loaded.
    """
    folder = Path(folder)
    if (folder / MANIFEST).exists():
        return verify_store(folder)
    if (folder / RUN_FILE).exists():
        return _diagnose_run(folder)
    if (folder / CONFIG).exists():
        return _diagnose_model(folder)
    if not folder.is_dir():
        return [f"{folder} is no folder"]
    return [
        f"{folder} holds none of {MANIFEST} (a corpus), {RUN_FILE} (a run) and {CONFIG} (a model)"
    ]


def _diagnose_model(folder: Path) -> list[str]:
    try:
        loaded = load_model(folder)
    except BothwaysError as error:
        return [str(error)]
    broken = [n for n, p in loaded.model.named_parameters() if not bool(p.isfinite().all())]
    return [f"{folder}: weights that are not finite numbers: {', '.join(broken)}"] if broken else []


def _diagnose_run(folder: Path) -> list[str]:
    try:
        read_run(folder)
    except BothwaysError as error:
        return [str(error)]
    problems = []
    for checkpoint in checkpoints(folder / "checkpoints"):
        problems += verify_checkpoint(checkpoint)
    for model in sorted(folder.glob("**/model/")):
        problems += _diagnose_model(model)
    return problems
