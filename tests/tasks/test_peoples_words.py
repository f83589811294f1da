"""Words with tags, spans and questions as tools export them: the right values, or what is wrong and
a remedy, which is followed here to the letter."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bothways.errors import InputError
from bothways.tasks.options import TaggingOptions, TaskOptions
from bothways.tasks.readers import read_rows
from bothways.tasks.sentences import Sentences, read_sentences

TEXT = "Mary Smith left Paris."
WORDS = ["Mary", "Smith", "left", "Paris", "."]
MARY = ["B-PER", "I-PER", "O", "O", "O"]
PARIS = ["O", "O", "O", "B-LOC", "O"]


def write(folder: Path, name: str, content: object) -> Path:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / name).write_bytes(text.encode())
    return folder / name


def read(path: Path, *, labelled: bool = True, **options: Any) -> Sentences:
    return read_sentences(path, TaggingOptions(**options), labelled=labelled)


# --------------------------------------------------------------------------------------- columns


@pytest.mark.parametrize(
    ("name", "content", "words", "tags"),
    [
        (
            "blank rows of a table end sentences",
            "word,tag\nMary,B-PER\n,\nSmith,O\n",
            [["Mary"], ["Smith"]],
            [["B-PER"], ["O"]],
        ),
        (
            "sentences are counted in each document",
            "doc_id,sentence_id,word,tag\nA,1,Mary,B-PER\nB,1,Smith,O\n",
            [["Mary"], ["Smith"]],
            [["B-PER"], ["O"]],
        ),
    ],
)
def test_sentences_of_tables(
    name: str, content: str, words: object, tags: object, tmp_path: Path
) -> None:
    found = read(write(tmp_path, "a.csv", content))
    assert (found.words, found.tags) == (words, tags), name


def test_a_word_in_each_row_of_whatever_has_rows(tmp_path: Path) -> None:
    rows = [("1", "Mary", "B-PER"), ("1", "left", "O"), ("2", "Paris", "B-LOC")]
    objects = [dict(zip(("sentence_id", "word", "tag"), row, strict=True)) for row in rows]
    table = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(objects), table)
    paths = [
        table,
        write(tmp_path, "a.json", objects),
        write(tmp_path, "a.jsonl", "".join(json.dumps(one) + "\n" for one in objects)),
        write(tmp_path, "a.csv", "\n".join(["sentence_id,word,tag", *map(",".join, rows)])),
    ]
    for path in paths:
        found = read(path)
        assert found.words == [["Mary", "left"], ["Paris"]]
        assert found.tags == [["B-PER", "O"], ["B-LOC"]]
        assert found.format == "csv"
    whole = write(tmp_path, "b.jsonl", {"text": "Mary left", "label": "x"})
    with pytest.raises(InputError, match="no known format of tags"):
        read(whole)  # a text with its class


def test_tags_without_a_dash(tmp_path: Path) -> None:
    found = read(write(tmp_path, "a.conll", "Mary BPER\nSmith IPER\nleft O\nParis BLOC\n"))
    assert found.tags == [["B-PER", "I-PER", "O", "B-LOC"]]
    assert "its tags are spelt like 'BPER'" in " ".join(found.notes)
    assert read(write(tmp_path, "b.conll", "a BED\nb INN\nc O\nd O\n")).scheme == "iob1"


def test_a_number_sign_is_a_word(tmp_path: Path) -> None:
    assert read(write(tmp_path, "a.conll", "# O\nMary B-PER\n")).words == [["#", "Mary"]]
    assert read(write(tmp_path, "b.conll", "# id 1\nMary B-PER\n")).words == [["Mary"]]


def test_tags_in_two_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "a.conll", "Mary NNP B-NP B-PER\nleft VBD B-VP O\n")
    found = read(path)
    assert found.tags == [["B-PER", "O"]]
    assert "tags stand in column 2, too, such as 'B-NP'" in " ".join(found.notes)
    assert "too" not in " ".join(read(path, tag=2).notes)


TWELVE = (
    "#begin document (bc/x); part 000\n"
    "bc/x 0 0 Mary NNP (S* - - - - (PERSON) -\nbc/x 0 1 left VBD * - - - - * -\n\n#end document\n"
)
NINE = "\t_" * 11 + "\n"


@pytest.mark.parametrize(
    ("content", "tags"),
    [
        (TWELVE, ["NNP", "VBD"]),
        (f"1\tMary\tmary\tmary\tNNP{NINE}2\tleft\tleave\tleave\tVBD{NINE}", ["NNP", "VBD"]),
        ("Mary B-PER 0.99\nleft O 0.98\n", ["B-PER", "O"]),
    ],
)
def test_columns_that_a_message_names(content: str, tags: list[str], tmp_path: Path) -> None:
    path = write(tmp_path, "a.conll", content)
    with pytest.raises(InputError, match=r"task\.tagging\.word") as raised:
        read(path)
    given = dict(re.findall(r"--task\.tagging\.(\w+) '?([^\s'.]+)", str(raised.value)))
    options: Any = {k: int(v) if v.isdigit() else v for k, v in given.items()}
    found = read(path, **options)
    assert (found.words, found.tags) == ([["Mary", "left"]], [tags])


def test_a_quotation_mark_as_a_word(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", 'word,tag\nMary,B-PER\n",O\nleft,O\n",O\nx,O\n')
    with pytest.raises(InputError, match=r":3: a word holds a line break") as raised:
        read(path)
    command = re.search(r"sed .*?OLD > NEW", str(raised.value))
    assert command is not None
    shell = command[0].replace("OLD", "a.csv").replace("NEW", "b.csv")
    subprocess.run(["bash", "-c", shell], cwd=tmp_path, check=True)
    assert read(tmp_path / "b.csv").words == [["Mary", '"', "left", '"', "x"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("#FORMAT=WebAnno TSV 3.3\n#T_SP=x|value\n\n1-1\t0-4\tMary\tPER\t\n", "INCEpTION.*CoNLL"),
        ("[('Mary left', {'entities': [(0, 4, 'PER')]})]\n", "what Python prints.*json.dump"),
        ('{"tokens": ["Mary", "left"], "tags": ["B-PER", "O"]}\n', "name a file with JSON .json"),
        ("<PER>Mary</PER> left\n", "words carry tags of their own, such as '<PER>Mary</PER>'"),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.tsv", "a.conll"])
def test_forms_that_are_named(name: str, content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read(write(tmp_path, name, content))


@pytest.mark.parametrize("end", ["EOS", "<eos>", "</s>", "-----"])
def test_lines_that_stand_for_blank_ones(end: str, tmp_path: Path) -> None:
    found = read(write(tmp_path, "a.conll", f"Mary\tB-PER\nleft\tO\n{end}\nParis\tB-LOC\n{end}\n"))
    assert found.words == [["Mary", "left"], ["Paris"]]
    assert f"2 lines '{end}' end sentences" in " ".join(found.notes)


def test_numbers_that_begin_again(tmp_path: Path) -> None:
    """A sentence begins there, blank line or not."""
    columns = "\t_\t{}\t_\t_\t_\t_\t_\t_\n"
    one, two, three = (columns.format(tag) for tag in ("PROPN", "VERB", "X"))
    numbered = write(tmp_path, "a.conllu", f"1\tMary{one}2\tleft{two}1\tParis{three}")
    others = write(tmp_path, "a.conll", "1 Mary X B-PER\n2 left X O\n1 Paris X B-LOC\n")
    for path in (numbered, others):
        found = read(path)
        assert found.words == [["Mary", "left"], ["Paris"]]
        assert "1 sentence without a blank line before" in " ".join(found.notes)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "1\tMary\tN\tB-PER\n1\tleft\tV\tO\n2\tParis\tN\tB-LOC\n"),
        ("a.txt", "1 Mary N B-PER\n1 left V O\n2 Paris N B-LOC\n"),
        ("a.csv", "1,Mary,N,B-PER\n1,left,V,O\n2,Paris,N,B-LOC\n"),
    ],
)
def test_numbers_of_sentences(name: str, content: str, tmp_path: Path) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(InputError, match=r":1: its first column .* numbers of sentences") as raised:
        read(path)
    command = re.search(r"\(printf .*\) > (NEW\.\w+)", str(raised.value))
    assert command is not None
    shell = command[0].replace("OLD", name)
    subprocess.run(["bash", "-c", shell], cwd=tmp_path, check=True)
    found = read(tmp_path / command[1])
    assert found.words == [["Mary", "left"], ["Paris"]]
    assert found.tags == [["B-PER", "O"], ["B-LOC"]]


def test_rows_of_words_with_a_key_that_the_first_lacks(tmp_path: Path) -> None:
    rows = [{"word": "Mary", "tag": "B-PER"}, {"word": "left", "tag": "O"}]
    rows.append({"word": "Paris", "tag": "B-LOC", "sentence_id": "2"})
    assert read(write(tmp_path, "a.json", rows)).words == [["Mary", "left"], ["Paris"]]


def test_what_is_no_object_among_rows_of_words(tmp_path: Path) -> None:
    rows = [*[{"word": "Mary", "tag": "B-PER"}] * 100, ["left", "O"]]
    with pytest.raises(InputError, match=r':101: \["left", "O"\] is no object'):
        read(write(tmp_path, "a.json", rows))


def test_a_tag_that_a_spreadsheet_would_compute(tmp_path: Path) -> None:
    book = pytest.importorskip("openpyxl").Workbook()
    for row in (["word", "tag"], ["Mary", "B-PER"], ["left", "=B2"]):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    with pytest.raises(InputError, match=r":3: column 'tag' is a formula whose value"):
        read(tmp_path / "a.xlsx")
    assert read(tmp_path / "a.xlsx", labelled=False).words == [["Mary", "left"]]


def test_the_column_of_a_scheme_among_columns_of_tags(tmp_path: Path) -> None:
    content = "word,tag,ner\nMary,NNP,B-PER\nleft,VBD,O\n"
    found = read(write(tmp_path, "a.csv", content))
    assert found.tags == [["B-PER", "O"]]
    assert "tags in 'ner' (not in 'tag')" in " ".join(found.notes)
    assert read(tmp_path / "a.csv", tag=1).tags == [["NNP", "VBD"]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,label\nMary left,x\nShe sang,y\n", "its rows hold texts, such as"),
        ("a.csv", "doc_id,start,end,label,text\n1,0,4,PER,Mary\n", "its rows are spans, not words"),
        ("a.csv", "word,ner_tag\nMary,1\nleft,0\n", r":2: its tags are numbers, such as 1"),
        ("a.txt", '"Mary" "B-PER"\n"left" "O"\n', r"in quotation marks.*tr -d '\"'"),
        ("a.txt", "1 Mary m N _ _ 2 n _ _\n2 left l V _ _ 0 r _ _\n", r"word 1 .*tag 3\."),
    ],
)
def test_what_is_no_word_with_its_tag(
    name: str, content: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        read(write(tmp_path, name, content))


def test_a_sign_within_a_sentence_is_a_word_where_comments_begin_with_it(tmp_path: Path) -> None:
    content = "# id 1\nMary B-PER\n# O\n1 O\n\n# id 2\n# of two\nShe O\nleft O\n"
    found = read(write(tmp_path, "a.conll", content))
    assert found.words == [["Mary", "#", "1"], ["She", "left"]]


def test_lines_of_two_words_are_text(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", "Mary left\nShe sang\n")
    with pytest.raises(InputError, match="Running text is tagged by"):
        read(path, labelled=False)
    assert read(write(tmp_path, "b.txt", "Mary N\nleft V\n"), labelled=False).words
    lemmas = write(tmp_path, "c.tsv", "Mary\tmary\nleft\tleave\n")
    assert read(lemmas, labelled=False).words == [["Mary", "left"]]


def test_words_with_marks_of_pages_are_words(tmp_path: Path) -> None:
    path = write(tmp_path, "a.conll", "<b>Mary</b> NN\nleft VB\nMary NN\n")
    assert read(path).words == [["<b>Mary</b>", "left", "Mary"]]


def test_a_folder_of_brat_with_more_in_it(tmp_path: Path) -> None:
    for name in ("a", "inner/b"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(".txt").write_text("Mary left\n")
        path.with_suffix(".ann").write_text("T1\tPER 0 4\tMary\n")
    (tmp_path / "c.txt").write_text("She left\n")
    found = read(tmp_path)
    assert found.words == [["Mary", "left"]]
    said = " ".join(found.notes)
    assert "1 texts without an .ann file are left out" in said
    assert "1 folders in it are not read: 'inner'" in said


# ----------------------------------------------------------------------------------------- spans


@pytest.mark.parametrize(
    ("item", "tags", "said"),
    [
        ({"text": TEXT, "label": [["PER", 0, 10]]}, MARY, ""),
        ({"text": TEXT, "entities": [["Mary Smith", "PER", 0, 10]]}, MARY, ""),
        (  # Argilla, before version 2
            {
                "text": TEXT,
                "tokens": WORDS,
                "annotation": [["PER", 0, 10]],
                "status": "Validated",
            },
            MARY,
            "",
        ),
        (
            {
                "text": TEXT,
                "spans": [
                    {"start": 0, "end": 10, "label": "PER", "answer": "reject"},
                    {"start": 16, "end": 21, "label": "LOC", "answer": "accept"},
                ],
                "answer": "accept",
            },
            PARIS,
            "1 spans that the annotator rejected are left out",
        ),
        (
            {
                "text": TEXT,
                "entities": [
                    {"start": 0, "end": 10, "label": "PER", "answer": "reject"},
                    {"start": 16, "end": 21, "label": "LOC"},
                ],
            },
            PARIS,
            "1 spans that the annotator rejected are left out",
        ),
        (
            {"text": TEXT, "annotations": [{"label": 3, "start_offset": 0, "end_offset": 10}]},
            ["B-3", "I-3", "O", "O", "O"],
            "its labels are numbers, such as 3",
        ),
        (
            {"text": TEXT, "label": [[0, 9, "PER"]]},
            MARY,
            "most lack its last character",
        ),
        (
            {"tokens": WORDS, "pos_tags": ["N"] * 5, "ner_labels": MARY},
            MARY,
            "tags in 'ner_labels', not in 'pos_tags'",
        ),
    ],
)
def test_what_is_read(item: object, tags: list[str], said: str, tmp_path: Path) -> None:
    found = read(write(tmp_path, "a.jsonl", item))
    assert (found.words, found.tags) == ([WORDS], [tags])
    assert said in " ".join(found.notes)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            {"text": TEXT, "entities": [{"entity": "B-PER", "start": 0, "end": 4}]},
            "label of a span is 'B-PER', a tag of a word.*aggregation_strategy",
        ),
        (
            {"text": TEXT, "ents": [], "spans": {"sc": [{"start": 0, "end": 4, "label": "X"}]}},
            "no spans but those in the groups 'sc'",
        ),
        ({"text": TEXT, "label": [[0, 10, "O"]]}, "label O, which says that there is no entity"),
        (
            {
                "data": {"image": "/x.jpg"},
                "annotations": [{"result": [{"type": "rectanglelabels", "value": {"x": 1}}]}],
            },
            "regions of the kind 'rectanglelabels'",
        ),
        ({"data": {"text": TEXT}, "predictions": [{"result": []}]}, "no examples that were annot"),
    ],
)
def test_what_is_refused(item: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read(write(tmp_path, "a.jsonl", item))


def test_types_that_only_look_like_tags(tmp_path: Path) -> None:
    item = {"text": TEXT, "label": [[0, 10, "B-cell"], [16, 21, "city"]]}
    found = read(write(tmp_path, "a.jsonl", item))
    assert found.tags == [["B-B-cell", "I-B-cell", "O", "B-city", "O"]]


def test_a_file_to_predict_has_every_text(tmp_path: Path) -> None:
    """Those that nobody annotated are what one predicts."""
    span = {"type": "labels", "value": {"start": 0, "end": 4, "labels": ["PER"]}}
    tasks = [
        {"id": 1, "data": {"text": "Mary left"}, "annotations": []},
        {"id": 2, "data": {"text": "Mary sang"}, "annotations": [{"result": [span]}]},
        {"id": 3, "data": {"text": "She left"}, "annotations": [{"was_cancelled": True}]},
        {"id": 4, "data": {"text": "She sang"}, "predictions": [{"result": [span]}]},
    ]
    path = write(tmp_path, "a.json", tasks)
    texts = ["Mary left", "Mary sang", "She left", "She sang"]
    assert [" ".join(words) for words in read(path, labelled=False).words] == texts
    assert [" ".join(words) for words in read(path).words] == ["Mary sang"]
    assert read_rows(path, TaskOptions(text_a="text"), labelled=False).a == texts


# ------------------------------------------------------------------------------- labels of texts

CHOICE = {"from_name": "mood", "type": "choices", "value": {"choices": ["gay"]}}
MOOD = TaskOptions(text_a="text", label="mood")


def task(text: str, *results: object, **data: str) -> dict[str, Any]:
    return {"data": {"text": text, **data}, "annotations": [{"result": [*results]}]}


@pytest.mark.parametrize("order", [1, -1])
def test_a_label_of_the_data_is_none_where_others_were_chosen(order: int, tmp_path: Path) -> None:
    tasks = [task("a", CHOICE, mood="old"), task("b", mood="old")][::order]
    path = write(tmp_path, "a.jsonl", "".join(json.dumps(one) + "\n" for one in tasks))
    line = 2 if order == 1 else 1
    with pytest.raises(InputError, match=rf":{line}: nothing was chosen for 'mood'"):
        read_rows(path, MOOD, labelled=True)
    path = write(tmp_path, "b.json", [task("a", mood="old"), task("b", mood="new")])
    assert read_rows(path, MOOD, labelled=True).labels == ["old", "new"]  # all of the data


def test_what_was_given_as_a_label_already_cannot_be_left_out(tmp_path: Path) -> None:
    tasks = [task("a", CHOICE), task("b", mood="old"), task("c", CHOICE)]
    path = write(tmp_path, "a.jsonl", "".join(json.dumps(one) + "\n" for one in tasks))
    skip = replace(MOOD, broken="skip")
    found = read_rows(path, skip, labelled=True)
    assert (found.a, [line for _, line, _ in found.broken.first]) == (["a", "c"], [2])
    path = write(tmp_path, "b.jsonl", "".join(json.dumps(one) + "\n" for one in tasks[1:]))
    with pytest.raises(InputError, match=r":1: nothing was chosen for 'mood'"):
        read_rows(path, skip, labelled=True)


def test_a_task_without_a_choice(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", [task("a", CHOICE), task("b")])
    with pytest.raises(InputError, match="Nothing was chosen for it in this task"):
        read_rows(path, MOOD, labelled=True)
    path = write(tmp_path, "b.json", [{"data": {"text": "a", "mood": "x"}, "predictions": []}])
    with pytest.raises(InputError, match="no examples that were annotated"):
        read_rows(path, MOOD, labelled=True)


def test_records_of_argilla(tmp_path: Path) -> None:
    records = [
        {"text": "a", "annotation": "x", "status": "Validated"},
        {"text": "b", "annotation": "x", "status": "Discarded"},
        {"text": "c", "annotation": None, "prediction": [["y", 0.3]], "status": "Default"},
    ]
    path = write(tmp_path, "a.json", records)
    options = TaskOptions(text_a="text", label="annotation")
    found = read_rows(path, options, labelled=True)
    assert (found.a, found.labels) == (["a"], ["x"])
    assert "2 examples that the annotator rejected or skipped" in " ".join(found.broken.remarks)
    assert read_rows(path, options, labelled=False).a == ["a", "b", "c"]


def test_marks_of_labels_in_an_object(tmp_path: Path) -> None:
    items = [{"text": "a", "cats": {"x": 1.0, "y": 0.0}}, {"text": "b", "cats": {"x": 1, "y": 1}}]
    path = write(tmp_path, "a.json", items)
    with pytest.raises(InputError, match=r"label_columns '\[cats\.x, cats\.y\]'"):
        read_rows(path, TaskOptions(text_a="text", label="cats"), labelled=True)
    options = TaskOptions(text_a="text", kind="multilabel", label_columns=("cats.x", "cats.y"))
    assert read_rows(path, options, labelled=True).several == [("cats.x",), ("cats.x", "cats.y")]
    path = write(tmp_path, "b.json", [{"text": "a", "label": {"id": 1, "name": "x"}}])
    with pytest.raises(InputError, match=r"For a key of it: --label label\.name"):
        read_rows(path, TaskOptions(text_a="text"), labelled=True)
