"""The models that come with the package, asked for by name where a model folder is named."""

from __future__ import annotations

from pathlib import Path

SHIPPED = ("mini-en",)
"""Their names; each is a model folder with a README.md that says what it was made of."""
DEFAULT = "mini-en"
"""Taken where no model is named."""
_FOLDER = Path(__file__).parent / "models"
_OURS = ("config.json", "tokenizer.json", "vocab.txt", "run.json", "corpus.json")


def model_folder(name: str | Path) -> Path:
    """Where a model is: ``name`` itself, or if it is a shipped model's, the folder of that.

    A folder of the same name in the working folder that holds a model, a vocabulary, a run or a
    corpus comes first, as it does for everyone who has never heard of the shipped ones. A ``Path``,
    and ``./NAME``, are places and no names.
    """
    folder = Path(name)
    if name not in SHIPPED or any((folder / file).is_file() for file in _OURS):
        return folder
    return _FOLDER / folder
