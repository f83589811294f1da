"""A full disk ends every verb with one message, and nothing already written is lost."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from bothways.api.doctor import diagnose
from small_world import Refused, Words, World, contents, refusal_check, run


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("built") / "world"
    root.mkdir()
    World(root).build()
    return root


@pytest.fixture
def world(built: Path, tmp_path: Path) -> World:
    """A copy of its own for each test, at the one path that run folders are allowed to know."""
    return World(Path(shutil.copytree(built, tmp_path / "world")))


@pytest.fixture
def refused(world: World, capsys: pytest.CaptureFixture[str]) -> Refused:
    return refusal_check(world, capsys)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True
        )
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip("mounting a tmpfs needs more rights than this test has")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def leave(disk: Path, free: int) -> None:
    """Fill a disk up to this many bytes."""
    filler = disk / "filler"
    filler.unlink(missing_ok=True)
    filler.write_bytes(bytes(shutil.disk_usage(disk).free - free))


def enlarge(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=40m", str(disk)], check=True)


def assert_disk_full(argv: list[Words], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(*argv) == 1
    error = capsys.readouterr().err
    noted, _, _ = error.partition("bothways: error: ")
    assert all(line.startswith("note: ") for line in noted.splitlines())
    assert "bothways: error: " in error
    assert "No space left on device" in error
    assert "The previous content is intact; free some space" in error
    assert "Traceback" not in error


def test_a_full_disk_while_learning_a_vocabulary(
    world: World, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(shutil.copytree(world.vocabulary, small_disk / "vocabulary"))
    before = contents(out)
    leave(small_disk, 8192)
    argv = [*world.vocab(), "--out", out, "--size", "95"]
    assert_disk_full(argv, capsys)
    assert contents(out) == before
    enlarge(small_disk)
    assert run(*argv) == 0
    assert contents(out) != before


def test_a_full_disk_while_building_a_corpus(
    world: World, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(shutil.copytree(world.corpus, small_disk / "corpus"))
    before = contents(out)
    leave(small_disk, 24_000)
    argv = [*world.build_corpus(), "--out", out, "--set", "shard_tokens=500"]
    assert_disk_full(argv, capsys)
    assert contents(out) == before
    assert diagnose(out) == []
    names = sorted(p.name for p in small_disk.iterdir())
    assert names == [".units-corpus", "corpus", "filler"]
    enlarge(small_disk)
    assert run(*argv) == 0
    assert diagnose(out) == []


@pytest.mark.parametrize("free", [0, 4096, 8192])
def test_a_disk_that_is_full_before_training(
    free: int, world: World, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(small_disk, free)
    argv = world.pretrain(out=small_disk / "run")
    assert_disk_full(argv, capsys)
    enlarge(small_disk)
    assert run(*argv) == 0
    assert diagnose(small_disk / "run") == []


def test_a_full_disk_while_pretraining(
    world: World, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second checkpoint does not fit: the first is intact, and the same command goes on."""
    out = small_disk / "run"
    wide = [*world.pretrain(out=out), "--hidden", "32", "--set", "log_every=1"]
    assert_disk_full([*wide, "--set", "checkpoint_keep=4"], capsys)
    assert [p.name for p in (out / "checkpoints").iterdir() if diagnose(p) == []] != []
    assert diagnose(out) == []
    enlarge(small_disk)
    assert run(*wide) == 0
    assert "continuing after step" in capsys.readouterr().out
    assert run(*wide, "--run", world.root / "unbroken") == 0
    ours, theirs = (
        load_file(r / "model" / "model.safetensors") for r in (out, world.root / "unbroken")
    )
    assert all((ours[name] == value).all() for name, value in theirs.items())


def test_a_full_disk_while_finetuning(
    world: World, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(small_disk, 60_000)
    argv = world.finetune(out=small_disk / "tuned")
    assert_disk_full(argv, capsys)
    enlarge(small_disk)
    assert run(*argv) == 0
    tuned = load_file(small_disk / "tuned" / "seed-0" / "model" / "model.safetensors")
    unbroken = load_file(world.task_model / "model.safetensors")
    assert all((tuned[name] == value).all() for name, value in unbroken.items())


def test_a_full_disk_while_using_a_model(
    world: World, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("vectors.npz", "predictions.tsv"):
        (small_disk / name).write_bytes(b"precious")
    leave(small_disk, 0)
    out = small_disk / "vectors.npz"
    assert_disk_full(["embed", world.model, "a", "b", "--out", out], capsys)
    assert out.read_bytes() == b"precious"
    out = small_disk / "predictions.tsv"
    assert_disk_full(["predict", world.task_model, "a", "--out", out], capsys)
    assert out.read_bytes() == b"precious"
    assert_disk_full(["convert", world.model, small_disk / "model"], capsys)
    assert not (small_disk / "model").exists()


@pytest.mark.parametrize("verb", ["vocab", "corpus", "convert"])
def test_a_write_that_fails_leaves_everything(
    verb: str, world: World, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk, where none can be mounted: flushing what was written fails."""

    def fail(_: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("bothways.io.files.sync_files", fail)
    argv: dict[str, list[Words]] = {
        "vocab": [*world.vocab(), "--size", "95"],
        # What is done of a corpus stays beside it, to be continued; not in the world's folder.
        "corpus": [*world.build_corpus(), "--out", tmp_path / "corpus"],
        "convert": ["convert", world.model, world.root / "new"],
    }
    refused(argv[verb], "cannot be written: No space left on device", "free some space")


@pytest.mark.parametrize("verb", ["pretrain", "finetune"])
def test_a_checkpoint_that_cannot_be_written(
    verb: str, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    out = world.root / "new"
    argv = world.pretrain(out=out) if verb == "pretrain" else world.finetune(out=out)
    before = contents(world.root)
    with monkeypatch.context() as patch:
        patch.setattr("bothways.io.files.sync_files", fail)
        assert_disk_full(argv, capsys)
    after = contents(world.root)
    assert {name: after.get(name) for name in before} == before
    assert diagnose(out) == []
    assert run(*argv) == 0
    assert diagnose(out) == []
