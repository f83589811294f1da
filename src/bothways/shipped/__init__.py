"""The bundled models, which are selected by name wherever a model folder is expected."""

from __future__ import annotations

from pathlib import Path

SHIPPED = ("mini-en",)
"""Names of the bundled models; each is a model folder with a model card, README.md."""
DEFAULT = "mini-en"
"""The model used if none is given."""
DEFAULT_MASK = "[MASK]"
"""Its mask piece."""
_HERE = Path(__file__).parent
_MARKERS = ("config.json", "tokenizer.json", "vocab.txt", "run.json", "corpus.json")
"""Files that identify a folder as a model, vocabulary, run or corpus."""


def model_folder(name: str | Path) -> Path:
    """The folder of a model, given by path or by the name of a bundled model.

    A local folder of that name with a model, vocabulary, run or corpus in it takes precedence over
    the bundled model. A ``Path`` or ``./NAME`` is always a path.
    """
    folder = Path(name)
    if name not in SHIPPED or any((folder / file).is_file() for file in _MARKERS):
        return folder
    return _HERE / folder
