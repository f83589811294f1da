"""A disk that is full from some write on, at random points of every verb that writes; and folders
and files without permission.

The disk is made full by an audit hook of the interpreter: opening a file to write it, making a
folder, and flushing what was written fail with ENOSPC from the k-th on, under one folder. Removing
goes on, as on a real disk.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bothways.api.doctor import diagnose
from small_world import Words, World, contents, run

SEED, POINTS = 0, 3


class FullDisk:
    """Counts the writes under a folder, and fails all from one on."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.full_from: int | None = None
        self.error = errno.ENOSPC
        self.writes = 0
        sys.addaudithook(self._audit)  # for the rest of the process: it heeds nothing but folder

    def start(self, folder: Path, full_from: int | None, error: int = errno.ENOSPC) -> None:
        self.full_from, self.error, self.writes = full_from, error, 0
        self.folder = folder.resolve()

    def stop(self) -> int:
        self.folder = None
        return self.writes

    def flush(self, descriptor: int) -> None:
        """In the place of os.fsync."""
        self._count(Path(f"/proc/self/fd/{descriptor}").readlink(), flushes=True)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event == "open":
            path, mode, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            writes = writes or (isinstance(mode, str) and not set(mode).isdisjoint("wax+"))
            if writes and isinstance(path, str | os.PathLike):
                self._count(os.fspath(path))
        elif event == "os.mkdir":
            self._count(os.fspath(arguments[0]))

    def _count(self, path: str | bytes | Path, *, flushes: bool = False) -> None:
        folder = self.folder
        if folder is None or folder not in Path(os.fsdecode(path)).absolute().parents:
            return
        self.writes += 1
        if self.full_from is not None and self.writes >= self.full_from:
            named = () if flushes else (os.fsdecode(path),)  # as the system's calls do
            raise OSError(self.error, os.strerror(self.error), *named)


@pytest.fixture(scope="module")
def disk() -> FullDisk:
    return FullDisk()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("built") / "world"
    root.mkdir()
    world = World(root)
    world.build()
    (root / "words.txt").write_text("dogs\ncats\n")
    (root / "names.conll").write_text("The O\ndog B-PET\nlives O\n\n" * 6)
    (root / "glue" / "SST-2").mkdir(parents=True)
    for name in ("train", "dev"):
        text = world.train.read_text().replace("yes", "1").replace("no", "0")
        (root / "glue" / "SST-2" / f"{name}.tsv").write_text(text)
    return world


def over_rows(world: World, out: Path, verb: str = "predict") -> list[Words]:
    """A verb over a file, in whose parts it goes on."""
    chosen = ["--text", "sentence"] if verb == "embed" else []  # a model knows its columns
    model = world.model if verb == "embed" else world.task_model
    return [verb, model, "--file", world.train, *chosen, "--out", out]


Verb = Callable[[World, Path], list[Words]]
# What each writes to: a file or a folder on the disk.
VERBS: dict[str, tuple[str, Verb]] = {
    "vocab": ("v", lambda w, out: [*w.vocab(), "--size", "95", "--out", out, "--workers", "1"]),
    "vocab extend": (
        "m",
        lambda w, out: [
            *("vocab", "extend", "--source", w.model, "--words", w.root / "words.txt"),
            *("--out", out),
        ],
    ),
    "corpus": (
        "c",
        lambda w, out: [
            *(*w.build_corpus(), "--out", out, "--set", "shard_tokens=500", "--workers", "1"),
        ],
    ),
    "pretrain": ("run", lambda w, out: [*w.pretrain(out=out), "--set", "log_every=1"]),
    "finetune": ("tuned", lambda w, out: w.finetune(out=out)),
    "embed": ("e.npz", lambda w, out: ["embed", w.model, "a", "b", "--out", out]),
    "embed a file": ("f.npz", lambda w, out: over_rows(w, out, "embed")),
    "embed to an array": ("f.npy", lambda w, out: over_rows(w, out, "embed")),
    "embed to Parquet": ("f.parquet", lambda w, out: over_rows(w, out, "embed")),
    "predict": ("p.tsv", lambda w, out: ["predict", w.task_model, "a", "--out", out]),
    "predict a file": ("p.csv", over_rows),
    "predict to JSON lines": ("p.jsonl", over_rows),
    "predict to Parquet": ("p.parquet", over_rows),
    "inspect": ("i.html", lambda w, out: ["inspect", w.model, "a dog", "--out", out]),
    "convert": ("converted", lambda w, out: ["convert", w.model, out]),
    "export": ("exported", lambda w, out: ["export", w.model, out]),
    "export in 8 bits": (
        "exported",
        lambda w, out: [
            *("export", w.model, out, "--int8", "--gate", w.text, "--speedup", "0"),
            *("--set", "agreement=0.5", "--set", "lowest=0.5"),
        ],
    ),
    "glue": (
        "glue",
        lambda w, out: [
            *("reproduce", "glue", "--data", w.root / "glue", "--run", out, "--model", w.model),
            *("--tasks", "sst2", "--epochs", "1", "--set", "precision=fp32", "threads=1"),
        ],
    ),
    "features": (
        "features",
        lambda w, out: [
            *(
                "reproduce",
                "features",
                "--train",
                w.root / "names.conll",
                "--dev",
                w.root / "names.conll",
            ),
            *("--model", w.model, "--run", out, "--layers", "last", "--epochs", "1"),
            *("--hidden", "4", "--set", "threads=1"),
        ],
    ),
}
TRAINS = {
    "pretrain": "model/model.safetensors",
    "finetune": "seed-0/model/model.safetensors",
    "glue": "sst2/seed-0/model/model.safetensors",
    "features": "last/seed-0/dev_predictions.conll",
}
"""Verbs that go on, and what they end with."""
NEW = (
    *(*TRAINS, "vocab extend", "convert", "convert to TensorFlow"),
    *("export", "export in 8 bits"),
)
"""Whose folder must be new, or is that of a run."""


@pytest.mark.parametrize("verb", VERBS)
def test_a_disk_that_is_full_from_a_random_write_on(
    verb: str,
    built: World,
    disk: FullDisk,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, command = VERBS[verb]
    place = tmp_path / "disk"
    place.mkdir()
    out = place / name
    sync = os.fsync

    def flushed(file: Any) -> None:
        disk.flush(file if isinstance(file, int) else file.fileno())
        sync(file)

    monkeypatch.setattr(os, "fsync", flushed)

    def tried(full_from: int | None) -> tuple[int, int]:
        disk.start(place, full_from)
        try:
            return run(*command(built, out)), disk.writes
        finally:
            disk.stop()

    (place / "beside").write_bytes(b"precious")
    status, writes = tried(None)
    assert status == 0
    assert writes > 1
    done = contents(place)
    draw = random.Random(f"{SEED} {verb}")
    points = sorted({1, *(draw.randrange(1, writes + 1) for _ in range(POINTS))})
    for point in points:
        if verb in NEW:
            shutil.rmtree(out)
            before = {"beside": done["beside"]}
        else:  # over what is there
            before = contents(place)
        capsys.readouterr()
        status, _ = tried(point)
        said = capsys.readouterr().err
        where = f"write {point} of {writes}"
        if status == 0:  # what is left to do is flushing a folder, or to clear away
            assert point > 1, where
            assert contents(place).keys() == done.keys(), where
            continue
        assert status == 1, where
        assert "Traceback" not in said, f"{where}: {said}"
        assert said.count("bothways: error: ") == 1, f"{where}: {said}"
        assert "No space left on device" in said, f"{where}: {said}"
        assert str(place) in said, f"{where}: {said}"
        after = contents(place)
        assert {n: after.get(n) for n in before} == before, where
        status, _ = tried(None)
        assert status == 0, f"{where}: {capsys.readouterr().err}"
        found = contents(place)
        assert found["beside"] == done["beside"]
        assert [n for n in found if ".partial-" in n] == [], where
        if out.is_dir() and verb != "vocab":
            assert diagnose(out) == [], where
        if verb in TRAINS:
            end = f"{name}/{TRAINS[verb]}"
            assert found[end] == done[end], f"{where}: it went on to other weights"


# -------------------------------------------------------------------------------- no permission


@pytest.mark.parametrize("verb", VERBS)
def test_a_place_that_cannot_be_written(
    verb: str, built: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file stands where a folder must be made: refused to the administrator, too."""
    name, command = VERBS[verb]
    (tmp_path / "file").write_bytes(b"precious")
    before = contents(tmp_path)
    assert run(*command(built, tmp_path / "file" / name)) == 1
    said = capsys.readouterr().err
    assert said.count("bothways: error: ") == 1
    assert "Traceback" not in said
    assert str(tmp_path / "file") in said
    assert contents(tmp_path) == before


@pytest.mark.parametrize("verb", VERBS)
def test_no_permission_to_write(
    verb: str, built: World, disk: FullDisk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, command = VERBS[verb]
    place = tmp_path / "closed"
    place.mkdir()
    disk.start(place, 1, errno.EACCES)
    try:
        status = run(*command(built, place / name))
    finally:
        disk.stop()
    said = capsys.readouterr().err
    assert status == 1
    assert said.count("bothways: error: ") == 1, said
    assert "Traceback" not in said
    assert "Permission denied" in said
    assert str(place) in said
    assert list(place.iterdir()) == []


READ = {
    "vocab": "text.txt",
    "vocab extend": "words.txt",
    "corpus": "text.txt",
    "pretrain": "corpus/corpus.json",
    "finetune": "train.tsv",
    "embed": "run/model/config.json",
    "embed a file": "train.tsv",
    "predict": "tuned/seed-0/model/tokenizer.json",
    "inspect": "run/model/model.safetensors",
    "convert": "run/model/model.safetensors",
    "export": "run/model/config.json",
}


@pytest.mark.parametrize("verb", READ)
def test_no_permission_to_read(
    verb: str, built: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder stands in the place of the file: it cannot be read by the administrator, either."""
    name, command = VERBS[verb]
    source = built.root / READ[verb]
    aside = tmp_path / "aside"
    source.rename(aside)
    source.mkdir()
    out = tmp_path / "new" / name
    try:
        status = run(*command(built, out))
    finally:
        source.rmdir()
        aside.rename(source)
    said = capsys.readouterr().err
    assert status == 1
    assert said.count("bothways: error: ") == 1, said
    assert "Traceback" not in said
    assert str(source) in said or str(source.parent) in said
    assert not out.exists()
