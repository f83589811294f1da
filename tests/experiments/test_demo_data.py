"""Harvesting prose from packages, and the labelled tasks made from it."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.errors import InputError
from bothways.experiments.documentation import (
    RUN,
    STDLIB,
    Document,
    clean,
    follows_task,
    harvest,
    is_prose,
    package_task,
    split_documents,
    words_of,
    write_corpus,
)

NUMPY_STYLE = """
Fit a line through the points.

The line is the one with the smallest sum of squares, which is found
in :func:`~fake.solve`; see also `the page <https://example.org>`_.

Parameters
----------
x, y : array_like, shape (n,)
    The points that the line has to pass close to.
deg : int, optional
    Whether to take the root of the weights first

Returns
-------
line
    An object that holds the slope and the offset.

Examples
--------
>>> fit([1, 2], [3, 4])
Here is what the example prints and it is not prose.

This is how the result is used by others::

    This block is code and must not be taken as prose.

.. math::

    This formula is not something that one can read.

.. note:: The result is only as good as the points are.

References
----------
.. [1] A book that is listed here should not be in the text.
Another book that is listed here should not be in the text.
"""


def test_numpy_style_keeps_prose_only() -> None:
    assert clean(NUMPY_STYLE) == [
        ["Fit a line through the points."],
        [
            "The line is the one with the smallest sum of squares, which is found in solve; see "
            "also the page."
        ],
        ["The points that the line has to pass close to."],
        ["Whether to take the root of the weights first."],
        ["An object that holds the slope and the offset."],
        ["This is how the result is used by others:"],
        ["The result is only as good as the points are."],
    ]


@pytest.mark.parametrize(
    "text",
    [
        "x = solve(a, b) where a_b and c_d are in e_f and g_h.",
        "lower case at the start of what is a sentence.",
        "Copyright by the authors of this and of that.",
        "Far too short.",
        "Kernel Matrix Vector Tensor Module Layer Optimizer Scheduler.",
        "The value is $x$ for all of the numbers in it.",
        "See https://example.org for all of the rest of it.",
        "The bracket (which is opened here is never closed again.",
    ],
)
def test_what_is_not_prose(text: str) -> None:
    assert not is_prose(text)


@given(st.text(alphabet=st.sampled_from("Aab .:`*~<>-_=|>\n\t(){}1é\\"), max_size=200))
def test_cleaning_never_fails_and_gives_single_lines_of_prose(text: str) -> None:
    for paragraph in clean(text):
        assert paragraph
        for sentence in paragraph:
            assert is_prose(sentence)
            assert "\t" not in sentence
            assert len(sentence.splitlines()) == 1


# ------------------------------------------------------------------------------------- harvesting


@pytest.fixture
def fake_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that would raise if it were imported."""
    files = {
        "__init__.py": '"""All of the tools for the work in one place."""\nraise RuntimeError\n',
        "tools.py": """
def cut(text):
    '''Cut the text at the first of the marks.

    Nothing is done if there is no mark in it.
    '''

class Saw:
    '''A saw that is used for the larger pieces.'''
    def cut(self):
        '''Cut the text at the first of the marks.'''
    if True:
        def clean(self):
            '''Take the dust out of the teeth of the saw.'''

add_newdoc("fake.tools", "drill", '''Make a hole that is as wide as the drill is.''' + "x")
""",
        "broken.py": "def (:\n '''This file can not be read as it is now.'''",
        "tests/test_tools.py": '"""The tests of the tools are not for the reader."""',
        "_vendor/other.py": '"""The work of other people is not for the reader."""',
    }
    for name, source in files.items():
        path = tmp_path / "bothways_fake" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "bothways_fake"


def test_harvest_reads_without_importing(fake_package: str) -> None:
    found = [(d.name, d.sentences) for d in harvest(packages=[fake_package])]
    assert found == [
        ("bothways_fake", ["All of the tools for the work in one place."]),
        (
            "bothways_fake.tools.cut",
            [
                "Cut the text at the first of the marks.",
                "Nothing is done if there is no mark in it.",
            ],
        ),
        ("bothways_fake.tools.Saw", ["A saw that is used for the larger pieces."]),
        # Saw.cut says what cut says, and is left out.
        ("bothways_fake.tools.Saw.clean", ["Take the dust out of the teeth of the saw."]),
        ("fake.tools.drill", ["Make a hole that is as wide as the drill is."]),
    ]
    assert fake_package not in sys.modules


def test_workers_do_not_change_the_result(fake_package: str) -> None:
    assert harvest(packages=[fake_package], workers=2) == harvest(packages=[fake_package])


def test_corpus_file_joins_lone_sentences_of_a_module(tmp_path: Path) -> None:
    def document(module: str, *sentences: str) -> Document:
        return Document("p", module, f"{module}.{sentences[0]}", (sentences,))

    documents = [
        document("p.a", "A1."),
        document("p.a", "A2."),
        document("p.b", "B1."),
        document("p.b", "B2.", "B3."),
        document("p.b", "B4."),
    ]
    write_corpus(documents, tmp_path / "text.txt")
    expected = "A1.\nA2.\n\nB1.\n\nB2.\nB3.\n\nB4.\n"
    assert (tmp_path / "text.txt").read_text(encoding="utf-8") == expected


@pytest.fixture(scope="module")
def installed() -> list[Document]:
    """Real text, of the packages that are quick to read."""
    return harvest(packages=["numpy", "sklearn", "joblib"])


def test_standard_library_has_the_language_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    import pydoc_data.topics
    import sysconfig

    folder = Path(str(pydoc_data.topics.__file__)).parent
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: str(folder))
    documents = harvest(packages=[STDLIB])
    assert "python.topics.assert" in {document.name for document in documents}
    assert sum(len(s) for document in documents for s in document.sentences) > 100_000


# --------------------------------------------------------------------------------- labelled tasks


def rows(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


def runs(sentence: str) -> set[tuple[str, ...]]:
    words = words_of(sentence)
    return {tuple(words[i : i + RUN]) for i in range(max(1, len(words) - RUN + 1))}


def test_split_keeps_definitions_whole_and_near_duplicates_out(installed: list[Document]) -> None:
    pretraining, labelled = split_documents(installed, seed=3, share=0.2)
    assert not {d.definition for d in pretraining} & {d.definition for d in labelled}
    size = sum(len(d.sentences) for d in installed)
    assert 0.1 < sum(len(d.sentences) for d in labelled) / size < 0.3
    # Little is lost to the comparison, and nothing compared is left.
    assert sum(len(d.sentences) for d in (*pretraining, *labelled)) > 0.85 * size
    known = {run for d in labelled for sentence in d.sentences for run in runs(sentence)}
    assert not any(known & runs(sentence) for d in pretraining for sentence in d.sentences)


def test_split_depends_on_the_seed_and_on_nothing_else(installed: list[Document]) -> None:
    first = split_documents(installed, seed=0)
    assert split_documents(installed, seed=0) == first
    assert split_documents(installed, seed=1) != first
    names = {d.name for d in first[1]}
    assert {d.name for d in split_documents(installed[::-1], seed=0)[1]} == names


@pytest.fixture(scope="module")
def tasks(installed: list[Document], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    _, labelled = split_documents(installed, seed=0, share=0.3)
    package_task(
        labelled, folder / "package", seed=0, train=200, dev=100, packages=("numpy", "sklearn")
    )
    follows_task(labelled, folder / "follows", seed=0, train=200, dev=100)
    return folder


@pytest.mark.parametrize("task", ["package", "follows"])
def test_tasks_are_balanced_and_dev_is_new(tasks: Path, task: str) -> None:
    (header, *train), (dev_header, *dev) = (
        rows(tasks / task / name) for name in ("train.tsv", "dev.tsv")
    )
    assert header == dev_header
    assert (len(train), len(dev)) == (200, 100)
    for part in (train, dev):
        assert len(set(Counter(row[-1] for row in part).values())) == 1
        assert all(len(row) == len(header) for row in part)
        labels = [row[-1] for row in part]
        assert labels != sorted(labels)  # shuffled, not a block a label
    known = {run for row in train for text in row[:-1] for run in runs(text)}
    assert not any(known & runs(text) for row in dev for text in row[:-1])


def test_pairs_say_what_the_documents_say(tasks: Path, installed: list[Document]) -> None:
    header, *pairs = rows(tasks / "follows" / "train.tsv")
    assert header == ["first", "second", "label"]
    home = {sentence: d for d in installed for sentence in d.sentences}
    for first, second, label in pairs:
        assert home[first].package == home[second].package
        if label == "follows":
            sentences = home[first].sentences
            assert sentences.index(second) == sentences.index(first) + 1
        else:
            assert home[first].name != home[second].name
    used = Counter(text for *texts, _label in pairs for text in texts)
    assert max(used.values()) == 1  # a sentence met twice would tell the second label


def test_too_little_text_is_an_error_that_says_so(
    installed: list[Document], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="0 examples of label 'joblib2'"):
        package_task(installed, tmp_path, seed=0, packages=("numpy", "joblib2"))
    assert not list(tmp_path.iterdir())
    lone = [replace(d, paragraphs=d.paragraphs[:1]) for d in installed[:3]]
    with pytest.raises(InputError, match=r"train\.tsv"):
        follows_task(lone, tmp_path, seed=0)
