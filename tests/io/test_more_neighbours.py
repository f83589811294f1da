"""Further neighbours of files that bug reports tell of: read with the right values, or named with a
remedy. docs/faults.md has them in a table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bothways.errors import InputError
from bothways.io.annotations.squad import read_questions
from bothways.io.text import read_lines
from bothways.tasks.options import TaggingOptions, TaskOptions
from bothways.tasks.readers import read_rows
from bothways.tasks.sentences import read_sentences

KOREAN = "어제 시장에서 사과를 샀다"
ROWS = "sentence,label\na,x\nb,y\n"
JSON = '{"sentence": "a", "label": "x"}', '{"sentence": "b", "label": "y"}'
AS_ROWS = (["a", "b"], ["x", "y"])


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("text", "encoding", "named"),
    [
        ("“It’s fine,” he said – “really…”\n", "cp1252", "WINDOWS-1252"),
        ("It’s the company’s, 1990–95\n", "cp1252", "WINDOWS-1252"),
        ("for 5 € or €7, 9€.\n", "cp1252", "WINDOWS-1252"),
        ("El señor está aquí, él también comió después\n", "mac_roman", "MACINTOSH"),
        (f"{KOREAN}.\n", "utf-16-le", "UTF-16LE"),
        (f"{KOREAN}.\n", "utf-32-be", "UTF-32BE"),
        (f"{KOREAN}.\n", "euc_kr", "CP949"),
        ("아버지가 방에 들어가신다. 오늘은 날씨가 좋습니다.\n", "johab", "JOHAB"),
    ],
)
def test_encodings_and_the_remedy(text: str, encoding: str, named: str, tmp_path: Path) -> None:
    data = (text * 8).encode(encoding)
    with pytest.raises(InputError, match=f"iconv -f {named} -t UTF-8"):
        list(read_lines(write(tmp_path, "a.txt", data)))
    assert data.decode(named.lower().replace("macintosh", "mac_roman")) == text * 8, "the remedy"


def test_emoji_in_two_halves_and_the_remedy(tmp_path: Path) -> None:
    text = f"{KOREAN} 😀 was fun.\n"
    halves = text.replace("😀", "\ud83d\ude00").encode("utf-8", "surrogatepass")
    with pytest.raises(InputError, match="CESU-8") as caught:
        list(read_lines(write(tmp_path, "OLD", halves)))
    command = str(caught.value).split("convert it: ")[1].rstrip(".")
    command = command.replace("python -c", f"{sys.executable} -c")
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    assert (tmp_path / "NEW").read_text() == text


@pytest.mark.parametrize("encoding", ["cp500", "utf_7"])
def test_no_encoding_is_named_that_it_does_not_have(encoding: str, tmp_path: Path) -> None:
    data = ("Bytes that tell nothing +-, but no Windows text: é.\n" * 8).encode(encoding)
    with pytest.raises(InputError) as caught:
        list(read_lines(write(tmp_path, "a.txt", data)))
    assert "1252" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "read"),
    [
        (
            "a.csv",
            "sentence,label\na\u2028b,x\nc\x85d,y\ne\x0bf,x\ng\x0ch,y\n",
            (["a\u2028b", "c\x85d", "e\x0bf", "g\x0ch"], ["x", "y", "x", "y"]),
        ),
        ("a.csv", ROWS + "\x1a", AS_ROWS),
        ("a.csv", ROWS.replace(",", "|"), AS_ROWS),
        ("a.csv", ",sentence,label\n0,a,x\n1,b,y\n", AS_ROWS),
        ("a.tsv", "sentence\tlabel\t\t\na\tx\t\t\nb\ty\t\t\n", AS_ROWS),
        ("a.csv", 'sentence,label\n"a\nc",x\nb,y\n', (["a\nc", "b"], ["x", "y"])),
        ("a.jsonl", "".join(f"\ufeff{line}\n" for line in JSON), AS_ROWS),
        ("a.json", '{"sentence": ["a", "b"], "label": ["x", "y"]}', AS_ROWS),
        (
            "a.json",
            '{"columns":["sentence","label"],"index":[0,1],"data":[["a","x"],["b","y"]]}',
            AS_ROWS,
        ),
        ("a.json", '{"sentence":{"0":"a","1":"b"},"label":{"0":"x","1":"y"}}', AS_ROWS),
        (
            "a.jsonl",
            '{"sentence": "a", "label": ["x"]}\n{"sentence": "b", "label": ["y"]}\n',
            AS_ROWS,
        ),
        (
            "a.jsonl",
            '{"sentence": "a", "label": true}\n{"sentence": "b", "label": false}\n',
            (["a", "b"], ["true", "false"]),
        ),
    ],
)
def test_rows_that_are_read(
    name: str, content: str, read: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    found = read_rows(write(tmp_path, name, content), TaskOptions(), labelled=True)
    assert (found.a, found.labels) == read


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "| sentence | label |\n|---|:---:|\n| a | x |\n", r":2: .*table in Markdown"),
        ("a.csv", ROWS.replace("sentence", " Sentances"), "Did you mean 'Sentances'"),
        ("a.csv", "sentence,label,label\na,x,y\n", "names twice the column 'label'"),
        ("a.csv", ROWS + "c,\n", ":4: the label is empty"),
        ("a.csv", "sentence,label\na,1\nb,1e0\nc,0\n", "'1e0' here and '1' on line 2"),
        ("a.csv", "sentence,label\n", "has no examples"),
        ("a.csv", 'sentence,label\na,x\n"b,y\nc,x\n', "a quotation mark opens or closes"),
        ("a.jsonl", '{"sentence": "a \\ud83d", "label": "x"}\n', "half of a surrogate pair"),
        ("a.json", f"[{JSON[0]},]", "is not JSON"),
        ("a.jsonl", "".join(JSON), "is not JSON .Extra data"),
        ("a.jsonl", '{"sentence": "a", "label": null}\n', "key 'label' is null"),
        ("a.jsonl", '{"sentence": "a", "label": NaN}\n', "holds NaN; a missing label"),
        ("a.jsonl", "{'sentence': 'a', 'label': 'x'}\n", "enclosed in double quotes"),
        ("a.json", f"// by hand\n[{JSON[0]}]", "it must begin with"),
        ("a.json", '[["a", "x"], ["b", "y"]]', "is JSON but not an object"),
    ],
)
def test_rows_that_are_named(name: str, content: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(InputError, match=message) as raised:
        read_rows(path, TaskOptions(), labelled=True)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("content", "tags", "said"),
    [
        ("Mary B_PER\nSmith I_PER\nleft O\n", ["B-PER", "I-PER", "O"], "B_PER"),
        ("Mary b-per\nSmith i-per\nleft o\n", ["B-per", "I-per", "O"], "b-per"),
        ("Mary PER-B\nSmith PER-I\nleft O\n", ["B-PER", "I-PER", "O"], "PER-B"),
        ("Mary B-PER\nSmith I-PER\nleft o\n", ["B-PER", "I-PER", "O"], "'o' is read as 'O'"),
        ("# id = 1\nMary B-PER\nSmith I-PER\nleft O\n", ["B-PER", "I-PER", "O"], "a comment"),
        (
            "-DOCSTART- -X- O O\n\nMary N B-NP B-PER\nSmith N I-NP I-PER\nleft V B-VP O\n",
            ["B-PER", "I-PER", "O"],
            "",
        ),
    ],
)
def test_words_and_tags(content: str, tags: list[str], said: str, tmp_path: Path) -> None:
    path = write(tmp_path, "a.conll", content)
    found = read_sentences(path, TaggingOptions(), labelled=True)
    assert found.words == [["Mary", "Smith", "left"]]
    assert found.tags == [tags]
    assert said in " ".join(found.notes)


def test_a_text_in_a_json_list_has_the_limit_of_a_line(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", json.dumps([{"sentence": "a " * 2**19 + "b", "label": "x"}]))
    with pytest.raises(InputError, match="'sentence' holds a text longer than 1 MiB"):
        read_rows(path, TaskOptions(), labelled=True)


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.jsonl", '{"sentence": "a", "label": N}\n'), ("a.json", '[{"sentence": "a", "label": N}]')],
)
@pytest.mark.parametrize(
    ("value", "why"), [("9" * 5000, "number of more than 4,300 digits"), ("[" * 100_000, "deeply")]
)
def test_values_beyond_all_sense(
    name: str, content: str, value: str, why: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=why) as raised:
        read_rows(write(tmp_path, name, content.replace("N", value)), TaskOptions(), labelled=True)
    assert "sys." not in str(raised.value)


def test_line_ends_of_two_systems_in_one_table(tmp_path: Path) -> None:
    data = b"sentence,label\r\na,x\r\nb,y\rc,x\r\n"
    with pytest.raises(InputError, match=r"tr '\\r' '\\n' < OLD > NEW"):
        read_rows(write(tmp_path, "a.csv", data), TaskOptions(), labelled=True)
    path = write(tmp_path, "b.csv", data.replace(b"\r", b"\n"))
    assert read_rows(path, TaskOptions(), labelled=True).labels == ["x", "y", "x"]


@pytest.mark.parametrize("start", [10, "10", 10.0, "10.0"])
@pytest.mark.parametrize("listed", [True, False])
def test_places_of_answers(start: Any, listed: bool, tmp_path: Path) -> None:
    answers: Any = {"text": ["a small boat"], "answer_start": [start]}
    if listed:
        answers = [{"text": "a small boat", "answer_start": start}]
    question = {"id": 1, "question": "What?", "answers": answers}
    passage = {"context": "Mary sold a small boat.", "qas": [question]}
    path = write(tmp_path, "a.json", json.dumps({"data": [{"paragraphs": [passage]}]}))
    ((answer,),) = read_questions(path, labelled=True).answers
    assert (answer.text, answer.start) == ("a small boat", 10)


CUES = (
    "1\n00:00:01,000 --> 00:00:02,500\nGood evening.\n\n2\n00:00:03,000 --> 00:00:04,000\nHello.\n"
)


@pytest.mark.parametrize(
    ("content", "named", "remedy"),
    [
        (CUES, "these are subtitles", "Good evening.\nHello.\n"),
        (CUES.replace("\n", "\r\n"), "these are subtitles", "Good evening.\r\nHello.\r\n"),
        ("\ufeff" + CUES, "these are subtitles", "Good evening.\nHello.\n"),
        ("WEBVTT\n\n" + CUES.replace(",", "."), "these are subtitles", "Good evening.\nHello.\n"),
        (
            '<doc id="1" url="u" title="T">\nT\n\nA text.\n</doc>\n',
            "what WikiExtractor writes",
            "T\n\nA text.\n",
        ),
        ("<TEI><text><p>a</p></text></TEI>\n", "an XML document", ""),
        ("<DOC>\n<DOCNO> 1 </DOCNO>\n</DOC>\n", "an XML document", ""),
        ("caf=C3=A9 na=C3=AFve =\nend\n", "a mail in quoted-printable", "café naïve end\n"),
        ("Ù†Ø¹Ù… ÙƒØªØ§Ø¨\n", "UTF-8 that was read as WINDOWS-1252", "نعم كتاب\n"),
        (
            "café, naïve, señor\n".encode().decode("latin-1"),
            "UTF-8 that was read as ISO-8859-1",
            "café, naïve, señor\n",
        ),
        (
            "한국어\n".encode().decode("latin-1"),
            "UTF-8 that was read as ISO-8859-1",
            "한국어\n",
        ),
    ],
)
def test_texts_in_a_form_that_is_none_of_text(
    content: str, named: str, remedy: str, tmp_path: Path
) -> None:
    path = write(tmp_path, "OLD", content)
    with pytest.raises(InputError, match=named) as caught:
        list(read_lines(path))
    for sign in ("; take them out: ", "lines out: ", "; decode it: ", "; turn it back: "):
        _, found, command = str(caught.value).partition(sign)
        if found and remedy:
            command = command.removesuffix(".").replace("python", sys.executable)
            subprocess.run(["sh", "-c", command], check=True, cwd=tmp_path)
            new = (tmp_path / "NEW").read_bytes().decode()
            assert new.removeprefix("\ufeff") == remedy
            assert list(read_lines(tmp_path / "NEW"))


@pytest.mark.parametrize(
    "text",
    [
        "at 00:00:01 --> it began\n",
        "<s>\n<pad>\n</s>\n",
        "<p>one</p>\n",
        "a = b = c, d == e\n",
        "url?a=20&b=3D\n",
        "Ã© once, and é\n",
        "SÃO PAULO, NÃO, Ã\n",
        "«été» — déjà\n",
    ],
)
def test_what_only_looks_like_these_is_text(text: str, tmp_path: Path) -> None:
    assert [line for _, line in read_lines(write(tmp_path, "a.txt", text * 5))] == (
        text * 5
    ).splitlines()
