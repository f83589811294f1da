"""`bothways serve` as a function: see :mod:`bothways.api.calls`."""

from __future__ import annotations

from typing import Any

from bothways.api.calls import call_options
from bothways.api.model import folder_of
from bothways.errors import explain_missing
from bothways.serving.options import ServeConfig


def serve(*models: Any, verbose: bool = True, **options: Any) -> int:
    """Serve models over HTTP until the process is asked to end.

    Args:
        *models: model folders, bundled names, ``NAME=FOLDER``, or models that were loaded from a
            folder.
        verbose: whether the address and what happens are said.
        **options: those of `bothways serve`, by name.

    Returns:
        0 if all requests that were accepted have been answered.

    Raises:
        BothwaysError: see :func:`bothways.serving.server.serve`.
    """
    from bothways.io.terminal import shown

    folders = tuple(m if isinstance(m, str) else folder_of(m, "models") for m in models)
    with shown(verbose), explain_missing("bothways.serve"):
        from bothways.serving.server import serve as run

        config = call_options(ServeConfig, None, {"models": folders, **options}, None)
        return run(config, leave=False)
