"""Characters that are in text by mistake are counted and said, and the command mends them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bothways.errors import InputError
from bothways.io.oddities.characters import odd_characters, odd_notes
from bothways.io.text import read_lines

FRENCH = [f"Le café n° {n} est ouvert à l’été, dès qu’il fait beau." for n in range(5)]


def read_as(text: str, encoding: str) -> str:
    """UTF-8 read in an encoding; what that lacks as Windows passes it on."""
    data = text.encode()
    return "".join(bytes([b]).decode(encoding, "ignore") or chr(b) for b in data)


@pytest.mark.parametrize(
    "text",
    [
        read_as(FRENCH[0], "cp1252"),
        read_as(FRENCH[0], "latin-1"),
        read_as("à table", "cp1252").replace("\xa0", " "),
        read_as("it’s “so” – or…", "cp1252"),
        read_as("Привет, мир", "cp1252"),
        read_as("Привет, мир", "cp1251"),
        read_as("안녕하세요", "latin-1"),
        read_as("日本語です", "cp1252"),
        read_as("Γειά σου", "latin-1"),
        read_as("café", "mac_roman"),
        read_as("it’s", "mac_roman"),
        read_as("café", "cp437"),
        read_as(read_as("café", "latin-1"), "latin-1"),
        read_as("😀", "cp1252"),
    ],
)
def test_text_read_in_a_wrong_encoding(text: str) -> None:
    assert odd_characters([text])["wrong encoding"] == 1


@pytest.mark.parametrize(
    "text",
    [
        *FRENCH,
        "MENÜ“ und „GRÜN“, ÄÖÜ… NIÑO” CAFÉ»",
        "Ã é uma letra; São João, IRMÃ E MÃE; â, ê, î",
        "CCCP, СССР, РСФСР, Россия",
        "√2 ≈ 1.41; a√b",
        "Đà Nẵng ở miền Trung",
        "日本語です。한국어 문장입니다.",
        "ค่ะ\u200bกขค",
        "C:\\new\\table and \\alpha \\nabla",
        "AT&T; R&D; a & b; &c",
        "Ünï “ñ” – à … « été »",
        "می\u200cخواهم",
    ],
)
def test_other_text_has_none(text: str) -> None:
    assert odd_characters([text]) == {}


CLEAN = "The first office flew – fine.\nIt is café. Next"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("escapes", "caf\\u00e9 \\ud83d\\ude00", "café 😀"),
        ("entities", "caf&eacute; &amp; &#39;a&#39; &hellip;", "café & 'a' …"),
        ("line ends", "One.\\nTwo\\r\\nThree\\nfour C:\\new", "One.\nTwo\nThree\\nfour C:\\new"),
        ("soft hyphens", "Silben\xadtrennung", "Silbentrennung"),
        ("ligatures", "the \ufb01rst o\ufb03ce \ufb02ew", "the first office flew"),
        ("byte order marks", "one\ufefftwo", "onetwo"),
        ("directions", "\u202bשלום\u202c \u200fa", "שלום a"),
        ("separators", "one\u2028two\x85three\x0cfour\u2029five", "one\ntwo\nthree\nfour\nfive"),
        ("zero width", "one\u200btwo\u2060three", "onetwothree"),
        ("private use", "a \uf0b7b", "a b"),
        ("overstriking", "N\bNA\bA_\bx", "NAx"),
        ("presentation forms", "\ufee3\ufeae\ufea3\ufe92\ufe8e 1", "مرحبا 1"),
        ("control characters", "\x1b[31mred\x1b[0m \x08a\x93", "red a"),
    ],
)
def test_odd_characters_are_counted_and_the_command_mends_them(
    name: str, text: str, expected: str, tmp_path: Path
) -> None:
    counts = odd_characters([text, "plain", "é plain", text, text])
    assert counts[name] == 3
    said = odd_notes(counts)[name]
    assert said.endswith("(3 such lines)")
    assert name not in odd_notes(odd_characters([text, text]))
    command = re.search(r"(?:python -c|col -bx) .*> NEW", said)
    assert command
    (tmp_path / "OLD").write_text(text + "\n", encoding="utf-8", newline="")
    subprocess.run(["bash", "-c", command[0]], cwd=tmp_path, check=True)
    assert (tmp_path / "NEW").read_text(encoding="utf-8") == expected + "\n"


def test_lines_in_two_encodings_are_converted_by_the_command(tmp_path: Path) -> None:
    text = "".join(f"{line}\n" for line in FRENCH * 2)
    lines = [
        line.encode("utf-8" if n % 2 else "cp1252") + b"\n" for n, line in enumerate(FRENCH * 2)
    ]
    path = tmp_path / "OLD"
    path.write_bytes(b"".join(lines))
    with pytest.raises(
        InputError, match="5 at the beginning of the file look like WINDOWS"
    ) as told:
        list(read_lines(path))
    command = re.search(r"python -c .*?> NEW", str(told.value))
    assert command
    subprocess.run(["bash", "-c", command[0]], cwd=tmp_path, check=True)
    assert (tmp_path / "NEW").read_text(encoding="utf-8") == text


@pytest.mark.skipif(not shutil.which("ftfy"), reason="ftfy is not installed")
def test_ftfy_mends_what_was_read_wrongly(tmp_path: Path) -> None:
    (tmp_path / "OLD").write_text(read_as(FRENCH[0], "cp1252"), encoding="utf-8")
    subprocess.run("ftfy OLD -o NEW", cwd=tmp_path, check=True, shell=True)
    assert "café" in (tmp_path / "NEW").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "text",
    ["Ovttastuvvon Náššuvnnaid", "wäre»—", "ꦩꦤꦸꦁꦱ꧈\u200bꦩꦸꦗꦸꦢ꧀", "محمد ﷺ قال ﴿نعم﴾", "Å\xa0og Ø"],
)
def test_letters_of_languages_are_not_odd(text: str) -> None:
    assert odd_characters([text]) == {}
