"""A search over settings of fine-tuning: every combination, each with every seed, chosen on dev.

Each setting has a run folder of its own inside that of the search, so finished runs are kept
however the search is interrupted or extended. Settings share no training: the learning rate falls
to 0 over the length of a run, so two epochs are not the first two of three.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bothways.errors import DivergenceError
from bothways.finetuning.options import FinetuneConfig
from bothways.finetuning.report import write_search_reports
from bothways.finetuning.results import FinetuneResult, SearchResult, setting_value
from bothways.training.runfolder import RunLock

SEARCH_VERB = "finetune search"
"""The verb in run.json of a search's folder."""


class PreparedRun(Protocol):
    """A fine-tuning run that is checked and ready, whose result can be requested once."""

    def result(self) -> FinetuneResult:
        """Train what is not finished, or wait for it, and write the reports."""


@dataclass(frozen=True)
class PreparedSearch:
    """A search whose settings are all prepared.

    Attributes:
        folder: run folder of the search.
        settings: the prepared settings, by name.
        select: the rule that chooses one: ``mean`` or ``best``.
        say: called with lines of progress.
        lock: keeps other commands out of the search's folder.
    """

    folder: Path
    settings: Mapping[str, PreparedRun]
    select: str
    say: Callable[[str], None]
    lock: RunLock | None = None

    def result(self) -> FinetuneResult:
        """Collect the results of all settings, write the reports, and choose a setting.

        A setting in which training diverges has no result; it is named in the report.

        Returns:
            The result of the setting chosen, with the search it was chosen in.

        Raises:
            DivergenceError: no setting has a result.
        """
        results, diverged = [], []
        for number, (name, setting) in enumerate(self.settings.items(), 1):
            self.say(f"setting {number} of {len(self.settings)}: {name}")
            try:
                results.append(setting.result())
            except DivergenceError as error:
                self.say(f"{name} has no result: {error}")
                diverged.append((name, str(error)))
        if not results:
            raise DivergenceError(
                f"none of the {len(self.settings)} settings has a result; training diverged in "
                "each. Lower the values of search.lr."
            )
        search = SearchResult(self.folder, tuple(results), self.select, tuple(diverged))
        write_search_reports(search)
        return dataclasses.replace(search.chosen, search=search)


def setting_configs(config: FinetuneConfig) -> dict[str, FinetuneConfig]:
    """The config of each setting of a search, with its own run folder, by the setting's name."""
    configs = {setting_name(setting): setting for setting in config.settings()}
    return {
        name: dataclasses.replace(setting, run=str(Path(config.run) / name))
        for name, setting in configs.items()
    }


def setting_name(config: FinetuneConfig) -> str:
    """The folder of a setting, such as ``lr-5e-05-batch-16-epochs-3``.

    All options are in it, searched or not, so that a setting keeps its name when another option is
    searched later.
    """
    values = {"lr": config.optimizer.lr, "batch": config.batch, "epochs": config.epochs}
    name = "-".join(f"{option}-{setting_value(value)}" for option, value in values.items())
    return name if config.optimizer.bias_correction else f"{name}-uncorrected"
