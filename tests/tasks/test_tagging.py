"""Tagging: which tokens are read, what stands around them, and tags out as they went in."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.errors import ConfigError, InputError
from bothways.tasks.options import TaskOptions
from bothways.tasks.tagging import TaggedFile, TaggingTask, encode_sentences
from bothways.tokenization.pieces import SPECIAL_PIECES
from bothways.tokenization.tokenizer import Tokenizer
from tagging_examples import LETTERS, TOKENIZER, joined, tagging

pytestmark = pytest.mark.usefixtures("several_tiles")


def encode(
    folder: Path,
    content: str,
    options: TaskOptions,
    *,
    tokenizer: Tokenizer = TOKENIZER,
    length: int = 16,
) -> tuple[TaggingTask, TaggedFile]:
    """A training file's task, and the file as the model reads it."""
    path = folder / "train.conll"
    path.write_text(content)
    rows = TaggingTask.read(path, options, labelled=True)
    task = TaggingTask.define(options, rows)
    return task, task.encode(tokenizer, rows, length=length)


def perfect(task: TaggingTask, part: TaggedFile) -> np.ndarray:
    """Outputs that say what the targets are."""
    return np.eye(task.outputs, dtype=np.float32)[part.examples.gold]


def shown(tokenizer: Tokenizer, part: TaggedFile) -> list[tuple[str, str]]:
    """The pieces of each window, and those of them that are read."""
    examples, found = part.examples, []
    for n in range(len(examples)):
        start, end = examples.bounds[n : n + 2]
        places = examples.read_positions[examples.output_bounds[n] : examples.output_bounds[n + 1]]
        pieces = [
            " ".join(tokenizer.piece(int(i)) for i in ids)
            for ids in (examples.tokens[start:end], examples.tokens[places])
        ]
        found.append((pieces[0], pieces[1]))
    return found


def test_a_word_is_read_at_its_first_piece(tmp_path: Path) -> None:
    _, part = encode(tmp_path, "abc B-X\nb O\n\nacb O\n", tagging(), tokenizer=LETTERS)
    assert shown(LETTERS, part) == [
        ("[CLS] ab ##c b [SEP]", "ab b"),
        ("[CLS] a ##c ##b [SEP]", "a"),
    ]


def test_the_document_stands_around_a_sentence_on_both_sides(tmp_path: Path) -> None:
    sentences = ["w1 w2", "w3", "w4 w5", "w6 w7 w8"]
    lines = ["\n".join(f"{word} B-X" for word in s.split()) for s in sentences]
    content = "-DOCSTART- O\n\n" + "\n\n".join(lines) + "\n\n-DOCSTART- O\n\nw9 O\n"
    _, part = encode(tmp_path, content, tagging(), length=7)
    assert shown(TOKENIZER, part) == [
        ("[CLS] w1 w2 w3 w4 w5 [SEP]", "w1 w2"),
        ("[CLS] w1 w2 w3 w4 w5 [SEP]", "w3"),
        ("[CLS] w3 w4 w5 w6 w7 [SEP]", "w4 w5"),
        ("[CLS] w4 w5 w6 w7 w8 [SEP]", "w6 w7 w8"),
        ("[CLS] w9 [SEP]", "w9"),
    ]
    assert part.examples.owners.tolist() == [0, 1, 2, 3, 4]
    _, alone = encode(tmp_path, content, tagging(context="sentence"), length=7)
    assert shown(TOKENIZER, alone)[1] == ("[CLS] w3 [SEP]", "w3")


@given(
    st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=30), min_size=1, max_size=6),
    st.integers(3, 20),
    st.booleans(),
)
def test_every_word_is_read_once_and_in_order(
    sentences: list[list[int]], length: int, documents: bool
) -> None:
    words = [[f"w{i}" for i in own] for own in sentences]
    document_of = [0] * len(words) if documents else None
    encoded = encode_sentences(TOKENIZER, joined(words), document_of, length=length)
    examples = encoded.examples
    assert examples.lengths.max() <= length
    read = [TOKENIZER.piece(int(i)) for i in examples.tokens[examples.read_positions]]
    assert read == [word for own in words for word in own]
    owners = np.repeat(examples.owners, np.diff(examples.output_bounds))
    assert owners.tolist() == [s for s, own in enumerate(words) for _ in own]


@given(
    st.lists(
        st.lists(st.sampled_from(["a", "abc", "acb", "cbb"]), min_size=1, max_size=12),
        min_size=1,
        max_size=5,
    ),
    st.integers(3, 14),
    st.booleans(),
)
def test_words_of_several_pieces_are_read_at_their_first(
    words: list[list[str]], length: int, documents: bool
) -> None:
    document_of = [0] * len(words) if documents else None
    examples = encode_sentences(LETTERS, joined(words), document_of, length=length).examples
    first_pieces = [LETTERS.encode_plain([word])[0][0] for own in words for word in own]
    assert examples.tokens[examples.read_positions].tolist() == first_pieces
    window = np.repeat(np.arange(len(examples)), np.diff(examples.output_bounds))
    assert (examples.bounds[window] < examples.read_positions).all()
    assert (examples.read_positions < examples.bounds[window + 1] - 1).all()


def test_a_long_sentence_is_read_where_most_stands_around(tmp_path: Path) -> None:
    content = "".join(f"w{i} O\n" for i in range(20)) + "\nw1 B-X\n"
    _, part = encode(tmp_path, content, tagging(), length=12)
    first, second, third, _ = shown(TOKENIZER, part)
    assert first == (
        f"[CLS] {' '.join(f'w{i}' for i in range(10))} [SEP]",
        "w0 w1 w2 w3 w4 w5 w6 w7",
    )
    assert second[1].split()[0] == "w8"
    assert third[1].split()[-1] == "w19"
    assert any("1 of 2 sentences are longer than 12 tokens" in note for note in part.notes)


def test_a_huge_sentence_is_read_whole() -> None:
    words = [f"w{i % 60}" for i in range(20_000)]
    encoded = encode_sentences(TOKENIZER, joined([words, ["w1"]]), [0, 0], length=40)
    examples = encoded.examples
    assert (encoded.long, len(examples.read_positions)) == (1, 20_001)
    assert len(examples) < 20_001 / 18


def test_words_of_which_nothing_is_left_are_read_as_unknown(tmp_path: Path) -> None:
    # A zero-width space is removed by normalisation.
    task, part = encode(tmp_path, "w1 B-X\n\u200b\u200b O\nw2 B-X\n", tagging())
    assert shown(TOKENIZER, part) == [("[CLS] w1 [UNK] w2 [SEP]", "w1 [UNK] w2")]
    assert any("leaves nothing of 1 of 3 words" in note for note in part.notes)
    assert task.decode(part, perfect(task, part)) == part.rows.tags


def test_characters_share_pieces(tmp_path: Path) -> None:
    characters = zip(
        "서울은 a bc", ["B-LC", "I-LC", "O", "O", "B-X", "I-X", "I-X", "I-X"], strict=False
    )
    content = "".join(f"{c}\t{tag}\n" for c, tag in characters)
    task, part = encode(tmp_path, content, tagging(spaces=False), tokenizer=LETTERS)
    assert shown(LETTERS, part) == [("[CLS] 서울 ##은 a b ##c [SEP]", "서울 ##은 a b ##c")]
    assert part.examples.gold.tolist() == [
        task.labels.index(t) for t in "B-LC O B-X I-X I-X".split()
    ]
    # The space within an entity belongs to it, the one outside does not.
    assert task.decode(part, perfect(task, part)) == part.rows.tags
    assert any("3 of 8 words are spaces or begin inside a piece" in note for note in part.notes)


def test_a_sentence_of_nothing_but_spaces_has_tags(tmp_path: Path) -> None:
    options = tagging(spaces=False)
    task, part = encode(tmp_path, " \tO\n \tO\n\na\tB-X\n", options, tokenizer=LETTERS)
    assert task.decode(part, perfect(task, part)) == [["O", "O"], ["B-X"]]


FILES = {
    "iob1": "w1 I-A\nw2 I-A\nw3 B-A\nw4 O\n\nw5 I-B\nw6 I-A\n",
    "iob2": "w1 B-A\nw2 I-A\nw3 B-A\nw4 O\n\nw5 B-B\nw6 B-A\n",
    "bioes": "w1 B-A\nw2 E-A\nw3 S-A\nw4 O\n\nw5 S-B\nw6 S-A\n",
}


@pytest.mark.parametrize("learn", ["iob2", "bioes"])
@pytest.mark.parametrize("scheme", list(FILES))
def test_a_files_tags_are_learned_in_one_scheme_and_written_in_its_own(
    scheme: str, learn: str, tmp_path: Path
) -> None:
    task, part = encode(tmp_path, FILES[scheme], tagging(learn=learn))
    assert task.learned_scheme == learn
    assert task.outputs == (9 if learn == "bioes" else 5)
    found = task.decode(part, perfect(task, part))
    assert found == part.rows.tags
    scores = task.measure(part, found).scores
    assert scores == {"f1": 1.0, "precision": 1.0, "recall": 1.0, "accuracy": 1.0}
    # A file without tags is written in the scheme of the training file.
    unlabelled = dataclasses.replace(part.rows, tags=None, scheme=None)
    assert task.decode(dataclasses.replace(part, rows=unlabelled), perfect(task, part)) == found


def test_scores_of_single_tags_and_of_types(tmp_path: Path) -> None:
    task, part = encode(tmp_path, FILES["iob1"], tagging())
    predicted = [["I-A", "I-A", "I-A", "O"], ["I-B", "O"]]
    measured = task.measure(part, predicted)
    assert measured.scores["accuracy"] == pytest.approx(4 / 6)
    assert (measured.scores["precision"], measured.scores["recall"]) == (1 / 2, 1 / 4)
    assert measured.notes == (
        "precision/recall/f1 by type: A 0.0000/0.0000/0.0000 of 3, B 1.0000/1.0000/1.0000 of 1",
    )
    macro, part_of = encode(
        tmp_path, FILES["iob1"], dataclasses.replace(tagging(), metrics=("f1_macro", "f1"))
    )
    assert macro.measure(part_of, predicted).scores == {
        "f1_macro": 1 / 2,
        "f1": pytest.approx(1 / 3),
    }
    nothing = task.measure(part, [["O"] * 4, ["O"] * 2])
    assert nothing.collapsed
    assert nothing.scores["f1"] == 0.0
    assert task.baseline(part, part).scores["accuracy"] == pytest.approx(3 / 6)


def test_what_a_report_shows(tmp_path: Path) -> None:
    task, part = encode(tmp_path, FILES["iob1"], tagging())
    predicted = [["I-A", "I-A", "I-A", "O"], ["I-B", "I-A"]]
    panel, confusions = task.panels(part, predicted)
    assert confusions.header == ("gold \\ predicted", "A", "B", "O")
    assert confusions.rows == (("A", 4, 0, 0), ("B", 0, 1, 0), ("O", 0, 0, 1))
    assert confusions.note == "Number of words. Gold: as labelled in the data."
    assert panel.rows == (
        ("A", 1 / 2, 1 / 3, pytest.approx(0.4), 2, 3),
        ("B", 1.0, 1.0, 1.0, 1, 1),
    )
    (mistake,) = task.errors(part, predicted)
    assert (mistake.example, mistake.weight) == (0, 3)
    assert (mistake.gold, mistake.predicted) == ("1 w1 w2: A; 3 w3: A", "1 w1 w2 w3: A")
    each = task.example_scores(part, predicted)
    assert each is not None
    assert each.values.tolist() == [3 / 4, 1.0]
    task, part = encode(tmp_path, "w1 DT\nw2 NN\nw3 DT\nw4 NN\n", tagging())
    (mistake,) = task.errors(part, [["DT", "DT", "DT", "NN"]])
    assert (mistake.gold, mistake.predicted) == ("2 w2: NN", "2 w2: DT")
    untyped, part_of = encode(tmp_path, "w1 B\nw2 I\nw3 O\n", tagging())
    assert untyped.learned_scheme == "iob2"
    _, of_words = untyped.panels(part_of, [["O", "B", "O"]])
    assert of_words.rows == (("entity", 1, 1), ("O", 0, 1))
    panel, confusions = task.panels(part, [["DT", "DT", "DT", "NN"]])
    assert panel.rows[0][1:4] == (2 / 3, 1.0, 0.8)
    assert confusions.rows == (("DT", 2, 0), ("NN", 1, 1))


def test_tags_that_mark_nothing(tmp_path: Path) -> None:
    task, part = encode(tmp_path, "w1 DT\nw2 NN\nw2 NN\n\nw3 NN\nw4 VB\nw4 VB\n", tagging())
    assert (task.learned_scheme, task.labels, task.metrics) == (
        "none",
        ("DT", "NN", "VB"),
        ("accuracy",),
    )
    assert task.decode(part, perfect(task, part)) == part.rows.tags
    assert task.measure(part, [["NN"] * 3, ["NN"] * 3]).scores == {"accuracy": 0.5}
    with pytest.raises(ConfigError, match="'f1' is not a metric for these tags"):
        TaggingTask.define(dataclasses.replace(tagging(), metrics=("f1",)), part.rows)


SEGMENTED = "w1 B\nw2 M\nw3 E\nw4 S\n\nw5 S\nw6 B\nw7 E\nw8 S\n"


def test_tags_that_only_look_like_those_of_a_scheme(tmp_path: Path) -> None:
    """Begin, middle, end and single, as word segmentation has them, mark no entities."""
    task, part = encode(tmp_path, SEGMENTED, tagging())
    assert task.labels == ("B", "E", "M", "S")
    assert task.learned_scheme == "none"
    assert task.metrics == ("accuracy",)
    assert task.decode(part, perfect(task, part)) == [["B", "M", "E", "S"], ["S", "B", "E", "S"]]
    named = dataclasses.replace(tagging(), labels=("B", "M", "E", "S"))
    task, part = encode(tmp_path, SEGMENTED, named)
    assert task.learned_scheme == "none"
    assert task.decode(part, perfect(task, part)) == [["B", "M", "E", "S"], ["S", "B", "E", "S"]]
    entities = "w1 B-X\nw2 I-X\nw3 O\nw4 O\nw5 O\nw6 O\n"
    task, part = encode(tmp_path, entities, tagging(scheme="none"))
    assert task.labels == ("B-X", "I-X", "O")
    assert task.metrics == ("accuracy",)
    assert task.decode(part, perfect(task, part)) == [["B-X", "I-X", *"OOOO"]]


@pytest.mark.parametrize(
    ("labels", "scheme"),
    [
        ("O B-A I-A L-A U-A", "bioes"),
        ("O B-A M-A E-A S-A", "bioes"),
        ("O B-A I-A", "iob2"),
        ("O I-A", "iob1"),  # of a file in which no two entities touched
    ],
)
def test_heads_trained_elsewhere_in_other_schemes(tmp_path: Path, labels: str, scheme: str) -> None:
    options = dataclasses.replace(tagging(), labels=tuple(labels.split()))
    content = "w1 B-A\nw2 I-A\nw3 L-A\nw4 O\nw5 U-A\n"
    task, part = encode(tmp_path, content, options)
    assert task.learned_scheme == scheme
    decoded = task.decode(part, perfect(task, part))
    assert decoded == [["B-A", "I-A", "E-A", "O", "S-A"]]
    assert task.measure(part, decoded).scores == dict.fromkeys(task.metrics, 1.0)


def test_an_unknown_tag_in_dev_is_named_with_its_line(tmp_path: Path) -> None:
    task, _ = encode(tmp_path, FILES["iob2"], tagging())
    path = tmp_path / "dev.conll"
    path.write_text("w1 O\n\nw2 O\nw3 B-C\n")
    rows = TaggingTask.read(path, task.options, labelled=True)
    with pytest.raises(InputError, match=r"dev\.conll:4: unknown tag 'B-C'; the model learns 'O'"):
        task.encode(TOKENIZER, rows, length=16)


def test_a_file_without_the_scheme_of_the_training_file_is_refused(tmp_path: Path) -> None:
    task, _ = encode(tmp_path, FILES["iob2"], tagging())
    path = tmp_path / "dev.conll"
    path.write_text("w1 O\n\nw2 O\nw3 A\n")
    rows = TaggingTask.read(path, task.options, labelled=True)
    with pytest.raises(InputError, match=r"dev\.conll:4: the tags of this file, such as 'A', mark"):
        task.encode(TOKENIZER, rows, length=16)
    path.write_text("w1 O\n\nw2 O\nw3 O\n")
    rows = TaggingTask.read(path, task.options, labelled=True)
    assert len(task.encode(TOKENIZER, rows, length=16).rows) == 2, "none is a sound answer"


def test_nothing_to_learn(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="every word has the tag 'O'"):
        encode(tmp_path, "w1 O\nw2 O\n", tagging())
    with pytest.raises(InputError, match="4 different tags for 4 words"):
        encode(tmp_path, "w1 p\nw2 q\nw3 r\nw4 s\n", tagging())


def test_broken_tags_are_learned_as_they_are_read(tmp_path: Path) -> None:
    content = FILES["iob2"] + "w7 O\nw8 I-B\n"
    task, part = encode(tmp_path, content, tagging(broken="repair"))
    assert any("1 tags break the scheme" in note for note in part.notes)
    assert task.labels[part.examples.gold[-1]] == "B-B"
    assert task.measure(part, task.decode(part, perfect(task, part))).scores["f1"] == 1.0


def test_marks_that_normalisation_strips_belong_to_their_entity(tmp_path: Path) -> None:
    """Thai, a character a line: the last one is a tone mark, of which no piece is left."""
    place = "\u0e01\u0e02\u0e48"
    tokenizer = Tokenizer.from_pieces([*SPECIAL_PIECES, place[0], place[1], "##" + place[1]])
    content = "".join(f"{c} {t}\n" for c, t in zip(place, ("B-X", "I-X", "I-X"), strict=True))
    options = tagging(spaces=False, context="sentence")
    task, part = encode(tmp_path, content, options, tokenizer=tokenizer)
    assert task.decode(part, perfect(task, part)) == [["B-X", "I-X", "I-X"]]


def test_numbers_read_as_words_are_pointed_out(tmp_path: Path) -> None:
    content = "7 w5 B-X\n2 w6 O\n\n4 w7 O\n"
    with pytest.raises(InputError, match=r"column of words holds numbers.*tagging_word"):
        encode(tmp_path, content, tagging())
    _, part = encode(tmp_path, content, tagging(word=1))
    assert not any("is a number" in note for note in part.notes)
