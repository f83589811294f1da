"""The program ``bothways``: words of a command line to a verb, its help, and what an error says.

No module here may import torch, directly or not: help answers at once.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from bothways.cli.verbs import GROUPS, PARALLEL, VERBS, Call, Verb, VerbGroup
from bothways.config.parsing import UsageError
from bothways.errors import BothwaysError, OtherProcessError, is_out_of_memory, nearest
from bothways.io.processes import INTERRUPTED, interrupted_by_signals
from bothways.io.streams import open_closed_streams, show_every_character, visible

__all__ = ["VERBS", "Call", "Verb", "VerbGroup", "main"]

_OUT_OF_MEMORY = (
    "out of memory. What was saved before is kept. `pretrain` and `finetune` need less with "
    "--recompute, also to continue a run; a new one may have a smaller micro_batch in its phases "
    "(pretrain) or --max-length. Elsewhere, fewer --workers or --jobs need less."
)
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EBADF, errno.EFBIG, errno.EIO)
"""What writing to standard output fails with: it is full, closed, too large, or a terminal that is
gone."""
_FIRST_EXAMPLES = """\
examples:
  bothways fill-mask 'He went to the [MASK] and sat down.'
  bothways finetune --train train.csv --text review --label stars --dev 0.1
  bothways pretrain --corpus corpus --minutes 10"""
_HELP = ("-h", "--help", "help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line.

    Returns:
        The exit status: 0, 1 after an error, 2 after an invalid command line, 130 after an
        interruption.
    """
    _limit_spinning()
    # Where fonts are kept, and what Ctrl-C cancels, is no news of ours.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="joblib.parallel")
    # Figures are written to files; the backend of a notebook, which `!bothways` inherits, may not
    # be installed here, and matplotlib is then not imported at all.
    os.environ["MPLBACKEND"] = "agg"
    open_closed_streams()
    show_every_character()
    words = sys.argv[1:] if argv is None else argv
    try:
        try:
            with interrupted_by_signals(), _processes(words):
                status = _dispatch(words)
        except SystemExit as stop:  # help has been printed
            status = int(stop.code or 0)
        sys.stdout.flush()
    except OtherProcessError:
        return 1
    except BothwaysError as error:
        status = 2 if isinstance(error, UsageError) else 1
        return _failed(f"bothways: error: {visible(str(error))}", status)
    except KeyboardInterrupt:
        return _failed(INTERRUPTED, 130)
    except (MemoryError, RuntimeError, ImportError) as error:
        if not is_out_of_memory(error):
            raise
        return _failed(f"bothways: error: {_OUT_OF_MEMORY}")
    except BrokenPipeError:  # the reader (head, less) has gone
        _drop_output()
        return 1
    except OSError as error:  # not wrapped in a BothwaysError: name the file and the reason
        if error.filename is None and error.errno in _NOT_WRITTEN:
            why = "it is closed" if error.errno == errno.EBADF else error.strerror
            return _failed(f"bothways: error: standard output: {why}.")
        if is_out_of_memory(error):
            return _failed(f"bothways: error: {_OUT_OF_MEMORY}")
        if error.filename is None:
            raise
        return _failed(f"bothways: error: {visible(str(error.filename))}: {error.strerror}.")
    return status


def _failed(message: str, status: int = 1) -> int:
    """Print why the program ends, and return its status."""
    with contextlib.suppress(BrokenPipeError):  # Ctrl-C may have ended the reader, too
        print(message, file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
    return status


def _drop_output() -> None:
    """Redirect stdout, which Python flushes once more when it exits, and would then fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _limit_spinning() -> None:
    """Let OpenMP's threads sleep soon when they wait for one another, unless the environment says
    how they wait.

    By default they spin for milliseconds. Where other programs keep the cores busy, that takes the
    time from the very thread that is waited for: steps in two threads were over ten times slower
    (benchmarks/2026-11-22-spinning.md). The variable is read when torch is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def _refuse_removed_folder() -> None:
    """Refuse to work in a folder that was removed: torch's library of matrices ends the process
    there."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UsageError("the folder you are in was removed; go to another one (cd).") from None


def _dispatch(argv: Sequence[str]) -> int:
    """Run a verb; or print the help, the version or what a shell completes words by."""
    if not argv or (argv[0] in _HELP and len(argv) == 1):
        print(_help())
        return 0 if argv else 2
    if argv[0] in ("--version", "version"):
        from importlib.metadata import version

        print(f"bothways {version('bothways')}")
        return 0
    if argv[0] == "completion":
        from bothways.cli.completion import script

        print(script(argv[1:]), end="")
        return 0
    if argv[0] in _HELP:  # `bothways help VERB [ACTION]`
        argv = [*argv[1:], "--help"]
    name = argv[0]
    later = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0"
    if _several_processes() and name not in PARALLEL and later:
        raise OtherProcessError("the first process says what is wrong")
    if name not in VERBS:
        raise UsageError(f"unknown verb {name!r}; {_hint(name)}")
    if _several_processes() and name not in PARALLEL:
        raise UsageError(f"{name} runs in one process; start it without torchrun.")
    if "--help" not in argv:
        _refuse_removed_folder()
    return VERBS[name].run(name, argv[1:])


def _hint(name: str) -> str:
    close = nearest(name, [*VERBS, "help", "completion", "version"])
    if not close and name.startswith("-"):
        return f"write the verb before its options: bothways VERB {name}; see 'bothways --help'."
    return f"did you mean '{close}'?" if close else "see 'bothways --help'."


def _several_processes() -> bool:
    """Whether ``torchrun`` has started several processes."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def _processes(argv: Sequence[str]) -> contextlib.AbstractContextManager[object]:
    """Joins the processes of a ``torchrun`` for the verbs that run in several, so that only one of
    them prints an error."""
    if not _several_processes() or not set(argv[:1]) & set(PARALLEL):
        return contextlib.nullcontext()
    from bothways.training.ranks import process_group

    return process_group()


def _help() -> str:
    lines = [
        "usage: bothways VERB ...",
        "",
        "Text encoders (BERT and its relatives), end to end: train one on raw text, fine-tune it",
        "on labels, use it and serve it.",
    ]
    for title, verbs in GROUPS.items():
        lines += ["", f"{title}:"]
        lines += [f"  {name:<15} {verb.summary}" for name, verb in verbs.items()]
    lines += [
        "",
        "  bothways VERB --help         its options and examples",
        "  bothways completion SHELL    completion of verbs and options, for bash, zsh or fish",
        "  bothways --version           the version",
    ]
    return "\n".join([*lines, "", _FIRST_EXAMPLES])
