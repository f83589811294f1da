"""Checkpoints: written atomically, checksummed, rotated, and restored after a kill.

A checkpoint is a folder with ``training.safetensors`` (the optimizer's moments and what else
training changes) and ``training.json`` (the run and the step it belongs to, the state of its parts,
a checksum of every file and of itself). Those of a long run are kept one beside the other, and each
is a model folder, too, so it can be used, fine-tuned or exported as it is
(:class:`ModelCheckpoints`); those of a short one replace each other (:class:`LastCheckpoint`).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from bothways.config.fields import digest
from bothways.errors import BothwaysError, RunError, is_out_of_memory
from bothways.io.files import (
    PARTIAL,
    explain_disk_errors,
    new_folder,
    restore_set_aside,
    sha256,
    write_json,
)
from bothways.model.engine import load_network
from bothways.model.folder import write_model_files
from bothways.model.model import EncoderModel
from bothways.model.shared import Trainable
from bothways.model.weight_files import read_safetensors, write_tensors
from bothways.runtime.folder import ABOUT, STATE
from bothways.tokenization.tokenizer import Tokenizer
from bothways.training.fsdp import fill, gather, parameters, whole_model
from bothways.training.optimizer import Optimizer
from bothways.training.ranks import SINGLE_PROCESS, Ranks

# --------------------------------------------------------------------------------
# Trying a save before the first step, so that what would fail at the first one loses nothing: the
# small files are written, in a folder that is removed again, and the disk must have room for the
# tensors.


class SaveTrial:
    """Takes the place of :func:`bothways.model.weight_files.write_tensors` in a trial.

    Args:
        folder: empty, to write the other files in.

    Attributes:
        size: bytes of all tensors.
    """

    def __init__(self, folder: Path):
        self.folder, self.size = folder, 0

    def write(
        self,
        tensors: dict[str, Tensor],
        path: Path,
        metadata: dict[str, str] | None = None,  # noqa: ARG002
    ) -> None:
        """Create an empty file, and count the bytes of the tensors."""
        path.touch()
        self.size += sum(tensor.nbytes for tensor in tensors.values())

    def require_space(self) -> None:
        """Refuse a disk without room for the tensors."""
        if shutil.disk_usage(self.folder).free < self.size:
            needed = f"{os.strerror(errno.ENOSPC)} for {self.size / 2**20:,.1f} MiB"
            raise OSError(errno.ENOSPC, needed)


@contextlib.contextmanager
def try_save(path: Path) -> Iterator[SaveTrial]:
    """Try a save of the folder ``path`` in the block, in another folder next to it.

    Raises:
        DiskError: it cannot be written.
        RunError: it cannot be made, for whatever reason.
    """
    folder = path.with_name(f"{PARTIAL}trial-{path.name}")
    existed = path.parent.exists()
    try:
        with explain_disk_errors(path):
            shutil.rmtree(folder, ignore_errors=True)  # left by a process that was killed
            folder.mkdir(parents=True)
            yield SaveTrial(folder)
    except BothwaysError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())
        raise RunError(
            f"{path} could not be saved ({type(error).__name__}: {reason}), so no step was "
            "trained. Please report it, with this message, as a defect of bothways."
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if not existed:
            with contextlib.suppress(OSError):
                path.parent.rmdir()


DAMAGED = ".damaged-"
"""Begins the name of a checkpoint that a run has skipped because it is damaged."""
FOREIGN = ".foreign-"
"""Begins the name of an intact checkpoint that a run has skipped because it is not its own."""
_MOMENTS = "training.safetensors"
_NAME = re.compile(r"^step-(\d+)$")


@dataclass(frozen=True)
class Restored:
    """A restored checkpoint.

    Attributes:
        step: steps done.
        extra: as passed on saving; of :class:`LastCheckpoint` with the tensors among it.
        path: the checkpoint.
    """

    step: int
    extra: dict[str, Any]
    path: Path


def write_state(
    folder: Path,
    step: int,
    tensors: dict[str, Tensor],
    extra: dict[str, Any],
    *,
    run: str,
    write: Callable[[dict[str, Tensor], Path], None] = write_tensors,
) -> None:
    """Add tensors to a folder, by ``write``, and the manifest with checksums of all its files."""
    write(tensors, folder / _MOMENTS)
    checksums = {p.name: sha256(p) for p in sorted(folder.iterdir())}
    manifest = {"format": 1, "run": run, "step": step, "extra": extra, "sha256": checksums}
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


def whose(path: Path, run: str | None) -> str:
    """Whose a checkpoint is, as a sentence, if it is not this run's or is not of the step that its
    name says; empty if both are right, or its manifest is damaged.

    Args:
        path: the checkpoint. A name without a step is any step's.
        run: identity of the run; None if it is not known, and any will do. Checkpoints of version
            0.1 do not have one, and are any run's.
    """
    try:
        manifest = json.loads((path / STATE).read_text(encoding="utf-8"))
        sound = manifest.pop("digest") == digest(manifest)
        step = manifest["step"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    if not sound:
        return ""
    named = _NAME.search(path.name)
    if run is not None and manifest.get("run", run) != run:
        return f"it is step {step} of another run{_recipe(path)}; move it back there"
    if named is None or int(named[1]) == step:
        return ""
    return f"by its {STATE} it is step {step}; if it is this run's, name it step-{step} again"


def _recipe(path: Path) -> str:
    """What a checkpoint's bothways.json says of its run, in brackets, to find the run by."""
    try:
        about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
        found = {key: about.get(key) for key in ("seed", "corpus", "start")}
        told = [f"{key} {value}" for key, value in found.items() if value is not None]
    except (OSError, ValueError, AttributeError, TypeError):
        return ""
    return f" ({', '.join(told)})" if told else ""


def _read_newest(
    folder: Path,
    run: str,
    expected: dict[str, torch.Size],
    read: dict[str, Tensor],
    say: Callable[[str], None],
) -> Restored | None:
    """Find the newest intact checkpoint of the run and put its tensors into ``read``."""
    for leftover in folder.glob(PARTIAL + "*"):
        shutil.rmtree(leftover, ignore_errors=True)
    existing, restored = checkpoints(folder), None
    skipped: dict[Path, str] = {}  # and what their names begin with from now on
    foreign: list[str] = []
    for path in existing:
        problems = [] if restored else verify_checkpoint(path)
        if not problems and (other := whose(path, run)):
            say(f"skipping checkpoint {path.name}, which is not this run's: {other}")
            skipped[path] = FOREIGN
            foreign.append(f"{path}: {other}")
        elif not problems and restored is None:
            try:
                restored = _read(path, expected, read)
            except (BothwaysError, SafetensorError, KeyError, RuntimeError) as error:
                if is_out_of_memory(error):
                    raise
                problems = [str(error)]
        if problems:
            say(f"skipping checkpoint {path.name}, which is damaged: {'; '.join(problems)}")
            skipped[path] = DAMAGED
    if existing and restored is None:
        sound = "intact and of this run" if foreign else "intact"
        raise RunError(
            f"{folder}: none of the {len(existing)} checkpoints is {sound}. "
            f"{''.join(f'{sentence}. ' for sentence in foreign)}Remove the run folder to start "
            "again, or start a new run from a model folder with --start."
        )
    for path, beginning in skipped.items():
        rename_skipped(path, beginning)
    return restored


def rename_skipped(path: Path, beginning: str) -> Path:
    """Rename a checkpoint so that it is none any more; one that is damaged may replace another."""
    renamed = path.with_name(beginning + path.name)
    with explain_disk_errors(path):
        if beginning == DAMAGED:
            shutil.rmtree(renamed, ignore_errors=True)
        for number in itertools.count(2):
            if not renamed.exists():
                break
            renamed = path.with_name(f"{beginning}{path.name}-{number}")
        path.rename(renamed)
    return renamed


def _read(path: Path, expected: dict[str, torch.Size], read: dict[str, Tensor]) -> Restored:
    restored, moments = read_state(path)
    tensors = {**load_network(path).state_dict(), **moments}
    for name, shape in expected.items():
        if name not in tensors or tensors[name].shape != shape:
            actual = f"has shape {tuple(tensors[name].shape)}" if name in tensors else "is missing"
            raise RunError(f"{name} {actual}; expected shape {tuple(shape)}")
    read.update(tensors)
    return restored


def trained_tensors(model: Trainable, optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Everything that training changes, with its names on disk."""
    yield from parameters(model)
    yield from _moments(model, optimizer)


def _moments(model: Trainable, optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in parameters(model):
        for key, value in optimizer.state[parameter].items():
            yield f"{name}/{key}", value


def _beside(model: EncoderModel, optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    """What a checkpoint holds beside the model folder: moments, and the weights of parts."""
    yield from _moments(model, optimizer)
    yield from ((name, p) for name, p in parameters(model) if name.startswith("parts."))


# --------------------------------------------------------------------------------
# The checkpoints of one training, as the loop sees them.


class Checkpoints(ABC):
    """Where a training saves its state, and continues from.

    ``state`` is what the parts of the training besides weights and optimizer return: JSON-able
    data, and tensors, by name.
    """

    @abstractmethod
    def restore(
        self, model: Trainable, optimizer: Optimizer, say: Callable[[str], None]
    ) -> Restored | None:
        """Fill model and optimizer from the newest checkpoint; None if there is none.

        Raises:
            RunError: there are some, but training cannot continue from any.
        """

    @abstractmethod
    def save(
        self,
        step: int,
        model: Trainable,
        optimizer: Optimizer,
        state: Mapping[str, Any],
    ) -> None:
        """Write the checkpoint of a step, whole or not at all.

        Raises:
            DiskError: it could not be written; those before are intact.
        """

    @abstractmethod
    def try_save(
        self,
        step: int,
        model: Trainable,
        optimizer: Optimizer,
        state: Mapping[str, Any],
    ) -> int:
        """Try :meth:`save` before training, with nothing written in the end.

        Returns:
            Bytes of a checkpoint's tensors.

        Raises:
            DiskError: it could not be written.
            RunError: it could not be made.
        """

    @abstractmethod
    def exist(self) -> bool:
        """Whether there is a checkpoint."""


class ModelCheckpoints(Checkpoints):
    """Model folders ``step-N`` beside each other, of any number of processes.

    Args:
        folder: of all of them.
        tokenizer: saved with the model.
        about: for bothways.json of a step.
        keep: checkpoints to keep; at least 1.
        run: identity of the run.
        ranks: the processes of the run, all of which must call.
    """

    def __init__(
        self,
        folder: Path,
        tokenizer: Tokenizer,
        about: Callable[[int], dict[str, Any]],
        *,
        keep: int,
        run: str,
        ranks: Ranks = SINGLE_PROCESS,
    ):
        self._folder, self._tokenizer, self._about = folder, tokenizer, about
        self._keep, self._run, self._ranks = keep, run, ranks

    def restore(
        self, model: Trainable, optimizer: Optimizer, say: Callable[[str], None]
    ) -> Restored | None:
        """Load the newest intact checkpoint of the run into model and optimizer.

        Newer ones that are damaged are reported through ``say`` and renamed, so that they neither
        count nor are tried again; saving the next one removes them. Those of another run or step,
        newer or older, are reported and renamed, too, but never removed: each may be the only copy.
        Of several processes only rank 0 reads, and broadcasts to the others.
        """
        read: dict[str, Tensor] = {}
        expected = {name: tensor.shape for name, tensor in trained_tensors(model, optimizer)}
        restored = self._ranks.run_on_rank0(
            lambda: _read_newest(self._folder, self._run, expected, read, say)
        )
        if restored is not None:
            for name, tensor in trained_tensors(model, optimizer):
                fill(tensor, read.pop(name, None), self._ranks)
        return restored

    def save(
        self,
        step: int,
        model: Trainable,
        optimizer: Optimizer,
        state: Mapping[str, Any],
    ) -> None:
        """Write ``step-N`` whole or not at all, then remove all but the ``keep`` newest.

        Those that were skipped as damaged are removed too, and do not count.
        """
        whole, moments = self._gathered(model, optimizer)
        if not self._ranks.is_rank0:
            return
        with new_folder(self._folder / f"step-{step}") as partial:
            self._write(partial, step, whole, moments, state)
        with explain_disk_errors(self._folder):
            older = checkpoints(self._folder)[max(self._keep, 1) :]
            for other in [*older, *self._folder.glob(DAMAGED + "*")]:
                shutil.rmtree(other)

    def try_save(
        self,
        step: int,
        model: Trainable,
        optimizer: Optimizer,
        state: Mapping[str, Any],
    ) -> int:
        """Every rank gets the answer.

        Raises:
            OtherProcessError: on the other ranks, if rank 0 cannot save.
        """
        whole, moments = self._gathered(model, optimizer)

        def write() -> int:
            with try_save(self._folder / f"step-{step}") as trial:
                self._write(trial.folder, step, whole, moments, state, trial.write)
                trial.require_space()
                return trial.size

        return self._ranks.run_on_rank0(write)

    def _gathered(
        self, model: Trainable, optimizer: Optimizer
    ) -> tuple[EncoderModel, dict[str, Tensor]]:
        """The model and what is saved beside it, whole on rank 0."""
        assert isinstance(model, EncoderModel)
        return whole_model(model, self._ranks), gather(_beside(model, optimizer), self._ranks)

    def _write(
        self,
        folder: Path,
        step: int,
        model: EncoderModel,
        moments: dict[str, Tensor],
        state: Mapping[str, Any],
        write: Callable[..., None] = write_tensors,
    ) -> None:
        write_model_files(folder, model, self._tokenizer, self._about(step), write)
        write_state(folder, step, moments, dict(state), run=self._run, write=write)

    def exist(self) -> bool:
        """Whether there is a checkpoint."""
        return bool(checkpoints(self._folder))


LAST = "checkpoint"
"""The folder of :class:`LastCheckpoint` in that of its training."""
_IDENTITY = {"recipe", "run"}  # of the key: these never change within a training


class LastCheckpoint(Checkpoints):
    """The only checkpoint of a training in one process, replaced by each save.

    Args:
        folder: of the training.
        key: what the state depends on; a checkpoint with another key is not used. ``recipe`` and
            ``run`` say whose it is.
        run: identity of the run.
    """

    def __init__(self, folder: Path, key: Mapping[str, Any], *, run: str):
        self._path, self._key, self._run = folder / LAST, dict(key), run

    def reject(self) -> str:
        """Take the checkpoint away if training cannot continue from it: one of another run or
        training is renamed, others are removed.

        Returns:
            Why it cannot; empty if it can or there is none.

        Raises:
            RunError: it cannot be read, so it may be intact.
            DiskError: it cannot be renamed.
        """
        restore_set_aside(self._path)
        if not self.exist():
            return ""
        if damage := verify_checkpoint(self._path):
            self.remove()
            return f"its checkpoint is damaged ({'; '.join(damage)})"
        manifest = json.loads((self._path / STATE).read_text(encoding="utf-8"))
        key = manifest["extra"].get("key", {})  # pre-training's has none
        changed = [name for name, value in self._key.items() if key.get(name) != value]
        other = whose(self._path, self._run)
        if not other and not changed:
            return ""
        if other or not _IDENTITY.isdisjoint(changed):
            if not other:
                named = key.get("run") if "run" in changed else "another recipe"
                other = f"it is step {manifest['step']} of {named}; move it back there"
            kept = rename_skipped(self._path, FOREIGN)
            return f"its checkpoint is not its own: {other} (now {kept})"
        self.remove()
        return f"its checkpoint was made with another {', '.join(changed)}"

    def restore(
        self,
        model: Trainable,
        optimizer: Optimizer,
        say: Callable[[str], None],  # noqa: ARG002
    ) -> Restored | None:
        """Load the saved state, if there is one; :meth:`reject` has seen it before."""
        if not self.exist():
            return None
        restored, tensors = read_state(self._path)
        with torch.no_grad():
            for name, tensor in trained_tensors(model, optimizer):
                # In 0.1 a head on choices was one on texts.
                old = name.replace("choice.", "classifier.")
                tensor.copy_(tensors.pop(name if name in tensors else old))
        return Restored(restored.step, {**restored.extra, **tensors}, restored.path)

    def save(
        self,
        step: int,
        model: Trainable,
        optimizer: Optimizer,
        state: Mapping[str, Any],
    ) -> None:
        """Replace the checkpoint, atomically."""
        tensors, extra = self._content(model, optimizer, state)
        with new_folder(self._path) as partial:
            write_state(partial, step, tensors, extra, run=self._run)

    def try_save(
        self,
        step: int,
        model: Trainable,
        optimizer: Optimizer,
        state: Mapping[str, Any],
    ) -> int:
        """Space is not reserved: training may end before the first checkpoint is due."""
        tensors, extra = self._content(model, optimizer, state)
        with try_save(self._path) as trial:
            write_state(trial.folder, step, tensors, extra, run=self._run, write=trial.write)
            return trial.size

    def _content(
        self, model: Trainable, optimizer: Optimizer, state: Mapping[str, Any]
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What is saved: tensors, and JSON-able data."""
        more = {name: value for name, value in state.items() if isinstance(value, Tensor)}
        tensors = gather([*trained_tensors(model, optimizer), *more.items()], SINGLE_PROCESS)
        extra = {name: value for name, value in state.items() if name not in more}
        return tensors, {"key": self._key, **extra}

    def exist(self) -> bool:
        """Whether there is a checkpoint."""
        return self._path.exists()

    def remove(self) -> None:
        """Remove the checkpoint: training is done, or cannot continue from it."""
        with explain_disk_errors(self._path):
            shutil.rmtree(self._path, ignore_errors=True)
