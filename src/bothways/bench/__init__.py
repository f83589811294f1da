"""Measured against peers, in the same run."""
