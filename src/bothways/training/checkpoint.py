"""Checkpoints: written atomically, checksummed, rotated, and restored after a kill.

A checkpoint is a model folder (so it can be used, fine-tuned or exported as it is) plus
``training.safetensors`` (the optimizer's moments) and ``training.json`` (the step, the state of the
data order, a checksum of every file and of itself).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from bothways.config import digest
from bothways.errors import BothwaysError, RunError, is_out_of_memory
from bothways.files import PARTIAL, explain_disk_errors, new_folder, sha256, write_json
from bothways.model.bert import Bert
from bothways.model.folder import load_model, write_model_files
from bothways.model.weight_files import read_safetensors
from bothways.tokenization.tokenizer import Tokenizer
from bothways.training.fsdp import fill, gather, parameters, whole_model
from bothways.training.ranks import SINGLE_PROCESS, Ranks

STATE = "training.json"
"""The file that makes a folder a checkpoint."""
DAMAGED = ".damaged-"
"""Begins the name of a checkpoint that a run has skipped."""
_MOMENTS = "training.safetensors"
_NAME = re.compile(r"^step-(\d+)$")


@dataclass(frozen=True)
class Restored:
    """A restored checkpoint.

    Attributes:
        step: steps done.
        extra: as passed to :func:`save_checkpoint`.
        path: the checkpoint.
    """

    step: int
    extra: dict[str, Any]
    path: Path


def save_checkpoint(
    folder: Path,
    step: int,
    model: Bert,
    tokenizer: Tokenizer,
    optimizer: torch.optim.Optimizer,
    *,
    about: dict[str, Any],
    extra: dict[str, Any],
    keep: int,
    ranks: Ranks = SINGLE_PROCESS,
) -> Path:
    """Write ``folder/step-N`` whole or not at all, then remove all but the ``keep`` newest.

    Those that were skipped as damaged are removed too, and do not count.

    Args:
        folder: the run's checkpoints.
        step: steps done.
        model: saved as a model folder.
        tokenizer: saved with it.
        optimizer: its moments and counters are saved.
        about: for bothways.json.
        extra: JSON-serialisable data, returned on restoring.
        keep: checkpoints to keep, this one included; at least 1.
        ranks: the processes of the run, all of which must call; only rank 0 writes.

    Raises:
        DiskError: it could not be written; earlier checkpoints are intact.
    """
    path = folder / f"step-{step}"
    model, moments = whole_model(model, ranks), gather(_moments(model, optimizer), ranks)
    if not ranks.is_rank0:
        return path
    with new_folder(path) as partial:
        write_model_files(partial, model, tokenizer, about)
        write_state(partial, step, moments, extra)
    with explain_disk_errors(folder):
        for other in [*checkpoints(folder)[max(keep, 1) :], *folder.glob(DAMAGED + "*")]:
            shutil.rmtree(other)
    return path


def write_state(folder: Path, step: int, tensors: dict[str, Tensor], extra: dict[str, Any]) -> None:
    """Add tensors to a folder, and the manifest with checksums of all its files."""
    try:
        save_file(tensors, folder / _MOMENTS)
    except SafetensorError as error:  # raised for a failed write
        raise OSError(str(error)) from error
    checksums = {p.name: sha256(p) for p in sorted(folder.iterdir())}
    manifest = {"format": 1, "step": step, "extra": extra, "sha256": checksums}
    write_json(folder / STATE, {**manifest, "digest": digest(manifest)})


def read_state(path: Path) -> tuple[Restored, dict[str, Tensor]]:
    """Read what :func:`write_state` wrote; check it first with :func:`verify_checkpoint`."""
    manifest = json.loads((path / STATE).read_text(encoding="utf-8"))
    restored = Restored(int(manifest["step"]), dict(manifest["extra"]), path)
    return restored, read_safetensors(path / _MOMENTS)


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints under a folder, newest first."""
    found = [(int(m[1]), p) for p in folder.glob("step-*") if (m := _NAME.search(p.name))]
    return [path for _, path in sorted(found, reverse=True)]


def verify_checkpoint(path: Path) -> list[str]:
    """The problems of a checkpoint, in words; empty if it is intact.

    Raises:
        RunError: a file is there, but the disk or its permissions keep it from being read.
    """
    try:
        manifest = json.loads((path / STATE).read_text(encoding="utf-8"))
        recorded = manifest.pop("digest")
        expected = dict(manifest["sha256"])
    except FileNotFoundError:
        return [f"{path / STATE} is missing"]
    except OSError as error:
        raise _unreadable(path / STATE, error) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{path / STATE} cannot be read ({error!r})"]
    problems = []
    if digest(manifest) != recorded:
        problems.append(f"{path / STATE} does not match its own checksum (damaged)")
    for name, checksum in expected.items():
        file = path / name
        try:
            if sha256(file) != checksum:
                problems.append(f"{file} does not match its checksum (damaged or truncated)")
        except FileNotFoundError:
            problems.append(f"{file} is missing")
        except OSError as error:
            raise _unreadable(file, error) from None
    return problems


def _unreadable(file: Path, error: OSError) -> RunError:
    return RunError(
        f"{file} cannot be read ({error.strerror}), so it is not known whether the checkpoint is "
        f"intact. Make it readable, or remove {file.parent} to do without it."
    )


def restore_newest(
    folder: Path,
    model: Bert,
    optimizer: torch.optim.Optimizer,
    say: Callable[[str], None],
    ranks: Ranks = SINGLE_PROCESS,
) -> Restored | None:
    """Load the newest intact checkpoint into model and optimizer.

    Newer ones that are damaged are reported through ``say`` and renamed, so that they neither count
    nor are tried again; saving the next one removes them. Of several processes only rank 0 reads,
    and broadcasts to the others.

    Returns:
        What was restored; None if there are no checkpoints.

    Raises:
        RunError: there are checkpoints, but none is intact, or one cannot be read.
    """
    read: dict[str, Tensor] = {}
    expected = {name: tensor.shape for name, tensor in trained_tensors(model, optimizer)}
    restored = ranks.run_on_rank0(lambda: _read_newest(folder, expected, read, say))
    if restored is not None:
        for name, tensor in trained_tensors(model, optimizer):
            fill(tensor, read.pop(name, None), ranks)
    return restored


def _read_newest(
    folder: Path,
    expected: dict[str, torch.Size],
    read: dict[str, Tensor],
    say: Callable[[str], None],
) -> Restored | None:
    """Find the newest intact checkpoint and put its tensors into ``read``."""
    for leftover in folder.glob(PARTIAL + "*"):
        shutil.rmtree(leftover, ignore_errors=True)
    existing = checkpoints(folder)
    for number, path in enumerate(existing):
        problems = verify_checkpoint(path)
        if not problems:
            try:
                restored = _read(path, expected, read)
            except (BothwaysError, SafetensorError, KeyError, RuntimeError) as error:
                if is_out_of_memory(error):
                    raise
                problems = [str(error)]
            else:
                _rename_damaged(existing[:number])
                return restored
        say(f"skipping checkpoint {path.name}, which is damaged: {'; '.join(problems)}")
    if existing:
        raise RunError(
            f"{folder}: none of the {len(existing)} checkpoints is intact. Remove the run folder "
            "to start again, or start a new run from a model folder with --start."
        )
    return None


def _rename_damaged(paths: list[Path]) -> None:
    for path in paths:
        with explain_disk_errors(path):
            shutil.rmtree(path.with_name(DAMAGED + path.name), ignore_errors=True)
            path.rename(path.with_name(DAMAGED + path.name))


def _read(path: Path, expected: dict[str, torch.Size], read: dict[str, Tensor]) -> Restored:
    restored, moments = read_state(path)
    tensors = {**load_model(path).model.state_dict(), **moments}
    for name, shape in expected.items():
        if name not in tensors or tensors[name].shape != shape:
            actual = f"has shape {tuple(tensors[name].shape)}" if name in tensors else "is missing"
            raise RunError(f"{name} {actual}; expected shape {tuple(shape)}")
    read.update(tensors)
    return restored


def trained_tensors(model: Bert, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Everything that training changes, with its names on disk."""
    yield from parameters(model)
    yield from _moments(model, optimizer)


def _moments(model: Bert, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in parameters(model):
        for key, value in optimizer.state[parameter].items():
            yield f"{name}/{key}", value
