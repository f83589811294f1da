"""Options of `bothways bench train`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bothways.errors import ConfigError
from bothways.training.options import DeviceOptions, Precision


@dataclass(frozen=True)
class BenchTrainConfig(DeviceOptions):
    """Time bothways' pre-training step against that of transformers, in the same run.

    Both use the same batches, dropout, exact GELU, AdamW and gradient clipping.
    """

    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = "mini"
    """Model size preset."""
    batch: int = 32
    """Batch size in sequences."""
    length: int = 128
    """Sequence length in tokens (with --corpus: the maximum)."""
    vocab_size: int = 30522
    """Vocabulary size (with --corpus: the corpus's)."""
    attention_dropout: float = 0.1
    """Dropout probability of attention weights, for all contenders; elsewhere it is 0.1."""
    corpus: str | None = None
    """Corpus folder: real pairs of varying length, which transformers pads. Default: full-length
    sequences of random tokens."""
    contenders: tuple[str, ...] = ("bothways", "transformers fp32", "transformers bf16")
    """What to time, the reference first: bothways, bothways fp32, bothways plain, transformers
    fp32, transformers bf16, transformers bf16 compile (takes minutes to compile)."""
    rounds: int = 7
    """Timed steps per contender; the contenders take turns."""
    memory: bool = False
    """Also measure peak memory (on a GPU, of tensors), with each contender in its own process."""
    profile: bool = False
    """Only print a profile of bothways' step."""
    precision: Precision = "auto"
    """Compute precision of bothways; auto uses bf16 if the GPU supports it or a short benchmark on
    the CPU finds it faster."""
    threads: int = 0
    """CPU threads; 0: one per core."""
    out: str | None = None
    """JSON file to write every measured step to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("batch", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if not 8 <= self.length <= 512:
            raise ConfigError(f"length is {self.length}; it must be in [8, 512].")
        if not 0 <= self.attention_dropout < 1:
            raise ConfigError(
                f"attention_dropout is {self.attention_dropout:g}; it must be in [0, 1)."
            )
        if self.vocab_size < 64:
            raise ConfigError(f"vocab_size is {self.vocab_size}; it must be at least 64.")
        if self.profile and (self.out or self.memory):
            raise ConfigError(
                "profile prints where the time of one step goes, and measures nothing else; leave "
                "out and memory out."
            )
        if not self.contenders:
            raise ConfigError("contenders is empty; name at least one.")
