"""The smoke scale's text and tasks, made from the documentation of installed packages.

In addition to the demonstration's two tasks there is a tagging task: the words of a sentence are
lower-cased, and the tags mark those that had a capital letter, as names have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bothways.demo.harvest import STDLIB, Document, harvest, name_draw, write_corpus
from bothways.demo.labelled import follows_task, package_task, split_documents
from bothways.files import new_folder, write_text

TEXT = "text.txt"
_WORD = re.compile(r"\w+|[^\w\s]")
_DEV_SHARE = 1 / 3


@dataclass(frozen=True)
class TextOptions:
    """The packages to read, and how much to make."""

    packages: tuple[str, ...] = (STDLIB, "numpy")
    max_mb: float = 1.0
    examples: int = 200
    seed: int = 0


def make_text(options: TextOptions, folder: Path) -> dict[str, int]:
    """Write ``text.txt`` and a folder for each task; all or nothing.

    Returns:
        The number of documents to pre-train on, and of those set aside for the tasks.

    Raises:
        InputError: the packages hold too little prose.
        DiskError: a file could not be written.
    """
    documents = harvest(packages=options.packages, max_mb=options.max_mb)
    for_pretraining, for_tasks = split_documents(documents, seed=options.seed)
    with new_folder(folder) as partial:
        write_corpus(for_pretraining, partial / TEXT)
        seed, count = options.seed, options.examples
        follows_task(for_tasks, partial / "follows", seed=seed, train=count, dev=count)
        package_task(
            for_tasks,
            partial / "package",
            seed=seed,
            train=count,
            dev=count,
            packages=options.packages,
        )
        _capitals_task(for_tasks, partial / "capitals", options)
    return {"documents": len(for_pretraining), "set_aside": len(for_tasks)}


def _capitals_task(documents: Sequence[Document], folder: Path, options: TextOptions) -> None:
    """``train.conll``, ``dev.conll`` and ``test.conll``; no definition is in two of them."""
    splits: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
    for document in documents:
        draw = name_draw(options.seed, document.definition, 0)
        split = "train" if draw >= 2 * _DEV_SHARE else "dev" if draw >= _DEV_SHARE else "test"
        tagged = map(_tagged, document.sentences)
        splits[split] += [sentence for sentence in tagged if "\tB-" in sentence]
    for split, sentences in splits.items():
        write_text(folder / f"{split}.conll", "\n\n".join(sentences[: options.examples]) + "\n")


def _tagged(sentence: str) -> str:
    """One line per word, with its tag; the first word's capital is not informative, so ignored."""
    lines, inside = [], False
    for number, word in enumerate(_WORD.findall(sentence)):
        capital = number > 0 and word != word.lower()
        lines.append(f"{word.lower()}\t{('I-CAP' if inside else 'B-CAP') if capital else 'O'}")
        inside = capital
    return "\n".join(lines)
