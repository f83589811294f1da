"""Snapshots: the model after given steps of a run, for scores against steps (Devlin et al. 2019,
C.1).

Unlike a checkpoint, a snapshot is never removed and has no optimizer state. It is a model folder
like that of the finished run, but the learning rate had not yet decayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bothways.errors import ConfigError, RunError
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.runtime.folder import ABOUT, read_json
from bothways.tokenization.tokenizer import Tokenizer
from bothways.training.checkpoint import rehearse
from bothways.training.fsdp import whole_model
from bothways.training.ranks import Ranks

SNAPSHOTS = "snapshots"


def snapshot_folder(run: Path, step: int) -> Path:
    """The folder of a step's snapshot; not named ``step-N``, which is a checkpoint's name."""
    return run / SNAPSHOTS / str(step)


def check_snapshots(run: Path, steps: Sequence[int], *, done: int, total: int) -> None:
    """Refuse snapshots that the run cannot take, before it trains.

    Args:
        run: the run folder.
        steps: after which snapshots are requested.
        done: steps done so far; the current model is that of the last one.
        total: steps of the run.

    Raises:
        ConfigError: a step is beyond the run's last one, or was passed without a snapshot.
    """
    for step in steps:
        if step > total:
            raise ConfigError(
                f"snapshots: step {step:,} is beyond this run's {total:,} steps; leave it out."
            )
        if step < done and not snapshot_folder(run, step).exists():
            raise ConfigError(
                f"snapshots: step {step:,} was not kept when the run passed it, and the run "
                f"continues after step {done:,}; leave it out, or start another run folder."
            )


def check_own(path: Path, about: dict[str, Any]) -> None:
    """Refuse a snapshot that is there, but was copied from another run or of another step.

    Args:
        path: its folder; there need not be one.
        about: what bothways.json of the run's own says. Snapshots of earlier versions do not name
            their run, so the rest is compared.

    Raises:
        RunError: it is another run's.
    """
    if not (path / ABOUT).exists():
        return
    theirs = read_json(path / ABOUT, "remove the snapshot, or put it back")
    compared = ("run", "corpus", "seed", "steps", "snapshot_of_steps", "pairs", "masking")
    differing = [k for k in compared if k in theirs and theirs[k] != about[k]]
    if differing:
        told = ", ".join(f"{k} {theirs[k]}" for k in compared if k in theirs and k != "run")
        raise RunError(
            f"{path} is not a snapshot of this run: it is that of another one ({told}). Move it "
            "back there, and run the command again."
        )


def try_snapshots(run: Path, steps: Sequence[int]) -> None:
    """See that there can be a folder for the snapshots after these steps. Their files are those of
    a checkpoint, which is tried too.

    Raises:
        DiskError: there cannot.
    """
    if steps:
        rehearse(snapshot_folder(run, steps[0]), lambda *_: None)


def keep_snapshot(
    run: Path,
    step: int,
    model: EncoderModel,
    tokenizer: Tokenizer,
    about: dict[str, Any],
    ranks: Ranks,
) -> bool:
    """Write a step's snapshot, unless it exists: a run that was stopped passes a step again.

    Args:
        run: the run folder.
        step: steps done.
        model: its current state is saved.
        tokenizer: saved with it.
        about: for bothways.json.
        ranks: the processes of the run; all must call this, and only the first one writes.

    Returns:
        Whether this process wrote it.

    Raises:
        DiskError: it could not be written.
    """
    model, path = whole_model(model, ranks), snapshot_folder(run, step)
    if not ranks.is_rank0 or path.exists():
        return False
    save_model(path, model, tokenizer, about)
    return True
