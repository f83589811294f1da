"""How text lies on its lines: what is recognised, what is joined, and what stays as it is."""

from __future__ import annotations

import lzma
import os
import textwrap
from pathlib import Path

import pytest

from bothways.io.layout import Layout, joined, look

WORDS = (
    "the baker carried two letters in the morning and a quiet boy repaired the garden while our "
    "teacher told a long story about ships that nobody in the village had ever seen before"
).split()


def paragraph(n: int) -> str:
    sentences = []
    for s in range(1 + n % 4):
        words = [
            WORDS[(n * 7 + s * 5 + k * (1 + n % 3)) % len(WORDS)] for k in range(9 + (n + s) % 13)
        ]
        sentences.append(" ".join(words).capitalize() + ".")
    return " ".join(sentences)


PARAGRAPHS = [paragraph(n) for n in range(90)]


def wrapped(width: int = 70, *, between: str = "\n\n", indent: str = "") -> str:
    return between.join(textwrap.fill(p, width, initial_indent=indent) for p in PARAGRAPHS)


def read(text: str) -> tuple[Layout, list[str]]:
    lines = text.split("\n")
    layout = look(lines)
    return layout, [line for line in joined(lines, layout) if line] if layout.wrapped else []


@pytest.mark.parametrize("width", [40, 64, 72, 78, 100])
def test_hard_wrapped_text_is_joined(width: int) -> None:
    layout, found = read(wrapped(width))
    assert width - 6 <= layout.width <= width
    assert found == PARAGRAPHS


def test_indented_paragraphs_without_blank_lines() -> None:
    assert read(wrapped(between="\n", indent="   "))[1] == PARAGRAPHS


SPEECH = [f"Line {n} of the verse is short\nand so is the next" for n in range(60)]
NOT_WRAPPED = {
    "a paragraph a line": "\n\n".join(PARAGRAPHS),
    "one document a line": "\n".join(PARAGRAPHS),
    "one sentence a line": "\n".join(
        s + "." for p in PARAGRAPHS for s in p.rstrip(".").split(". ")
    ),
    "verse": "\n\n".join(SPEECH),
    "titles": "\n".join(f"On the {WORDS[n % 30]} of {WORDS[n * 3 % 30]}" for n in range(200)),
    "a list": "\n".join(f"- {p[:60]}" for p in PARAGRAPHS),
    "numbers": "\n".join(f"{n:06} {n * n:09} {n * 7:05}" for n in range(200)),
    "sentences of one length": "\n".join(
        f"{WORDS[n % 30]:<12} is the word of day {n:03}." for n in range(200)
    ),
    "nothing": "",
    "few lines": textwrap.fill(PARAGRAPHS[3], 40),
}


@pytest.mark.parametrize("name", NOT_WRAPPED)
def test_other_lines_stay_as_they_are(name: str) -> None:
    assert not look(NOT_WRAPPED[name].split("\n")).wrapped


def test_short_lines_in_a_wrapped_file_stay() -> None:
    verse = "Roses are red,\nviolets are blue,\nsugar is sweet."
    items = "- the first thing\n- the second thing"
    text = f"CHAPTER I\n\n{wrapped()}\n\n{verse}\n\n{items}"
    _, found = read(text)
    assert found == ["CHAPTER I", *PARAGRAPHS, *verse.split("\n"), *items.split("\n")]


def test_words_broken_at_line_ends() -> None:
    lines = []
    for p in PARAGRAPHS:
        text = textwrap.fill(p, 60)
        # The last word of every other line is broken.
        own = text.split("\n")
        for n in range(0, len(own) - 1, 2):
            first = own[n + 1].split(" ")[0]
            if len(first) > 5 and first.isalpha():
                own[n] += f" {first[:3]}-"
                own[n + 1] = first[3:] + own[n + 1][len(first) :]
        lines += [*own, ""]
    layout = look(lines)
    assert layout.hyphens
    assert [p for p in joined(lines, layout) if p] == PARAGRAPHS


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ("he is a well-", "known man", "he is a well-known man"),
        ("both pre- and post-", "war", "both pre- and post-war"),
        ("all the pre-", "and post-war houses", "all the pre- and post-war houses"),
        ("out of New York-", "Boston trains", "out of New York-Boston trains"),
        ("a soft\u00ad", "ware", "a software"),
        ("he said--", "and left", "he said--and left"),
        ("昨日は雨が", "降った", "昨日は雨が降った"),
        ("서울은 넓고", "사람이 많다", "서울은 넓고 사람이 많다"),
    ],
)
def test_what_comes_between_two_lines(first: str, second: str, together: str) -> None:
    assert [*joined([first, second], Layout(width=len(first)))] == [together]


@pytest.mark.parametrize("width", [39, 70])
def test_paragraphs_of_any_length(width: int) -> None:
    text = " ".join(paragraph(n) for n in range(200))  # what is joined looks at the end alone
    assert len(text) > 20_000
    found = [*joined(textwrap.wrap(text, width), Layout(width))]
    assert " ".join(found) == text
    assert len(found) < 3
    characters = "\u4e00\u4e8c\u4e09" * 2_000
    rows = [characters[at : at + 40] for at in range(0, len(characters), 40)]
    assert [*joined(rows, Layout(40))] == [characters]


def test_one_unbroken_line_of_megabytes_is_looked_at() -> None:
    line = "aZ09" * 500_000  # with the square of its length, hours
    layout, _ = read(f"{line}\n\n{paragraph(0)}\n")
    assert not layout.wrapped


def test_what_is_said() -> None:
    layout = look(wrapped().split("\n"))
    notes = layout.notes("auto", "blank")
    assert "hard-wrapped at 70 characters and joined" in notes["wrapped"]
    assert "--documents file" in notes["wrapped"]
    assert "--documents file" not in layout.notes("auto", "file")["wrapped"]
    single = look([f"{p} {p} {p}" for p in PARAGRAPHS] * 3).notes("auto", "blank")
    assert "no blank line" in single["single"]
    assert look(PARAGRAPHS).notes("auto", "blank") == {}


DATA = os.environ.get("BOTHWAYS_DATA")


@pytest.mark.skipif(not DATA, reason="BOTHWAYS_DATA is not set")
@pytest.mark.parametrize(
    "name",
    [
        "text_en/classics-00.txt.xz",
        "text_en/news.txt.xz",
        "text_multi/de.txt.xz",
        "ko/text/prose.txt.xz",
    ],
)
def test_real_text(name: str) -> None:
    path = Path(str(DATA), name)
    if not path.exists():
        pytest.skip(f"no {name}")
    with lzma.open(path, "rt", encoding="utf-8") as file:
        text = file.read(200_000)
    assert not look(text.split("\n")).wrapped
    paragraphs = [" ".join(p.split()) for p in text.split("\n") if p.strip()]
    lines = "\n\n".join(textwrap.fill(p, 72) for p in paragraphs).split("\n")
    layout = look(lines)
    assert layout.wrapped
    found = {p for p in joined(lines, layout) if p}
    assert len(found & set(paragraphs)) > 0.9 * len(set(paragraphs))


def noted(text: str, lines: str = "auto") -> dict[str, str]:
    return look(text.split("\n")).notes(lines, "blank")  # type: ignore[arg-type]
