"""Notes for the reader of a table that follow from its rows, its scale and its recipe."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bothways.config import PretrainConfig
from bothways.corpus.store import Manifest
from bothways.errors import StoreError
from bothways.reproduce.base_recipe import model_size
from bothways.reproduce.scales import Scale
from bothways.reproduce.steps import Step, first_alike
from bothways.reproduce.tables import Table


def recipe_notes(table: Table, scale: Scale, base: PretrainConfig) -> tuple[str, ...]:
    """What is true of the table's runs.

    Args:
        table: its rows.
        scale: its notes.
        base: the recipe that the rows change.
    """
    notes = [*scale.notes, *_start(base)]
    if _budget(base) == _budget(scale.pretrain):
        notes.append(scale.budget_note)
    if table.sizes:
        notes.append(scale.sizes_note)
    return (*filter(None, notes), *_equal_features(table, base))


def _start(base: PretrainConfig) -> list[str]:
    """How models start and train where that is not the paper's way."""
    model, notes = base.model, []
    if model.init == "primed":
        notes.append(
            "All models start from primed weights (model.init; EXPERIMENTS.md, section 8)."
        )
    if model.dropout == model.attention_dropout == 0:
        notes.append("All models are pre-trained without dropout.")
    return notes


def _budget(recipe: PretrainConfig) -> tuple[object, ...]:
    """What decides how much a run computes."""
    return model_size(recipe), recipe.clock, recipe.phases


def training_tokens(run: Step) -> int | None:
    """Tokens of the text that a pre-training run reads; None if its corpus is not built yet."""
    try:
        report = Manifest.read(Path(run.config.corpus)).report
    except StoreError:
        return None
    return int(report["train"]["tokens"])


def unrepeated_masks(table: Table, steps: Iterable[Step]) -> list[str]:
    """Whether static masks are never repeated, because the runs read too little text for that."""
    if not any(row.static for row in table.rows):
        return []
    notes = []
    for step in steps:
        duplicates = step.config.masking.duplicates if step.kind == "pretrain" else 0
        tokens = training_tokens(step) if duplicates else None
        if tokens is None:
            continue
        # Every phase draws its own masks and counts its own passes.
        read = max(p.share * p.batch * p.length for p in step.config.phases)
        passes = read * step.config.clock.steps / tokens
        if passes <= duplicates:
            notes.append(
                f"Static masks are repeated after pass {duplicates} over the corpus, but no phase "
                f"reads it more than about {passes:.2g} times: both rows are the same computation. "
                "Only more --steps or a smaller corpus can tell them apart."
            )
    return list(dict.fromkeys(notes))


def _equal_features(table: Table, base: PretrainConfig) -> list[str]:
    """The rows that give the tagger the same features."""
    label = {row.layers: " / ".join(row.label) for row in table.rows if row.layers is not None}
    layers = model_size(base)[0]
    return [
        f"With {layers} layers, the rows {label[first]!r} and {label[choice]!r} are the same, and "
        "are computed once."
        for choice, first in first_alike(list(label), layers).items()
        if choice != first
    ]
