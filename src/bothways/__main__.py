"""``python -m bothways``: the program ``bothways``, as started by torchrun."""

import os
import sys

from bothways.cli import main

if __name__ == "__main__":
    status = main()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # Threads of the process group can abort the interpreter while it shuts down, which torchrun
        # would report as a failure. All files are closed and flushed by now.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    raise SystemExit(status)
