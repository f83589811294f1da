"""Malformed inputs, each with its defined outcome."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bothways.corpus.build import build_corpus
from bothways.corpus.options import CorpusConfig
from bothways.corpus.paragraphs import read_documents
from bothways.corpus.sources import Block
from bothways.corpus.store import TokenStore, verify_store
from bothways.errors import InputError
from bothways.io.broken import Broken

GOOD = "The king sold. A boat!\n\nMy aunt found. The clock!\n"
LONG = "".join(f"The king {n} sold. A boat!\n\n" for n in range(3000)).encode()


def zst(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


def parquet(**columns: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


def records(*values: Any) -> bytes:
    rows = [value if isinstance(value, str) else json.dumps(value) for value in values]
    return "".join(row + "\n" for row in rows).encode()


ONE, TWO = {"text": "The king sold. A boat!"}, {"text": "My aunt found. The clock!"}
PAIR = ["The king sold. A boat!", "My aunt found. The clock!"]

# name of the file, its bytes, options, the message (with the line where there is one).
REFUSED: dict[str, tuple[str, bytes, dict[str, Any], str]] = {
    "truncated xz": ("t.txt.xz", lzma.compress(LONG)[:-40], {}, "truncated or damaged"),
    "truncated gz": ("t.txt.gz", gzip.compress(LONG)[:-40], {}, "truncated or damaged"),
    "broken zst": ("t.txt.zst", b"\x28\xb5\x2f\xfd" + b"x" * 99, {}, "truncated or damaged"),
    "truncated zst": ("t.txt.zst", zst(LONG)[:-40], {}, "truncated or damaged"),
    "no archive at all": ("t.txt.gz", GOOD.encode(), {}, "truncated or damaged"),
    "NUL": ("t.txt", b"fine. yes.\n\nno\0pe\n", {}, ":3: holds a NUL character"),
    "mixed encodings": ("t.txt", b"caf\xc3\xa9\ncaf\xe9\n", {}, ":2: byte 0xe9 is not UTF-8"),
    "JSON lines, compressed": (
        "t.json.gz",
        gzip.compress(b'{"text": "a. b."}\n{"text": "c."}\n'),
        {},
        "write one object per line to a .jsonl file",
    ),
    "encoded surrogates": ("t.txt", b"a\n\xed\xa0\x80\n", {}, ":2: byte 0xed is not UTF-8"),
    "UTF-16 without a mark": ("t.txt", GOOD.encode("utf-16-le"), {}, "looks like utf-16-le"),
    "line of 50 MB": ("t.txt", b"a\n" + b"x" * 50_000_000, {}, ":2: the line is longer than 10"),
    "empty file": ("t.txt", b"", {}, "no text in"),
    "blank lines": ("t.txt", b"\n  \n\t\n\xc2\xa0\n", {}, "no text in"),
    "zero-width lines": ("t.txt", "\u200b\n\n\u200b\u200d\n".encode(), {}, "no text in"),
    "one document": ("t.txt", b"The king sold. A boat!\n", {}, "has 1 document "),
    "one sentence": ("t.txt", b"The king sold.\n", {}, "has 0 documents .* 1 dropped"),
    "JSON, broken": ("t.jsonl", records(ONE, '{"text": "x'), {}, ":2: not JSON"),
    "JSON, no field": ("t.jsonl", records(ONE, {"body": "x"}), {}, ":2: no field 'text', only"),
    "JSON, a number": ("t.jsonl", records(ONE, {"text": 5}), {}, ":2: field 'text' is 5"),
    "JSON, null": ("t.jsonl", records(ONE, {"text": None}), {}, ":2: field 'text' is null"),
    "JSON, a list": ("t.jsonl", records(ONE, [1]), {}, ":2: a JSON list, not an object"),
    "JSON, half a pair": ("t.jsonl", records(ONE, {"text": "a\ud800"}), {}, ":2: .*surrogate"),
    "JSON, too deep": ("t.jsonl", records("[" * 100_000), {}, ":1: not JSON"),
    "Parquet, no column": ("t.parquet", parquet(body=PAIR), {}, "no column 'text'.*body"),
    "Parquet, numbers": ("t.parquet", parquet(text=[1, 2]), {}, "cannot be read as texts"),
    "Parquet, null": ("t.parquet", parquet(text=["a", None]), {}, ":2: column 'text' is null"),
    "Parquet, truncated": (
        "t.parquet",
        parquet(text=PAIR)[:-20],
        {},
        "as texts of Parquet",
    ),
    "Parquet, empty": ("t.parquet", b"", {}, "as texts of Parquet"),
    "Parquet, no UTF-8": ("t.parquet", parquet(text=[b"a", b"\xff"]), {}, ":2: .* not UTF-8"),
}

REPLACE = {"broken": "replace"}
# name, bytes, options, documents, and what the report says of broken lines.
TAKEN: dict[str, tuple[str, bytes, dict[str, Any], int, list[tuple[int, str]]]] = {
    "NUL, replaced": (
        "t.txt",
        b"\0" + GOOD.encode(),
        REPLACE,
        2,
        [(1, "1 replaced by U+FFFD")],
    ),
    "mixed encodings, replaced": (
        "t.txt",
        GOOD.encode() + b"\ncaf\xe9 \xff. A boat!\n",
        REPLACE,
        3,
        [(5, "2 replaced by U+FFFD")],
    ),
    "JSON, left out": (
        "t.jsonl",
        records(ONE, "{", {"body": "x"}, {"text": None}, TWO, {"text": "A\ud800! A boat!"}),
        REPLACE,
        3,
        [(2, "not JSON"), (3, "no field"), (4, "null"), (6, "1 replaced")],
    ),
    "Parquet, left out": ("t.parquet", parquet(text=[*PAIR, None]), REPLACE, 2, [(3, "null")]),
    "UTF-16": ("t.txt", GOOD.encode("utf-16"), {}, 2, []),
    "another encoding": (
        "t.txt.gz",
        gzip.compress(GOOD.replace("boat", "b\xf6at").encode("cp1252")),
        {"encoding": "cp1252"},
        2,
        [],
    ),
    "byte order mark": ("t.txt", b"\xef\xbb\xbf" + GOOD.encode(), {}, 2, []),
    "CRLF": ("t.txt", GOOD.replace("\n", "\r\n").encode(), {}, 2, []),
    "lone CR": ("t.txt", GOOD.replace("A boat!", "A\rboat!").encode(), {}, 2, []),
    "U+2028": ("t.txt", GOOD.replace("A boat!", "A\u2028boat!").encode(), {}, 2, []),
    "no line end": ("t.txt", GOOD.rstrip().encode(), {}, 2, []),
    "only punctuation": ("t.txt", (GOOD + "\n... !!! ???\n--- '\n").encode(), {}, 3, []),
    "zero-width line": ("t.txt", (GOOD + "\u200b\n").encode(), {}, 2, []),
    "one long word": ("t.txt", (GOOD + "\n" + "x" * 5000 + "! A boat!\n").encode(), {}, 3, []),
    "U+FFFD itself": ("t.txt", (GOOD + "\nA \ufffd. A boat!\n").encode(), REPLACE, 3, []),
    "blank JSON lines": ("t.jsonl", records(ONE, "", " ", TWO), {}, 2, []),
    "JSON without text": ("t.jsonl", records(ONE, {"text": " \n"}, TWO), {}, 2, []),
}


@pytest.fixture
def build(tmp_path: Path, tiny_tokenizer_folder: Path) -> Callable[..., dict[str, Any]]:
    """Build a corpus of one file."""

    def run(*names: Path, **options: Any) -> dict[str, Any]:
        return build_corpus(
            CorpusConfig(
                files=tuple(map(str, names)),
                tokenizer=str(tiny_tokenizer_folder),
                out=str(tmp_path / "corpus"),
                **{"heldout": 0, **options},
            )
        )

    return run


Build = Callable[..., dict[str, Any]]


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, build: Build, tmp_path: Path) -> None:
    name, data, options, message = REFUSED[case]
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        build(path, **options)
    assert str(path) in str(caught.value) or message.startswith("has ")
    assert sorted(p.name for p in tmp_path.iterdir()) == [name], "left-overs"


@pytest.mark.parametrize("case", TAKEN)
def test_what_is_taken(case: str, build: Build, tmp_path: Path) -> None:
    name, data, options, documents, broken = TAKEN[case]
    path = tmp_path / name
    path.write_bytes(data)
    report = build(path, **options)
    assert report["train"]["documents"] == documents
    found = report["broken"]
    assert found["lines"] == len(broken)
    for (source, line, what), (expected_line, words) in zip(found["first"], broken, strict=True):
        assert (source, line) == (str(path), expected_line)
        assert words in what
    assert verify_store(tmp_path / "corpus") == []


def test_marks_and_line_ends_change_no_ids(build: Build, tmp_path: Path) -> None:
    ids = []
    for case in ("no line end", "CRLF", "byte order mark", "lone CR", "U+2028", "NUL, replaced"):
        name, data, options, *_ = TAKEN[case]
        (tmp_path / name).write_bytes(data)
        build(tmp_path / name, **options)
        store = TokenStore.open(tmp_path / "corpus")
        ids.append(store.tokens_between(0, store.tokens).tolist())
    assert all(found == ids[0] for found in ids)


def test_byte_order_marks_are_removed_however_the_block_is_read() -> None:
    """A block with a broken line is decoded line by line, any other as a whole."""
    mark = b"\xef\xbb\xbf"
    stop = CorpusConfig(files=("t.txt",), tokenizer="tokenizer", out="corpus")
    documents = []
    for last in (b"good", b"ba\xff"):
        block = Block(0, "t.txt", "text", 1, False, mark + mark + b"A boat.\n" + last)
        [(_, paragraphs)] = read_documents(block, stop, Broken("replace"))
        documents.append(paragraphs[0])
    assert documents == ["A boat.", "A boat."]
    with pytest.raises(InputError, match="byte 0xff is not UTF-8"):
        read_documents(Block(0, "t.txt", "text", 1, False, mark + b"A\xff"), stop, Broken())


def test_many_equal_lines_are_seen(build: Build, tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("The same line.\n" * 100_000 + "\n" + GOOD)
    report = build(path)
    assert report["train"]["sentences"] == 100_004
    assert report["duplicates"]["paragraphs"]["repeated"] == 99_999
    assert report["duplicates"]["most_repeated"][0] == {"times": 100_000, "text": "The same line."}
    removed = build(path, duplicates="paragraphs")
    assert removed["train"]["sentences"] == 5


def test_only_the_first_broken_lines_are_listed(build: Build, tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    lines = (GOOD.encode(), *[b"A boat.\n" + b"bro\xffken \xfe\n"] * 1000)
    path.write_bytes(b"\n".join(lines))
    found = build(path, broken="replace")["broken"]
    assert (found["lines"], found["characters"], len(found["first"])) == (1000, 2000, 20)


def test_files_that_cannot_be_opened(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "dangling.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"dangling\.txt: cannot be read: No such file"):
        build(folder)
    with pytest.raises(InputError, match=r"dangling\.txt: cannot be read: No such file"):
        build(folder / "dangling.txt")
    (folder / "dangling.txt").unlink()
    (folder / "folder.txt").mkdir()
    with pytest.raises(InputError, match="matches no text file"):
        build(folder / "folder.txt")
    (folder / "secret.txt").write_text(GOOD)
    open_path = Path.open

    def denied(path: Path, *arguments: Any, **options: Any) -> Any:
        # Not by permissions: the tests may run as root, who may read anything.
        if path.name == "secret.txt":
            raise PermissionError(13, "Permission denied", str(path))
        return open_path(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(InputError, match=r"secret\.txt: cannot be read: Permission denied"):
        build(folder)


def test_standard_input(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(GOOD.encode())))
    assert build(Path("-"))["train"]["documents"] == 2
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a.\n\xff\n")))
    with pytest.raises(InputError, match="standard input:2: byte 0xff"):
        build(Path("-"))
