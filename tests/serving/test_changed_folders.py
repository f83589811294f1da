"""A worker that is started later reads the models that the server began with, or none."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from bothways.api.calls import export
from bothways.runtime.folder import files_read
from bothways.serving.sources import ChangedError, Sources
from serving_examples import make_folders


def of(folder: Path) -> Sources:
    """As a later worker gets it."""
    sources = Sources({"one": str(folder)})
    sources.sum_up()
    found: Sources = pickle.loads(pickle.dumps(sources))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(make_folders(tmp_path, "classes")["classes"])


def put_again(folder: Path) -> None:
    """The same content in other files."""
    shutil.copytree(folder, folder.with_name("copy"), copy_function=shutil.copyfile)
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)


def test_the_same_files_and_the_same_content_again(folder: Path) -> None:
    sources = of(folder)
    sources.refuse_changed()
    put_again(folder)
    sources.refuse_changed()
    (folder / "README.md").write_text("said later", encoding="utf-8")
    sources.refuse_changed()


def other_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    content, about = bytearray(path.read_bytes()), path.stat()
    content[-1] ^= 1
    path.unlink()
    path.write_bytes(content)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))  # as copies with their times have it


CHANGES: dict[str, tuple[Any, str]] = {
    "weights": (other_weights, "model.safetensors)"),
    "labels": (
        lambda folder: (folder / "bothways.json").write_text('{"format": 2}', encoding="utf-8"),
        "bothways.json)",
    ),
    "a new file": (
        lambda folder: (folder / "modules.json").write_text("[]", encoding="utf-8"),
        "modules.json)",
    ),
    "no folder": (shutil.rmtree, " more)"),
    "another in its place": (
        lambda folder: (
            shutil.rmtree(folder),
            Path(make_folders(folder.parent, "vectors")["vectors"]).rename(folder),
        ),
        " more)",
    ),
    "half a copy": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_another_model_is_refused(folder: Path, name: str) -> None:
    change, said = CHANGES[name]
    sources = of(folder)
    change(folder)
    with pytest.raises(ChangedError, match="Start the server again") as found:
        sources.refuse_changed()
    assert "the files of the model one have changed since the server began" in str(found.value)
    assert said in str(found.value)


def test_other_files_are_not_the_models(folder: Path) -> None:
    sources = of(folder)
    (folder / "notes.txt").write_text("of people")
    (folder / "README.md").write_text("for people")
    sources.refuse_changed()


def test_a_link_that_leads_elsewhere_and_files_that_changed_before_their_sums(folder: Path) -> None:
    other = folder.with_name("other")
    shutil.copytree(folder, other)
    other_weights(other)
    link = folder.with_name("current")
    link.symlink_to(folder)
    sources = of(link)
    link.unlink()
    link.symlink_to(other)
    with pytest.raises(ChangedError):
        sources.refuse_changed()
    early = Sources({"one": str(folder)})
    put_again(folder)
    early.sum_up()
    with pytest.raises(ChangedError):  # of which nobody knows what they were
        early.refuse_changed()


def test_the_base_of_an_adapter_and_graphs_are_read(folder: Path, tmp_path: Path) -> None:
    export(str(folder), tmp_path / "out")
    names = {path.relative_to(tmp_path / "out").as_posix() for path in files_read(tmp_path / "out")}
    assert {"onnx/model.onnx", "config.json", "vocab.txt"} <= names
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    settings = {"base_model_name_or_path": "../classes", "peft_type": "LORA"}
    (adapter / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (adapter / "adapter_model.safetensors").write_bytes(b"")
    read = {path.resolve() for path in files_read(adapter)}
    assert adapter / "adapter_model.safetensors" in read
    assert {folder / "model.safetensors", folder / "vocab.txt"} <= read
    assert files_read(tmp_path / "nothing") == []
