"""A search over settings of fine-tuning: every combination, each with every seed, chosen on dev.

Each setting is a run folder of its own inside that of the search, so what is finished is kept
whatever interrupts the search or is added to it. Nothing is shared between settings: the learning
rate falls to 0 over a run's own length, so two epochs are no beginning of three.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bothways.config import FinetuneConfig
from bothways.errors import DivergenceError
from bothways.tasks.report import FinetuneResult, SearchResult, setting_value

SEARCH_VERB = "finetune search"
"""What run.json of a search's folder says of it."""


def search(
    config: FinetuneConfig,
    train: Callable[[FinetuneConfig], FinetuneResult],
    say: Callable[[str], None],
) -> SearchResult:
    """Train every setting and say which is chosen.

    Args:
        config: with something to search.
        train: gives the result of one setting, from what its folder holds or by training.
        say: hears of progress.

    Raises:
        DivergenceError: no setting has a result. A single one that diverges is left out, by name.
    """
    folder = Path(config.run)
    settings = list(config.settings())
    results, diverged = [], []
    for number, setting in enumerate(settings, 1):
        name = setting_name(setting)
        say(f"setting {number} of {len(settings)}: {name}")
        try:
            results.append(train(replace(setting, run=str(folder / name))))
        except DivergenceError as error:
            say(f"{name} has no result: {error}")
            diverged.append((name, str(error)))
    if not results:
        raise DivergenceError(
            f"none of the {len(settings)} settings has a result; training diverged in each. Lower "
            "the values of search.lr."
        )
    return SearchResult(folder, tuple(results), config.search.select, tuple(diverged))


def setting_name(config: FinetuneConfig) -> str:
    """A setting's folder, such as ``lr-5e-05-batch-16-epochs-3``; whatever is searched, so that it
    keeps its name when another option is searched later."""
    values = {"lr": config.optimizer.lr, "batch": config.batch, "epochs": config.epochs}
    name = "-".join(f"{option}-{setting_value(value)}" for option, value in values.items())
    return name if config.optimizer.bias_correction else f"{name}-uncorrected"
