"""Speed and memory: measured against peers, and forecast before a run."""
