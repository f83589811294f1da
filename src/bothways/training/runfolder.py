"""A run is a folder: the resolved config, versions, metrics, plots, checkpoints, the model.

Running the same command again continues the run; a different recipe is refused, with a diff.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from bothways.config.fields import Options, digest, recipe_fields, values_of
from bothways.errors import ConfigError, OtherRunError, RunError, check_installed
from bothways.io.files import explain_disk_errors, sha256, write_json
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
_CPU_NUMBERS = (("family", "cpu family"), ("model", "model"))


class RunLock:
    """Keeps other processes, and other threads of this one, out of a run folder for as long as this
    object lives, or until :meth:`release`. The system releases it when the process ends, however it
    ends.

    The thread that has the lock may take it again: in a notebook, the traceback of a call that was
    interrupted keeps its objects alive.

    Raises:
        RunError: another process or thread is using the folder.
    """

    def __init__(self, folder: Path):
        self._hold: _Hold | None = _hold(folder)
        if scopes := _scopes():
            scopes[-1].append(weakref.ref(self))

    def release(self) -> None:
        """Let others use the folder."""
        self._hold = None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Pickles as None: a lock is not shared with other processes."""
        return type(None), ()


@contextmanager
def locks_released() -> Iterator[None]:
    """Release after the block the locks that this thread took in it, also where an error's
    traceback still holds them."""
    scopes = _scopes()
    scopes.append([])
    try:
        yield
    finally:
        for taken in scopes.pop():
            if (lock := taken()) is not None:
                lock.release()


class _Hold:
    """A folder that a thread of this process uses; the locks of that thread share it.

    Attributes:
        thread: the thread.
        lock: against other processes; None on a file system without locks.
    """

    def __init__(self, thread: threading.Thread, lock: FileLock | None):
        self.thread, self.lock = thread, lock


# By the folder's device and number: the same for every path to it.
_HOLDS: weakref.WeakValueDictionary[tuple[int, int], _Hold] = weakref.WeakValueDictionary()
_HOLDING = threading.Lock()
_OF_THREAD = threading.local()


def _scopes() -> list[list[weakref.ref[RunLock]]]:
    """The locks that this thread took, for each :func:`locks_released` that it is in."""
    found: list[list[weakref.ref[RunLock]]] = vars(_OF_THREAD).setdefault("scopes", [])
    return found


def _hold(folder: Path) -> _Hold:
    """Use a folder in this thread.

    Raises:
        RunError: another process or thread is using it.
    """
    about, thread = folder.stat(), threading.current_thread()
    with _HOLDING:
        key = about.st_dev, about.st_ino
        hold = _HOLDS.get(key)
        if hold is not None and hold.thread is not thread and hold.thread.is_alive():
            raise _in_use(folder, "thread of this process")
        if hold is None:
            hold = _HOLDS[key] = _Hold(thread, _lock(folder))
        hold.thread = thread
        return hold


def _lock(folder: Path) -> FileLock | None:
    """A lock against other processes; None on a file system without locks."""
    # No singleton, which all threads would share.
    lock = FileLock(
        (folder / LOCK).absolute(), blocking=False, is_singleton=False, thread_local=False
    )
    try:
        lock.acquire()
    except Timeout:
        raise _in_use(folder, "process") from None
    except (OSError, NotImplementedError):
        return None
    return lock


def _in_use(folder: Path, who: str) -> RunError:
    return RunError(
        f"another {who} is using {folder}; two would overwrite each other's files. Wait for it, "
        "stop it, or choose another run folder."
    )


@dataclass(frozen=True)
class Run:
    """An opened run folder.

    Attributes:
        folder: the run folder.
        record: the content of run.json.
        new: whether this call created it.
        lock: keeps other processes out of the folder.
    """

    folder: Path
    record: dict[str, Any]
    new: bool
    lock: RunLock | None = None

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
    existing = ranks.run_on_rank0(lambda: _find_run(folder, config, recipe, verb, without))
    if existing is not None:
        return _locked(existing, ranks)
    record = {
        "format": FORMAT,
        "verb": verb,
        "config": values_of(config),
        "recipe": recipe,
        "resolved": resolve(),
        "versions": versions(),
        "started": _now(),
    }
    run = _locked(Run(Path(folder), ranks.broadcast(record), new=True), ranks)
    # Another process may have begun, and even ended, a run here while this one made its choices.
    begun = ranks.run_on_rank0(lambda: _find_run(folder, config, recipe, verb, without))
    if begun is not None:
        return dataclasses.replace(begun, lock=run.lock)
    ranks.run_on_rank0(lambda: write_json(run.folder / RUN_FILE, record))
    return run


def _locked(run: Run, ranks: Ranks) -> Run:
    """The run with its lock, on rank 0."""
    locks: list[RunLock] = []

    def lock() -> None:
        with explain_disk_errors(run.folder):
            run.folder.mkdir(parents=True, exist_ok=True)
        locks.append(RunLock(run.folder))

    ranks.run_on_rank0(lock)
    return dataclasses.replace(run, lock=locks[0]) if locks else run


def _find_run(
    folder: str | Path,
    config: Any,
    recipe: dict[str, Any],
    verb: str,
    without: Collection[str],
) -> Run | None:
    if not str(folder):
        raise ConfigError("no run folder was given; choose one with --run FOLDER.")
    folder = Path(folder)
    path = folder / RUN_FILE
    if path.exists():
        record = read_run(folder)
        _refuse_other(folder, record, verb, config, json.loads(json.dumps(recipe)), without)
        return Run(folder, record, new=False)
    if RUN_FILE in refuse_other_folder(folder):  # another thread or process wrote it meanwhile
        return _find_run(folder, config, recipe, verb, without)
    return None


def refuse_other_folder(folder: Path) -> set[str]:
    """Refuse a place for a run that is a file, or a folder of something else.

    Returns:
        The names of what is there.

    Raises:
        RunError: it is one of these.
    """
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; name a folder for the run.")
    names = {file.name for file in folder.iterdir()} if folder.exists() else set()
    if RUN_FILE not in names and not all(map(_is_temporary, names)):
        raise RunError(
            f"{folder} holds other files but no {RUN_FILE}; choose a new folder for the run."
        )
    return names


DATA = "data"
"""The folder in a run's that holds the examples of a call from Python, which came from memory."""


def _is_temporary(name: str) -> bool:
    return name in (LOCK, DATA) or name.startswith(".partial-")


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
    changes = changed_numerics(run, now)
    *_, last = [{}, *recorded_changes(run, done + 1)]
    first = last["from_step"] if changes == last.get("changes") else done + 1
    for change in changes:
        say(f"changed since the run started, bits may differ from step {first}: {change}")
    if not changes and last.get("changes"):
        say(f"as when the run started again, from step {done + 1}")
    if ranks.is_rank0:
        record_changes(run, done + 1, changes)


def recorded_changes(run: Run, step: int) -> list[dict[str, Any]]:
    """What :func:`record_changes` recorded of steps before ``step``; those from it on are done
    again."""
    return [entry for entry in run.record.get("changes", []) if entry["from_step"] < step]


def record_changes(run: Run, step: int, changes: list[str]) -> None:
    """Add changes to run.json, with the step from which bits may differ; none after some means
    that the run goes on as it started."""
    entries = recorded_changes(run, step)
    if changes != (entries[-1]["changes"] if entries else []):
        entries.append({"from_step": step, "changes": changes})
    if entries != run.record.get("changes", []):
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
        lines = _CPU_INFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    found = {key.strip(): value.strip() for key, value in pairs}
    if "model name" not in found:
        return platform.processor() or platform.machine()
    numbers = [f"{key} {found[name]}" for key, name in _CPU_NUMBERS if name in found]
    return ", ".join([found["model name"], *numbers])
