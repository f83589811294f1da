"""text_files.py: which files, which lines, and what is refused."""

from __future__ import annotations

import gzip
import lzma
import os
import re
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path, PurePath

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.config.recipes import compose
from bothways.errors import ConfigError, InputError, Place
from bothways.io.broken import corpus_line
from bothways.io.text import list_files, read_lines, stray_notes

OPENERS: dict[str, Callable[[bytes], bytes]] = {
    ".txt": lambda data: data,
    ".txt.gz": gzip.compress,
    ".txt.xz": lzma.compress,
    ".txt.zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}


def write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


# ------------------------------------------------------------------------------------------- files


def test_folders_globs_and_files_are_found_sorted_and_once(tmp_path: Path) -> None:
    names = ["b.txt", "a/z.txt.gz", "a/deep/y.txt.xz", "odd.md", "a/table.tsv"]
    paths = {name: write(tmp_path, name, b"x") for name in names}
    texts = sorted(paths[name] for name in names[:3])
    assert list_files([str(tmp_path)]) == texts
    assert list_files([str(tmp_path / "**" / "*.txt*")]) == texts
    # Named outright, any file is taken; found twice, it is read once.
    assert list_files([str(paths["odd.md"]), str(tmp_path), str(paths["b.txt"])]) == sorted(
        [*texts, paths["odd.md"]]
    )


def test_what_a_killed_command_left_is_no_text(tmp_path: Path) -> None:
    for name in ("a.txt", ".partial-corpus/vocab.txt", "deep/.partial-x/b.txt", "deep/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list_files([str(tmp_path)]) == [tmp_path / "a.txt", tmp_path / "deep/c.txt"]


def test_the_vocabulary_of_a_tokenizer_is_no_text(tmp_path: Path) -> None:
    text, own = write(tmp_path, "a.txt", b"x"), write(tmp_path, "words/vocab.txt", b"x")
    theirs = write(tmp_path, "tokenizer/vocab.txt", b"[PAD]")
    write(tmp_path, "tokenizer/tokenizer_config.json", b"{}")
    assert list_files([str(tmp_path)]) == [text, own]
    assert list_files([str(tmp_path / "**" / "*.txt")]) == [text, own]
    assert list_files([str(theirs)]) == [theirs], "named outright"


def test_files_of_the_output_are_left_out(tmp_path: Path) -> None:
    text = write(tmp_path, "a.txt", b"x")
    write(tmp_path, "out/b.txt", b"x")
    assert list_files([str(tmp_path / "**" / "*.txt")], besides=str(tmp_path / "out")) == [text]


def test_endings_in_any_case_and_linked_folders(tmp_path: Path) -> None:
    loud = write(tmp_path, "texts/BOOK.TXT", b"x")
    write(tmp_path, "elsewhere/b.txt", b"x")
    (tmp_path / "texts" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "texts" / "circle").symlink_to(tmp_path / "texts")
    assert list_files([str(tmp_path / "texts")]) == [loud, tmp_path / "texts" / "more" / "b.txt"]
    both = [str(tmp_path / "texts"), str(tmp_path / "elsewhere")]
    assert len(list_files(both)) == 2, "the same file on two ways is read once"


def test_a_name_with_brackets_is_meant_literally(tmp_path: Path) -> None:
    path = write(tmp_path, "book[1].txt", b"x")
    write(tmp_path, "book1.txt", b"y")
    assert list_files([str(path)]) == [path]


@pytest.mark.parametrize("pattern", ["nothing.txt", "*.txt", "", "empty"])
def test_a_pattern_that_finds_nothing_is_named(
    pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=rf"'{pattern}'".replace("*", r"\*")):
        list_files([pattern])


def test_no_patterns_at_all() -> None:
    with pytest.raises(InputError, match="no text files"):
        list_files([])


# ------------------------------------------------------------------------------------------- lines


@pytest.mark.parametrize("suffix", OPENERS)
@given(lines=st.lists(st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]))))
def test_lines_come_back_as_written(
    suffix: str, lines: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("lines") / f"t{suffix}"
    path.write_bytes(OPENERS[suffix]("".join(line + "\n" for line in lines).encode()))
    # Carriage returns before the line end belong to the end; marks at the start are no text.
    expected = [
        (number, line.lstrip("\ufeff\x1a").rstrip("\r\x1a"))
        for number, line in enumerate(lines, start=1)
    ]
    expected = [e for e, line in zip(expected, lines, strict=True) if e[1] or "\x1a" not in line]
    assert list(read_lines(path)) == expected


def test_line_ends_marks_and_a_last_line_without_end(tmp_path: Path) -> None:
    path = write(tmp_path, "t.txt", b"\xef\xbb\xbfone\r\ntwo\x0bstill two\n\nfour")
    assert list(read_lines(path)) == [(1, "one"), (2, "two\x0bstill two"), (3, ""), (4, "four")]


@pytest.mark.parametrize("suffix", OPENERS)
def test_broken_utf8_names_line_and_byte(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"t{suffix}", OPENERS[suffix](b"fine\ncaf\xe9 au lait\n"))
    with pytest.raises(InputError, match="byte 0xe9 is not UTF-8") as caught:
        list(read_lines(path))
    assert caught.value.place == Place(path, 2)
    assert f"{path}:2: " in str(caught.value)


def test_nul_names_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, "t.txt", b"a\nb\nc\0d\n")
    with pytest.raises(InputError, match="holds a NUL character") as caught:
        list(read_lines(path))
    assert caught.value.place == Place(path, 3)


@pytest.mark.parametrize("suffix", OPENERS)
def test_a_50_mb_line_is_refused_without_being_held(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"t{suffix}", OPENERS[suffix](b"short\n" + b"x" * 50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="longer than 10 MiB") as caught:
            list(read_lines(path, limit=corpus_line(10)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.place == Place(path, 2)
    assert peak < 35e6


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_the_longest_line_allowed_is_allowed(end: bytes, tmp_path: Path) -> None:
    limit = 2**20
    path = write(tmp_path, "t.txt", b"x" * limit + end + b"y")
    expected = [limit, 1] if end else None
    if expected:
        assert [len(line) for _, line in read_lines(path, limit=corpus_line(1))] == expected
    else:
        with pytest.raises(InputError, match="longer than 1 MiB"):
            list(read_lines(path, limit=corpus_line(1)))


@pytest.mark.parametrize("suffix", [".txt.gz", ".txt.xz", ".txt.zst"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "not compressed"])
def test_a_damaged_archive_is_refused(suffix: str, damage: str, tmp_path: Path) -> None:
    text = "".join(f"line {n} of {n * n}\n" for n in range(20_000)).encode()
    data = bytearray(OPENERS[suffix](text))
    if damage == "truncated":
        data = data[: len(data) // 2]
    elif damage == "flipped":
        data[len(data) // 2] ^= 0xFF
    else:
        data = bytearray(text)
    path = write(tmp_path, f"t{suffix}", bytes(data))
    with pytest.raises(InputError, match=r"truncated or damaged|not UTF-8|NUL") as caught:
        list(read_lines(path))
    assert caught.value.place
    assert caught.value.place.source == path


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.txt: cannot be read: No such file"):
        list(read_lines(tmp_path / "gone.txt"))
    with pytest.raises(InputError, match="is a folder, not a file"):
        list(read_lines(tmp_path))


def test_an_unreadable_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.scandir", denied)
    with pytest.raises(
        InputError, match=re.escape(f"{tmp_path}: cannot be read: Permission denied")
    ):
        list_files([str(tmp_path)])


@pytest.mark.parametrize("suffix", OPENERS)
def test_progress_ends_at_the_size_on_disk(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"t{suffix}", OPENERS[suffix](b"a line of text\n" * 5000))
    seen: list[int] = []
    list(read_lines(path, on_read=seen.append))
    assert seen == sorted(seen)
    assert seen[-1] == path.stat().st_size


def test_a_pipe_is_read(tmp_path: Path) -> None:
    """As in ``bothways vocab --files <(zcat text.gz)``."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("one\ntwo\n"))
    writer.start()
    seen: list[int] = []
    assert [line for _, line in read_lines(pipe, on_read=seen.append)] == ["one", "two"]
    writer.join()
    assert set(seen) == {8}


def test_what_is_no_file_is_neither_waited_for_nor_read_without_end(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    os.mkfifo(folder / "a.txt")
    (folder / "b.txt").symlink_to("/dev/zero")
    (folder / "c.txt").write_text("a line\n")
    stray: list[Path] = []
    assert list_files([str(folder)], stray=stray) == [folder / "c.txt"]
    assert sorted(path.name for path in stray) == ["a.txt", "b.txt"]
    with pytest.raises(InputError, match=r"b\.txt: is a device, not a file"):
        list(read_lines(folder / "b.txt"))
    with pytest.raises(ConfigError, match=r"b\.txt: is a device, not a file"):
        compose(folder / "b.txt")


def test_a_folder_of_many_files_is_listed_without_comparing_each_with_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [write(tmp_path, f"{n:03}.txt", b"a line\n") for n in range(200)]
    notes = [write(tmp_path, f"{n:03}.pdf", b"%PDF") for n in range(200)]
    compared = 0

    def equal(one: PurePath, other: object) -> bool:
        nonlocal compared
        compared += 1
        return isinstance(other, PurePath) and str(one) == str(other)

    monkeypatch.setattr(PurePath, "__eq__", equal)
    stray: list[Path] = []
    found = list_files([str(tmp_path)], stray=stray)
    said = stray_notes(stray)
    assert compared < 10 * len(files)
    assert (found, stray) == (files, notes)
    assert said[0].startswith("200 files are left out")
