"""Words with tags as people and programs write them by hand: the right values, or a remedy that is
followed here to the letter."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bothways.errors import InputError
from bothways.io.annotations.annotators import FORMATS
from bothways.tasks.options import TaggingOptions
from bothways.tasks.sentences import Sentences, read_sentences
from bothways.tasks.tagging import written_format

LABELS = ("O", "B-PER", "I-PER", "B-LOC")


def write(folder: Path, name: str, content: object) -> Path:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / name).write_bytes(text.encode())
    return folder / name


def read(path: Path, labels: tuple[str, ...] = (), **options: Any) -> Sentences:
    return read_sentences(path, TaggingOptions(**options), labelled=True, labels=labels)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.conll", "Mary\t1\nSmith\t2\nleft\t0\n\nParis\t3\n"),
        ("b.csv", "sentence_id,word,tag\n1,Mary,1\n1,Smith,2\n1,left,0\n2,Paris,3\n"),
        (
            "c.jsonl",
            '{"tokens": ["Mary", "Smith", "left"], "ner_tags": ["1", "2", "0"]}\n'
            '{"tokens": ["Paris"], "ner_tags": ["3"]}\n',
        ),
        (
            "d.json",
            [
                {"sentence_id": n, "word": word, "tag": tag}
                for n, word, tag in zip(
                    (1, 1, 1, 2), ("Mary", "Smith", "left", "Paris"), (1, 2, 0, 3), strict=True
                )
            ],
        ),
        (
            "e.json",
            [
                {"tokens": ["Mary", "Smith", "left"], "ner_tags": [1, 2, 0]},
                {"tokens": ["Paris"], "ner_tags": [3]},
            ],
        ),
    ],
)
def test_numbers_of_tags_have_the_names_of_the_labels(
    name: str, content: object, tmp_path: Path
) -> None:
    found = read(write(tmp_path, name, content), LABELS)
    assert found.tags == [["B-PER", "I-PER", "O"], ["B-LOC"]]
    assert "its tags are numbers, read as the names of the task's labels: 3 is B-LOC" in " ".join(
        found.notes
    )
    with pytest.raises(InputError, match=r"--task\.labels O B-PER I-PER"):
        read(write(tmp_path, name, content))
    with pytest.raises(InputError, match=r"the tag is the number 3, and task.labels has 3 names"):
        read(write(tmp_path, name, content), LABELS[:3])


@pytest.mark.parametrize("name", ["a.conll", "a.tsv"])
def test_numbers_behind_words_to_predict_stay_as_they_are(name: str, tmp_path: Path) -> None:
    header = "word\ttag\n" if name == "a.tsv" else ""
    path = write(tmp_path, name, f"{header}Mary\t3\nleft\t0\n")
    found = read_sentences(path, TaggingOptions(), labelled=False, labels=LABELS)
    assert found.unchecked_tags == [["3", "0"]]


def test_labels_that_are_numbers_stay_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path, "a.conll", "Mary\t1\nleft\t0\n")
    found = read(path, ("0", "1"), scheme="none")
    assert found.tags == [["1", "0"]]
    assert found.notes == ()


MARY = [["Mary", "left"], ["Paris"]]
OF_MARY = [["B-PER", "O"], ["B-LOC"]]


def followed(error: InputError, path: Path) -> Path:
    """The file that the command of a message makes."""
    command = re.search(r"(?:awk|tail|sed|tr|python3) .*> NEW(\.\w+)?", str(error))
    assert command is not None, error
    new = path.with_name(f"new{command[1] or path.suffix}")
    shell = command[0].replace(f"NEW{command[1] or ''}", str(new)).replace("OLD", str(path))
    subprocess.run(shell, shell=True, check=True)
    return new


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("title.conll", "My corpus of names\n\nMary\tB-PER\nleft\tO\n\nParis\tB-LOC\n"),
        ("spaces.conll", "Document 1: News\nMary B-PER\nleft O\n\nParis B-LOC\n"),
        ("word.conll", "Annotations\n\nMary B-PER\nleft O\n\nParis B-LOC\n"),
        ("tabs.conll", "Annotations\nMary\tB-PER\nleft\tO\n\nParis\tB-LOC\n"),
        ("columns.conll", "Mary NNP B-PER\nleft VBD O\n\nParis B-LOC\n"),
        ("columns.bio", "Mary\tB-PER\nleft\tVBD\tO\n\nParis\tNNP\tB-LOC\n"),
        ("documents.conll", "-DOCSTART- -X- O\n\nMary NNP B-PER\nleft O\n\nParis B-LOC\n"),
    ],
)
def test_lines_of_another_width_have_a_remedy(name: str, content: str, tmp_path: Path) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(InputError, match=r"has \d columns?, ") as raised:
        read(path)
    found = read(followed(raised.value, path))
    assert (found.words, found.tags) == (MARY, OF_MARY)


@pytest.mark.parametrize("mark", ["//", "%%", "##"])
def test_comments_of_another_width_have_the_option(mark: str, tmp_path: Path) -> None:
    path = write(tmp_path, "a.conll", f"Mary B-PER\nleft O\n\n{mark} by hand, twice\nParis B-LOC\n")
    with pytest.raises(InputError, match=f"--task.tagging.comment '{mark}'"):
        read(path)
    assert read(path, comment=mark).words == MARY


@pytest.mark.parametrize("space", ["\u3000", "\u00a0", "\u2003"])
def test_odd_spaces_between_columns(space: str, tmp_path: Path) -> None:
    content = f"Mary{space}B-PER\nleft{space}{space}O\n\nParis{space}B-LOC\n"
    found = read(write(tmp_path, "a.conll", content))
    assert (found.words, found.tags) == (MARY, OF_MARY)
    assert "are read as by tabs" in " ".join(found.notes)


WHO = {"annotator": 1, "annotation_id": 3, "created_at": "2024", "updated_at": "2024"}
MARKED = [{"start": 0, "end": 4, "text": "Mary", "labels": ["PER"]}]
TASK = [
    {"from_name": "ner", "to_name": "text", "type": "labels", "value": MARKED[0]},
    {"from_name": "mood", "to_name": "text", "type": "choices", "value": {"choices": ["x"]}},
    {"type": "relation", "from_id": "a", "to_id": "b", "labels": ["knows"]},
]
SPANS = [{"id": 1, "label": "PER", "start_offset": 0, "end_offset": 4}]


@pytest.mark.parametrize(
    ("content", "unread"),
    [
        ({"text": "Mary left", "id": 1, "ner": MARKED, "mood": "x", **WHO}, "'mood'"),
        (
            {"data": {"text": "Mary left"}, "annotations": [{"result": TASK}]},
            "'mood', 'relations'",
        ),
        ({"text": "Mary left", "entities": SPANS, "relations": [{"id": 1}]}, "'relations'"),
        ({"text": "Mary left", "label": [[0, 4, "PER"]], "cats": ["news"]}, "'cats'"),
        ({"text": "Mary left", "entities": SPANS, "relations": [], "Comments": ["?"]}, ""),
    ],
)
def test_what_stands_beside_spans_is_said(content: object, unread: str, tmp_path: Path) -> None:
    found = read(write(tmp_path, "a.json", [content]))
    assert found.tags == [["B-PER", "O"]]
    said = [note for note in found.notes if "is not read" in note]
    assert said == ([f"a.json: what stands under {unread} is not read"] if unread else [])


def test_what_brat_has_beside_spans_is_counted(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "Mary left")
    lines = ["T1\tPER 0 4\tMary", "A1\tNegated T1", "R1\tknows Arg1:T1 Arg2:T1", "#1\tNote T1\t?"]
    found = read(write(tmp_path, "a.ann", "\n".join(lines) + "\n"))
    assert found.tags == [["B-PER", "O"]]
    assert "a.ann: 1 attributes, 1 relations are not read" in found.notes


DATATURKS = [
    {
        "content": "Mary left",
        "annotation": [
            {"label": ["PER"], "points": [{"start": 0, "end": 3, "text": "Mary"}]},
        ],
        "extras": None,
    },
    {
        "content": "Paris",
        "annotation": [{"label": ["LOC"], "points": [{"start": 0, "end": 4, "text": "Paris"}]}],
    },
    {"content": "left", "annotation": None},
]
CLUENER = [
    {"text": "Mary left", "label": {"PER": {"Mary": [[0, 3]]}}},
    {"text": "Paris", "label": {"LOC": {"Paris": [[0, 4]]}}},
]
RASA = {
    "rasa_nlu_data": {
        "common_examples": [
            {
                "text": "Mary left",
                "intent": "tell",
                "entities": [{"start": 0, "end": 4, "value": "Mary", "entity": "PER"}],
            },
            {
                "text": "Paris",
                "intent": "name",
                "entities": [{"start": 0, "end": 5, "value": "Paris", "entity": "LOC"}],
            },
        ],
        "regex_features": [],
    }
}


UBIAI = [
    {
        "documentName": "a.txt",
        "document": text,
        "tokens": [{"text": text[:size], "start": 0, "end": size, "entityLabel": label}],
        "relations": [],
    }
    for text, size, label in (("Mary left", 4, "PER"), ("Paris", 5, "LOC"))
]
VERTEX = [
    {
        "textContent": text,
        "textSegmentAnnotations": [{"startOffset": 0, "endOffset": size, "displayName": label}],
    }
    for text, size, label in (("Mary left", 4, "PER"), ("Paris", 5, "LOC"))
]


@pytest.mark.parametrize(
    ("content", "remark"),
    [
        (UBIAI, "UBIAI's JSON"),
        (VERTEX, "character spans as doccano has them"),
        (DATATURKS[:2], "Dataturks' JSON"),
        (CLUENER, "as CLUENER has them"),
        (RASA, "are the list 'rasa_nlu_data.common_examples' of one object"),
    ],
)
def test_spans_of_other_tools(content: object, remark: str, tmp_path: Path) -> None:
    found = read(write(tmp_path, "a.json", content))
    assert (found.words, found.tags) == (MARY, OF_MARY)
    assert remark in " ".join(found.notes)


def test_ends_of_dataturks_are_within(tmp_path: Path) -> None:
    wrong = json.loads(json.dumps(DATATURKS[:1]).replace('"end": 3', '"end": 5'))
    with pytest.raises(InputError, match="is 'Mary' by the file, but 'Mary l' stands there"):
        read(write(tmp_path, "a.json", wrong))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.bio", "en:Mary\tB-PER\nen:left\tO\n\nen:Paris\tB-LOC\n", "as in WikiANN's files"),
        (
            "a.csv",
            "tokens,ner_tags\n\"['Mary', 'left']\",\"['B-PER', 'O']\"\n['Paris'],['B-LOC']\n",
            "holds lists of words and of tags",
        ),
    ],
)
def test_other_forms_of_words_have_a_command(
    name: str, content: str, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(InputError, match=message) as raised:
        read(path)
    found = read(followed(raised.value, path))
    assert (found.words, found.tags) == (MARY, OF_MARY)


def test_stops_with_tags_after_slashes(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", "Mary/NNP left/VBD ./.\nParis/NNP ,/, -LRB-/-LRB- fine/JJ\n")
    with pytest.raises(InputError, match="have their tags after a slash") as raised:
        read(path)
    new = followed(raised.value, path)
    found = read(new, scheme="none")
    assert found.words == [["Mary", "left", "."], ["Paris", ",", "-LRB-", "fine"]]
    assert found.tags == [["NNP", "VBD", "."], ["NNP", ",", "-LRB-", "JJ"]]


@pytest.mark.parametrize("tag", ["nan", "None", r"\N"])
@pytest.mark.parametrize("scheme", ["auto", "none"])
def test_tags_that_say_that_there_is_none(tag: str, scheme: str, tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", f"sentence_id,word,tag\n1,Mary,B-PER\n1,left,{tag}\n")
    with pytest.raises(InputError, match=r"a\.csv:3: .* how programs write a missing value"):
        read(path, scheme=scheme)
    assert read(path, ("B-PER", tag), scheme="none").tags == [["B-PER", tag]]


def test_a_sentence_and_a_list_of_tags_in_a_row(tmp_path: Path) -> None:
    content = (
        "Sentence #,Sentence,POS,Tag\n"
        "Sentence: 1,Mary left,\"['NNP', 'VBD']\",\"['B-PER', 'O']\"\n"
        "Sentence: 2,Paris,['NNP'],['B-LOC']\n"
    )
    path = write(tmp_path, "a.csv", content)
    with pytest.raises(InputError, match="a sentence in 'Sentence' and a list of its") as raised:
        read(path)
    found = read(followed(raised.value, path))
    assert (found.words, found.tags) == (MARY, OF_MARY)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("Mary <B-PER>\nleft <O>\n\nParis <B-LOC>\n", "angle brackets"),
        ("Mary B-PER,\nleft O,\n\nParis B-LOC,\n", "a comma"),
    ],
)
def test_tags_with_more_around_them(content: str, what: str, tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", content)
    with pytest.raises(InputError, match=f"has {what} around or behind it") as raised:
        read(path)
    found = read(followed(raised.value, path))
    assert (found.words, found.tags) == (MARY, OF_MARY)


def test_types_behind_brackets(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"carry tags of their own, such as '\[Mary\]\(PER\)'"):
        read(write(tmp_path, "a.txt", "[Mary](PER) left [Paris](LOC).\n"))


def test_types_of_several_words_are_types(tmp_path: Path) -> None:
    content = "".join(f"w{n}\tLegal Person\n" for n in range(5)) + "left\tO\n"
    found = read(write(tmp_path, "a.conll", content))
    assert found.tags == [["Legal Person"] * 5 + ["O"]]


def test_texts_in_the_place_of_tags(tmp_path: Path) -> None:
    """They were classes."""
    path = write(tmp_path, "a.txt", "positive\tI love it\nnegative\tI hate it\nneutral\tWell\n")
    with pytest.raises(InputError, match="the last column holds texts, such as 'I love it'"):
        read(path)


@pytest.mark.parametrize("form", [name for name, form in FORMATS.items() if form.write is None])
def test_predictions_for_forms_that_are_not_written_have_another(form: str) -> None:
    for name in ("a.jsonl", "a.json"):
        own = written_format(Path(name), form)
        assert own == "words" or FORMATS[own].write is not None
