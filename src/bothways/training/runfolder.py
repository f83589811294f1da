"""A run is a folder: the resolved config, versions, metrics, plots, checkpoints, the model.

Running the same command again continues the run; a different recipe is refused, with a diff.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from bothways.config.fields import Options, digest, recipe_fields, values_of
from bothways.errors import ConfigError, OtherRunError, RunError, check_installed
from bothways.io.files import PARTIAL, explain_disk_errors, real_path, sha256, write_json
from bothways.io.run_folders import RUN_FILE
from bothways.model import kernels
from bothways.model.device import ChosenPrecision
from bothways.training.ranks import SINGLE_PROCESS, Ranks

FORMAT = 2
"""Of run folders; those of other versions' formats are refused."""
LOCK = ".lock"
_PACKAGES = (
    "bothways",
    "torch",
    "numpy",
    "tokenizers",
    "pyarrow",
    "safetensors",
    "numba",
    "llvmlite",
)
_CPU_INFO = Path("/proc/cpuinfo")


_LOCKS: ContextVar[dict[Path, FileLock]] = ContextVar("locks")


@contextmanager
def locks_released() -> Iterator[None]:
    """Release after the block the folders that :func:`use_alone` took in it, also where an error's
    traceback is kept, as in a notebook. Within another such block, at the end of that."""
    if _LOCKS.get(None) is not None:
        yield
        return
    token = _LOCKS.set({})
    try:
        yield
    finally:
        for lock in _LOCKS.get().values():
            lock.release()
        _LOCKS.reset(token)


def use_alone(folder: Path) -> None:
    """Keep other processes and threads out of a folder until the end of :func:`locks_released`, or
    of the process, however it ends.

    Raises:
        RunError: another is using it.
    """
    path, held = real_path(folder), _LOCKS.get({})
    if path in held:
        return
    lock = FileLock(path / LOCK, blocking=False, is_singleton=False, thread_local=False)
    try:
        lock.acquire()
        held[path] = lock
    except Timeout:
        raise RunError(
            f"another process or thread is using {folder}; two would overwrite each other's files. "
            "Wait for it, stop it, or choose another run folder."
        ) from None
    except (OSError, NotImplementedError):
        return  # a file system without locks


@dataclass(frozen=True)
class Run:
    """An opened run folder.

    Attributes:
        folder: the run folder.
        record: the content of run.json.
        new: whether this call created it.
    """

    folder: Path
    record: dict[str, Any]
    new: bool

    @property
    def resolved(self) -> dict[str, Any]:
        """The choices made before step 1, which are never made again."""
        return dict(self.record["resolved"])

    @property
    def identity(self) -> str:
        """See :func:`run_identity`."""
        return run_identity(self.record)


def open_run(
    folder: str | Path,
    config: Any,
    *,
    verb: str,
    inputs: Mapping[str, str],
    resolve: Callable[[], dict[str, Any]],
    ranks: Ranks = SINGLE_PROCESS,
    without: Collection[str] = (),
) -> Run:
    """Create a run folder, or open an existing one that holds the same recipe.

    Of several processes, only rank 0 reads and writes it.

    Args:
        folder: the run folder.
        config: the verb's config dataclass.
        verb: what runs, such as ``pretrain``.
        inputs: fingerprints of what the run reads; they must match to continue.
        resolve: makes the choices that are made once (steps of a clock, precision), for run.json.
            Called by every process, and only for a new run: an existing one has them on record.
        ranks: the processes of the run.
        without: recipe fields that are not compared or recorded, by dotted name (that of a list
            without its index): those that a search varies, those that have no effect, and inputs
            that earlier versions recorded.

    Raises:
        ConfigError: no folder was given, or what draws the curves is not installed.
        RunError: the folder holds a different run (the message shows the differences) or other
            files, or another process is using it.
    """
    check_installed("the curves of a run", "matplotlib")
    if isinstance(config, Options):
        config = config.resolved()
    recipe = {**recipe_fields(config), **{f"input.{k}": v for k, v in inputs.items()}}
    recipe = {name: value for name, value in recipe.items() if name not in without}
    record: dict[str, Any] = {}

    def find() -> dict[str, Any] | None:
        return _find_run(folder, config, recipe, verb, without)

    def enter() -> tuple[dict[str, Any], bool]:
        with explain_disk_errors(Path(folder)):
            Path(folder).mkdir(parents=True, exist_ok=True)
        use_alone(Path(folder))
        # Another process may have begun, and even ended, a run here while this one made choices.
        if (begun := find()) is not None:
            return begun, False
        write_json(Path(folder) / RUN_FILE, record)
        return record, True

    if ranks.run_on_rank0(find) is None:
        record = {
            "format": FORMAT,
            "verb": verb,
            "config": values_of(config),
            "recipe": recipe,
            "resolved": resolve(),
            "versions": versions(),
            "started": _now(),
        }
    return Run(Path(folder), *ranks.run_on_rank0(enter))


def _find_run(
    folder: str | Path,
    config: Any,
    recipe: dict[str, Any],
    verb: str,
    without: Collection[str],
) -> dict[str, Any] | None:
    """run.json of a folder, if it holds this run; None if it is new.

    Raises:
        ConfigError, RunError: see :func:`open_run`.
    """
    if not str(folder):
        raise ConfigError("no run folder was given; choose one with --run FOLDER.")
    folder = Path(folder)
    if not (folder / RUN_FILE).exists():
        refuse_other_folder(folder)
        return None
    record = read_run(folder)
    _refuse_other(folder, record, verb, config, json.loads(json.dumps(recipe)), without)
    return record


def refuse_other_folder(folder: Path) -> None:
    """Refuse a place for a run that is a file, or a folder of something else.

    Raises:
        RunError: it is one of these.
    """
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; name a folder for the run.")
    names = {file.name for file in folder.iterdir()} if folder.exists() else set()
    known = {LOCK, DATA} | {name for name in names if name.startswith(PARTIAL)}
    if RUN_FILE not in names and names - known:
        raise RunError(
            f"{folder} holds other files but no {RUN_FILE}; choose a new folder for the run."
        )


DATA = "data"
"""The folder in a run's that holds the examples of a call from Python, which came from memory."""


def read_run(folder: Path) -> dict[str, Any]:
    """run.json of a run folder.

    Raises:
        RunError: it is damaged, or of another format.
    """
    try:
        record: dict[str, Any] = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
        for key in ("recipe", "resolved", "versions"):
            dict(record[key])
        str(record["verb"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{folder / RUN_FILE} is damaged ({error}); without it the run cannot be continued. "
            "Start again in another run folder; of a pre-training run, `bothways pretrain --start` "
            "takes the weights of a checkpoint."
        ) from None
    if (number := record.get("format")) != FORMAT:
        raise RunError(
            f"{folder} holds a run of format {number}, and this version continues format {FORMAT}; "
            "choose another run folder."
        )
    return record


def run_identity(record: Mapping[str, Any]) -> str:
    """A digest of what the checkpoints of a run have in common with no other run's.

    That is the recipe with the content of its inputs, and the number of steps if a clock decided
    it: written once into run.json, and the same in a copy of the folder. Numerics may change while
    a run goes on, and runs that differ in nothing else count as one: their weights are the same but
    for rounding.

    Args:
        record: the content of run.json.
    """
    steps = record["resolved"].get("steps")
    return digest({"verb": record["verb"], "recipe": record["recipe"], "steps": steps})


def versions() -> dict[str, str]:
    """Versions and processor, on which a run's bits depend besides its config; and a checksum of
    the compiled loops, which may change within a version."""
    numbers = {"python": platform.python_version(), "machine": _processor()}
    for package in _PACKAGES:
        try:
            numbers[package] = version(package)
        except PackageNotFoundError:
            numbers[package] = "unknown"
    numbers["compiled loops"] = sha256(Path(kernels.__file__).with_name("loops.py"))[:16]
    return numbers


def _now() -> str:
    """The time in UTC; where builds are to repeat to the byte, the one that SOURCE_DATE_EPOCH sets
    (https://reproducible-builds.org/specs/source-date-epoch)."""
    set_by = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.fromtimestamp(int(set_by), UTC) if set_by.isdigit() else datetime.now(UTC)
    return now.isoformat(timespec="seconds")


def changed_numerics(run: Run, now: Mapping[str, Any]) -> list[str]:
    """Differences from when the run started that may change its bits, in words."""
    known, before = versions(), {**run.record["versions"], **run.record["resolved"]}
    # What a run of an earlier version did not record may be anything.
    before = {**dict.fromkeys(known, "not recorded"), **before}
    return [
        f"{key}: {before[key]} -> {value}"
        for key, value in {**known, **now}.items()
        if key in before and before[key] != value
    ]


def note_changes(
    run: Run,
    now: Mapping[str, Any],
    say: Callable[[str], None],
    *,
    done: int,
    ranks: Ranks = SINGLE_PROCESS,
) -> None:
    """Say and record changes that may make the bits differ from an uninterrupted run's.

    Args:
        run: an existing run.
        now: the numerics of this process.
        say: called with each.
        done: steps done; they may differ from the next one on.
        ranks: the processes; only the first one writes.
    """
    changes, step = changed_numerics(run, now), done + 1
    # Those of later steps are done again.
    entries = [e for e in run.record.get("changes", []) if e["from_step"] < step]
    last = entries[-1] if entries else {"from_step": step, "changes": []}
    first = last["from_step"] if changes == last["changes"] else step
    for change in changes:
        say(f"changed since the run started, bits may differ from step {first}: {change}")
    if not changes and last["changes"]:
        say(f"as when the run started again, from step {step}")
    if changes != last["changes"]:
        entries.append({"from_step": step, "changes": changes})
    if ranks.is_rank0 and entries != run.record.get("changes", []):
        write_json(run.folder / RUN_FILE, {**run.record, "changes": entries})


def open_run_with_precision(
    config: Any,
    choose: Callable[[], ChosenPrecision],
    *,
    verb: str,
    inputs: Mapping[str, str],
    numerics: Mapping[str, Any],
    say: Callable[[str], None],
    without: Collection[str] = (),
) -> tuple[Run, ChosenPrecision]:
    """Create or continue a run folder.

    Args:
        config: of a verb, with ``run`` and ``precision``.
        choose: chooses the precision, perhaps by a measurement; called for a new run, and if one is
            requested, which may differ from the recorded one.
        verb, inputs, without: as for :func:`open_run`.
        numerics: what is recorded next to the precision, because it may change rounding.
        say: called with what changed since the run began.

    Returns:
        The run folder, and the precision requested or chosen now, or recorded when the run began.
    """
    choose_once = cache(choose)

    def resolve() -> dict[str, Any]:
        choice = choose_once()
        layout = {"transposed_gradients": choice.transposes}
        return {"precision": choice.name, **layout, **numerics}

    run = open_run(config.run, config, verb=verb, inputs=inputs, resolve=resolve, without=without)
    if run.new:
        return run, choose_once()
    if config.precision != "auto":
        choice = choose_once()
    else:
        recorded = run.resolved["precision"]
        choice = ChosenPrecision(recorded, f"{recorded}: as when this run began")
    choice = dataclasses.replace(choice, transposes=run.resolved.get("transposed_gradients", False))
    if changed := changed_numerics(run, {"precision": choice.name, **numerics}):
        say(
            "changed since this run began; finished seeds are kept, the others may differ in their "
            f"last bits: {'; '.join(changed)}"
        )
    return run, choice


def read_result(
    path: Path,
    fingerprint: str,
    name: str,
    whose: Callable[[dict[str, Any]], str],
    say: Callable[[str], None],
) -> dict[str, Any] | None:
    """The record of a training that is finished; None if it is not, or if the record is that of
    another recipe or training, or damaged.

    Args:
        path: the record, which is written last.
        fingerprint: of the recipe.
        name: of the training among those of its recipe, such as ``seed 0``.
        whose: the name of the training that a record is of.
        say: called if the record is damaged, or another training's (copied from its folder).

    Raises:
        RunError: there is a record, but the disk or its permissions keep it from being read.
    """
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if record["fingerprint"] != fingerprint:
            return None
        theirs = whose(record)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(
            f"{path} cannot be read ({error.strerror}), so it is not known whether {name} is "
            "finished. Make it readable, or remove it to train it again."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        say(f"{path} is damaged ({error}); {name} is trained again")
        return None
    if theirs != name:
        say(f"{path} is of {theirs}; trained again")
        return None
    return record


def _refuse_other(
    folder: Path,
    record: dict[str, Any],
    verb: str,
    config: Any,
    recipe: dict[str, Any],
    without: Collection[str],
) -> None:
    if record["verb"] != verb:
        raise RunError(f"{folder} holds a run of `{record['verb']}`; choose another run folder.")
    existing = {k: v for k, v in record["recipe"].items() if k.partition("[")[0] not in without}
    differing = [
        key for key in sorted({*existing, *recipe}) if existing.get(key) != recipe.get(key)
    ]
    if differing and all(key.startswith("input.") for key in differing):
        names = ", ".join(_named_input(key, config) for key in differing)
        raise OtherRunError(
            f"{folder} holds a run with these options on other content: {names} is not what the "
            "run was begun with, or has changed since. Restore it to continue the run, or choose "
            "another run folder."
        )
    lines = [
        f"  {key}: {existing.get(key)} in the folder, {recipe.get(key)} requested"
        for key in differing
    ]
    if lines:
        raise OtherRunError(
            f"{folder} holds a run with a different recipe:\n" + "\n".join(lines) + "\n"
            "Give the same options to continue it, or choose another run folder."
        )


def _named_input(key: str, config: Any) -> str:
    """An input by its option and, if that names one, its file or folder."""
    name = key.removeprefix("input.")
    value = values_of(config).get(name)
    return f"{name} ({value})" if isinstance(value, str) else name


def _processor() -> str:
    """The processor, which determines the matrix kernels.

    Its name, family and model: on virtual machines different processors have the same name.
    """
    try:
        text = _CPU_INFO.read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = dict(re.findall(r"(?m)^(?:cpu )?(model name|family|model)\s*:\s*(.*)$", text))
    name = found.get("model name") or platform.processor() or platform.machine()
    return ", ".join(
        [name, *(f"{key} {found[key]}" for key in ("family", "model") if key in found)]
    )
