"""Real files of the kinds that bug reports tell of, and their neighbours: read, or named with a
remedy that helps."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import pytest

from bothways import cli
from bothways.errors import InputError
from bothways.io.text import read_lines
from bothways.tasks.options import TaggingOptions, TaskOptions
from bothways.tasks.readers import read_rows
from bothways.tasks.schemes import standard_spelling
from bothways.tasks.sentences import read_sentences

ROWS = [(f"text {n}, it was", ("good", "bad")[n % 2]) for n in range(6)]


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def rows(separator: str, end: str = "") -> str:
    lines = [f"{text}{separator}{label}{end}\n" for text, label in ROWS]
    return f"sentence{separator}label\n" + "".join(lines)


CSV = rows(",").replace("text", '"text').replace("was", 'was"')


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", CSV),  # commas, whatever the name says
        ("a.txt", CSV.replace('",', '";').replace("sentence,", "sentence;")),
        ("a.csv", "sep=,,,\n" + CSV),  # as spreadsheets save their own line
        ("a.csv", CSV.replace('",', '", ').replace("sentence,", "sentence, ")),
        ("a.csv", "".join(line + ",\n" for line in CSV.splitlines()).replace("label,", "label")),
        ("a.csv", CSV + ",,\n,\n"),
    ],
)
def test_layouts_of_delimited_files(name: str, content: str, tmp_path: Path) -> None:
    found = read_rows(write(tmp_path, name, content), TaskOptions(), labelled=True)
    assert (found.a, found.labels) == ([a for a, _ in ROWS], [label for _, label in ROWS])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", rows("~"), "what stands between its names separates no columns"),
        ("a.csv", CSV.replace('"', "'"), r'in quotation marks of the form "\.\.\."'),
        ("a.csv", '[{"sentence": "a", "label": "b"}]', "this is JSON; name the file"),
        ("a.csv", CSV + "x,-\n", "'-' is how some files say that there is none"),
        ("a.csv", CSV + "x,good\u200b\n", "differ in their spelling only"),
        (
            "a.csv",
            CSV + "x,g\u043eod\n",
            r"differ .* only \(cyrillic small letter o and latin small letter o\)",
        ),
        (
            "a.csv",
            "sentence,label\na,-1\nb,\u22121\nc,1\nd,1\n",
            r"only \(minus sign and hyphen-minus\)",
        ),
        ("a.csv", "sentence,label\na,don't\nb,don\u2019t\n", "differ in their spelling only"),
        ("a.csv", "sentence,label\na,\u041d\u0435\u0442\nb,\u043d\u0435\u0442\n", "only;"),
        ("a.tsv", rows("\t").replace("\tgood", '\t"good"'), "stands in quotation marks"),
        ("a.jsonl", '{"sentence": "a", "sentence": "b", "label": "c"}\n', "'sentence' twice"),
        ("a.json", "", "is empty"),
        ("a.csv.gz", gzip.compress(CSV.encode(), mtime=0), "decompress it"),
        ("a.csv", gzip.compress(CSV.encode(), mtime=0), "gzip -dc"),
        ("a.csv", b"PK\x03\x04" + bytes(99), r"ZIP archive, as \.xlsx.* save it as"),
        ("a.csv", b"%PDF-1.4\n%\xe2\xe3", "PDF document"),
        ("a.tsv", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99), "Office document"),
    ],
)
def test_what_is_named(name: str, content: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_rows(write(tmp_path, name, content), TaskOptions(), labelled=True)


@pytest.mark.parametrize(
    ("encoding", "text", "named"),
    [
        ("iso8859_2", "Wczoraj kupiłem jabłko na rynku, było świeże", "ISO-8859-2"),
        ("mac_roman", "Le café était fermé, le garçon a mangé", "MACINTOSH"),
        ("cp850", "Le café était fermé, le garçon a mangé", "CP850"),
        ("iso8859_5", "Вчера я купил яблоко на рынке", "ISO-8859-5"),
        ("iso2022_jp", "昨日、市場でりんごを買いました。", "ISO-2022-JP"),
    ],
)
def test_more_encodings(encoding: str, text: str, named: str, tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", (text + "\n").encode(encoding) * 3)
    with pytest.raises(InputError, match=f"iconv -f {named} -t UTF-8"):
        list(read_lines(path))


def test_large_numbers_are_labels_of_their_own(tmp_path: Path) -> None:
    content = "".join(f'{{"sentence": "a", "label": {10**20 + n}}}\n' for n in (0, 1))
    found = read_rows(write(tmp_path, "a.jsonl", content), TaskOptions(), labelled=True)
    assert found.labels == [str(10**20), str(10**20 + 1)]


@pytest.mark.parametrize(
    ("spelt", "read"),
    [
        (["B–PER", "I–PER", "O"], ["B-PER", "I-PER", "O"]),
        (["BEGIN-PER", "INSIDE-PER", "O"], ["B-PER", "I-PER", "O"]),
        (["B-PER", "I-PER", "0"], ["B-PER", "I-PER", "O"]),
        (["B-PER", "I-PER", "_"], ["B-PER", "I-PER", "O"]),
        (["PER", "LOC", "OTHER"], ["I-PER", "I-LOC", "O"]),
        (["B-PER", "E-PER", "W-LOC", "NONE"], ["B-PER", "E-PER", "S-LOC", "O"]),
    ],
)
def test_spellings_of_tags(spelt: list[str], read: list[str]) -> None:
    found, note = standard_spelling({tag: 9 if tag == spelt[-1] else 1 for tag in spelt})
    assert [found[tag] for tag in spelt] == read
    assert note


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.conll", "B-PER Mary\nO left\n\nO he\nO sat\n", "task.tagging.word 1"),
        ("a.csv", "text,label\nMary left,\"[[0, 4, 'PER']]\"\n", "Export them as JSON"),
        ("a.jsonl", '{"text": "Mary", "label": [[1, 1, "PER"]]}\n', "is empty; an end is"),
    ],
)
def test_tagged_files_that_are_named(name: str, content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_sentences(write(tmp_path, name, content), TaggingOptions(), labelled=True)


def test_a_line_of_names_and_spaces_behind_words(tmp_path: Path) -> None:
    named = write(tmp_path, "a.conll", "word tag\n\nMary B-PER\nleft O\n")
    assert read_sentences(named, TaggingOptions(), labelled=True).words == [["Mary", "left"]]
    spaced = write(tmp_path, "b.conll", "Mary \tB-PER\nleft \tO\n")
    assert read_sentences(spaced, TaggingOptions(), labelled=True).words == [["Mary", "left"]]


PAGE = "<p>It was good.</p>\n" * 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"<!DOCTYPE html>\n<html>{PAGE}", r"this is a page of HTML.*html2text"),
        (f"\ufeff\n<!-- saved -->\n<HTML lang='en'>{PAGE}", "this is a page of HTML"),
        (f'<?xml version="1.0"?>\n<!DOCTYPE html PUBLIC "x">\n<html>{PAGE}', "a page of HTML"),
        (f'<?xml version="1.0"?>\n<mediawiki xmlns="x">{PAGE}', "dump of MediaWiki.*wikiextractor"),
        (f'<?xml version="1.0" encoding="UTF-8"?>\n<corpus>{PAGE}', "this is an XML document"),
        ("L'été, le café était fermé à midi\tbon\n".encode("utf-7") * 4, "iconv -f UTF-7 -t UTF-8"),
        ("어제 시장에서 사과를 샀다\t좋음\n".encode("utf-7") * 4, "iconv -f UTF-7 -t UTF-8"),
        (b"{\\rtf1\\ansi It was good.}", "this is an RTF document.*save it as plain text"),
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "this is a PDF document.*pdftotext"),
        (b"PK\x03\x04\x14\0\x06\0[Content_Types].xml", r"ZIP archive, as .*\.docx"),
        (
            gzip.compress(b"It was good\n", mtime=0),
            "compressed by gzip, not text; decompress it: gzip -dc",
        ),
        (bz2.compress(b"It was good\n"), "compressed by bzip2"),
        (lzma.compress(b"It was good\n"), "compressed by xz"),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.tsv", "a.csv", "a.jsonl"])
def test_files_that_are_no_plain_text(
    name: str, content: str | bytes, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(InputError, match=message) as raised:
        read_rows(path, TaskOptions(), labelled=True)
    assert str(path) in str(raised.value)
    if name == "a.txt":
        argv = ["corpus", "--files", str(path), "--tokenizer", "mini-en", "--out"]
        assert cli.main([*argv, str(tmp_path / "corpus")]) == 1
        assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize(
    "text",
    [
        "Pages begin with <html> and <body>.\n",
        "<unk>\n<html>\n",
        "<doc id=1 title='x'>\nIt was good.\n</doc>\n",
        "1 + 1, 2 +2 and 3+3, C++ and a+b+c\n",
        "Call +1-555-0100, +49-30-123 or +82-2-555 today\n",
        "Google+ and +Maria, +Paul and +Anna- agree\n",
        "caf+AOk- is UTF-7 for one word, and 3+4 is 7; x+y, too\n",
        "a+b\n" * 50,
    ],
)
def test_text_that_only_looks_like_it(text: str, tmp_path: Path) -> None:
    assert "".join(f"{line}\n" for _, line in read_lines(write(tmp_path, "a.txt", text))) == text
