"""The result of a fine-tuning in Python: as the run's own, and its model."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

from bothways.api.model import Model, load
from bothways.finetuning.results import FinetuneResult


@dataclass(frozen=True, repr=False)
class Finetuned(FinetuneResult):
    """The result of :func:`bothways.finetune`; in a notebook it shows scores and curves.

    Attributes: those of :class:`bothways.finetuning.results.FinetuneResult`.
    """

    @classmethod
    def of(cls, result: FinetuneResult) -> Finetuned:
        """The same result."""
        return cls(**{item.name: getattr(result, item.name) for item in fields(result)})

    @cached_property
    def model(self) -> Model:
        """The model of the seed that is best on dev."""
        return load(self.best.model)
