"""The recipe that the rows of a table change, and the changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bothways.config.fields import changed, recipe_fields
from bothways.config.parsing import read_recipe
from bothways.errors import ConfigError
from bothways.experiments.reproduce.options import ReproduceConfig
from bothways.experiments.reproduce.tables import Scale, Table
from bothways.pretraining.options import PretrainConfig

# --------------------------------------------------------------------------------
# The difference between two configs.


def difference(base: Any, config: Any) -> str:
    """How ``config`` differs from ``base``, for names of folders; empty if they are equal."""
    before, after = recipe_fields(base), recipe_fields(config)
    parts = []
    for name, value in after.items():
        if value != before[name]:
            short = name.removesuffix(".kind").rpartition(".")[2]
            shown = f"{value:g}" if isinstance(value, float) else str(value)
            parts += [short, shown]
    return "-".join(parts)


# --------------------------------------------------------------------------------
# The recipe that the rows of a table change: a scale's, with the changes of the command line.


def base_recipe(table: Table, scale: Scale, config: ReproduceConfig) -> PretrainConfig:
    """The scale's pre-training recipe with the changes of the command line.

    Raises:
        ConfigError: the recipe has a clock without steps, starts from a model, or sets what the
            rows or other options set.
    """
    base = scale.pretrain
    if config.recipe:
        values = read_recipe(PretrainConfig, config.recipe)
        _refuse_overruled(values, config.recipe)
        if "model.size" in values:  # not with the numbers of the scale's own size
            base = changed(base, {f"model.{n}": None for n in ("layers", "hidden", "heads")})
        base = changed(base, values)
        if table.sizes:
            _refuse_other_size(base, scale, table, config.recipe)
    if config.steps:
        base = changed(base, {"clock.steps": config.steps})
    if base.clock.steps is None:
        raise ConfigError(
            f"{config.recipe}: the rows of a table must train for the same number of steps; set "
            "clock.steps in the recipe, or --steps."
        )
    numerics = {
        "device": None if config.device == "auto" else config.device,
        "precision": None if config.precision == "auto" else config.precision,
        "threads": config.threads or None,
    }
    return changed(base, {name: value for name, value in numerics.items() if value is not None})


def model_size(recipe: PretrainConfig) -> tuple[int, int, int]:
    """Layers, hidden size and heads of the encoder."""
    shape = recipe.model.resolve(vocab_size=1)
    return shape.layers, shape.hidden, shape.heads


def _refuse_overruled(values: Mapping[str, Any], path: str) -> None:
    """Refuse what has no effect in a table, or not the one expected."""
    if values.get("start") is not None:
        raise ConfigError(
            f"{path}: start is {values['start']}, but the rows of a table start from new weights; "
            "leave it out."
        )
    if "seed" in values:
        raise ConfigError(
            f"{path}: seed is {values['seed']}, but a table may have several; leave it out, and "
            f"give --pretrain_seeds {values['seed']}."
        )


def _refuse_other_size(base: PretrainConfig, scale: Scale, table: Table, path: str) -> None:
    """Refuse a model of another size than the scale's: the rows set the sizes."""
    if model_size(base) == model_size(scale.pretrain) and base.model.intermediate is None:
        return
    raise ConfigError(
        f"{path}: it sets the size of the model, but so do the rows of {table.name}; leave out "
        "model.size, layers, hidden, heads and intermediate."
    )
