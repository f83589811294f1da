"""Labelled data made from the harvested documentation, without human judgement.

* Which package: the package that a sentence describes. Sentences that name any of the packages, or
  the one kind of object that reveals a package (tensor, ndarray, axes), are left out, and the
  classes are of equal size.
* Follows: whether the second sentence comes right after the first in the same docstring, or is from
  another docstring of the same package. Both labels draw their sentences from the same sources, so
  neither sentence alone reveals the answer.

There is no leakage between the data sets: :func:`split_documents` sets whole functions and classes
aside, and removes from the pre-training text every sentence that shares a run of eight words with
them. The training and dev examples of the tasks come from different definitions among those set
aside, and no dev example shares a run of eight words with a training example. So the encoder has
seen neither training nor dev sentences before fine-tuning.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from bothways.errors import InputError
from bothways.experiments.demo.harvest import STDLIB, Document, name_draw, only_sentences, words_of
from bothways.io.files import write_text

PACKAGES = (STDLIB, "numpy", "scipy", "sklearn", "matplotlib", "torch")
"""The labels of the package task: packages with enough text."""

RUN = 8
"""Two sentences that share this many consecutive words count as near-duplicates."""

_MIN_EXAMPLES = 10  # per label and file; fewer are not enough to measure anything
_SHORTEST = 8  # words in a sentence of the package task; shorter ones have too little content
_GIVEAWAYS = re.compile(
    r"python|numpy|scipy|sk-?learn|scikit|matplotlib|pyplot|torch|tensor|"
    r"\b(?:np|sp|mpl|plt|ndarrays?|axes)\b",
    re.IGNORECASE,
)

# First counters of the draws below, so that no two draws use the same numbers.
_SET_ASIDE, _FOR_DEV, _ORDER, _LABEL = range(1, 5)

Row = tuple[str, ...]


def split_documents(
    documents: Sequence[Document], *, seed: int, share: float = 0.15
) -> tuple[list[Document], list[Document]]:
    """Set whole functions and classes aside for the labelled tasks, by a hash of their names.

    Args:
        documents: returned by :func:`~bothways.experiments.demo.harvest.harvest`.
        seed: of the hash.
        share: of the definitions, in (0, 1).

    Returns:
        The documents to pre-train on, without sentences that share :data:`RUN` consecutive words
        with those set aside (or are equal); and the documents set aside.
    """
    labelled: list[Document] = []
    rest: list[Document] = []
    for document in documents:
        draw = name_draw(seed, document.definition, _SET_ASIDE)
        (labelled if draw < share else rest).append(document)
    known = _all_runs(sentence for document in labelled for sentence in document.sentences)
    return only_sentences(rest, lambda s: known.isdisjoint(_runs(s))), labelled


def package_task(
    documents: Sequence[Document],
    folder: Path,
    *,
    seed: int,
    train: int = 800,
    dev: int = 800,
    packages: Sequence[str] = PACKAGES,
) -> None:
    """Write ``train.tsv`` and ``dev.tsv``: which package does this sentence describe?

    The columns are ``sentence`` and ``label`` (a package's name). No function or class
    is in both files.

    Args:
        documents: those set aside by :func:`split_documents`.
        folder: created if necessary.
        seed: for all random choices.
        train: number of examples in the training file, over all labels; fewer if there are not
            enough. Each label has the same number.
        dev: the same for the dev file.
        packages: the labels.

    Raises:
        InputError: fewer than ten examples of a label.
        DiskError: a file could not be written.
    """
    examples = []
    for document in documents:
        if document.package in packages:
            examples += [
                (document.definition, (sentence, document.package))
                for sentence in document.sentences
                if len(sentence.split()) >= _SHORTEST and not _GIVEAWAYS.search(sentence)
            ]
    _write_task(examples, folder, ("sentence", "label"), tuple(packages), seed, (train, dev))


def follows_task(
    documents: Sequence[Document],
    folder: Path,
    *,
    seed: int,
    train: int = 800,
    dev: int = 800,
) -> None:
    """Write ``train.tsv`` and ``dev.tsv``: does the second sentence come right after the first?

    The columns are ``first``, ``second`` and ``label``: ``follows``, or ``other`` where the second
    sentence is the second of another pair, from another docstring of the same package.

    Args, Raises: as for :func:`package_task`.
    """
    pairs: dict[tuple[str, bool], list[tuple[Document, str, str]]] = defaultdict(list)
    for document in documents:
        for_dev = _is_for_dev(document.definition, seed, train, dev)
        for paragraph in document.paragraphs:
            # Every second pair, so that no sentence is in two of them.
            for first, second in list(pairwise(paragraph))[::2]:
                pairs[document.package, for_dev].append((document, first, second))
    examples = []
    for group in pairs.values():
        group.sort(key=lambda pair: name_draw(seed, pair[1], _LABEL))
        half = len(group) // 2
        examples += [
            (d.definition, (first, second, "follows")) for d, first, second in group[:half]
        ]
        others = group[half:]
        # The seconds move on by one pair: each is still used once.
        for (document, first, _), (source, _, second) in zip(
            others, others[1:] + others[:1], strict=True
        ):
            if document.name != source.name:
                examples.append((document.definition, (first, second, "other")))
    columns = ("first", "second", "label")
    _write_task(examples, folder, columns, ("follows", "other"), seed, (train, dev))


def _write_task(
    examples: Sequence[tuple[str, Row]],
    folder: Path,
    columns: Row,
    labels: Row,
    seed: int,
    sizes: tuple[int, int],
) -> None:
    """Choose the examples and write both files.

    ``examples`` are (definition, row); the last column of a row is its label.
    """
    train_size, dev_size = sizes
    halves: tuple[list[Row], list[Row]] = ([], [])
    for definition, row in examples:
        halves[_is_for_dev(definition, seed, train_size, dev_size)].append(row)
    for half in halves:
        half.sort(key=lambda row: name_draw(seed, "\t".join(row), _ORDER))
    train = _balanced(halves[0], labels, train_size, folder / "train.tsv")
    known = _all_runs(text for row in train for text in row[:-1])
    fresh = [row for row in halves[1] if all(known.isdisjoint(_runs(t)) for t in row[:-1])]
    dev = _balanced(fresh, labels, dev_size, folder / "dev.tsv")
    for name, rows in (("train.tsv", train), ("dev.tsv", dev)):
        write_text(folder / name, "".join("\t".join(row) + "\n" for row in (columns, *rows)))


def _balanced(rows: Sequence[Row], labels: Row, size: int, path: Path) -> list[Row]:
    """The first rows of each label, the same number of each, in their original order."""
    of_label = {label: [row for row in rows if row[-1] == label] for label in labels}
    scarce = min(labels, key=lambda label: len(of_label[label]))
    each = min(size // len(labels), len(of_label[scarce]))
    if each < _MIN_EXAMPLES:
        raise InputError(
            f"{len(of_label[scarce])} examples of label {scarce!r} for {size} rows in total; each "
            f"of the {len(labels)} labels needs {_MIN_EXAMPLES}. Set more documents aside (share), "
            "harvest more packages, or request more rows.",
            path=path,
        )
    chosen = {row for label in labels for row in of_label[label][:each]}
    return [row for row in rows if row in chosen]


def _is_for_dev(definition: str, seed: int, train: int, dev: int) -> bool:
    """Whether a definition's sentences go to the dev file, in proportion to the sizes."""
    return name_draw(seed, definition, _FOR_DEV) * (train + dev) >= train


def _all_runs(sentences: Iterable[str]) -> set[tuple[str, ...]]:
    return {run for sentence in sentences for run in _runs(sentence)}


def _runs(sentence: str) -> Iterator[tuple[str, ...]]:
    """All runs of :data:`RUN` consecutive words; a shorter sentence is one run."""
    words = words_of(sentence)
    for start in range(max(1, len(words) - RUN + 1)):
        yield tuple(words[start : start + RUN])
