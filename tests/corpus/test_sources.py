"""corpus/sources.py: units are whole lines, cut the same wherever one begins."""

from __future__ import annotations

import gzip
import io
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bothways.corpus import sources as module
from bothways.corpus.options import CorpusConfig
from bothways.corpus.sources import Position, Unit, list_inputs, read_units
from bothways.errors import InputError
from bothways.io import records as record_files

PACK: dict[str, Callable[[bytes], bytes]] = {
    "a.txt": lambda data: data,
    "b.txt.gz": gzip.compress,
    "c.txt.xz": lzma.compress,
    "d.txt.zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}
texts = st.lists(st.sampled_from([b"", b" ", b"ab", "안녕".encode(), b"x" * 30])).map(b"\n".join)


def options(**changes: Any) -> CorpusConfig:
    return CorpusConfig(**{"files": ("-",), "tokenizer": "t", "out": "o", **changes})


def text_of(units: list[Unit]) -> bytes:
    rows = [block.data for unit in units for block in unit.blocks]
    return b"|".join(row for row in rows if isinstance(row, bytes))


@settings(max_examples=60)
@given(contents=st.lists(texts, min_size=1, max_size=4), size=st.integers(1, 60))
def test_units_hold_all_lines_and_can_begin_anywhere(
    contents: list[bytes], size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("units")
    for (name, pack), data in zip(PACK.items(), contents, strict=False):
        (folder / name).write_bytes(pack(data))
    inputs = list_inputs([str(folder)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "UNIT_BYTES", size)
        units = list(read_units(inputs, options()))
        again = [list(read_units(inputs, options(), unit.after)) for unit in units]
    assert text_of(units).replace(b"|", b"") == b"".join(contents)
    for place, rest in enumerate(again):
        expected = units[place + 1 :]
        if not expected:
            expected = [Unit((), Position(len(inputs)), sum(item.size for item in inputs))]
        assert rest == expected
    for number, data in enumerate(contents):
        blocks = [block for unit in units for block in unit.blocks if block.file == number]
        assert all(block.data[-1:] == b"\n" for block in blocks[:-1])
        line = 1
        for block in blocks:
            assert block.first_line == line
            assert isinstance(block.data, bytes)
            line += block.data.count(b"\n")
        assert line == data.count(b"\n") + 1


def test_rows_of_parquet_can_begin_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_files, "ROWS", 3)
    monkeypatch.setattr(module, "UNIT_BYTES", 20)
    rows = [f"row {n}" if n % 5 else None for n in range(23)]
    pq.write_table(
        pa.table({"n": range(23), "text": rows}), tmp_path / "t.parquet", row_group_size=7
    )
    inputs = list_inputs([str(tmp_path)])
    units = list(read_units(inputs, options()))
    found = [row for unit in units for block in unit.blocks for row in block.data]
    assert found == [row.encode() if row else None for row in rows]
    assert len(units) > 3
    for place, unit in enumerate(units[:-1]):
        assert list(read_units(inputs, options(), unit.after)) == units[place + 1 :]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.string_view()])
def test_columns_of_text(kind: pa.DataType, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"body": pa.array(["a", "한"], pa.string()).cast(kind)}), path)
    (unit,) = read_units(list_inputs([str(path)]), options(text_field="body"))
    assert unit.blocks[0].data == [b"a", "한".encode()]


def test_dictionary_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"text": pa.array(["a", "b", "a"]).dictionary_encode()}), path)
    (unit,) = read_units(list_inputs([str(path)]), options())
    assert unit.blocks[0].data == [b"a", b"b", b"a"]


def test_standard_input_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("file\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    inputs = list_inputs([str(tmp_path), "-"])
    assert [item.name for item in inputs] == ["standard input", str(tmp_path / "a.txt")]
    assert text_of(list(read_units(inputs, options()))) == b"one\ntwo\n|file\n"


def test_standard_input_alone() -> None:
    assert [item.path for item in list_inputs(["-"])] == [None]


def test_kinds_by_name(tmp_path: Path) -> None:
    names = ["a.TXT", "b.jsonl", "c.JSONL.gz", "d.ndjson.zst", "e.Parquet", "f.csv", "g.txt.xz"]
    for name in names:
        (tmp_path / name).touch()
    kinds = [item.kind for item in list_inputs([str(tmp_path)])]
    assert kinds == ["text", "json", "json", "json", "parquet", "text"]
    with pytest.raises(InputError, match=r"f\.csv: this holds records"):
        list_inputs([str(tmp_path / "f.csv")])
    (tmp_path / "notes.md").touch()
    assert list_inputs([str(tmp_path / "notes.md")])[0].kind == "text"


def test_what_stops_the_reading_comes_with_what_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNIT_BYTES", 10)
    (tmp_path / "a.txt").write_bytes(b"fine\n" * 3)
    (tmp_path / "b.txt.xz").write_bytes(b"no archive")
    (tmp_path / "c.txt").write_bytes(b"never read\n")
    units = list(read_units(list_inputs([str(tmp_path)]), options()))
    assert [unit.failure is None for unit in units[:-1]] == [True] * (len(units) - 1)
    assert isinstance(units[-1].failure, InputError)
    assert text_of(units).replace(b"|", b"") == b"fine\n" * 3
