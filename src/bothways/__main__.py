"""``python -m bothways``, as torchrun starts it: the program ``bothways``."""

import os
import sys

from bothways.cli import main

if __name__ == "__main__":
    status = main()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # A process group's threads can abort an interpreter that is being taken down, and torchrun
        # would call that a failure. All files are closed and flushed by now.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    raise SystemExit(status)
