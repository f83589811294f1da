"""Words with tags as people and programs write them by hand: the right values, or a remedy that is
followed here to the letter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bothways.errors import InputError
from bothways.tasks.options import TaggingOptions
from bothways.tasks.sentences import Sentences, read_sentences

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
                for n, word, tag in [(1, "Mary", 1), (1, "Smith", 2), (1, "left", 0)]
                + [(2, "Paris", 3)]
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


def test_labels_that_are_numbers_stay_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path, "a.conll", "Mary\t1\nleft\t0\n")
    found = read(path, ("0", "1"), scheme="none")
    assert found.tags == [["1", "0"]]
    assert found.notes == ()
