"""The recipe that the rows of a table change: a scale's, with the changes of the command line."""

from __future__ import annotations

import dataclasses

from bothways.config import ClockOptions, PretrainConfig, ReproduceConfig
from bothways.errors import ConfigError
from bothways.options import read_recipe
from bothways.reproduce.changes import changed
from bothways.reproduce.scales import Scale
from bothways.reproduce.tables import Table


def base_recipe(table: Table, scale: Scale, config: ReproduceConfig) -> PretrainConfig:
    """The scale's pre-training recipe with the changes of the command line.

    Raises:
        ConfigError: the recipe has a clock without steps, or starts from a model.
    """
    base = scale.pretrain
    if config.recipe:
        values = read_recipe(PretrainConfig, config.recipe)
        if values.get("start") is not None:
            raise ConfigError(
                f"{config.recipe}: start is {values['start']}, but the rows of a table start "
                "from new weights; leave it out."
            )
        clock = {n.removeprefix("clock."): v for n, v in values.items() if n.startswith("clock.")}
        rest = {n: v for n, v in values.items() if not n.startswith("clock.")}
        base = changed(base, rest)
        if clock:
            base = dataclasses.replace(base, clock=ClockOptions(**clock))
    if config.steps:
        base = dataclasses.replace(base, clock=ClockOptions(steps=config.steps))
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
