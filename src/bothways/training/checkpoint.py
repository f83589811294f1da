"""The checkpoints of a training: written whole or not at all, checked, and restored after a kill.

A checkpoint is a folder ``step-N``: ``training.safetensors`` (weights, the optimizer's moments, the
tensors of the parts) and ``training.json`` (step, run, state of the parts, checksums of every file
and of itself). With ``write_model`` it is a model folder, too, whose weights are not repeated.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from safetensors import SafetensorError
from torch import Tensor

from bothways.config.fields import digest
from bothways.errors import BothwaysError, RunError, is_out_of_memory
from bothways.io.files import PARTIAL, explain_disk_errors, new_folder, sha256, write_json
from bothways.model.engine import load_network
from bothways.model.model import EncoderModel
from bothways.model.weight_files import read_safetensors, write_tensors
from bothways.runtime.folder import CONFIG, STATE
from bothways.training.fsdp import fill, gather, parameters, whole_model
from bothways.training.trainer import Trainer

CHECKPOINTS = "checkpoints"
"""Their folder, in that of a training."""
TENSORS = "training.safetensors"
DAMAGED = ".damaged-"
"""Begins the name of a checkpoint that was skipped because it is damaged."""
FOREIGN = ".foreign-"
"""Begins the name of one that was skipped because it is another training's."""
_NAME = re.compile(r"^step-(\d+)$")
Write = Callable[..., None]


class Part(Protocol):
    """What continues with a run besides weights and optimizer."""

    def state(self) -> dict[str, Any]:
        """JSON-able values and tensors, by names that no other part has."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the saved states of all parts."""


class UnusableError(BothwaysError):
    """A checkpoint that training cannot continue from, and why.

    Attributes:
        mark: begins its name from now on.
    """

    def __init__(self, why: str, mark: str = DAMAGED):
        super().__init__(why)
        self.mark = mark


class Checkpoint:
    """What a training saves and continues from.

    Args:
        folder: holds the checkpoints.
        trainer: its model and optimizer are saved; all of its processes must call each method.
        parts: what else is saved.
        run: identity of the run. A checkpoint of another one is set aside and never removed.
        key: what else must be the same, such as the precision; ``seed`` says whose it is.
        keep: how many of the newest are kept; at least 1.
        write_model: writes a model folder: ``(folder, model, step, write_tensors)``.
    """

    def __init__(
        self,
        folder: Path,
        trainer: Trainer[Any],
        parts: Sequence[Part],
        *,
        run: str,
        key: Mapping[str, Any] | None = None,
        keep: int = 1,
        write_model: Callable[[Path, EncoderModel, int, Write], None] | None = None,
    ):
        self.folder, self._trainer, self._parts = folder, trainer, parts
        self._run, self._key, self._keep, self._write_model = run, key or {}, keep, write_model

    def save(self, step: int) -> None:
        """Write the checkpoint of a step, then remove older ones.

        Raises:
            DiskError: it could not be written; those before are intact.
        """
        content = self._content()
        if not self._trainer.ranks.is_rank0:
            return
        with new_folder(self.folder / f"step-{step}") as new:
            self._write(new, step, *content, write_tensors)
        with explain_disk_errors(self.folder):
            old = checkpoints(self.folder)[max(self._keep, 1) :]
            for path in [*old, *self.folder.glob(DAMAGED + "*")]:
                shutil.rmtree(path)

    def rehearse(self) -> int:
        """See :func:`rehearse`; on every process."""
        content = self._content()
        return self._trainer.ranks.run_on_rank0(
            lambda: rehearse(
                self.folder / "step-1", lambda path, write: self._write(path, 0, *content, write)
            )
        )

    def _content(self) -> tuple[EncoderModel | None, dict[str, Tensor], dict[str, Any]]:
        """Model, tensors and JSON-able data; whole on rank 0."""
        state = {name: value for part in self._parts for name, value in part.state().items()}
        model, ranks = None, self._trainer.ranks
        if self._write_model is not None:
            model = whole_model(cast("EncoderModel", self._trainer.model), ranks)
        own = [
            (name, tensor)
            for name, tensor in self._trained()
            if model is None or "/" in name or name.startswith("parts.")
        ]
        more = [(name, value) for name, value in state.items() if isinstance(value, Tensor)]
        rest = {name: value for name, value in state.items() if not isinstance(value, Tensor)}
        return model, gather([*own, *more], ranks), rest

    def _write(
        self, folder: Path, step: int, model: Any, tensors: Any, state: Any, write: Write
    ) -> None:
        if self._write_model is not None:
            self._write_model(folder, model, step, write)
        write(tensors, folder / TENSORS)
        sums = {file.name: sha256(file) for file in sorted(folder.iterdir())}
        extra = {"key": self._key, **state} if self._key else state
        manifest = {"format": 1, "run": self._run, "step": step, "extra": extra, "sha256": sums}
        write_json(folder / STATE, {**manifest, "digest": digest(manifest)})

    def _trained(self) -> Iterator[tuple[str, Tensor]]:
        """What the optimizer changes, by name: weights, and moments as ``weight/moment``."""
        state, named = self._trainer.optimizer.state, [*parameters(self._trainer.model)]
        yield from named
        for name, parameter in named:
            yield from ((f"{name}/{key}", value) for key, value in state[parameter].items())

    def restore(self, say: Callable[[str], None], *, or_start_again: bool = False) -> int:
        """Continue from the newest good checkpoint.

        Others are named and renamed, so that they are not tried again; saving removes damaged ones.

        Args:
            say: called with what is not used, and why.
            or_start_again: begin anew if there are some but none is good.

        Returns:
            Steps done; 0 if training starts.

        Raises:
            RunError: there are some but none is good; or one cannot be read and may be.
        """
        tensors: dict[str, Tensor] = {}
        shapes = {name: tensor.shape for name, tensor in self._trained()}
        ranks = self._trainer.ranks
        step, state = ranks.run_on_rank0(
            lambda: self._read_newest(shapes, tensors, say, or_start_again)
        )
        if step:
            for name, target in self._trained():
                fill(target, tensors.pop(name, None), ranks)
            for part in self._parts:
                part.restore({**state, **tensors})
        return step

    def _read_newest(
        self, shapes: Mapping[str, Any], tensors: Any, say: Any, or_start_again: bool
    ) -> tuple[int, dict[str, Any]]:
        for leftover in self.folder.glob(PARTIAL + "*"):
            shutil.rmtree(leftover, ignore_errors=True)
        found, skipped = checkpoints(self.folder), list[tuple[Path, UnusableError]]()
        good: dict[str, Any] = {}
        for path in found:
            try:
                manifest = read_manifest(path, self._run, self._key)
                if not good:
                    tensors.update(_tensors(path, manifest["sha256"], shapes))
                    good = manifest
            except UnusableError as problem:
                kind = "damaged" if problem.mark == DAMAGED else "not this run's"
                say(f"skipping checkpoint {path.name}, which is {kind}: {problem}")
                skipped.append((path, problem))
        if skipped and not good and not or_start_again:
            listed = "; ".join(f"{path.name}: {why}" for path, why in skipped)
            raise RunError(
                f"{self.folder}: none of the {len(found)} checkpoints is intact and of this run "
                f"({listed}). Remove the run folder to start again, or start a new run from a "
                "model folder with --start."
            )
        for path, why in skipped:
            _set_aside(path, why.mark)
        return int(good.get("step", 0)), dict(good.get("extra", {}))


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints in a folder, newest first."""
    named = [(int(m[1]), path) for path in folder.glob("step-*") if (m := _NAME.match(path.name))]
    return [path for _, path in sorted(named, reverse=True)]


def read_manifest(
    path: Path, run: str | None = None, key: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The manifest of a checkpoint, if it is undamaged and that of a training.

    Args:
        path: the checkpoint.
        run: identity of the run; None: any.
        key: what must be the same.

    Raises:
        UnusableError: it is damaged, or another's.
        RunError: it cannot be read.
    """
    try:
        manifest: dict[str, Any] = json.loads(_readable(path / STATE, Path.read_bytes))
        if manifest.pop("digest") != digest(manifest):
            raise UnusableError(f"{path / STATE} does not match its own checksum")
        step, theirs = int(manifest["step"]), dict(manifest["extra"].get("key", {}))
        dict(manifest["sha256"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnusableError(f"{path / STATE} is damaged ({error!r})") from None
    if run not in (None, manifest.get("run")):
        raise UnusableError(f"it is step {step} of another run; move it back there", FOREIGN)
    if (named := _NAME.match(path.name)) and int(named[1]) != step:
        renamed = f"if it is this run's, name it step-{step} again"
        raise UnusableError(f"by its {STATE} it is step {step}; {renamed}", FOREIGN)
    if changed := [name for name, value in (key or {}).items() if theirs.get(name) != value]:
        mark = FOREIGN if "seed" in changed else DAMAGED
        raise UnusableError(f"it was made with another {', '.join(changed)}", mark)
    return manifest


def check_checkpoint(path: Path, run: str | None = None) -> None:
    """Compare a checkpoint's files with their checksums.

    Raises:
        UnusableError, RunError: see :func:`read_manifest`.
    """
    _check_sums(path, read_manifest(path, run)["sha256"])


def _check_sums(path: Path, sums: Mapping[str, str]) -> None:
    for name, expected in sums.items():
        if _readable(path / name, sha256) != expected:
            raise UnusableError(f"{path / name} does not match its checksum")


def _tensors(path: Path, sums: Mapping[str, str], shapes: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a checkpoint, if its files match their checksums and they fit."""
    _check_sums(path, sums)
    try:
        tensors = read_safetensors(path / TENSORS)
        if (path / CONFIG).exists():
            tensors |= load_network(path).state_dict()
    except (BothwaysError, SafetensorError, KeyError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise UnusableError(str(error)) from None
    for name, shape in shapes.items():
        if name not in tensors or tensors[name].shape != shape:
            raise UnusableError(f"{name} is missing or not of shape {tuple(shape)}")
    return tensors


def remove_checkpoints(folder: Path) -> None:
    """Remove those of a training that is finished; those of other trainings stay."""
    with explain_disk_errors(folder):
        for path in folder.iterdir() if folder.exists() else ():
            if not path.name.startswith(FOREIGN):
                shutil.rmtree(path)
        if folder.exists() and not any(folder.iterdir()):
            folder.rmdir()


def _set_aside(path: Path, mark: str) -> None:
    """Rename a checkpoint, so that it is none any more, to a name that is free."""
    endings = itertools.chain([""], map("-{}".format, itertools.count(2)))
    names = (path.with_name(f"{mark}{path.name}{ending}") for ending in endings)
    with explain_disk_errors(path):
        path.rename(next(new for new in names if not new.exists()))


def _readable(file: Path, read: Callable[[Path], Any]) -> Any:
    """What a file holds; a disk or permissions that keep it from being read are no damage."""
    try:
        return read(file)
    except FileNotFoundError:
        raise UnusableError(f"{file} is missing") from None
    except OSError as error:
        raise RunError(
            f"{file} cannot be read ({error.strerror}), so its checkpoint may be good. Make it "
            f"readable, or remove {file.parent} to do without it."
        ) from None


# --------------------------------------------------------------------------------
# Before the first step: what would fail at the first save loses nothing if it fails now.


def rehearse(path: Path, write: Callable[[Path, Write], None]) -> int:
    """Write all of a folder but its tensors, beside its place, and remove it again.

    Args:
        path: where it will be.
        write: writes it: ``(folder, write_tensors)``.

    Returns:
        Bytes of the tensors.

    Raises:
        DiskError: it cannot be written.
    """
    trial, existed = path.with_name(f"{PARTIAL}trial-{path.name}"), path.parent.exists()
    sizes: list[int] = []

    def measure(tensors: Mapping[str, Tensor], file: Path, *_: Any) -> None:
        file.touch()
        sizes.append(sum(tensor.nbytes for tensor in tensors.values()))

    with explain_disk_errors(path):
        shutil.rmtree(trial, ignore_errors=True)  # of a process that was killed
        try:
            trial.mkdir(parents=True)
            write(trial, measure)
        finally:
            shutil.rmtree(trial, ignore_errors=True)
            if not existed and path.parent.is_dir():
                path.parent.rmdir()
    return sum(sizes)


def check_space(folder: Path, least: int, most: int, say: Callable[[str], None]) -> None:
    """Refuse a disk without room for ``least`` bytes; say if it has none for ``most``, which a
    training may need.

    Raises:
        DiskError: it is too full.
    """
    with explain_disk_errors(folder):
        free = shutil.disk_usage(folder).free
        if free < least:
            needed = f"{os.strerror(errno.ENOSPC)} for {least / 2**20:,.1f} MiB"
            raise OSError(errno.ENOSPC, needed)
    if free < most:
        say(
            f"{folder}: the run may need {most / 2**20:,.0f} MiB for checkpoints and models, "
            f"{free / 2**20:,.0f} MiB are free; free some space"
        )
