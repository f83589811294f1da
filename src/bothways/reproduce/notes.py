"""Notes for the reader of a table that follow from its rows, its scale and its recipe."""

from __future__ import annotations

from bothways.config import PretrainConfig
from bothways.reproduce.base_recipe import model_size
from bothways.reproduce.scales import Scale
from bothways.reproduce.steps import first_alike
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
