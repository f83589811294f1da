"""Files of tagged words and of character spans, as tools write them: one sentence, many forms."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bothways.errors import InputError
from bothways.finetuning.setup import file_digests
from bothways.io.annotations.annotators import FORMATS
from bothways.io.annotations.spans import CharacterSpan
from bothways.tasks.options import TaggingOptions, TaskOptions
from bothways.tasks.schemes import standard_spelling
from bothways.tasks.sentences import Sentences, read_sentences
from bothways.tasks.tagging import TaggedFile, TaggingTask, written_format
from bothways.tasks.words import Alignment, spans_over_words, words_of_text

TEXT = "Mary Shelley lived in London."
WORDS = ["Mary", "Shelley", "lived", "in", "London", "."]
TAGS = ["B-PER", "I-PER", "O", "O", "B-LOC", "O"]
TRIPLES = [[0, 12, "PER"], [22, 28, "LOC"]]
SPANS = [{"start": s, "end": e, "label": label} for s, e, label in TRIPLES]


def result(**value: Any) -> dict[str, Any]:
    return {"from_name": "label", "to_name": "text", "type": "labels", "value": value}


def task(text: str, triples: list[list[Any]], **more: Any) -> dict[str, Any]:
    results = [result(start=s, end=e, text=text[s:e], labels=[label]) for s, e, label in triples]
    return {"id": 7, "data": {"text": text}, "annotations": [{"result": results}], **more}


def lines(*items: Any) -> str:
    return "".join(json.dumps(item) + "\n" for item in items)


def conllu(*rows: tuple[str, str, str]) -> str:
    return "".join(f"{n}\t{w}\t_\t{t}\t_\t_\t0\tdep\t_\t_\n" for n, w, t in rows)


HUB = {"id": "0", "tokens": WORDS, "ner_tags": TAGS}
MINIMAL = {"start": 0, "end": 12, "text": "Mary Shelley", "labels": ["PER"]}
FILES = {
    "doccano.jsonl": lines({"id": 1, "text": TEXT, "label": TRIPLES, "Comments": []}),
    "old-doccano.jsonl": lines({"id": 1, "text": TEXT, "labels": TRIPLES}),
    "data.jsonl": lines({"id": 1, "data": TEXT, "label": TRIPLES}),
    "relations.jsonl": lines(
        {
            "id": 1,
            "text": TEXT,
            "entities": [
                {"id": n, "label": label, "start_offset": s, "end_offset": e}
                for n, (s, e, label) in enumerate(TRIPLES)
            ],
            "relations": [],
        }
    ),
    "label-studio.json": json.dumps([task(TEXT, TRIPLES)], indent=1),
    "completions.json": json.dumps(
        [{"id": 1, "data": {"review": TEXT}, "completions": task(TEXT, TRIPLES)["annotations"]}]
    ),
    "minimal.json": json.dumps(
        [
            {
                "text": TEXT,
                "id": 1,
                "annotation_id": 1,
                "label": [
                    MINIMAL,
                    {**MINIMAL, "start": 22, "end": 28, "text": "London", "labels": ["LOC"]},
                ],
            }
        ]
    ),
    "prodigy.jsonl": lines(
        {"text": TEXT, "spans": SPANS, "answer": "accept", "_input_hash": 1},
        {"text": "Not this one.", "spans": [], "answer": "reject", "_input_hash": 2},
        {"text": "Nor this.", "spans": SPANS[:1], "answer": "ignore", "_input_hash": 3},
    ),
    "spans.json": json.dumps([{"text": TEXT, "spans": SPANS}]),
    "spacy.json": json.dumps([[TEXT, {"entities": TRIPLES}]]),
    "spacy-indented.json": json.dumps([[TEXT, {"entities": TRIPLES}]], indent=2),
    "spacy-old.json": json.dumps([[TEXT, TRIPLES]]),
    "spacy.jsonl": lines([TEXT, {"entities": TRIPLES}]),
    "entities.jsonl": lines({"text": TEXT, "entities": TRIPLES}),
    "annotator.json": json.dumps(
        {"classes": ["PER"], "annotations": [[TEXT, {"entities": TRIPLES}]]}
    ),
    "hub.jsonl": lines(HUB),
    "hub.json": json.dumps([HUB]),
    "words.jsonl": lines({"words": WORDS, "labels": TAGS}),
    "kaggle.csv": "Sentence #,Word,POS,Tag\n"
    + "".join(
        f"{'Sentence: 1' * (n == 0)},{w},X,{t}\n"
        for n, (w, t) in enumerate(zip(WORDS, TAGS, strict=True))
    ),
    "filled.csv": "sentence_id,token,ner_tag\n"
    + "".join(f"1,{w},{t}\n" for w, t in zip(WORDS, TAGS, strict=True)),
    "semicolon.csv": "word;tag\n" + "".join(f"{w};{t}\n" for w, t in zip(WORDS, TAGS, strict=True)),
    "no-header.csv": "".join(f"{w},{t}\n" for w, t in zip(WORDS, TAGS, strict=True)),
    "header.tsv": "token\tlabel\n"
    + "".join(f"{w}\t{t}\n" for w, t in zip(WORDS, TAGS, strict=True)),
    "plain.conll": "".join(f"{w} {t}\n" for w, t in zip(WORDS, TAGS, strict=True)),
    "aligned.txt": "".join(f"{w:<12}X    {t}\n" for w, t in zip(WORDS, TAGS, strict=True)),
    "mixed.conll": "".join(
        f"{w}{chr(9) if n % 2 == 0 else '   '}{t}\n"
        for n, (w, t) in enumerate(zip(WORDS, TAGS, strict=True))
    ),
    "ids.conll": "# id 3f domain=en\n"
    + "".join(f"{w} _ _ {t}\n" for w, t in zip(WORDS, TAGS, strict=True)),
    "universal.conllu": "# newdoc id = a\n# sent_id = 1\n"
    + conllu(*((str(n), w, t) for n, (w, t) in enumerate(zip(WORDS, TAGS, strict=True), start=1))),
}


def write(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_text(content, encoding="utf-8", newline="")
    return path


@pytest.mark.parametrize("name", FILES)
def test_every_form_gives_the_same_words_and_tags(name: str, tmp_path: Path) -> None:
    found = read_sentences(write(tmp_path, name, FILES[name]), TaggingOptions(), labelled=True)
    assert found.words == [WORDS]
    assert found.tags == [TAGS]
    assert found.scheme == "iob2"
    # Recognised, and said.
    assert found.notes or name in ("plain.conll", "aligned.txt")
    unlabelled = read_sentences(tmp_path / name, TaggingOptions(), labelled=False)
    # What an annotator rejected has words, too, which a file to predict is read for.
    assert (unlabelled.words[0], unlabelled.tags) == (WORDS, None)
    assert len(unlabelled.words) == (3 if name == "prodigy.jsonl" else 1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("prodigy.jsonl", "2 examples that the annotator rejected or skipped: left out"),
        ("prodigy.jsonl", "it is Prodigy's JSON lines"),
        ("label-studio.json", "it is Label Studio's JSON"),
        ("minimal.json", "JSON_MIN"),
        ("annotator.json", "the list 'annotations' of one object"),
        ("kaggle.csv", "words in 'Word', tags in 'Tag', sentences by 'Sentence #'"),
        ("ids.conll", "read as a comment"),
        ("mixed.conll", "3 lines with spaces where the first has tabs"),
        ("universal.conllu", "it is CoNLL-U: words in FORM (1), tags in UPOS (3)"),
    ],
)
def test_what_is_said(name: str, said: str, tmp_path: Path) -> None:
    found = read_sentences(write(tmp_path, name, FILES[name]), TaggingOptions(), labelled=True)
    assert any(said in note and note.startswith(f"{name}: ") for note in found.notes), found.notes


def test_json_lines_in_a_file_named_json(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", FILES["doccano.jsonl"] * 2)
    found = read_sentences(path, TaggingOptions(), labelled=True)
    assert found.tags == [TAGS, TAGS]
    assert (
        found.notes[0]
        == "a.json: it is JSON lines, one object per line, though its name ends in .json"
    )


def test_numbers_of_tags_need_their_names(tmp_path: Path) -> None:
    path = write(tmp_path, "ids.jsonl", lines({"tokens": WORDS, "ner_tags": [1, 2, 0, 0, 3, 0]}))
    with pytest.raises(
        InputError, match=r"ids\.jsonl:1: the tag is the number 1.*--task\.labels O B-PER"
    ):
        read_sentences(path, TaggingOptions(), labelled=True)
    names = ["O", "B-PER", "I-PER", "B-LOC"]
    assert read_sentences(path, TaggingOptions(), labelled=True, labels=names).tags == [TAGS]
    with pytest.raises(InputError, match=r"number 3, and task\.labels has 3 names"):
        read_sentences(path, TaggingOptions(), labelled=True, labels=names[:3])


def test_conllu_ranges_and_empty_nodes_are_no_words(tmp_path: Path) -> None:
    rows = conllu(("1", "Vamos", "VERB"), ("2-3", "al", "_"), ("2", "a", "ADP"), ("3", "el", "DET"))
    rows += conllu(("4", "mar", "NOUN"), ("4.1", "nadar", "VERB"), ("5", ".", "PUNCT"))
    for name in ("a.conllu", "a.conll"):  # by its name, and by its content
        path = write(tmp_path, name, f"# sent_id = 1\n# text = Vamos al mar.\n{rows}\n{rows}")
        for options in (TaggingOptions(), TaggingOptions(word=1, tag=3, comment="#")):
            found = read_sentences(path, options, labelled=True)
            assert found.words == [["Vamos", "a", "el", "mar", "."]] * 2
            assert found.tags == [["VERB", "ADP", "DET", "NOUN", "PUNCT"]] * 2
            assert any("2 ranges and 2 empty nodes are no words" in note for note in found.notes)
    path = write(tmp_path, "b.conllu", conllu(("1", "Vamos", "_")))
    with pytest.raises(
        InputError, match=r"b\.conllu:1: the tag of 'Vamos' is _.*task\.tagging\.tag"
    ):
        read_sentences(path, TaggingOptions(), labelled=True)
    assert read_sentences(path, TaggingOptions(), labelled=False).words == [["Vamos"]]


BRAT = "T1\tPER 0 12\tMary Shelley\nT2\tLOC 22 28\tLondon\nR1\tIn Arg1:T1 Arg2:T2\n#1\tNote T1\tx\n"


def test_brat(tmp_path: Path) -> None:
    path = write(tmp_path, "a.ann", BRAT)
    with pytest.raises(InputError, match=r"a\.txt is missing"):
        read_sentences(path, TaggingOptions(), labelled=True)
    write(tmp_path, "a.txt", TEXT)
    assert read_sentences(path, TaggingOptions(), labelled=True).tags == [TAGS]
    write(tmp_path, "a.ann", "T1\tPER 0 4;5 12\tMary Shelley\n")
    found = read_sentences(path, TaggingOptions(), labelled=True)
    assert found.tags == [[*TAGS[:4], "O", "O"]]
    assert any(
        "1 discontinuous span taken from the first to the last" in note for note in found.notes
    )
    write(tmp_path, "a.ann", "T1\tPER 0 x\tMary\n")
    with pytest.raises(InputError, match=r"a\.ann:1: .* is no annotation of a text"):
        read_sentences(path, TaggingOptions(), labelled=True)
    write(tmp_path, "a.ann", "")
    assert read_sentences(path, TaggingOptions(), labelled=True).tags == [["O"] * 6]


def test_a_folder_of_brat(tmp_path: Path) -> None:
    """Its documents in the order of their names; what is wrong with one is said of its file."""
    for name in ("b", "a"):
        write(tmp_path, f"{name}.txt", f"{TEXT} {name}")
        write(tmp_path, f"{name}.ann", BRAT)
    write(tmp_path, "annotation.conf", "[entities]\nPER\n")
    found = read_sentences(tmp_path, TaggingOptions(), labelled=True)
    assert found.words == [[*WORDS, "a"], [*WORDS, "b"]]
    assert found.tags == [[*TAGS, "O"]] * 2
    assert f"{tmp_path.name}: it is brat's, 2 documents" in found.notes
    before = file_digests(TaskOptions(kind="tagging", train=str(tmp_path)))["task.train"]
    write(tmp_path, "b.txt", f"{TEXT} c")
    assert file_digests(TaskOptions(kind="tagging", train=str(tmp_path)))["task.train"] != before
    write(tmp_path, "b.ann", "T1\tPER 90 94\tMary\n")
    with pytest.raises(InputError, match=r"b\.ann:1: the span 90 to 94 \(PER\) is not within"):
        read_sentences(tmp_path, TaggingOptions(), labelled=True)
    (tmp_path / "b.txt").unlink()
    with pytest.raises(InputError, match=r"b\.ann: .* b\.txt is missing"):
        read_sentences(tmp_path, TaggingOptions(), labelled=True)
    for path in tmp_path.glob("*.ann"):
        path.unlink()
    with pytest.raises(InputError, match="is a folder without brat's files"):
        read_sentences(tmp_path, TaggingOptions(), labelled=True)


def test_offsets_from_one_are_suspected(tmp_path: Path) -> None:
    """Endings such as those of Korean are inside of words, beginnings are not."""
    shifted = [[start + 1, end + 1, label] for start, end, label in TRIPLES]
    path = write(tmp_path, "a.jsonl", lines({"text": TEXT, "label": shifted}))
    found = read_sentences(path, TaggingOptions(), labelled=True)
    assert any("most begin there: do the offsets count from 1" in note for note in found.notes)
    path = write(tmp_path, "a.jsonl", lines({"text": "서울에서 만났다", "label": [[0, 2, "L"]]}))
    found = read_sentences(path, TaggingOptions(), labelled=True)
    assert any(note.endswith("the whole word is taken") for note in found.notes)


def test_tags_after_slashes(tmp_path: Path) -> None:
    """They are named, and the command that is proposed does what it says."""
    old = write(tmp_path, "OLD", "EU/B-ORG rejects/O and/or/O\nDr/NNP .../O\n")
    with pytest.raises(InputError, match=r"after a slash, such as 'EU/B-ORG'") as caught:
        read_sentences(old, TaggingOptions(), labelled=True)
    (command,) = re.findall(r"sed -e .* > NEW", str(caught.value))
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    options = TaggingOptions(scheme="none")
    found = read_sentences(tmp_path / "NEW", options, labelled=True)
    assert found.words == [["EU", "rejects", "and/or"], ["Dr", "..."]]
    assert found.tags == [["B-ORG", "O", "O"], ["NNP", "O"]]
    for fine in ("1/2 O\nkm/h O\n", "a/b\n\nc/d\n"):
        read_sentences(write(tmp_path, "fine", fine), options, labelled=" " in fine)


def spans_file(folder: Path, text: str, *triples: list[Any], **more: Any) -> Sentences:
    item = {"text": text, "label": list(triples), **more}
    path = write(folder, "a.jsonl", lines({"text": TEXT, "label": TRIPLES}, item))
    return read_sentences(path, TaggingOptions(), labelled=True)


@pytest.mark.parametrize(
    ("text", "triples", "tags", "said"),
    [
        (
            "New York-based",
            [[0, 8, "L"]],
            ["B-L", "I-L"],
            "1 of 3 spans begin or end inside a word",
        ),
        ("the Londoners", [[4, 10, "L"]], ["O", "B-L"], "inside a word; the whole word is taken"),
        (
            " Ann ",
            [[0, 5, "P"]],
            ["B-P"],
            "white space at the ends of 1 labelled span is taken off",
        ),
        (
            "Bank of Rome",
            [[0, 12, "ORG"], [8, 12, "L"]],
            ["B-ORG", "I-ORG", "I-ORG"],
            "1 of 4 spans share a word",
        ),
        ("Ann Bob", [[0, 3, "P"], [4, 7, "P"]], ["B-P", "B-P"], ""),
        ("Ann's", [[0, 3, "P"]], ["B-P"], "1 of 3 spans begin or end inside a word"),
        ("", [], None, "1 empty texts are left out"),
        ("東京に行く", [[0, 2, "L"]], ["B-L", "I-L", "O", "O", "O"], ""),
    ],
)
def test_spans_become_tags(
    text: str, triples: list[list[Any]], tags: list[str] | None, said: str, tmp_path: Path
) -> None:
    found = spans_file(tmp_path, text, *triples)
    assert found.tags is not None
    assert found.tags == [TAGS, *([tags] if tags else [])] or (text == "東京に行く")
    if text == "東京に行く":
        assert found.tags[1][:2] == ["B-L", "I-L"]
    assert not said or any(said in note for note in found.notes), found.notes


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ([0, 99, "P"], r"a\.jsonl:2: the span 0 to 99 \(P\) is not within the text"),
        ([3, 3, "P"], "the span 3 to 3"),
        ([-1, 3, "P"], "not within the text"),
        ([3, 4, "P"], r"the span 3 to 4 \(P\) is white space"),
    ],
)
def test_spans_that_are_none(span: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        spans_file(tmp_path, "Ann Bob", span)


def test_offsets_of_browsers_and_changed_texts(tmp_path: Path) -> None:
    text = "😀😀 Ann met Bob"
    units = [result(start=5, end=8, text="Ann", labels=["P"])]
    path = tmp_path / "a.json"
    item = {"id": 1, "data": {"text": text}, "annotations": [{"result": units}]}
    path.write_text(json.dumps([item]))
    found = read_sentences(path, TaggingOptions(), labelled=True)
    assert [w for w, t in zip(found.words[0], found.tags[0], strict=True) if t != "O"] == ["Ann"]
    assert any(
        "the spans of 1 text count characters as browsers do" in note for note in found.notes
    )
    units[0]["value"]["text"] = "Bob"
    path.write_text(json.dumps([item]))
    with pytest.raises(InputError, match="is 'Bob' by the file, but 'n m' stands there"):
        read_sentences(path, TaggingOptions(), labelled=True)


@pytest.mark.parametrize(
    ("text", "spans", "note"),
    [
        (
            "😀👨🏽 Ann met Bob",
            [[7, 10, "P"], [15, 18, "P"]],
            "the spans of 1 text count characters as browsers",
        ),
        ("😀 Ann met Bob", [[2, 5, "P"], [10, 13, "P"]], None),
        ("서울😀에서 Ann이 Bob을", [[6, 9, "P"], [11, 14, "P"]], None),
        ("😀 Ann met Bob", [[2, 5, ["P"]], [10, 13, ["P"]]], None),
    ],
)
def test_offsets_of_browsers_without_the_words(
    text: str, spans: list[Any], note: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": text, "label": spans}))
    found = read_sentences(path, TaggingOptions(), labelled=True)
    tagged = [w for w, t in zip(found.words[0], found.tags[0], strict=True) if t != "O"]
    assert [word.rstrip("이을") for word in tagged] == ["Ann", "Bob"]
    assert any("browsers" in one for one in found.notes) == (note is not None)


@pytest.mark.parametrize(
    ("text", "start", "end", "words"),
    [
        ("One\nTwo\nThree\nWork in NGOs.", 22, 25, ["NGOs"]),
        ("été\n( eMail", 6, 7, ["eMail"]),
        ("One\r\nTwo\r\nThree\r\nWork in NGOs.", 25, 28, ["NGOs"]),
        ("😀 in NGOs", 5, 8, ["NGOs"]),
    ],
)
def test_spans_inside_words_stay_where_they_are(
    text: str, start: int, end: int, words: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": text, "label": [[start, end, "P"]]}))
    found = read_sentences(path, TaggingOptions(), labelled=True)
    assert not any("count" in note and "read so" in note for note in found.notes)
    pairs = [
        pair
        for sentence in zip(found.words, found.tags or [], strict=True)
        for pair in zip(*sentence, strict=True)
    ]
    assert [word for word, tag in pairs if tag != "O"] == words


@pytest.mark.parametrize(
    ("ends", "start", "how"),
    [
        ("\r\n", 18, None),
        ("\r\n", 17, "the spans of 1 text count a line end of two characters as one"),
        ("\n", 18, "the spans of 1 text count a line end as two characters"),
    ],
)
def test_line_ends_of_brat_that_count_otherwise(
    ends: str, start: int, how: str | None, tmp_path: Path
) -> None:
    (tmp_path / "x.txt").write_bytes(f"John loves Mary.{ends}He married her.{ends}".encode())
    spans = f"T1\tP 0 4\tJohn\nT2\tP {start} {start + 2}\tHe\n"
    (tmp_path / "x.ann").write_text(spans)
    found = read_sentences(tmp_path, TaggingOptions(), labelled=True)
    words = [word for words in found.words for word in words]
    tags = [tag for tags in found.tags or () for tag in tags]
    assert [w for w, t in zip(words, tags, strict=True) if t != "O"] == ["John", "He"]
    assert any(how is not None and how in note for note in found.notes) == (how is not None)
    assert not any("white space" in note for note in found.notes)


def test_tasks_of_label_studio_that_nobody_annotated(tmp_path: Path) -> None:
    skipped = task("Skipped.", [], annotations=[{"was_cancelled": True, "result": []}])
    path = tmp_path / "a.json"
    path.write_text(json.dumps([task(TEXT, TRIPLES), skipped, task("None.", [], annotations=[])]))
    found = read_sentences(path, TaggingOptions(), labelled=True)
    assert found.words == [WORDS]
    assert any("2 examples that the annotator rejected or skipped" in note for note in found.notes)
    assert not any("several" in note for note in found.notes)
    first = task(TEXT, TRIPLES)
    first["annotations"].append({"result": []})
    path.write_text(json.dumps([first]))
    found = read_sentences(path, TaggingOptions(), labelled=True)
    assert found.tags == [TAGS]
    said = "1 examples have several annotations, of which the first is read"
    assert any(said in note for note in found.notes)


@pytest.mark.parametrize("more", [{}, {"id": 7}, {"id": 7, "meta": {}}])
def test_tasks_of_label_studio_as_they_are_imported(more: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{**more, "data": {"text": TEXT}}]))
    assert read_sentences(path, TaggingOptions(), labelled=False).words == [WORDS]
    with pytest.raises(InputError, match="rejected or skipped"):
        read_sentences(path, TaggingOptions(), labelled=True)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            lines({"a": 1}),
            "has the keys 'a', which no known format of tags has: Label Studio",
        ),
        (
            "a.jsonl",
            lines({"tokens": ["a", "b"], "ner_tags": ["O"]}),
            "2 words in 'tokens' and 1 tags",
        ),
        (
            "a.jsonl",
            lines({"text": TEXT, "label": [[0, 4]]}, {"text": TEXT, "label": TRIPLES}),
            r"a\.jsonl:1: \[0, 4\] is no span",
        ),
        (
            "a.jsonl",
            lines({"text": TEXT, "spans": [{"start": 0, "end": 4, "labels": ["A", "B"]}]}),
            "has 2 labels; a word has one",
        ),
        ("a.csv", "a,b\nc,d\n", "names no column of words; its columns are 'a', 'b'"),
        ("a.csv", "word,tag\nx\n", r"a\.csv:2: has 1 columns where line 1 has 2"),
        ("a.csv", "word,tag\nx,\n", r"a\.csv:2: the tag is empty"),
        ("a.csv", "sentence_id,word,tag\n1,,B-X\n", r"a\.csv:2: the word is empty"),
        ("a.conllu", "Mary B-PER\n", "CoNLL-U numbers the words"),
    ],
)
def test_what_cannot_be_read(name: str, content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_sentences(write(tmp_path, name, content), TaggingOptions(), labelled=True)


def test_sentences_of_tables(tmp_path: Path) -> None:
    rows = "Sentence #,Word,Tag\nS1,a,O\n,b,B-X\nS2,c,O\nnan,d,O\n,,\n"
    found = read_sentences(write(tmp_path, "a.csv", rows), TaggingOptions(), labelled=True)
    assert found.words == [["a", "b"], ["c", "d"]]
    assert any("1 rows without a word are left out" in note for note in found.notes)
    blank = "word,tag\na,O\nb,B-X\n\nc,O\n"
    found = read_sentences(write(tmp_path, "b.csv", blank), TaggingOptions(), labelled=True)
    assert found.words == [["a", "b"], ["c"]]
    one = "word,tag\n" + "a,O\nb,B-X\n" * 150
    found = read_sentences(write(tmp_path, "c.csv", one), TaggingOptions(), labelled=True)
    assert any("no column of sentences" in note for note in found.notes)
    numbered = "x,y,z\na,1,O\nb,2,B-X\n"
    found = read_sentences(
        write(tmp_path, "d.csv", numbered), TaggingOptions(word=0, tag=2), labelled=True
    )
    assert (found.words, found.tags) == ([["a", "b"]], [["O", "B-X"]])


# ---------------------------------------------------------------------- spellings of a scheme


@pytest.mark.parametrize(
    ("spelt", "read"),
    [
        (["PER-B", "PER-I", "O", "O", "LOC-B", "O"], TAGS),
        (["B_PER", "I_PER", "O", "O", "B_LOC", "O"], TAGS),
        (["B:PER", "I:PER", "O", "O", "B:LOC", "O"], TAGS),
        (["B/PER", "I/PER", "O", "O", "B/LOC", "O"], TAGS),
        (["b-PER", "i-PER", "o", "o", "b-LOC", "o"], TAGS),
        (["B-PER", "I-PER", "OUT", "OUT", "B-LOC", "OUT"], TAGS),
        (["PER_B", "PER_L", "O", "O", "LOC_U", "O"], ["B-PER", "E-PER", "O", "O", "S-LOC", "O"]),
        (["PER", "PER", "O", "O", "LOC", "O"], ["I-PER", "I-PER", "O", "O", "I-LOC", "O"]),
        (TAGS, TAGS),
    ],
)
def test_other_spellings_of_a_scheme(spelt: list[str], read: list[str], tmp_path: Path) -> None:
    content = "".join(f"{w} {t}\n" for w, t in zip(WORDS, spelt, strict=True))
    found = read_sentences(write(tmp_path, "a.conll", content), TaggingOptions(), labelled=True)
    assert found.tags == [read]
    assert any(repr(read[0]) in note for note in found.notes) is (spelt != read)


@pytest.mark.parametrize(
    "tags",
    [
        ["NN", "VB", "DT"],
        ["NOUN", "VERB", "O"],
        ["B", "M", "E", "S"],
        ["N", "V", "O", "O", "O"],
        ["NP-SBJ", "VP-B", "X"],
        ["O", "O"],
        ["B-PER", "PER", "O"],
    ],
)
def test_tags_that_are_no_scheme_stay(tags: list[str]) -> None:
    assert standard_spelling({tag: tags.count(tag) for tag in tags}) == ({}, "")


def test_tags_of_words_on_request(tmp_path: Path) -> None:
    content = "".join(
        f"{w} {t}\n" for w, t in zip(WORDS, ["PER", "PER", "O", "O", "LOC", "O"], strict=True)
    )
    path = write(tmp_path, "a.conll", content)
    found = read_sentences(path, TaggingOptions(scheme="none"), labelled=True)
    assert found.tags == [["PER", "PER", "O", "O", "LOC", "O"]]
    # As a model of another library has them.
    found = read_sentences(path, TaggingOptions(), labelled=True, labels=("O", "PER", "LOC"))
    assert (found.scheme, found.tags) == ("none", [["PER", "PER", "O", "O", "LOC", "O"]])
    with pytest.raises(InputError, match="the tag 'PER' has no prefix"):
        read_sentences(path, TaggingOptions(scheme="iob2"), labelled=True)


# ------------------------------------------------------------------------------------- written


@pytest.mark.parametrize(
    "form", [name for name, f in FORMATS.items() if f.write] + ["words", "csv", "brat", "conll"]
)
def test_what_is_written_is_read_back(form: str, tmp_path: Path) -> None:
    suffix = {"csv": ".csv", "brat": ".ann", "conll": ".conll"}.get(form) or FORMATS[form].suffix
    path = write(tmp_path, "doccano.jsonl", FILES["doccano.jsonl"] * 3)
    rows = read_sentences(path, TaggingOptions(), labelled=False)
    task = TaggingTask(
        TaskOptions(kind="tagging", labels=("O", "B-PER", "I-PER", "B-LOC", "I-LOC"))
    )
    out = tmp_path / f"written{suffix}"
    file: Any = TaggedFile(rows, None, (), encoded=None)  # type: ignore[arg-type]
    task.write(out, file, [TAGS] * 3, form)
    if form == "label-studio":  # predictions there, to be corrected
        content = json.loads(out.read_text())
        assert [t["id"] for t in content] == [1, 1, 1]
        out.write_text(out.read_text().replace('"predictions"', '"annotations"'))
    found = read_sentences(out, TaggingOptions(tag=-1), labelled=True)
    if form == "brat":
        assert (found.words, found.tags) == ([WORDS * 3], [TAGS * 3])
    elif form in ("csv",):
        assert found.words == [WORDS] * 3
        assert out.read_text().startswith("sentence_id,word,tag,prediction\n1,Mary,B-PER,B-PER\n")
    else:
        assert (found.words, found.tags) == ([WORDS] * 3, [TAGS] * 3)


@pytest.mark.parametrize(
    ("name", "own", "form"),
    [
        ("a.jsonl", "prodigy", "prodigy"),
        ("a.json", "prodigy", "spacy"),
        ("a.jsonl", "conll", "doccano"),
        ("a.json", "label-studio-min", "label-studio"),
        ("a.jsonl", "label-studio", "doccano"),
        ("a.csv", "doccano", "csv"),
        ("a.tsv", "doccano", "conll"),
        ("a.ann", "conll", "brat"),
        ("a.jsonl", "words", "words"),
        ("a.conll", "csv", "conll"),
    ],
)
def test_the_format_of_predictions(name: str, own: str, form: str) -> None:
    assert written_format(Path(name), own) == form


def test_words_of_a_text() -> None:
    text = "Dr. O'Neil (U.S.A.) paid $5,000.50—well-known\tto us…"
    found = [text[a:b] for a, b in words_of_text(text)]
    assert found[:7] == ["Dr", ".", "O'Neil", "(", "U.S.A.", ")", "paid"]
    assert words_of_text(" \u200b\n") == []
    assert words_of_text("ab c", spaces=False) == [(0, 1), (1, 2), (3, 4)]
    alignment = Alignment()
    assert spans_over_words([(0, 2)], [CharacterSpan(2, 3, "X")], alignment) == []
    assert alignment.lost == 1
