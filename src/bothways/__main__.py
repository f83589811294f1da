"""``python -m bothways``, which is what ``torchrun -m bothways`` starts in each process."""

import sys

from bothways.cli import main

sys.exit(main())
