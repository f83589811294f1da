"""The one family of errors.

Every refusal a user can cause raises a subclass of :class:`BothwaysError` whose message names what
was wrong (file and line, id, or field), the limit that was passed, and what to do about it. The
command line prints the message without a traceback and exits with status 1; a traceback is
therefore always a defect of bothways itself.
"""

from __future__ import annotations

from pathlib import Path


class BothwaysError(Exception):
    """Base of all errors that a user can cause and mend."""


class ConfigError(BothwaysError):
    """A recipe, an option or a combination of options that cannot be run."""


class InputError(BothwaysError):
    """Text or labelled data that cannot be read as asked."""

    def __init__(self, problem: str, *, path: str | Path | None = None, line: int | None = None):
        self.path, self.line = path, line
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(where + problem)


class StoreError(BothwaysError):
    """A corpus folder that is damaged, incomplete, or was built for something else."""


class ModelError(BothwaysError):
    """A model folder that is damaged, incomplete, or not a BERT that bothways can compute."""


class RunError(BothwaysError):
    """A run folder that cannot be continued: another config, or no checkpoint left intact."""


class DivergenceError(RunError):
    """Training whose gradient is no finite number any more."""


class LengthError(BothwaysError):
    """A sequence longer than the encoder's positions."""


class DiskError(BothwaysError):
    """A file could not be written; what was there before is untouched."""
