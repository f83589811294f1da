"""Speed and memory: compared with transformers, and estimated before a run."""
