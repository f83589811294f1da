"""A model folder that another library made."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bothways.model.folder import save_model
from model_examples import BOTH_HEADS, small_bert, small_tokenizer


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-trained encoder as another library would leave it. Read only."""
    folder = tmp_path_factory.mktemp("foreign") / "model"
    save_model(folder, small_bert(**BOTH_HEADS, seed=3), small_tokenizer(97))
    for name in ("bothways.json", "checksums.json", "modules.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "1_Pooling")
    return folder


@pytest.fixture
def folder(foreign: Path, tmp_path: Path) -> Path:
    """A copy of it, to change."""
    return Path(shutil.copytree(foreign, tmp_path / "model"))
