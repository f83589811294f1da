"""Predictions in the format of GLUE's evaluation server.

One file per task, named as the server requires: a header ``index<TAB>prediction``, then for each
example of the test file a line with its number from 0 and the label as the training file writes it,
or the score. (https://gluebenchmark.com, its FAQ, and the sample submission there.)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bothways.config import TaskOptions
from bothways.errors import RunError
from bothways.files import write_text
from bothways.finetuning.extra_files import part_name, predictions_name
from bothways.finetuning.results import SeedResult


def submission_rows(table: Sequence[Sequence[str]]) -> list[list[str]]:
    """The first two columns of predictions, from the rows of :meth:`Task.table`."""
    return [[row[0], row[1]] for row in table]


def write_submission(
    options: TaskOptions, data: Path, seed: SeedResult, folder: Path
) -> list[Path]:
    """Write a task's files for the server, from the predictions of one seed.

    Args:
        options: the task; ``submission`` names the files, for ``test``, ``predict`` and
            ``optional`` in turn.
        data: the folder of the task's files; test files that do not exist are skipped.
        seed: the seed whose predictions are written.
        folder: to write to.

    Returns:
        The files written; none for a task without a test file or without ``submission``.

    Raises:
        RunError: the seed's folder lacks its predictions.
    """
    others = (*options.predict, *options.optional)
    predicted = {"test": options.test or "", **{part_name(name): name for name in others}}
    written = []
    for name, (stem, file) in zip(options.submission, predicted.items(), strict=False):
        if not file or not (data / file).exists() or folder / name in written:
            continue
        source = seed.folder / predictions_name(stem)
        try:
            lines = source.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        except OSError as error:
            raise RunError(
                f"{source} cannot be read ({error.strerror}); remove it and run the command again, "
                "which writes it again."
            ) from None
        rows = submission_rows([line.split("\t") for line in lines])
        write_text(folder / name, "".join("\t".join(row) + "\n" for row in rows))
        written.append(folder / name)
    return written
