"""Exports of annotators and columns of words as people really have them: read with the right tags
and a remark, or refused with a remedy that works. Neighbours of those in test_annotated_files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bothways.errors import InputError
from bothways.tasks.options import TaggingOptions, TaskOptions
from bothways.tasks.readers import Rows, read_rows
from bothways.tasks.sentences import Sentences, read_sentences

TEXT = "Mary Shelley lived in London."
WORDS = ["Mary", "Shelley", "lived", "in", "London", "."]
TAGS = ["B-PER", "I-PER", "O", "O", "B-LOC", "O"]
PERSON = ["B-PER", "I-PER", "O", "O", "O", "O"]
TRIPLES = [[0, 12, "PER"], [22, 28, "LOC"]]
SPANS = [{"start": s, "end": e, "label": label} for s, e, label in TRIPLES]
TOKENS = [
    {"text": TEXT[s:e], "start": s, "end": e, "id": n}
    for n, (s, e) in enumerate([(0, 4), (5, 12), (13, 18), (19, 21), (22, 28), (28, 29)])
]


def lines(*items: Any) -> str:
    return "".join(json.dumps(item) + "\n" for item in items)


def result(start: int, end: int, label: str, **more: Any) -> dict[str, Any]:
    value = {"start": start, "end": end, "text": TEXT[start:end], "labels": [label]}
    return {"from_name": "ner", "to_name": "text", "type": "labels", "value": value, **more}


RESULTS = [result(*triple) for triple in TRIPLES]


def tasks(results: list[Any], **data: str) -> str:
    return json.dumps([{"data": data or {"text": TEXT}, "annotations": [{"result": results}]}])


def rows(separator: str = "\t", end: str = "\n") -> str:
    return "".join(f"{w}{separator}{t}{end}" for w, t in zip(WORDS, TAGS, strict=True))


def read(folder: Path, name: str, content: str, **options: Any) -> Sentences:
    path = folder / name
    path.write_text(content, encoding="utf-8", newline="")
    return read_sentences(path, TaggingOptions(**options), labelled=True)


NUMBERED = "".join(f"{n}\t{w}\t{t}\n" for n, (w, t) in enumerate(zip(WORDS, TAGS, strict=True), 1))


@pytest.mark.parametrize(
    ("name", "content", "tags", "said"),
    [
        (
            "a.jsonl",
            lines({"text": TEXT, "label": [[0.0, 12.0, "PER"], [22, 28, "LOC"]]}),
            TAGS,
            "",
        ),
        ("a.jsonl", lines({"text": TEXT, "label": [["0", "12", "PER"]]}), PERSON, ""),
        (
            "tokens.jsonl",
            lines(
                {
                    "text": TEXT,
                    "tokens": TOKENS,
                    "spans": [
                        {"token_start": 0, "token_end": 1, "label": "PER"},
                        {"token_start": 4, "token_end": 4, "label": "LOC"},
                    ],
                }
            ),
            TAGS,
            "",
        ),
        (
            "two-texts.json",
            tasks(RESULTS, title=f"A title that is longer than {TEXT}", body=TEXT),
            TAGS,
            "",
        ),
        (
            "truth.json",
            json.dumps(
                [
                    {
                        "data": {"text": TEXT},
                        "annotations": [
                            {"result": RESULTS[:1]},
                            {"result": RESULTS, "ground_truth": True},
                        ],
                    }
                ]
            ),
            TAGS,
            "that marked as the truth",
        ),
        (
            "controls.json",
            tasks([*RESULTS, result(13, 18, "VERB", from_name="pos")]),
            ["B-PER", "I-PER", "B-VERB", "O", "B-LOC", "O"],
            "spans of several controls ('ner', 'pos') are read together",
        ),
        (
            "minimal.json",
            json.dumps(
                [
                    {
                        "text": TEXT,
                        "annotation_id": 1,
                        "ner": [RESULTS[0]["value"]],
                        "pos": [result(13, 18, "VERB")["value"]],
                    }
                ]
            ),
            ["B-PER", "I-PER", "B-VERB", "O", "O", "O"],
            "spans of several controls ('ner', 'pos') are read together",
        ),
        (
            "skipped.json",
            json.dumps({"classes": [], "annotations": [[TEXT, {"entities": TRIPLES}], None]}),
            TAGS,
            "1 example that the annotator rejected or skipped",
        ),
        (
            "empty.jsonl",
            lines({"tokens": WORDS, "ner_tags": TAGS}, {"tokens": [], "ner_tags": []}),
            TAGS,
            "1 examples without words are left out",
        ),
        ("numbered.conll", NUMBERED, TAGS, "its first column numbers the words"),
        ("spaced.conll", NUMBERED.replace("\t", " "), TAGS, "its first column numbers the words"),
        ("tab-at-end.conll", rows(end="\t\n"), TAGS, "each line ends in a tab"),
        (
            "plus.conllup",
            "# global.columns = ID FORM UPOS PARSEME:MWE\n"
            + "".join(
                f"{n}\t{w}\t{t}\t*\n" for n, (w, t) in enumerate(zip(WORDS, TAGS, strict=True), 1)
            ),
            TAGS,
            "words in FORM (1), tags in UPOS (2)",
        ),
    ],
)
def test_what_is_read(name: str, content: str, tags: list[str], said: str, tmp_path: Path) -> None:
    found = read(tmp_path, name, content)
    assert (found.words, found.tags) == ([WORDS], [tags])
    assert said in " ".join(found.notes)


@pytest.mark.parametrize("blank", ["\u00a0", "\u200b", "\u3000", "\v", " \t"])
def test_lines_that_look_blank_end_sentences(blank: str, tmp_path: Path) -> None:
    found = read(tmp_path, "a.conll", f"{rows(' ')}{blank}\n{rows(' ')}")
    assert (found.words, found.tags) == ([WORDS, WORDS], [TAGS, TAGS])


def test_a_space_is_still_a_word_where_tabs_separate(tmp_path: Path) -> None:
    assert read(tmp_path, "a.conll", "a\tO\n \tO\nb\tB-X\n").words == [["a", " ", "b"]]


@pytest.mark.parametrize("word", ["\u00a0", "\u3000", "\u200b", "\u2028"])
def test_a_word_that_shows_nothing_is_a_word_in_a_table(word: str, tmp_path: Path) -> None:
    content = f"word,tag\na,O\n{word},B-X\n{word},O\nb,O\n"
    found = read(tmp_path, "a.csv", content)
    assert found.words == [["a", word, word, "b"]]


def test_words_that_are_numbers_are_words(tmp_path: Path) -> None:
    content = "1 CD B-X\n2 CD O\n4 CD O\n"  # not one after the other
    assert read(tmp_path, "a.conll", content).words == [["1", "2", "4"]]


def test_numbers_that_go_on_over_sentences(tmp_path: Path) -> None:
    found = read(tmp_path, "a.conll", "0 a X O\n1 b X B-Y\n\n2 c X O\n")
    assert (found.words, found.tags) == ([["a", "b"], ["c"]], [["O", "B-Y"], ["O"]])


def test_answers_without_a_span_and_of_one_span(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "a.jsonl",
        lines(
            {"text": TEXT, "spans": SPANS[:1], "answer": "accept", "_is_binary": True},
            {"text": TEXT, "spans": SPANS[1:], "answer": "accept", "_is_binary": True},
            {"text": "Nobody here", "answer": "accept"},
        ),
    )
    assert found.tags == [PERSON, ["O", "O", "O", "O", "B-LOC", "O"], ["O", "O"]]
    notes = " ".join(found.notes)
    for said in (
        "1 accepted examples have no spans",
        "2 answers are about one span each (_is_binary)",
        "1 texts occur again with other spans",
    ):
        assert said in notes


REFUSED = [
    (
        "keys.jsonl",
        lines({"text": TEXT, "label": TRIPLES[1:], "entities": [SPANS[0]]}),
        "has spans under 'entities', and others under 'label'; keep one",
    ),
    (
        "tokens.jsonl",
        lines(
            {
                "text": TEXT,
                "tokens": TOKENS,
                "spans": [{"token_start": 4, "token_end": 6, "label": "LOC"}],
            }
        ),
        "the span of the tokens 4 to 6 is not within the text, which has 6",
    ),
    (
        "texts.json",
        tasks([*RESULTS, result(0, 4, "PER", to_name="title")], text=TEXT, title="Mary"),
        r"spans in several texts \('text', 'title'\)",
    ),
    (
        "unlabelled.json",
        tasks([{**RESULTS[0], "value": {"start": 0, "end": 12, "text": "Mary Shelley"}}]),
        "is no span; it needs .* a label",
    ),
    ("null.jsonl", lines({"tokens": ["a", None], "ner_tags": ["O", "O"]}), "'tokens' is .*null"),
    (
        "none.jsonl",
        lines({"tokens": ["a", "b"], "ner_tags": ["B-X", None]}),
        r"among them null; each word needs one.*\(O outside of entities\)",
    ),
    (
        "pieces.jsonl",
        lines({"tokens": ["a", "b"], "labels": [-100, 0]}),
        "number -100, and tags count from 0.*words and tags from before",
    ),
    ("mixed.json", json.dumps([{"text": TEXT, "spans": SPANS}] * 2 + [["a"]]), "is no object"),
    (
        "unknown.jsonl",
        lines({"content": TEXT, "annotation": [{"points": []}]}),
        "no known format of tags has.*Write texts as",
    ),
    (
        "types.jsonl",
        lines({"text": TEXT, "spans": [SPANS[0], {**SPANS[1], "label": "per"}]}),
        "labels 'per' here and 'PER' .* differ in their spelling only",
    ),
    ("types.conll", "a B-per\nb O\nc B-PER\n", ":3: .* differ in their spelling only"),
    ("type.conll", rows(" ").replace("B-LOC", "B-"), "the tag 'B-' has no type"),
    ("sentences.csv", 'text,labels\n"Mary lives","B-PER O"\n', "holds a sentence with 2 tags"),
    ("commas.conll", rows(","), "',' separates no columns here: name the file .csv"),
    ("empty.conll", "Mary\tB-PER\nlives\t\n", "the tag is empty; write O"),
    ("spaces.conllu", "1 a a X _ _ 0 root _ _\n", "separated by spaces, in CoNLL-U by tabs: sed"),
    ("ner.conllu", "# global.columns = ID FORM NER\n1\ta\tO\n", "none is UPOS; .*tagging.tag 2"),
    ("nested.tsv", rows(end="\tO\n"), "'O' in the last column, and tags stand in column 1"),
    (
        "uner.iob2",
        f"# newdoc id = a\n# sent_id = 1\n{NUMBERED}".replace("\tO\n", "\tO\t-\tann\n")
        .replace("PER\n", "PER\t-\tann\n")
        .replace("LOC\n", "LOC\t-\tann\n"),
        "'ann' in the last column, and tags stand in column 2",
    ),
]


@pytest.mark.parametrize(("name", "content", "message"), REFUSED, ids=[r[0] for r in REFUSED])
def test_what_is_refused(name: str, content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, name, content)


@pytest.mark.parametrize(
    ("name", "columns"), [("nested.tsv", (0, 1)), ("uner.iob2", (1, 2)), ("ner.conllu", (1, 2))]
)
def test_the_columns_that_a_message_names(
    name: str, columns: tuple[int, int], tmp_path: Path
) -> None:
    content = dict(row[:2] for row in REFUSED)[name]
    found = read(tmp_path, name, content, word=columns[0], tag=columns[1])
    expected = ([["a"]], [["O"]]) if name == "ner.conllu" else ([WORDS], [TAGS])
    assert (found.words, found.tags) == expected


def test_a_comment_before_each_sentence_and_numbers(tmp_path: Path) -> None:
    content = "".join(f"#\tsource {n}\n{NUMBERED}\n" for n in range(2))
    for comment in ("", "#"):
        found = read(tmp_path, "a.tsv", content, comment=comment)
        assert (found.words, found.tags) == ([WORDS] * 2, [TAGS] * 2)


def test_a_table_of_words_in_commas_by_its_name(tmp_path: Path) -> None:
    assert read(tmp_path, "a.csv", rows(",")).words == [WORDS]


# -------------------------------------------------------------------------- labels of whole texts


def chosen(kind: str, value: Any, **more: Any) -> dict[str, Any]:
    return {"from_name": "label", "to_name": "text", "type": kind, "value": {kind: value, **more}}


def read_labels(folder: Path, results: list[list[Any]], kind: Any = "classification") -> Rows:
    texts = "ab"[: len(results)]
    items = [
        {"data": {"text": text}, "annotations": [{"result": own}]}
        for text, own in zip(texts, results, strict=True)
    ]
    path = folder / "a.json"
    path.write_text(json.dumps(items), encoding="utf-8")
    return read_rows(path, TaskOptions(text_a="text", label="label", kind=kind), labelled=True)


def test_ratings_and_numbers_are_scores(tmp_path: Path) -> None:
    found = read_labels(tmp_path, [[chosen("rating", 4)], [chosen("number", 2.5)]], "regression")
    assert found.labels == ["4", "2.5"]


def test_choices_of_one_control_twice_are_several(tmp_path: Path) -> None:
    results = [[chosen("choices", ["x"]), chosen("choices", ["y"])], [chosen("choices", ["y"])]]
    with pytest.raises(InputError, match="holds 2 labels"):
        read_labels(tmp_path, results)
    assert read_labels(tmp_path, results, "multilabel").several == [("x", "y"), ("y",)]


def test_a_choice_for_a_region_is_not_the_label_of_the_text(tmp_path: Path) -> None:
    of_region = chosen("choices", ["x"], start=0, end=1, text="a")
    with pytest.raises(InputError, match="'label' is missing"):
        read_labels(tmp_path, [[of_region], [chosen("choices", ["y"])]])
    both = [of_region, chosen("choices", ["y"])]
    assert read_labels(tmp_path, [both, [chosen("choices", ["x"])]]).labels == ["y", "x"]


def test_several_choices_in_the_short_form(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    items = [
        {"text": "a", "annotation_id": 1, "label": {"choices": ["x", "y"]}},
        {"text": "b", "annotation_id": 2, "label": ["y"]},
    ]
    path.write_text(json.dumps(items), encoding="utf-8")
    options = TaskOptions(text_a="text", label="label", kind="multilabel")
    assert read_rows(path, options, labelled=True).several == [("x", "y"), ("y",)]
