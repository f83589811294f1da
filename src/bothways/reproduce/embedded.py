"""The smoke scale's text and tasks, made from the documentation inside installed packages.

Beside the demonstration's two tasks there is one of tags: words of a sentence are lower-cased, and
the tags say which had a capital letter, as names have.
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
    """What is read and made."""

    packages: tuple[str, ...] = (STDLIB, "numpy")
    max_mb: float = 1.0
    examples: int = 200
    seed: int = 0


def make_text(options: TextOptions, folder: Path) -> dict[str, int]:
    """Write ``text.txt`` and a folder for each task; all or nothing.

    Returns:
        How many documents there are to pre-train on, and how many for the tasks.

    Raises:
        InputError: the packages hold too little prose.
        DiskError: a file could not be written.
    """
    documents = harvest(packages=options.packages, max_mb=options.max_mb)
    for_pretraining, for_tasks = split_documents(documents, seed=options.seed)
    with new_folder(folder) as partial:
        write_corpus(for_pretraining, partial / TEXT)
        seed, many = options.seed, options.examples
        follows_task(for_tasks, partial / "follows", seed=seed, train=many, dev=many)
        folder_of, packages = partial / "package", options.packages
        package_task(for_tasks, folder_of, seed=seed, train=many, dev=many, packages=packages)
        _capitals_task(for_tasks, partial / "capitals", options)
    return {"documents": len(for_pretraining), "set_aside": len(for_tasks)}


def _capitals_task(documents: Sequence[Document], folder: Path, options: TextOptions) -> None:
    """``train.conll``, ``dev.conll`` and ``test.conll``; no definition is in two of them."""
    parts: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
    for document in documents:
        draw = name_draw(options.seed, document.definition, 0)
        part = "train" if draw >= 2 * _DEV_SHARE else "dev" if draw >= _DEV_SHARE else "test"
        parts[part] += [found for s in document.sentences if "\tB-" in (found := _tagged(s))]
    for part, sentences in parts.items():
        write_text(folder / f"{part}.conll", "\n\n".join(sentences[: options.examples]) + "\n")


def _tagged(sentence: str) -> str:
    """A word and its tag a line; the first word's capital says nothing and is left out."""
    lines, inside = [], False
    for number, word in enumerate(_WORD.findall(sentence)):
        capital = number > 0 and word != word.lower()
        lines.append(f"{word.lower()}\t{('I-CAP' if inside else 'B-CAP') if capital else 'O'}")
        inside = capital
    return "\n".join(lines)
