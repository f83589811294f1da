"""Pipes in place of files: opened as often as a reader likes, and never waited for without end."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bothways.io.pipes import open_file
from bothways.tasks.options import TaskOptions
from bothways.tasks.readers import read_rows


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def writer(path: Path, content: bytes) -> threading.Thread:
    thread = threading.Thread(target=path.write_bytes, args=(content,))
    thread.start()
    return thread


@pytest.fixture
def anonymous() -> Iterator[tuple[Path, int]]:
    """As a shell names those of ``<(...)``."""
    if not Path("/dev/fd").exists():
        pytest.skip("no /dev/fd here")
    reading, writing = os.pipe()
    yield Path(f"/dev/fd/{reading}"), writing
    os.close(reading)


def test_every_opening_begins_at_the_first_byte(pipe: Path) -> None:
    content = bytes(range(256)) * 1000  # more than a pipe holds
    thread = writer(pipe, content)
    with open_file(pipe) as first:
        assert first.read(10) == content[:10]
    with open_file(pipe) as second:
        assert second.peek(5)[:5] == content[:5]
        assert second.read(100_000) == content[:100_000]
        with open_file(pipe) as third:
            assert third.read() == content
        assert second.read() == content[100_000:]
    thread.join()
    with open_file(pipe) as again:
        assert again.read() == content


def test_a_pipe_that_is_written_again_has_other_content(pipe: Path) -> None:
    for content in (b"one\n", b"the other\n", b"x" * 100_000):
        thread = writer(pipe, content)
        found = b""
        while found[:1] != content[:1]:  # until the writer is there, the content is the former
            with open_file(pipe) as file:
                found = file.read()
        assert found == content
        thread.join()


def test_a_pipe_of_a_shell(anonymous: tuple[Path, int]) -> None:
    path, writing = anonymous
    os.write(writing, b"a line\nanother\n")
    os.close(writing)
    for _ in range(2):
        with open_file(path) as file:
            assert file.read() == b"a line\nanother\n"


def test_columns_of_a_pipe_have_no_ending_of_a_name(anonymous: tuple[Path, int]) -> None:
    path, writing = anonymous
    os.write(writing, b"sentence,label\na,x\nb,y\n")
    os.close(writing)
    found = read_rows(path, TaskOptions(), labelled=True)
    assert (found.a, found.labels) == (["a", "b"], [("x",), ("y",)])
