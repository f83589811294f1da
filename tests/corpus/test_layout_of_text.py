"""Hard-wrapped text in a corpus: the same as its paragraphs on a line each, however it is read."""

from __future__ import annotations

import gzip
import io
import json
import os
import textwrap
import unicodedata
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bothways.corpus import build, sources
from bothways.corpus.build import build_corpus
from bothways.corpus.options import CorpusConfig
from bothways.corpus.report import short_report
from bothways.corpus.store import SPLITS, TokenStore
from bothways.errors import InputError
from bothways.io.text import list_files
from bothways.tokenization.learning import learn_vocabulary

WORDS = "the red fox found a small boat in the garden and sold it to our old teacher".split()
PARAGRAPHS = [
    " ".join(WORDS[(7 * n + 5 * k * (1 + n % 3)) % len(WORDS)] for k in range(12 + n * 7 % 31))
    + "."
    for n in range(120)
]
Build = Callable[..., tuple[dict[str, Any], list[list[int]]]]


@pytest.fixture
def built(tmp_path: Path, tiny_tokenizer_folder: Path) -> Build:
    """Builds a corpus of a text; its report, and the ids of all documents."""

    def run(text: str | bytes, *, name: str = "a.txt", **options: Any) -> Any:
        folder = tmp_path / "texts"
        folder.mkdir(exist_ok=True)
        path = folder / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        os.utime(path, (0, 0))  # the same file for a build that goes on
        words = {"files": (str(path),), "out": str(tmp_path / "corpus"), "heldout": 0.1}
        words |= {"tokenizer": str(tiny_tokenizer_folder), "single_sentence": "keep", **options}
        report = build_corpus(CorpusConfig(**words))
        path.unlink()
        ids = []
        for split in SPLITS:
            store = TokenStore.open(words["out"], split)
            edges = store.sentence_bounds[store.document_bounds]
            ids += [store.tokens_between(a, b).tolist() for a, b in pairwise(edges)]
        return report, sorted(ids)

    return run


WRAPPED = "\n\n".join(textwrap.fill(p, 50) for p in PARAGRAPHS) + "\n"
A_LINE_EACH = "\n\n".join(PARAGRAPHS) + "\n"


@pytest.mark.parametrize(
    "options", [{}, {"workers": 2}, {"workers": 1, "documents": "line"}], ids=["one", "two", "line"]
)
def test_paragraphs_are_those_of_lines(built: Build, options: dict[str, Any]) -> None:
    expected, plain = built(A_LINE_EACH)
    found, joined = built(WRAPPED, **options)
    assert joined == plain
    assert found["text_mb"] == expected["text_mb"]
    assert "layout" not in expected
    assert "a.txt: its lines are hard-wrapped at 50 characters" in found["layout"]["wrapped"]
    assert "layout: wrapped" in short_report(found)


def test_small_units_compression_and_line_ends_change_nothing(
    built: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected = built(WRAPPED)
    monkeypatch.setattr(sources, "UNIT_BYTES", 700)
    assert built(WRAPPED)[1] == expected
    assert built(gzip.compress(WRAPPED.encode()), name="a.txt.gz")[1] == expected
    assert built(WRAPPED.replace("\n", "\r\n"))[1] == expected
    assert built("\ufeff" + WRAPPED)[1] == expected


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_an_interrupted_build_goes_on_alike(
    built: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    text = gzip.compress(WRAPPED.encode(), mtime=0) if name.endswith(".gz") else WRAPPED.encode()
    monkeypatch.setattr(sources, "UNIT_BYTES", 700)
    whole, expected = built(text, name=name)
    original, seen = build.encode_unit, []

    def fail_late(*args: Any) -> Any:
        seen.append(args)
        if len(seen) == 6:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(build, "encode_unit", fail_late)
    other = {"out": str(tmp_path / "other"), "workers": 1}
    with pytest.raises(KeyboardInterrupt):
        built(text, name=name, **other)
    monkeypatch.setattr(build, "encode_unit", original)
    again, ids = built(text, name=name, **other)
    assert again["continued_units"] > 2
    assert ids == expected
    assert again["layout"] == whole["layout"]


def test_lines_are_kept_or_joined_by_option(built: Build) -> None:
    kept, _ = built(WRAPPED, lines="keep")
    assert "layout" not in kept
    lines = [line for line in WRAPPED.split("\n") if line]
    assert kept["duplicates"]["paragraphs"]["read"] == len(lines)
    # Too few lines to be recognised.
    short = "\n\n".join(textwrap.fill(p, 50) for p in PARAGRAPHS[:3])
    sentences = [
        built(text, heldout=0.0, **options)[0]["train"]["sentences"]
        for text, options in (
            ("\n\n".join(PARAGRAPHS[:3]), {}),
            (short, {"lines": "join"}),
            (short, {}),
        )
    ]
    assert sentences == [3, 3, len(short.split("\n")) - 2]


def test_a_document_a_line(built: Build) -> None:
    text = "\n".join(PARAGRAPHS * 2)
    report, ids = built(text, documents="line")
    assert len(ids) == 240
    assert "layout" not in report
    with pytest.raises(Exception, match="Put a blank line between documents"):
        built(text)


def test_decomposed_text_is_counted(built: Build, tmp_path: Path) -> None:
    text = "\n\n".join(f"Tiếng Việt số {n} rất hay. Một câu nữa." for n in range(30))
    for lowercase, normalization, noticed in (
        (False, "bert", True),
        (True, "bert", False),
        (False, "composed", False),
    ):
        learned = learn_vocabulary(
            [text], size=80, lowercase=lowercase, normalization=normalization
        )
        learned.save(tmp_path / "v")
        mixed = unicodedata.normalize("NFD", text[:400]) + text[400:]
        report, _ = built(mixed, tokenizer=str(tmp_path / "v"))
        assert ("decomposed" in report.get("layout", {})) is noticed
        if noticed:
            assert "such paragraphs)" in report["layout"]["decomposed"]
    assert "layout" not in built(text, tokenizer=str(tmp_path / "v"))[0]


STRAY = (
    "._a.txt",
    "__MACOSX/._a.txt",
    "__MACOSX/b.txt",
    ".git/c.txt",
    ".ipynb_checkpoints/a-checkpoint.txt",
)


def test_stray_files_are_left_out_and_said(tmp_path: Path, tiny_tokenizer_folder: Path) -> None:
    folder = tmp_path / "t"
    for name in STRAY:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X        \0\2")
    (folder / "a.txt").write_text(A_LINE_EACH)
    said: list[str] = []
    config = CorpusConfig(
        files=(str(folder),),
        tokenizer=str(tiny_tokenizer_folder),
        out=str(tmp_path / "c"),
        single_sentence="keep",
    )
    report = build_corpus(config, say=said.append)
    assert report["files"] == 1
    assert len([line for line in said if not line.startswith("language ")]) == 1
    assert said[0].startswith("1 files are left out, which are hidden")
    assert np.isclose(report["text_mb"], sum(len(p) for p in PARAGRAPHS) / 1e6)


def test_files_with_other_endings_are_said(tmp_path: Path, tiny_tokenizer_folder: Path) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    for name in ("b.md", "c.zip", "notes.txt~"):
        (folder / name).write_text(A_LINE_EACH)
    with pytest.raises(InputError, match="no text file"):
        list_files([str(folder)])
    (folder / "a.txt").write_text(A_LINE_EACH)
    said: list[str] = []
    out = folder / "corpus"
    config = CorpusConfig(
        files=(str(folder),),
        tokenizer=str(tiny_tokenizer_folder),
        out=str(out),
        single_sentence="keep",
    )
    build_corpus(config, say=said.append)
    (note,) = [line for line in said if not line.startswith("language ")]
    assert note.startswith("3 files are left out")
    stray: list[Path] = []
    assert list_files([str(folder)], besides=str(out), stray=stray) == [folder / "a.txt"]
    assert len(stray) == 3, "without those of the corpus"


def test_other_formats_under_the_name_of_text_are_no_corpus(built: Build) -> None:
    for text in (
        "\n".join(f'{{"id": {n}, "text": "{p}"}}' for n, p in enumerate(PARAGRAPHS)),
        "id\ttext\n" + "\n".join(f"{n}\t{p}" for n, p in enumerate(PARAGRAPHS)),
    ):
        for options in ({}, {"lines": "join"}):
            with pytest.raises(InputError, match=r"this looks like (JSON|a table)"):
                built(text, **options)


def test_odd_characters_are_counted_in_all_of_the_text(
    built: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "UNIT_BYTES", 700)
    odd = [p.replace("garden", "caf\u00c3\u00a9") for p in PARAGRAPHS]
    number = sum(p != o for p, o in zip(PARAGRAPHS, odd, strict=True))
    report, _ = built("\n\n".join([*PARAGRAPHS * 3, *odd]))
    assert f"({number:,} such paragraphs)" in report["layout"]["wrong encoding"]
    assert "layout: wrong encoding" in short_report(report)
    two = "\n\n".join([*PARAGRAPHS, odd[0], odd[0]])
    assert "layout" not in built(two)[0]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_texts_in_records_are_joined_as_those_of_files_are(built: Build, name: str) -> None:
    documents = [PARAGRAPHS[n : n + 3] for n in range(0, 120, 3)]
    found, joined = built(records(documents, name, 60), name=name)
    expected, plain = built(records(documents, name, 10_000), name=name)
    assert joined == plain
    assert "layout" not in expected
    said = found["layout"]["wrapped"]
    assert "hard-wrapped at 60 characters and joined" in said
    assert "Blank lines" not in said


def records(documents: list[list[str]], name: str, width: int) -> bytes:
    texts = ["\n\n".join(textwrap.fill(text, width) for text in texts) for texts in documents]
    if name.endswith(".jsonl"):
        return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    file = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), file)
    return file.getvalue()


def test_another_syntax_is_text_where_that_is_asked_for(built: Build) -> None:
    text = "".join(json.dumps({"fox": text}) + "\n\n" for text in PARAGRAPHS)
    with pytest.raises(InputError, match=r"this looks like JSON.*give --lines keep"):
        built(text)
    _, documents = built(text, lines="keep")
    assert len(documents) == len(PARAGRAPHS)
