"""Loops over rows for training on a CPU, compiled for its processor when they are first called."""
