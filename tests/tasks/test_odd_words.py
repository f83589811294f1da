"""Files of words whose last column has no tags, whose tags stand elsewhere, or whose sentences do:
the right values, or what is wrong and a remedy, which is followed here."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bothways.errors import InputError
from bothways.tasks.options import TaggingOptions
from bothways.tasks.sentences import Sentences, read_sentences

TWO = ([["Mary", "left"], ["Go"]], [["B-PER", "O"], ["O"]])


def write(folder: Path, name: str, content: str) -> Path:
    (folder / name).write_bytes(content.encode())
    return folder / name


def read(path: Path, *, labelled: bool = True, **options: Any) -> Sentences:
    return read_sentences(path, TaggingOptions(**options), labelled=labelled)


@pytest.mark.parametrize(
    "ends",
    [("+", "-", "+"), ("yes", "no", "yes"), ("mary", "leave", "."), ("0-4", "5-9", "9-10")],
)
def test_a_last_column_without_tags(ends: tuple[str, ...], tmp_path: Path) -> None:
    """Marks of spaces, lemmas, offsets ... behind the tags."""
    rows = zip(("Mary", "left", "."), ("B-PER", "O", "O"), ends, strict=True)
    path = write(tmp_path, "a.conll", "".join(" ".join(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=r"tags such as 'B-PER'.*\(the last is 2\)") as raised:
        read(path)
    given = dict(re.findall(r"--task\.tagging\.(\w+) (\d+)", str(raised.value)))
    found = read(path, **{name: int(column) for name, column in given.items()})
    assert (found.words, found.tags) == ([["Mary", "left", "."]], [["B-PER", "O", "O"]])
    assert read(path, tag=2).tags == [[*ends]]


def test_names_above_columns_of_tags(tmp_path: Path) -> None:
    """As HIPE's files have them."""
    content = "TOKEN\tNE-LIT\tMISC\nMary\tB-pers\t_\nleft\tO\tNoSpaceAfter\n.\tO\tEndOfSentence\n"
    with pytest.raises(InputError, match=r"line 1 seems to name the columns.*tagging\.tag 1"):
        read(write(tmp_path, "a.tsv", content))


@pytest.mark.parametrize(
    "ends", [("PROPN", "VERB"), ("b-PER", "o"), ("PER-B", "O"), ("B_PER", "O")]
)
def test_a_last_column_with_other_tags(ends: tuple[str, str], tmp_path: Path) -> None:
    path = write(tmp_path, "a.conll", f"Mary B-NP {ends[0]}\nleft O {ends[1]}\n")
    found = read(path)
    assert found.tags in ([[*ends]], [["B-PER", "O"]])
    assert "tags stand in column 1, too, such as 'B-NP'" in " ".join(found.notes)


@pytest.mark.parametrize(
    ("content", "words", "tags"),
    [
        ("Mary|NNP|B-PER left|VBD|O\nGo|VB|O\n", *TWO),
        ("Mary|B-PER left|O\nGo|O\n", *TWO),
        ("Mary/PERSON left/O\nGo/O\n", TWO[0], [["I-PERSON", "O"], ["O"]]),
        ("Mary_NNP left_VBD\nGo_VB\n", TWO[0], [["NNP", "VBD"], ["VB"]]),
        ("Mary/B-PER\nleft/O\n\nGo/O\n", *TWO),
    ],
)
def test_tags_behind_a_mark(content: str, words: object, tags: object, tmp_path: Path) -> None:
    """They are named, and the command that is proposed does what it says."""
    with pytest.raises(InputError, match=r"tags after (a slash|a bar|an underscore)") as raised:
        read(write(tmp_path, "OLD", content))
    command = re.search(r"sed .*? > NEW", str(raised.value))
    assert command is not None
    subprocess.run(["bash", "-c", command[0]], cwd=tmp_path, check=True)
    found = read(tmp_path / "NEW")
    assert (found.words, found.tags) == (words, tags)


@pytest.mark.parametrize("tag", ["B-PER|B-FIRST", "B-PER,B-FIRST", "B-PER;I-ORG"])
def test_two_tags_of_a_word(tag: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf":1: the tag '{re.escape(tag)}' is two"):
        read(write(tmp_path, "a.conll", f"Mary {tag}\nleft O\n"))


@pytest.mark.parametrize("mark", ["# ", "## ", "#\t"])
def test_comments_before_sentences(mark: str, tmp_path: Path) -> None:
    content = f"{mark}a 1\nMary\tB-PER\nleft\tO\n\n{mark}a 2\nGo\tO\n"
    found = read(write(tmp_path, "a.conll", content))
    assert (found.words, found.tags) == TWO
    assert "which is read as a comment" in " ".join(found.notes)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("name", ["token_id", "idx", "No."])
def test_numbers_of_words_in_tables(name: str, first: int, tmp_path: Path) -> None:
    rows = ["Mary,B-PER", "left,O", "Rome,B-LOC", "Go,O", "on,O"]
    numbers = [first, first + 1, first + 2, first, first + 1]
    content = "".join(f"{n},{row}\n" for n, row in zip(numbers, rows, strict=True))
    found = read(write(tmp_path, "a.csv", f"{name},word,tag\n{content}"))
    assert found.words == [["Mary", "left", "Rome"], ["Go", "on"]]
    assert found.tags == [["B-PER", "O", "B-LOC"], ["O", "O"]]
    assert f"a sentence begins where the numbers in '{name}' do" in " ".join(found.notes)
    marked = "id,word,tag\n1,Mary,B-PER\n2,left,O\n3,Go,O\n"
    assert read(write(tmp_path, "b.csv", marked)).words == [["Mary", "left", "Go"]]
    marks = "no,word,tag\n0,Mary,B-PER\n1,left,O\n0,Go,O\n"
    assert read(write(tmp_path, "c.csv", marks)).words == [["Mary", "left", "Go"]]


def test_sentences_whose_rows_are_apart(tmp_path: Path) -> None:
    content = "sentence_id,word,tag\n1,Mary,B-PER\n2,Go,O\n1,left,O\n"
    found = read(write(tmp_path, "a.csv", content))
    assert "1 sentence with an id that came before" in " ".join(found.notes)
    content = "doc_id,sentence_id,word,tag\na,1,Mary,B-PER\na,2,Go,O\nb,1,left,O\n"
    assert "came before" not in " ".join(read(write(tmp_path, "b.csv", content)).notes)


def test_words_that_are_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, "a.conll", "1\tO\n2\tO\n3\tO\n")
    assert read(path, labelled=False).words == [["1", "2", "3"]]
    path = write(tmp_path, "b.conll", "1\tMary\n2\tleft\n")
    assert read(path, labelled=False).words == [["Mary", "left"]]


def test_a_tab_before_each_line(tmp_path: Path) -> None:
    path = write(tmp_path, "OLD", "\tMary NN B-PER\n\tleft V O\n\n\tGo V O\n")
    with pytest.raises(InputError, match=r":1: the word is empty") as raised:
        read(path)
    command = re.search(r"sed .*? > NEW", str(raised.value))
    assert command is not None
    subprocess.run(["bash", "-c", command[0]], cwd=tmp_path, check=True)
    found = read(tmp_path / "NEW")
    assert (found.words, found.tags) == TWO


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("BOS i want EOS\tO O B-X O\n", r":1: holds a sentence with 4 tags"),
        ("Mary\tO\nleft O\tParis B-LOC\n", r":2: the tag 'Paris B-LOC' holds a space"),
        ("Mary left\nB-PER O\nShe sang\nO O\n", "among its words are tags, such as 'B-PER'"),
        ("Mary left Paris .\n", "Running text is tagged by"),
        ("# a\nMary B-PER\nleft O\n\nGo O\n", r":1: the tag 'a' .*Is it a comment"),
        ("###MEDLINE:1\n\nMary\tB-PER\n", r":1: .*a comment\? task\.tagging\.comment"),
        ("A\tB\tC\tD\nMary\tB-X\tO\t_\n# id = x\n", r":3: has 1 column.*comment '#'"),
    ],
)
def test_what_is_no_column_of_words(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read(write(tmp_path, "a.conll", content))


def test_types_with_spaces_are_types(tmp_path: Path) -> None:
    content = "Mary\tB-Legal Person\nSmith Jones\tI-Legal Person\nNew York\tO\n"
    found = read(write(tmp_path, "a.conll", content))
    assert found.tags == [["B-Legal Person", "I-Legal Person", "O"]]


def test_letters_alone_in_small_letters(tmp_path: Path) -> None:
    found = read(write(tmp_path, "a.conll", "Mary b\nSmith i\nleft o\n"))
    assert found.tags == [["B", "I", "O"]]
    assert "in small letters" in " ".join(found.notes)


def test_a_table_of_spans_of_documents(tmp_path: Path) -> None:
    content = "File,Line,Begin Offset,End Offset,Type\nd.txt,0,0,4,PER\n"
    with pytest.raises(InputError, match="its rows are spans, not words"):
        read(write(tmp_path, "a.csv", content))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('"B-PER"', '"O"'),
        ("'B-PER'", "'O'"),
        ("[B-PER]", "[O]"),
        ("[B-PER]", "O"),
        ("B-PER:0.98", "O"),
        ("B-PER:.981", "O:0.9991"),
        ("B-PER:9.8E-1", "O"),
    ],
)
def test_tags_with_more_around_them(first: str, second: str, tmp_path: Path) -> None:
    """Quotation marks, brackets, scores; without them after the command."""
    path = write(tmp_path, "a.conll", f'Mary {first}\nleft {second}\n" {second}\n')
    with pytest.raises(InputError, match=r":1: .*Write B-PER") as raised:
        read(path)
    rule = re.search("sed -E ('.*') OLD > NEW", str(raised.value))
    assert rule is not None
    command = f"sed -E {rule[1]} a.conll > b.conll"
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    found = read(tmp_path / "b.conll")
    assert (found.words, found.tags) == ([["Mary", "left", '"']], [["B-PER", "O", "O"]])
    assert read(path, scheme="none").tags == [[first, second, second]]


def test_types_with_numbers_behind_them(tmp_path: Path) -> None:
    path = write(tmp_path, "a.conll", "Mary B-PER:1\nleft O\n")
    assert read(path).tags == [["B-PER:1", "O"]]


@pytest.mark.parametrize(
    "line", ["[Mary PER] left", "[PER Mary] left", "(PER Mary) left", "<PER>Mary</PER> left"]
)
def test_marks_within_texts(line: str, tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", f"She sang\n{line}\n")
    with pytest.raises(InputError, match=r":2: its words carry tags of their own"):
        read(path)


def test_concepts_without_their_text(tmp_path: Path) -> None:
    path = write(tmp_path, "a.con", 'c="aspirin" 12:3 12:3||t="treatment"\n')
    with pytest.raises(InputError, match="concepts of i2b2"):
        read(path)


def test_words_in_brackets_of_their_own(tmp_path: Path) -> None:
    content = "( -LRB-\nMary NNP\n) -RRB-\n[ SYM\nNASA] NNP\n(EU NNP\n"
    assert read(write(tmp_path, "a.txt", content)).scheme == "none"


def test_sentences_in_lines_to_predict(tmp_path: Path) -> None:
    """Where all have as many words, the last of each looks like its tag."""
    path = write(tmp_path, "a.txt", "Mary left .\nShe sang .\n")
    found = read(path, labelled=False)
    assert "if each line is a sentence" in " ".join(found.notes)
    for content in ("Mary NN B-PER\nleft V O\n", "Mary\nleft\n", "Mary _\nleft _\n"):
        assert not read(write(tmp_path, "a.txt", content), labelled=False).notes
    path = write(tmp_path, "a.txt", "Mary NN\nleft VB\n")
    assert not read_sentences(path, TaggingOptions(), labelled=False, labels=("VB", "DT")).notes
