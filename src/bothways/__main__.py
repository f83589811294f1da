"""``python -m bothways``: the program ``bothways``, as started by torchrun; and its entry point."""

import atexit
import os
import signal
import sys


def run() -> int:
    """Run the program and return its status.

    Until it is imported nothing is done, so that Ctrl-C ends the process and says nothing.
    """
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from bothways.cli import main

    if usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    status = main()
    if usual and status == 130:  # a further Ctrl-C says nothing, either
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    elif usual and status == 0:  # nor, once all is done, does it make a failure of it
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # Threads of the process group can abort the interpreter while it shuts down, which torchrun
        # would report as a failure. All files are closed and flushed by now.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


if __name__ == "__main__":
    raise SystemExit(run())
