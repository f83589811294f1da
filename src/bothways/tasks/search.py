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
    begin: Callable[[FinetuneConfig], Callable[[], FinetuneResult]],
    say: Callable[[str], None],
) -> Callable[[], SearchResult]:
    """Begin every setting.

    Args:
        config: with something to search.
        begin: begins one setting; what it returns gives the result, from what its folder holds or
            by training.
        say: hears of progress.

    Returns:
        What waits for all settings and says which is chosen.

        It raises DivergenceError if no setting has a result. A single one that diverges is left
        out, by name.
    """
    folder = Path(config.run)
    names = {setting_name(setting): setting for setting in config.settings()}
    begun = {name: begin(replace(own, run=str(folder / name))) for name, own in names.items()}

    def finish() -> SearchResult:
        results, diverged = [], []
        for number, (name, result) in enumerate(begun.items(), 1):
            say(f"setting {number} of {len(begun)}: {name}")
            try:
                results.append(result())
            except DivergenceError as error:
                say(f"{name} has no result: {error}")
                diverged.append((name, str(error)))
        if not results:
            raise DivergenceError(
                f"none of the {len(begun)} settings has a result; training diverged in each. Lower "
                "the values of search.lr."
            )
        return SearchResult(folder, tuple(results), config.search.select, tuple(diverged))

    return finish


def setting_name(config: FinetuneConfig) -> str:
    """A setting's folder, such as ``lr-5e-05-batch-16-epochs-3``; whatever is searched, so that it
    keeps its name when another option is searched later."""
    values = {"lr": config.optimizer.lr, "batch": config.batch, "epochs": config.epochs}
    name = "-".join(f"{option}-{setting_value(value)}" for option, value in values.items())
    return name if config.optimizer.bias_correction else f"{name}-uncorrected"
