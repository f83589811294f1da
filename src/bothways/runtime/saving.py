"""Writing opened model folders: all of a model or some of its heads, its card, the checksums."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path

from bothways.errors import ModelError
from bothways.families.heads import HEADS, LSTM, form_of, task_head
from bothways.io.files import explain_disk_errors, new_folder
from bothways.runtime.checksums import write_checksums
from bothways.runtime.folder import (
    CONFIG,
    OF_TASK,
    LoadedModel,
    write_description,
)
from bothways.runtime.model_card import write_card
from bothways.runtime.sentence_modules import write_sentence_modules
from bothways.runtime.stored import WEIGHTS
from bothways.runtime.weights import has_weights, write_weights


def save_loaded(folder: Path, loaded: LoadedModel) -> None:
    """Write an opened folder in our form, its weights to the bit, completely or not at all.

    Args:
        folder: where; an existing folder is replaced.
        loaded: with its weights.

    Raises:
        ModelError: two heads that have the same names in a file.
        DiskError: it could not be written; the old folder is intact.
    """
    assert loaded.weights is not None, "checked by the caller"
    with new_folder(folder) as partial:
        with explain_disk_errors(partial / WEIGHTS):
            write_weights(partial / WEIGHTS, loaded.weights)
        # Others open a folder in the type that it names; that of the file may be smaller.
        write_description(partial, loaded, dtype="float32")
        # safetensors makes its files readable by the owner only.
        (partial / WEIGHTS).chmod((partial / CONFIG).stat().st_mode)
        complete_folder(partial, loaded)


def with_heads(loaded: LoadedModel, names: Collection[str]) -> LoadedModel:
    """An opened folder with some of its heads, and without a pooler that none of these reads.

    Args:
        loaded: with its weights.
        names: of the heads to keep; ``all`` or ``none`` alone stand for these.

    Raises:
        ModelError: the model has no such head.
    """
    assert loaded.weights is not None, "checked by the caller"
    if [*names] == ["all"]:
        return loaded
    wanted = set() if [*names] == ["none"] else {*names}
    if missing := sorted(wanted - loaded.heads.keys()):
        raise ModelError(
            f"heads: the model has no {', '.join(missing)}; it has "
            f"{', '.join(loaded.heads) or 'none'}. Give names of these, all, or none."
        )
    heads = {name: outputs for name, outputs in loaded.heads.items() if name in wanted}
    lstm = loaded.lstm if task_head(heads) else 0
    pooler = not heads or any(
        form_of(name, loaded.config).pooled for name in heads if not (lstm and HEADS[name].task)
    )
    of = {*heads, "encoder", *([LSTM] if lstm else [])}
    kept = {
        name: parts
        for name, parts in loaded.weights.parts.items()
        if name.partition(".")[0] in of and (pooler or not name.startswith("encoder.pooler."))
    }
    dropped = set() if task_head(heads) else {*OF_TASK}
    return dataclasses.replace(
        loaded,
        heads=heads,
        lstm=lstm,
        pooler=loaded.pooler and pooler,
        weights=dataclasses.replace(loaded.weights, parts=kept, heads=heads, lstm=lstm),
        about={name: value for name, value in loaded.about.items() if name not in dropped},
        fresh=loaded.fresh if pooler else [],
        refused={name: why for name, why in loaded.refused.items() if name in heads},
    )


def complete_folder(folder: Path, loaded: LoadedModel) -> None:
    """Add what a folder has for those whom it is handed to: its card, and how vectors are made of a
    model without a task, if it gives states: a graph of other outputs does not. Then the checksums.

    Args:
        folder: with all other files.
        loaded: what these describe.

    Raises:
        DiskError: a file could not be written.
    """
    write_card(folder, loaded)
    if not loaded.heads or (has_weights(folder) and not loaded.task_head):
        write_sentence_modules(folder, loaded.about, loaded.config.hidden)
    write_checksums(folder)
