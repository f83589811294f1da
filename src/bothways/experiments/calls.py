"""The verbs of experiments as functions: see :mod:`bothways.api.calls`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bothways.api.calls import Listing, call_options
from bothways.api.corpus import store_of
from bothways.experiments.options import (
    DemoConfig,
    PlanConfig,
    ReproduceConfig,
)
from bothways.experiments.plan import Forecast
from bothways.finetuning.options import FeaturesConfig, GlueConfig
from bothways.io.terminal import shown


def plan(
    recipe: Any = None, *, corpus: Any = None, verbose: bool = True, **options: Any
) -> Forecast:
    """Estimate the memory, disk and hours of a pre-training, without training.

    Args:
        recipe: as for :func:`pretrain`; or a :class:`bothways.experiments.options.PlanConfig`.
        corpus: a :class:`Corpus` or its folder; without one, sequences are assumed to be full.
        verbose: whether notes are shown.
        **options: those of `bothways plan`, by name.

    Returns:
        The estimates; printed or shown in a notebook they are tables.

    Raises:
        BothwaysError: as pre-training would.
    """
    from bothways.experiments.plan import plan as forecast

    named = None if isinstance(recipe, PlanConfig) else recipe
    given = {"corpus": None if corpus is None else store_of(corpus), **options}
    with shown(verbose):
        return forecast(call_options(PlanConfig, recipe, given, named))


def reproduce(name: str, **options: Any) -> Listing:
    """Reproduce a table of the paper, next to the published figures.

    Args:
        name: of the table or comparison: ``table5``, ``masks`` ...; or ``glue``, for any tasks in
            one table, or ``features``, for a tagger on the layers of a frozen encoder.
        **options: those of `bothways reproduce`, by name.

    Returns:
        The table.

    Raises:
        BothwaysError: see :func:`bothways.experiments.reproduce.run.reproduce`,
            :func:`bothways.finetuning.glue.glue`,
            :func:`bothways.finetuning.features.tag_by_features`.
    """
    if name == "glue":
        from bothways.finetuning.glue import glue

        return Listing(glue(call_options(GlueConfig, None, options)).text())
    if name == "features":
        from bothways.finetuning.features import tag_by_features

        return Listing(
            "\n".join(tag_by_features(call_options(FeaturesConfig, None, options)).table())
        )
    from bothways.experiments.reproduce.run import reproduce as compute

    return Listing(compute(call_options(ReproduceConfig, None, {"name": name, **options})))


def demo(out: str | Path | None = None, minutes: float | None = None, **options: Any) -> Listing:
    """Go from raw text to a fine-tuned BERT on this machine, in minutes.

    Args:
        out: folder to write everything to.
        minutes: how long it takes, about.
        **options: those of `bothways demo`: ``seeds``, ``seed``.

    Returns:
        The report.
    """
    from bothways.experiments.demo import demo as show

    return Listing(
        show(call_options(DemoConfig, None, {"out": out, "minutes": minutes, **options}))
    )
