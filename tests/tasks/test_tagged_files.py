"""Files of tagged words and of labelled spans: one sentence in many forms, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bothways.errors import InputError
from bothways.finetuning.setup import file_digests
from bothways.io.annotations.spans import CharacterSpan
from bothways.io.annotations.written_spans import WRITERS
from bothways.io.rows import Format
from bothways.tasks.options import TaggingOptions, TaskOptions
from bothways.tasks.readers import read_rows
from bothways.tasks.sentences import Sentences, read_sentences
from bothways.tasks.tagging import TaggedFile, TaggingTask, written_format
from bothways.tasks.words import Alignment, spans_over_words, words_of_text

TEXT = "Mary Shelley lived in London."


WORDS = ["Mary", "Shelley", "lived", "in", "London", "."]


TAGS = ["B-PER", "I-PER", "O", "O", "B-LOC", "O"]


TRIPLES = [[0, 12, "PER"], [22, 28, "LOC"]]


SPANS = [{"start": s, "end": e, "label": label} for s, e, label in TRIPLES]


PAIRS = [*zip(WORDS, TAGS, strict=True)]


def lines(*items: Any) -> str:
    return "".join(json.dumps(item) + "\n" for item in items)


def result(start: int, end: int, label: str, **more: Any) -> dict[str, Any]:
    value = {"start": start, "end": end, "text": TEXT[start:end], "labels": [label]}
    return {"from_name": "ner", "to_name": "text", "type": "labels", "value": value, **more}


RESULTS = [result(*triple) for triple in TRIPLES]


def tasks(*annotations: dict[str, Any], **data: str) -> str:
    return json.dumps([{"id": 7, "data": data or {"text": TEXT}, "annotations": annotations}])


def columns(separator: str, *rows: tuple[str, ...]) -> str:
    return "".join(separator.join(row) + "\n" for row in rows)


def conllu(*rows: tuple[str, str, str]) -> str:
    return "".join(f"{n}\t{w}\t_\t{t}\t_\t_\t0\tdep\t_\t_\n" for n, w, t in rows)


NUMBERED = [(str(n), *pair) for n, pair in enumerate(PAIRS, start=1)]


FILES = {
    "plain.conll": columns(" ", *PAIRS),
    "aligned.txt": "".join(f"{w:<12}X    {t}\n" for w, t in PAIRS),
    "tabs.tsv": columns("\t", *PAIRS),
    "header.tsv": "token\tlabel\n" + columns("\t", *PAIRS),
    "spaced-header.txt": "Word Tag\n" + columns(" ", *PAIRS),
    "universal.conllu": "# newdoc id = a\n# sent_id = 1\n" + conllu(*NUMBERED),
    "ten-columns.conll": conllu(*NUMBERED),
    "kaggle.csv": "Sentence #,Word,POS,Tag\n"
    + "".join(f"{'Sentence: 1' * (not n)},{w},X,{t}\n" for n, (w, t) in enumerate(PAIRS)),
    "filled.csv": "sentence_id,token,ner_tag\n" + columns(",", *(("1", *pair) for pair in PAIRS)),
    "semicolon.csv": "word;tag\n" + columns(";", *PAIRS),
    "rows.jsonl": lines(*({"word": w, "tag": t, "sentence_id": 1} for w, t in PAIRS)),
    "rows.json": json.dumps([{"word": w, "tag": t} for w, t in PAIRS], indent=1),
    "hub.jsonl": lines({"id": "0", "tokens": WORDS, "ner_tags": TAGS}),
    "lines.json": lines({"tokens": WORDS, "tags": TAGS}),
    "hub.json": json.dumps([{"tokens": WORDS, "pos_tags": ["X"] * 6, "ner_tags": TAGS}]),
    "words.jsonl": lines({"words": WORDS, "labels": TAGS}, {"words": [], "labels": []}),
    "doccano.jsonl": lines({"id": 1, "text": TEXT, "label": TRIPLES, "Comments": []}),
    "old-doccano.jsonl": lines({"id": 1, "data": TEXT, "labels": TRIPLES}),
    "relations.jsonl": lines(
        {
            "text": TEXT,
            "entities": [{"start_offset": s, "end_offset": e, "label": n} for s, e, n in TRIPLES],
            "relations": [],
        }
    ),
    "label-studio.json": tasks({"result": RESULTS}),
    "truth.json": tasks({"result": []}, {"result": RESULTS, "ground_truth": True}),
    "skipped.json": tasks({"result": [], "was_cancelled": True}, {"result": RESULTS}),
    "review.json": tasks({"result": RESULTS}, review=TEXT),
    "minimal.json": json.dumps([{"text": TEXT, "id": 1, "label": [r["value"] for r in RESULTS]}]),
    "prodigy.jsonl": lines(
        {"text": TEXT, "spans": SPANS, "answer": "accept", "_input_hash": 1},
        {"text": "Not this one.", "spans": [], "answer": "reject", "_input_hash": 2},
        {"text": "Nor this.", "spans": SPANS[:1], "answer": "ignore", "_input_hash": 3},
    ),
    "spacy.json": json.dumps([[TEXT, {"entities": TRIPLES}]], indent=2),
    "spacy.jsonl": lines([TEXT, {"entities": TRIPLES}]),
    "entities.jsonl": lines({"text": TEXT, "entities": TRIPLES}),
}


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(folder: Path, name: str, content: str | bytes, **options: Any) -> Sentences:
    return read_sentences(write(folder, name, content), TaggingOptions(**options), labelled=True)


@pytest.mark.parametrize("name", FILES)
def test_every_form_gives_the_same_words_and_tags(name: str, tmp_path: Path) -> None:
    found = read(tmp_path, name, FILES[name])
    assert (found.words, found.tags, found.scheme) == ([WORDS], [TAGS], "iob2")
    unlabelled = read_sentences(tmp_path / name, TaggingOptions(), labelled=False)
    # What an annotator rejected has words, too, which a file to predict is read for.
    assert (unlabelled.words[0], unlabelled.tags) == (WORDS, None)
    assert len(unlabelled.words) == (3 if name == "prodigy.jsonl" else 1)


def test_parquet(tmp_path: Path) -> None:
    pq.write_table(pa.table({"tokens": [WORDS], "tags": [TAGS]}), tmp_path / "a.parquet")
    found = read_sentences(tmp_path / "a.parquet", TaggingOptions(), labelled=True)
    assert (found.words, found.tags) == ([WORDS], [TAGS])


def test_another_encoding(tmp_path: Path) -> None:
    path = write(tmp_path, "a.conll", "서울 B-LOC\n에서 O\n".encode("cp949"))
    found = read_sentences(path, TaggingOptions(), labelled=True, form=Format("cp949"))
    assert found.words == [["서울", "에서"]]
    with pytest.raises(InputError, match=r"a\.conll:1: .*cp949") as refused:
        read_sentences(path, TaggingOptions(), labelled=True)
    assert refused.value.option == "encoding"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", FILES["prodigy.jsonl"], "2 examples without annotations, or rejected"),
        ("a.json", FILES["truth.json"], "1 examples have several annotations"),
        ("a.csv", FILES["kaggle.csv"], "words in 'Word', tags in 'Tag', sentences by 'Sentence #'"),
        ("a.conllu", FILES["universal.conllu"], "words in FORM (1), tags in UPOS (3)"),
        ("a.conll", "a B-NP B-X\nb I-NP O\nc O O\n", "column 1 has tags, too, such as 'B-NP'"),
        (
            "a.jsonl",
            lines({"text": "a b", "spans": SPANS[:0], "_is_binary": True}, {"text": "a"}),
            "1 answers are about one span each",
        ),
        (
            "a.jsonl",
            lines({"text": TEXT, "label": [[s + 1, e + 1, n] for s, e, n in TRIPLES]}),
            "do the offsets count from 1",
        ),
        ("a.jsonl", lines({"text": "the Londoners", "label": [[4, 10, "L"]]}), "inside a word"),
        ("a.conll", "Mary PER\nleft O\n. O\n", "its tags have no prefix, such as 'PER'"),
    ],
)
def test_what_is_said(name: str, content: str, said: str, tmp_path: Path) -> None:
    notes = read(tmp_path, name, content).notes
    assert any(said in note and note.startswith(f"{name}: ") for note in notes), notes


@pytest.mark.parametrize(
    ("content", "words", "tags"),
    [
        ("S1,a,O\n,b,B-X\nS2,c,O\nnan,d,O\n", [["a", "b"], ["c", "d"]], [["O", "B-X"], ["O"] * 2]),
        (",a,O\n,b,B-X\n\n,c,O\n", [["a", "b"], ["c"]], [["O", "B-X"], ["O"]]),
        ('1,"""",O\n1,Mary,B-X\n', [['"', "Mary"]], [["O", "B-X"]]),
    ],
)
def test_sentences_of_tables(
    content: str, words: list[list[str]], tags: list[list[str]], tmp_path: Path
) -> None:
    found = read(tmp_path, "a.csv", f"sentence_id,word,tag\n{content}")
    assert (found.words, found.tags) == (words, tags)


def test_documents_of_tables(tmp_path: Path) -> None:
    rows = "doc_id,sentence_id,word,tag\nx,1,a,O\nx,2,b,B-X\ny,2,c,O\n"
    found = read(tmp_path, "a.csv", rows)
    assert found.words == [["a"], ["b"], ["c"]]
    assert found.documents[0] == found.documents[1] != found.documents[2]


def test_conllu_ranges_and_empty_nodes_are_no_words(tmp_path: Path) -> None:
    rows = conllu(("1", "Vamos", "VERB"), ("2-3", "al", "_"), ("2", "a", "ADP"), ("3", "el", "DET"))
    rows += conllu(("4", "mar", "NOUN"), ("4.1", "nadar", "VERB"), ("5", ".", "PUNCT"))
    for name in ("a.conllu", "a.conll"):  # by its name, and by its content
        for options in ({}, {"word": 1, "tag": 3, "comment": "#"}):
            found = read(tmp_path, name, f"# text = Vamos al mar.\n{rows}\n{rows}", **options)
            assert found.words == [["Vamos", "a", "el", "mar", "."]] * 2
            assert found.tags == [["VERB", "ADP", "DET", "NOUN", "PUNCT"]] * 2


def test_numbers_of_tags_need_their_names(tmp_path: Path) -> None:
    numbers = lines({"tokens": WORDS, "ner_tags": [1, 2, 0, 0, 3, 0]})
    with pytest.raises(InputError, match=r"a\.jsonl:1: its tags are numbers") as refused:
        read(tmp_path, "a.jsonl", numbers)
    assert refused.value.option == "labels"
    names = ["O", "B-PER", "I-PER", "B-LOC"]
    path = tmp_path / "a.jsonl"
    assert read_sentences(path, TaggingOptions(), labelled=True, labels=names).tags == [TAGS]
    with pytest.raises(InputError, match=r"number 3, and there are names for 0 to 2"):
        read_sentences(path, TaggingOptions(), labelled=True, labels=names[:3])


BRAT = "T1\tPER 0 12\tMary Shelley\nT2\tLOC 22 28\tLondon\nR1\tIn Arg1:T1 Arg2:T2\n#1\tNote T1\tx\n"


def test_brat(tmp_path: Path) -> None:
    path = write(tmp_path, "a.ann", BRAT)
    with pytest.raises(InputError, match=r"a\.txt, the text of it, is missing"):
        read_sentences(path, TaggingOptions(), labelled=True)
    write(tmp_path, "a.txt", TEXT)
    assert read(tmp_path, "a.ann", BRAT).tags == [TAGS]
    assert read(tmp_path, "a.ann", "T1\tPER 0 4;5 12\tMary Shelley\n").tags == [[*TAGS[:4], *"OO"]]
    assert read(tmp_path, "a.ann", "").tags == [["O"] * 6]
    for line in ("T1\tPER 0 x\tMary", "T1\tPER 0 4\tMark", "T1\tPER 90 94\tMary"):
        with pytest.raises(InputError, match=r"a\.ann:1: "):
            read(tmp_path, "a.ann", f"{line}\n")


def test_a_folder_of_brat(tmp_path: Path) -> None:
    """Its documents in the order of their names."""
    for name in ("b", "a"):
        write(tmp_path, f"{name}.txt", f"{TEXT} {name}")
        write(tmp_path, f"{name}.ann", BRAT)
    write(tmp_path, "c.txt", "Nobody read this.")
    found = read_sentences(tmp_path, TaggingOptions(), labelled=True)
    assert found.words == [[*WORDS, "a"], [*WORDS, "b"]]
    assert found.tags == [[*TAGS, "O"]] * 2
    before = file_digests(TaskOptions(kind="tagging", train=str(tmp_path)))["train"]
    write(tmp_path, "b.txt", f"{TEXT} c")
    assert file_digests(TaskOptions(kind="tagging", train=str(tmp_path)))["train"] != before
    for path in tmp_path.glob("*.ann"):
        path.unlink()
    with pytest.raises(InputError, match=r"is a folder without \.ann files"):
        read_sentences(tmp_path, TaggingOptions(), labelled=True)


@pytest.mark.parametrize(
    ("text", "triples", "tags"),
    [
        ("New York-based", [[0, 8, "L"]], ["B-L", "I-L"]),
        (" Ann ", [[0, 5, "P"]], ["B-P"]),
        ("Bank of Rome", [[0, 12, "ORG"], [8, 12, "L"]], ["B-ORG", "I-ORG", "I-ORG"]),
        ("Bank of Rome", [[0, 4, "X"], [0, 12, "ORG"]], ["B-ORG", "I-ORG", "I-ORG"]),
        ("Ann Bob", [[0, 3, "P"], [4, 7, "P"]], ["B-P", "B-P"]),
        ("東京に行く", [[0, 2, "L"]], ["B-L", "I-L", "O", "O"]),
    ],
)
def test_spans_become_tags(
    text: str, triples: list[list[Any]], tags: list[str], tmp_path: Path
) -> None:
    found = read(tmp_path, "a.jsonl", lines({"text": text, "label": triples}))
    assert found.tags is not None
    assert found.tags[0][: len(tags)] == tags


def test_offsets_in_utf16(tmp_path: Path) -> None:
    """As browsers count, if the text that the file repeats says so."""
    text = "😀 Mary left"
    span = {"start": 3, "end": 7, "label": "PER", "text": "Mary"}
    found = read(tmp_path, "a.jsonl", lines({"text": text, "spans": [span]}))
    assert found.tags == [["O", "B-PER", "O"]]


CONLL = "Mary B-PER\nleft O\n. O\n"


SENTENCE = "sentence_id,word,tag\n"


REFUSED: list[tuple[str, str, str]] = [
    # Words in columns
    ("a.conll", "a N O\nb O\n", ":2: expected 3 columns as in the lines before, found 2"),
    ("a.conll", "a\tO\n\tO\n", ":2: the word is empty"),
    ("a.conll", "a\tO\nb\t\n", ":2: the tag is empty"),
    ("a.conll", "a\nb\n", ":1: has 1 column, so there is no column -1 for the tag"),
    ("a.conll", "a,O\nb,O\n", ":1: has 1 column"),
    ("a.conll", "\n-DOCSTART- O\n\n", "has no sentences"),
    ("a.conll", '{"tokens": ["Mary"], "tags": ["O"]}\n', "this is JSON"),
    ("a.conll", f"# id 1\n{CONLL}", ":1: the line begins with '# id 1'"),
    ("a.conll", "1 Mary B-PER\n2 left O\n\n1 He O\n", ":1: the column of words holds numbers"),
    ("a.conll", "1 Mary B-PER\n1 left O\n2 He O\n", ":1: the column of words holds numbers"),
    ("a.conll", "B-PER Mary\nO left\n", ":1: the column of words holds tags"),
    ("a.conll", "en:Mary B-PER\nen:left O\nen:. O\n", ":1: every word begins with 'en:'"),
    ("a.conll", "Mary B-PER 0.9\nleft O 0.8\nhim O 0.7\n", "column 1 has tags, too"),
    ("a.conll", "Mary B-PER O\nleft O O\nParis B-LOC O\n", "column 1 has tags, too"),
    (
        "germeval.tsv",
        "1\tMary\tB-PER\tO\n2\tleft\tO\tO\n",
        ":1: the column of words holds numbers",
    ),
    ("a.conllu", conllu(("1", "Vamos", "_")), ":1: the tag is _"),
    ("a.conllu", "Mary B-PER\n", "has no sentences"),
    # Tables
    ("a.csv", "a,b\nc,d\n", ":1: expected columns named word and tag, found 'a', 'b'"),
    ("a.csv", "word,tag\nx\n", ":2: "),
    ("a.csv", "word,tag\nx,\n", ":2: the tag is empty"),
    ("a.csv", 'word,labels\n"Mary lives","B-PER O"\n', ":2: expected one tag per word"),
    ("a.csv", "tokens,tags\n\"['a', 'b']\",\"['O', 'O']\"\n", ":2: expected one word per row"),
    ("a.csv", 'word,tag\n",O\nMary,B-PER\n",O\n', ":2: expected one word per row"),
    ("a.csv", f"{SENTENCE}1,a,O\n2,b,O\n3,c,O\n2,d,O\n", ":5: sentence '2' goes on"),
    # JSON
    ("a.jsonl", lines({"tokens": ["a", "b"], "tags": ["O"]}), ":1: has 2 words and 1 tags"),
    ("a.jsonl", lines({"tokens": ["a", None], "tags": ["O", "O"]}), ":1: "),
    ("a.jsonl", lines({"tokens": ["a"], "tags": [None]}), ":1: expected a tag, found null"),
    ("a.jsonl", lines({"tokens": ["a"]}), ":1: expected a list under 'tags'"),
    ("a.jsonl", lines({"text": TEXT, "label": [[0, 4]]}), ":1: expected a span"),
    ("a.jsonl", lines({"text": TEXT, "label": [[0, 99, "P"]]}), ":1: the span 0 to 99 (P) holds"),
    ("a.jsonl", lines({"text": TEXT, "label": [[3, 3, "P"]]}), ":1: the span 3 to 3 (P) holds"),
    ("a.jsonl", lines({"text": TEXT, "label": [[-1, 3, "P"]]}), ":1: the span -1 to 3 (P) holds"),
    ("a.jsonl", lines({"text": TEXT, "label": [[4, 5, "P"]]}), ":1: the span 4 to 5 (P) holds"),
    ("a.jsonl", lines({"text": TEXT, "label": [[0, 4, "B-PER"]]}), ":1: the label of a span is"),
    ("a.jsonl", lines({"text": TEXT, "label": [[0, 4, "O"]]}), ":1: the label of a span is 'O'"),
    (
        "a.jsonl",
        lines({"text": TEXT, "spans": [{**SPANS[0], "text": "Percy"}]}),
        ":1: the text has 'Mary Shelley' at 0 to 12, the span says 'Percy'",
    ),
    (
        "a.jsonl",
        lines({"text": TEXT, "spans": [{**SPANS[0], "label": ["A", "B"]}]}),
        ":1: expected a span",
    ),
    (
        "a.jsonl",
        lines({"text": TEXT, "label": TRIPLES[1:], "entities": [SPANS[0]]}),
        ":1: expected one list of spans, found 'entities', 'label'",
    ),
    ("a.json", tasks({"result": [], "was_cancelled": True}), "no example was annotated"),
    (
        "a.json",
        tasks({"result": [*RESULTS, result(0, 4, "X", to_name="b")]}, text=TEXT, b=TEXT),
        ":1: expected spans in one text",
    ),
    ("a.jsonl", lines({"content": TEXT, "annotation": [{"points": []}]}), ":1: "),
    # Tags
    ("a.conll", "a B-per\nb O\nc B-PER\n", ":3: "),
    ("a.conll", CONLL.replace("O", "NaN"), ":2: missing tag ('NaN')"),
    ("a.conll", CONLL.replace("B-PER", "B-"), ":1: the tag 'B-' has no type"),
    ("a.conll", CONLL.replace("B-PER", "B-PER|B-X"), ":1: expected one tag per word"),
    ("a.conll", CONLL.replace("B-PER", "B-PER:0.98"), ":1: expected one tag per word"),
    ("a.conll", CONLL.replace(". O", ". OUT"), ":3: the tag 'OUT' has no prefix"),
    ("a.conll", CONLL.replace("B-PER", "PER-B"), ":1: the tag 'PER-B' is that of a scheme"),
    ("a.conll", CONLL.replace("B-PER", "B_PER"), ":1: the tag 'B_PER' is that of a scheme"),
    ("a.conll", CONLL.replace("B-PER", "b-per"), ":1: the tag 'b-per' is that of a scheme"),
    ("a.conll", CONLL.replace("B-PER", '"B-PER"'), ":1: the tag '\"B-PER\"' is that of a scheme"),
]


@pytest.mark.parametrize(
    ("name", "content", "message"), REFUSED, ids=[f"{n} {m[:40]}" for n, _, m in REFUSED]
)
def test_what_is_refused(name: str, content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, name, content)
    assert str(refused.value).startswith(f"{tmp_path / name}:")
    assert message in str(refused.value)


def test_columns_that_are_named_are_read(tmp_path: Path) -> None:
    """What a message asks for."""
    assert read(tmp_path, "a.conll", "1 Mary B-PER\n2 left O\n", word=1).words == [["Mary", "left"]]
    assert read(tmp_path, "a.conll", "Mary B-X O\nleft O O\n", tag=1).tags == [["B-X", "O"]]
    assert read(tmp_path, "a.conll", f"# id 1\n{CONLL}", comment="#").words[0][0] == "Mary"
    assert read(tmp_path, "a.conll", "# #\nMary NN\n").words == [["#", "Mary"]]
    assert read(tmp_path, "a.csv", "x,y,z\na,1,O\nb,2,B-X\n", word=0, tag=2).words == [["a", "b"]]
    respelt = CONLL.replace("B-PER", "B_PER")
    assert read(tmp_path, "a.conll", respelt, scheme="none").tags == [["B_PER", "O", "O"]]


def test_types_without_prefixes(tmp_path: Path) -> None:
    content = columns(" ", *zip(WORDS, ["PER", "PER", "O", "O", "LOC", "O"], strict=True))
    found = read(tmp_path, "a.conll", content)
    assert (found.tags, found.scheme) == ([["I-PER", "I-PER", "O", "O", "I-LOC", "O"]], "iob1")
    assert read(tmp_path, "a.conll", content, scheme="none").scheme == "none"
    # As a model of another library has them.
    labels = ("O", "PER", "LOC")
    path = tmp_path / "a.conll"
    found = read_sentences(path, TaggingOptions(), labelled=True, labels=labels)
    assert (found.scheme, found.tags) == ("none", [["PER", "PER", "O", "O", "LOC", "O"]])
    with pytest.raises(InputError, match="the tag 'PER' has no prefix"):
        read(tmp_path, "a.conll", content, scheme="iob2")


def chosen(*names: str, control: str = "mood") -> dict[str, Any]:
    value = {"choices": list(names)}
    return {"from_name": control, "to_name": "text", "type": "choices", "value": value}


def test_choices_are_labels(tmp_path: Path) -> None:
    items = [
        {"data": {"text": "a", "label": "old"}, "annotations": [{"result": [chosen("x")]}]},
        {"data": {"text": "b"}, "annotations": [{"result": [chosen("y")]}]},
        {"data": {"text": "c"}, "annotations": []},
    ]
    path = write(tmp_path, "a.json", json.dumps(items))
    for label in ("label", "mood"):
        options = TaskOptions(text="text", label=label)
        assert read_rows(path, options, labelled=True).labels == [("x",), ("y",)]
    assert read_rows(path, TaskOptions(text="text"), labelled=False).a == ["a", "b", "c"]
    items[1]["annotations"] = [{"result": []}]
    with pytest.raises(InputError, match=r"a\.json.*'label'"):
        read_rows(write(tmp_path, "a.json", json.dumps(items)), TaskOptions(), labelled=True)


@pytest.mark.parametrize("form", [*WRITERS, "words", "csv", "brat", "conll"])
def test_what_is_written_is_read_back(form: str, tmp_path: Path) -> None:
    suffixes = {"csv": ".csv", "brat": ".ann", "conll": ".conll", "words": ".jsonl"}
    suffix = suffixes.get(form) or WRITERS[form][1]
    path = write(tmp_path, "doccano.jsonl", FILES["doccano.jsonl"] * 3)
    rows = read_sentences(path, TaggingOptions(), labelled=False)
    labels = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
    task = TaggingTask(TaskOptions(kind="tagging", labels=labels))
    out = tmp_path / f"written{suffix}"
    file: Any = TaggedFile(rows, None, (), encoded=None)  # type: ignore[arg-type]
    task.write(out, file, [TAGS] * 3, form)
    if form == "label-studio":  # predictions there, to be corrected
        assert [t["id"] for t in json.loads(out.read_text())] == [1, 1, 1]
        out.write_text(out.read_text().replace('"predictions"', '"annotations"'))
    found = read_sentences(out, TaggingOptions(), labelled=True)
    if form == "brat":
        assert (found.words, found.tags) == ([WORDS * 3], [TAGS * 3])
    else:
        assert (found.words, found.tags) == ([WORDS] * 3, [TAGS] * 3)


@pytest.mark.parametrize(
    ("name", "own", "form"),
    [
        ("a.jsonl", "prodigy", "prodigy"),
        ("a.json", "prodigy", "spacy"),
        ("a.jsonl", "conll", "doccano"),
        ("a.json", "label-studio", "label-studio"),
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


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_words_that_show_nothing_are_words(separator: str, tmp_path: Path) -> None:
    path = tmp_path / "words.conll"
    rows = [("EU", "B-ORG"), ("\u00a0", "O"), ("\u200b", "O"), ("calls", "O")]
    path.write_text(columns(separator, *rows), encoding="utf-8")
    sentences = read_sentences(path, TaggingOptions(), labelled=True)
    assert sentences.words == [[word for word, _ in rows]]
    assert sentences.tags == [[tag for _, tag in rows]]
