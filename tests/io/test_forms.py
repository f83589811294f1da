"""What lines hold besides text: named or said, and the command that is named gives the text."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from bothways.io.oddities.forms import look_at_forms
from bothways.io.text import first_lines

WORDS = "the red fox found a small boat in the garden and sold it to our old teacher".split()
S = [
    f"{' '.join(WORDS[(3 * n) % 9 : (3 * n) % 9 + 5 + n % 4]).capitalize()}, number {n}."
    for n in range(40)
]
THREE = ("Ann", "Joe", "Kim")


def lines(texts: list[str]) -> str:
    return "\n".join(texts) + "\n"


def words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text)


def run(command: str, text: str, folder: Path) -> list[str]:
    """The lines that a command of a message writes, as it stands but for the names of the files."""
    (folder / "old").write_text(text, encoding="utf-8", newline="")
    written = command.replace("OLD", "old").replace("NEW.jsonl", "new").replace("NEW", "new")
    subprocess.run(["bash", "-c", written], cwd=folder, check=True)
    return [
        line.strip() for line in (folder / "new").read_text("utf-8").split("\n") if line.strip()
    ]


def command_of(message: str) -> str:
    found = re.search(r"(?:python3? -c|sed|awk|grep|cut|tail|tr) .*(?:> NEW(?:\.jsonl)?)", message)
    assert found, message
    return found[0]


def refused(text: str) -> str:
    found = look_at_forms(text.split("\n")).syntax
    return found.problem if found else ""


CONLL = "\n\n".join(
    "\n".join(f"{w} {'O' if n % 3 else 'B-PER'}" for n, w in enumerate(words(s))) for s in S
)
CONLLU = "\n".join(
    f"# sent_id = {k}\n"
    + "\n".join(f"{n}\t{w}\t{w}\tNOUN\tNN\t_\t0\troot\t_\t_" for n, w in enumerate(words(s), 1))
    + "\n"
    for k, s in enumerate(S)
)
APART = [" ".join(words(s)) for s in S]
WET = "".join(
    f"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: 9\r\n\r\n{s}\r\n\r\n\r\n" for s in S
)
NOTEBOOK = {"cells": [{"cell_type": "markdown", "source": [s]} for s in S], "nbformat": 4}
SBV = "".join(f"0:00:{n:02d}.000,0:00:{n:02d}.900\n{s}\n\n" for n, s in enumerate(S))
ASS = "[Script Info]\nTitle: x\n\n[Events]\nFormat: Layer, Start\n" + lines(
    [f"Dialogue: 0,0:00:0{n % 9}.00,0:00:09.00,A,,0,0,0,,{{\\i1}}{s}" for n, s in enumerate(S)]
)
PLAIN = [s.replace(",", "") for s in S]
COUNTED = [f"{w}{n}x" for n, w in enumerate(WORDS * 2)]
TWICE = [f"{s} {s}" for s in S]
TREES = [f"The {w} is" for w in WORDS]
MECAB = "".join("".join(f"{w}\tn,general,*,*\n" for w in words(s)) + "EOS\n" for s in S)
SEJONG = "\n".join(
    "".join(f"BT01-{k}-{n}\t{w}\t{w}/NNP + a/JKG\n" for n, w in enumerate(words(s)))
    for k, s in enumerate(S)
)
TEXTGRID = 'File type = "ooTextFile"\n\nxmin = 0\n' + lines(
    [f'    intervals [{n}]:\n        xmin = {n}\n        text = "{s}"' for n, s in enumerate(S)]
)
XML = "".join(f'<tu>\n<tuv xml:lang="en"><seg>{s}</seg></tuv>\n</tu>\n' for s in S)


@pytest.mark.parametrize(
    ("text", "message", "expected"),
    [
        (WET, "web archive", S),
        (ASS, "subtitles", S),
        (SBV, "subtitles", S),
        (lines([f"{{{n}}}{{{n + 9}}}{s}" for n, s in enumerate(S)]), "subtitles", S),
        (json.dumps(NOTEBOOK, indent=1), "notebook", S),
        (json.dumps(NOTEBOOK), "notebook", S),
        ("<body>\n<header/>\n" + XML + "</body>\n", "are HTML or XML", S),
        ("id\ttext\tlabel\n" + lines([f"{n}\t{s}\ta" for n, s in enumerate(S)]), "'text'", S),
        (lines([f"{n}\t{s}" for n, s in enumerate(S)]), "column 2", S),
        (lines([f"{n * 7}\teng\t{s}" for n, s in enumerate(S)]), "column 3", S),
        (lines([f"{n:6d}\t{s}" for n, s in enumerate(S)]), "column 2", S),
        ("id,text,label\n" + lines([f'{n},"{s}",a' for n, s in enumerate(S)]), "'text'", S),
        ("nr;Satz\n" + lines([f"{n};{s}" for n, s in enumerate(S)]), "'Satz'", S),
        (CONLL, "CoNLL", APART),
        (CONLLU, "CoNLL", APART),
        (CONLL.replace("\n\n", "\n</s>\n<s>\n"), "CoNLL", APART),
        (MECAB, "CoNLL", APART),
        (SEJONG, "CoNLL", APART),
        (lines([f"{n % 2},{s}" for n, s in enumerate(PLAIN)]), "table of 2", PLAIN),
        (lines([f'{n};"{s}";neg' for n, s in enumerate(S)]), "table of 3", S),
        (lines([f"LJ001-{n:04d}|{s}|{s.lower()}" for n, s in enumerate(S)]), "table of 3", S),
        (lines([f"{n} | {s} | en" for n, s in enumerate(S)]), "table of 3", S),
        (lines([f"{w}{n}x {900 - n}" for n, w in enumerate(WORDS * 2)]), "counts", COUNTED),
        (lines([f"{w}{n}x\t{900 - n}" for n, w in enumerate(WORDS * 2)]), "counts", COUNTED),
        (lines([f"  {900 - n} {w}{n}x" for n, w in enumerate(WORDS * 2)]), "counts", COUNTED),
        (
            "".join(f"PMID- {n}\nTI  - A\nAB  - {s}\n      {s}\n\n" for n, s in enumerate(S)),
            "RIS",
            TWICE,
        ),
        ("".join(f"TY  - JOUR\nAB  - {s}\nER  - \n\n" for s in S), "RIS", S),
        ("".join(f"%0 Journal\n%T A\n%X {s}\n\n" for s in S), "RIS", S),
        ("".join(f"PT J\nTI A\nAB {s}\nER\n\n" for s in S), "RIS", S),
        (
            "".join(f"@article{{a{n},\n  abstract = {{{s}}},\n}}\n" for n, s in enumerate(S)),
            "BibTeX",
            S,
        ),
        ("".join(f'#: a.c:1\nmsgid "{s}"\nmsgstr "x"\n\n' for s in S), "gettext", S),
        (TEXTGRID, "TextGrid", S),
        ("@UTF8\n@Begin\n" + lines([f"*CHI:\t{s}\n%mor:\tn|a" for s in S]), "CHAT", S),
        ("[a]\n" + lines([f"m.{n} = {s}" for n, s in enumerate(S)]), "keys", ["[a]", *S]),
        (lines([f"(S (NP (DT The) (NN {w})) (VP (VBZ is)))" for w in WORDS]), "trees", TREES),
        (
            lines([f"00:00:{n:02d}.00,00:00:{n:02d}.90\n{s}" for n, s in enumerate(S)]),
            "subtitles",
            S,
        ),
    ],
)
def test_other_formats_are_named_and_the_command_gives_the_text(
    text: str, message: str, expected: list[str], tmp_path: Path
) -> None:
    said = refused(text)
    assert message in said
    assert run(command_of(said), text, tmp_path) == expected


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([{"text": s} for s in S]),
        json.dumps([{"text": s} for s in S], indent=2),
        json.dumps({str(n): {"text": s} for n, s in enumerate(S)}, indent=1),
        json.dumps(S, indent=1),
        json.dumps({"version": "1", "data": [{"text": s} for s in S]}, indent=1),
        json.dumps({"a": {"data": [{"text": s} for s in S]}, "n": [1, 2]}, indent=1),
        json.dumps({"data": [{"text": s} for s in S]}),
        lines([f'- id: {n}\n  text: "{s}"' for n, s in enumerate(S)]),
        json.dumps({"document": [{"paragraph": [{"form": s}]} for s in S]}, indent=1),
        lines([repr({"text": s, "n": None}) for s in S]),
    ],
)
def test_json_that_is_not_lines_becomes_lines(text: str, tmp_path: Path) -> None:
    said = refused(text)
    assert "would be read as text" in said
    rows = [json.loads(row) for row in run(command_of(said), text, tmp_path)]
    assert [row["text"] for row in rows] == S


def test_json_lines_are_named_with_their_keys() -> None:
    text = lines([json.dumps({"url": "u", "content": s}) for s in S])
    assert "end in .jsonl, and give --text_field NAME for the key of the text" in refused(text)
    assert "'url', 'content'" in refused(text)
    named = look_at_forms(text.split("\n"), "--text_a").syntax
    assert named is not None
    assert "--text_a NAME" in named.problem
    assert "'text'" in refused(json.dumps({"text": "A single one."}))
    # A line of many megabytes, of which the beginning is there.
    one = json.dumps([{"text": s} for s in S])[:500]
    assert "this is JSON" in refused("\n".join(first_lines(one, cut=True)))


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        (lines([f"[10:{n:02d}] <nick> {s}" for n, s in enumerate(S)]), "times", S),
        (lines([f"[홍길동] [오후 1:{n:02d}] {s}" for n, s in enumerate(S)]), "times", S),
        (
            lines([f"12/03/2021, 10:{n:02d} - {THREE[n % 3]}: {s}" for n, s in enumerate(S)]),
            "times",
            S,
        ),
        (
            lines([f"[12.03.21, 10:{n:02d}:07] {THREE[n % 3]}: {s}" for n, s in enumerate(S)]),
            "times",
            S,
        ),
        (lines([f"[00:{n:02d}.000 --> 00:{n:02d}.900]  {s}" for n, s in enumerate(S)]), "times", S),
        (lines([f"[00:{n:02d}.34]{s}" for n, s in enumerate(S)]), "times", S),
        (lines([f"2024-03-01T12:{n:02d}:03.123Z {s}" for n, s in enumerate(S)]), "times", S),
        (lines([f"Mar  1 12:{n:02d}:03 {s}" for n, s in enumerate(S)]), "times", S),
        (
            lines([f"1.1.1.1 - - [10/Oct/2023:13:55:{n:02d} -0700] {s}" for n, s in enumerate(S)]),
            "times",
            S,
        ),
        (lines([f"0:{n:02d}\n{s}" for n, s in enumerate(S)]), "times", S),
        (lines([f"{n}. {s}" for n, s in enumerate(S, 1)]), "numbers", S),
        (lines([f"{n}:{s}" for n, s in enumerate(S, 1)]), "numbers", S),
        (
            lines([f"{('A. (host)', 'Dr. O’Neil')[n % 2]}: {s}" for n, s in enumerate(S)]),
            "speakers",
            S,
        ),
        (
            "".join(
                f"From a@b.c Mon Jan  1 10:00:00 2001\nFrom: a@b.c\nSubject: x\n\n{s}\n\n"
                for s in S
            ),
            "mails",
            S,
        ),
        ("From: a@b.c\nTo: d@e.f\nSubject: x\n\n" + lines(S), "mails", S),
        ("".join(f"> {s}\n{s}\n" for s in S), "quotes", S),
        (lines([" ".join(f"{w}_NN" for w in s.split()) for s in S]), "tags", S),
        (lines([" ".join(f"{w}/VBZ" for w in s.split()) for s in S]), "tags", S),
        (lines([s.replace("umber", "um@@ ber") for s in S]), "pieces", S),
        (lines([s.replace("umber", "um ##ber") for s in S]), "pieces", S),
        (lines(["▁" + s.replace(" ", " ▁").replace("umber", "um ber") for s in S]), "pieces", S),
        (lines([s.replace(" ", " Ġ").replace("umber", "um ber") for s in S]), "pieces", S),
        (
            lines([s.replace("number", "num @-@ ber") for s in S]),
            "pieces",
            [s.replace("number", "num-ber") for s in S],
        ),
        (lines([s.replace(",", " ,").replace(".", " .") for s in S]), "spaces", S),
        (lines(["|".join(s.split()) for s in S]), "bars", S),
        (lines(["_".join(s.split()) for s in S]), "bars", S),
        (lines([" ".join(s) for s in S]), "letters", S),
        (lines([f"<s> {s} </s>" for s in S]), "special tokens", S),
        (lines([f"[CLS] {s} [SEP]" for s in S]), "special tokens", S),
        ("\n<|endoftext|>\n".join(S), "special tokens", S),
        (lines([f"{s} ||| {s.upper()}" for s in S]), "several texts", S),
        (lines([f"{s}\t{s.upper()}" for s in S]), "several texts", S),
        ("---\ntitle: A\ndate: 2020-01-01\n---\n\n" + lines(S), "front matter", S),
        (
            "".join(f" \n = Title {n} = \n \n = = More = = \n {s}\n" for n, s in enumerate(S)),
            "headings",
            S,
        ),
        ("\n----------\n".join(S), "dividers", S),
        ("\n* * *\n".join(S), "dividers", S),
        ("Licence.\n*** START OF THE PROJECT GUTENBERG EBOOK X ***\n" + lines(S), "licence", S),
        (lines([f"{n // 20 + 1}:{n % 20 + 1} {s}" for n, s in enumerate(S)]), "numbers", S),
        (lines([f"[{n}] {s}" for n, s in enumerate(S, 1)]), "numbers", S),
        (lines([f"84-1211-{n:04d} {s}" for n, s in enumerate(S)]), "ids", S),
        (lines([f"__label__a __label__b {s}" for s in S]), "labels", S),
        (lines([f"INFO  2023-01-01 10:00:{n:02d},12 {s}" for n, s in enumerate(S)]), "times", S),
        (
            lines([f"2023년 1월 1일 오후 1:{n:02d}, 홍길동 : {s}" for n, s in enumerate(S)]),
            "times",
            S,
        ),
        (lines([f"[01-Jan-23 10:{n:02d} PM] ann#1\n{s}" for n, s in enumerate(S)]), "times", S),
        (lines([f"Ann, [01.01.2023 10:{n:02d}]\n{s}" for n, s in enumerate(S)]), "times", S),
        (lines([f"2023-01-01 10:{n:02d}:45 Ann(123)\n{s}" for n, s in enumerate(S)]), "times", S),
        (lines([f"Ann Lee   0:{n:02d}\n{s}" for n, s in enumerate(S)]), "times", S),
        (lines([f"<nick{n % 3}> {s}" for n, s in enumerate(S)]), "names", S),
        ("<TEXT>\n</TEXT>\n<P>\n" + lines(S), "lines of tags", S),
        (lines([f"<p>{s * 200}</p>" for s in S]), "lines of tags", [s * 200 for s in S]),
        (lines([s.replace(" ", "(cid:12) ") for s in S]), "marks of PDF", S),
        (lines([s.replace("umber", "u- mber") for s in S]), "hyphens inside lines", S),
        (lines([" ".join(f"{w}/nn-tl" for w in s.split()) for s in S]), "tags", S),
        (lines([s.replace(" a", "_a") for s in S]), "joined words", S),
        (lines(["나 +는 학교 +에 간다 나"] * 9), "pieces", ["나는 학교에 간다 나"] * 9),
        (lines(["我们 今天 去 学校"] * 9), "divided words", ["我们今天去学校"] * 9),
        (lines(["私 は 学校 へ 行く"] * 9), "divided words", ["私は学校へ行く"] * 9),
        (lines(["邪智《じゃち》の王［＃「王」に傍点］"] * 9), "readings", ["邪智の王"] * 9),
    ],
)
def test_what_stands_beside_the_text_is_said_and_the_command_takes_it_out(
    text: str, name: str, expected: list[str], tmp_path: Path
) -> None:
    found = look_at_forms(text.split("\n"))
    assert found.syntax is None
    assert run(command_of(found.notes[name]), text, tmp_path) == expected
    if "\\r" in found.notes[name] or name == "mails":
        windows = text.replace("\n", "\r\n")
        assert (
            run(command_of(look_at_forms(windows.split("\n")).notes[name]), windows, tmp_path)
            == expected
        )


def test_what_has_no_command_of_its_own_is_said() -> None:
    tex = lines([f"\\section{{A}}\n{s} \\cite{{a}}" for s in S])
    assert "pandoc -f latex" in look_at_forms(tex.split("\n")).notes["TeX"]
    markdown = lines([f"## Part\n\n{s} See [this](http://a.b)." for s in S])
    assert "pandoc -f markdown" in look_at_forms(markdown.split("\n")).notes["Markdown"]
    assert "ids of tokens" in look_at_forms(["12 304 7 99"] * 20).notes["only numbers"]
    many = lines([f"Speaker {chr(65 + n % 20)}: {s}" for n, s in enumerate(S * 3)])
    assert "sed" not in look_at_forms(many.split("\n")).notes["speakers"]


@pytest.mark.parametrize(
    "text",
    [
        lines(S),
        "\n\n".join(S),
        lines([f"{s} (see a/b, c|d and e_f)" for s in S]),
        lines([f"{n} foxes were seen." for n in (3, 9, 4, 12, 8) * 8]),
        lines([f"Note: {s}" if n % 3 else s for n, s in enumerate(S)]),
        lines([f"At 10:{n} it began. {s}" for n, s in enumerate(S)]),
        lines([f"“{s}” ..." for s in S]),
        "# include <a>\n" + lines([f"int {w}(void);" for w in WORDS]),
        "The word { stands here.\n" + lines(S),
        '["Hello", he said.\n' + lines(S),
        "[[Main page]] is here.",
        "{{stub}}\n" + lines(S),
        lines([f"Word, other, third {n}" for n in range(30)]),
        lines([f"{w} {v}" for w in WORDS for v in WORDS[:3]]),
        lines([f"{1900 + n} was a year of {s}" for n, s in enumerate(S)]),
        lines([f"<Company {n} Ltd> said {s}" for n, s in enumerate(S)]),
        lines([f"'On {s}" for s in S]),
        lines(["春眠不覺曉 處處聞啼鳥", "夜來風雨聲 花落知多少"] * 9),
        lines([f"Smith, {w}" for w in WORDS * 3]),
        "",
        "\n\n",
    ],
)
def test_plain_text_is_plain(text: str) -> None:
    found = look_at_forms(text.split("\n"))
    assert (found.syntax, found.notes) == (None, {})


@pytest.mark.parametrize("name", ["text", '"Text"', "sentence"])
def test_a_first_line_that_may_be_a_name_is_said(name: str) -> None:
    found = look_at_forms([name, "a good film", "bad film"])
    assert found.syntax is None
    assert "sed 1d OLD > NEW" in found.notes["a name"]
    assert "a name" not in look_at_forms(["a good film", name]).notes
