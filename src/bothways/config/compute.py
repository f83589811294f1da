"""Types of the options that choose where and in which precision to compute."""

from __future__ import annotations

from typing import Literal

DeviceName = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "bf16", "fp32"]
