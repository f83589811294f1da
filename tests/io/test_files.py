"""Atomic writes: a reader sees the old content or the new, whatever is killed or refused."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bothways.config.fields import digest
from bothways.errors import ConfigError, DiskError
from bothways.io import files
from bothways.io.files import (
    new_folder,
    restore_set_aside,
    sha256,
    write_bytes,
    write_json,
    write_text,
)
from pretraining_examples import small_disk

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def fill(path: Path, text: str) -> None:
    with new_folder(path) as folder:
        (folder / "file").write_text(text)


def test_files_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_bytes(path, b"one")
    write_text(path, "zw\u00f6lf")
    assert path.read_bytes() == "zw\u00f6lf".encode()
    write_json(path, {"a": ["\u00e9"]})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": ["\u00e9"]}
    assert path.read_text(encoding="utf-8").endswith("}\n")
    assert names(path.parent) == ["file"]


def test_checksums(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256(tmp_path / "abc").startswith("ba7816bf8f01cfea")


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_refused_file_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    path = tmp_path / "file"
    write_text(path, "old")

    def refuse(*_: object) -> None:
        raise FULL

    monkeypatch.setattr(*((os, "fsync") if fails == "fsync" else (Path, "replace")), refuse)
    with pytest.raises(DiskError, match=r"file: cannot be written: No space left.*MiB free"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_a_file_is_flushed_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    fsync = os.fsync

    def watch(descriptor: int) -> None:
        seen.append((names(tmp_path), Path(f"/proc/self/fd/{descriptor}").resolve().name))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    write_text(tmp_path / "file", "text")
    assert seen == [([".partial-file"], ".partial-file"), (["file"], tmp_path.name)]


def test_folders_appear_whole_and_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder"
    with new_folder(path) as folder:
        (folder / "a").write_text("1")
        assert not path.exists()
    with new_folder(path) as folder:
        (folder / "b").write_text("2")
        assert names(path) == ["a"]
    assert names(path) == ["b"]
    assert names(path.parent) == ["folder"]


def test_a_folder_that_another_writes_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    (tmp_path / ".partial-folder").mkdir()  # of a process that was killed
    with new_folder(path) as folder:
        (folder / "a").write_text("1")
        with pytest.raises(DiskError, match="another process is writing it"), new_folder(path):
            pass
    assert names(path) == ["a"]
    with new_folder(path) as folder:
        (folder / "b").write_text("2")
    assert names(path) == ["b"]
    assert names(tmp_path) == ["folder"]


def test_an_error_inside_leaves_the_old_folder(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    fill(path, "old")

    def interrupted() -> None:
        with new_folder(path) as folder:
            (folder / "file").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(DiskError, match="No space left"), new_folder(path):
        raise FULL
    assert (path / "file").read_text() == "old"
    assert names(tmp_path) == ["folder"]


@pytest.fixture
def no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system or file system that cannot exchange names."""
    monkeypatch.setattr(files, "_exchange", lambda *_: False)


def test_names_are_exchanged_in_one_step_here(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "was-a").touch()
    if not files._exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this file system cannot exchange names")
    assert names(tmp_path / "b") == ["was-a"]
    assert not files._exchange(tmp_path / "a", tmp_path / "missing")


@pytest.mark.usefixtures("no_exchange")
def test_replacing_without_exchange(tmp_path: Path) -> None:
    fill(tmp_path / "folder", "old")
    fill(tmp_path / "folder", "new")
    assert (tmp_path / "folder" / "file").read_text() == "new"
    assert names(tmp_path) == ["folder"]


@pytest.mark.usefixtures("no_exchange")
def test_a_refused_rename_puts_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "folder"
    fill(path, "old")
    rename = Path.rename

    def refuse_new(self: Path, target: Path) -> Path:
        if self.name == ".partial-folder":
            raise FULL
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse_new)
    with pytest.raises(DiskError):
        fill(path, "new")
    assert (path / "file").read_text() == "old"
    assert names(tmp_path) == ["folder"]


KILLED_AT = """
import os, sys
from pathlib import Path
from bothways.io import files
from bothways.config.fields import digest
path, moment = Path(sys.argv[1]), int(sys.argv[2])
if sys.argv[3] == "renames":
    files._exchange = lambda *_: False
calls = 0
def dying(function):
    def call(*args, **named):
        global calls
        calls += 1
        if calls == moment:
            os._exit(9)
        return function(*args, **named)
    return call
Path.rename, Path.mkdir = dying(Path.rename), dying(Path.mkdir)
files._exchange, files.sync_files = dying(files._exchange), dying(files.sync_files)
files.shutil.rmtree, files._sync_folder = dying(files.shutil.rmtree), dying(files._sync_folder)
with files.new_folder(path) as folder:
    (folder / "file").write_text("new")
"""


@pytest.mark.parametrize("way", ["exchange", "renames"])
def test_a_kill_at_any_moment_leaves_the_old_or_the_new(tmp_path: Path, way: str) -> None:
    missing = 0
    for moment in range(1, 20):
        path = tmp_path / str(moment) / "folder"
        fill(path, "old")
        (path.parent / ".partial-folder").mkdir()  # of an earlier kill
        command = [sys.executable, "-c", KILLED_AT, str(path), str(moment), way]
        killed = subprocess.run(command, check=False).returncode == 9
        if path.exists():
            assert (path / "file").read_text() in ("old", "new")
        else:
            missing += 1
            with pytest.raises(RuntimeError), new_folder(path):
                raise RuntimeError  # the next writer fails as well, but puts the old one back
            assert (path / "file").read_text() == "old"
        fill(path, "newest")
        assert (path / "file").read_text() == "newest"
        assert names(path.parent) == ["folder"]
        if not killed:
            break
    assert not killed
    assert moment > 6, "the moments were not all met"
    assert missing == (way == "renames")


def test_a_folder_set_aside_by_a_killed_process_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    fill(path, "old")
    path.rename(tmp_path / ".partial-set-aside-folder")
    restore_set_aside(path)
    assert (path / "file").read_text() == "old"
    assert names(tmp_path) == ["folder"]
    (tmp_path / ".partial-set-aside-folder").mkdir()
    restore_set_aside(path)
    assert (path / "file").read_text() == "old", "only where it is missing"


def test_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 256) as disk:
        write_text(disk / "file", "old")
        fill(disk / "folder", "old")
        with pytest.raises(DiskError, match="No space left"):
            write_bytes(disk / "file", bytes(300_000))
        with pytest.raises(DiskError, match="No space left"):
            fill(disk / "folder", "x" * 300_000)
        assert names(disk) == ["file", "folder"]
        assert (disk / "file").read_text() == (disk / "folder" / "file").read_text() == "old"
        write_bytes(disk / "file", bytes(100_000))


def test_the_working_folder_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (Path(), tmp_path, Path("x/..")):
        with pytest.raises(ConfigError, match="the folder you are in"):
            fill(path, "new")
    assert names(tmp_path) == []


def test_a_link_to_a_file_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "a.txt", tmp_path / "a.txt"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_special_files_are_written_to_and_stay(tmp_path: Path) -> None:
    """/dev/stdout, for instance; here a pipe, which anybody can make."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(pipe, "text")
        assert os.read(reader, 100) == b"text"
        assert pipe.is_fifo()
    finally:
        os.close(reader)


def test_a_link_to_a_folder_stays_one(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "big" / "folder")
    for text in ("one", "two", "three"):
        fill(tmp_path / "link", text)
        assert (tmp_path / "big" / "folder" / "file").read_text() == text
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path) == ["big", "link"]
    assert names(tmp_path / "big") == ["folder"]


def test_names_that_are_not_utf8_can_be_recorded(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    write_json(tmp_path / "a.json", {"files": [name]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"files": [name]}
    assert digest([name]) != digest(["caf\u00e9.txt"])


def test_names_of_another_locale_stand_in_a_page_as_they_are(tmp_path: Path) -> None:
    """An argument in UTF-8, read by a process whose locale is not."""
    write_text(tmp_path / "page", "of " + "Łódź-한국".encode().decode("ascii", "surrogateescape"))
    assert (tmp_path / "page").read_text("utf-8") == "of Łódź-한국"
    write_text(tmp_path / "page", "half a pair: \ud800")
    assert (tmp_path / "page").read_text("utf-8") == "half a pair: \\ud800"


def test_names_that_are_not_utf8_are_escaped(tmp_path: Path) -> None:
    write_text(tmp_path / "page", "of te\udcff.tsv")
    assert (tmp_path / "page").read_text() == "of te\\udcff.tsv"
