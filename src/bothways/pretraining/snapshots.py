"""Model folders kept at given steps of a run, for scores against steps (Devlin et al. 2019, C.1).

Unlike a checkpoint a snapshot stays, and has no optimizer state: it is a model folder like that of
the finished run, whose learning rate had not fallen to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bothways.errors import ConfigError
from bothways.model.folder import save_model
from bothways.model.heads import Bert
from bothways.tokenization.tokenizer import Tokenizer
from bothways.training.ranks import Ranks
from bothways.training.shards import whole_model

SNAPSHOTS = "snapshots"


def snapshot_folder(run: Path, step: int) -> Path:
    """Where the model after a step is kept. (Not ``step-N``, which is a checkpoint's name.)"""
    return run / SNAPSHOTS / str(step)


def check_snapshots(run: Path, steps: Sequence[int], *, done: int, total: int) -> None:
    """Refuse snapshots that the run cannot give: at once, not when their step would have come.

    Args:
        run: the run folder.
        steps: after which a snapshot is asked for.
        done: steps done; the model of the last of them is there.
        total: steps of the run.

    Raises:
        ConfigError: a step beyond the run's last one, or one that it has passed without keeping it.
    """
    for step in steps:
        if step > total:
            raise ConfigError(
                f"snapshots: step {step:,} is beyond this run's {total:,} steps; leave it out."
            )
        if step < done and not snapshot_folder(run, step).exists():
            raise ConfigError(
                f"snapshots: step {step:,} was not kept when the run passed it, and it goes on "
                f"after step {done:,}; leave it out, or choose another run folder to begin anew."
            )


def keep_snapshot(
    run: Path, step: int, model: Bert, tokenizer: Tokenizer, about: dict[str, Any], ranks: Ranks
) -> bool:
    """Write the model after a step, unless it is there: a run that was stopped passes a step again.

    Args:
        run: the run folder.
        step: steps done.
        model: as it is now.
        tokenizer: saved with it.
        about: for bothways.json.
        ranks: the processes of the run, all of which must call; the first alone writes.

    Returns:
        Whether it was written, by this process.

    Raises:
        DiskError: it could not be written.
    """
    model, path = whole_model(model, ranks), snapshot_folder(run, step)
    if not ranks.is_rank0 or path.exists():
        return False
    save_model(path, model, tokenizer, about)
    return True
