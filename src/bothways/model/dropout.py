"""Dropout that is a function of its key."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

_ONE_BF16 = 0x3F80  # the bits of 1.0
# Where the generators stand: NumPy's state, the device that has drawn, and the state of its
# generator. None: no device has drawn yet; the first will start from the seed.
_Place = tuple[Any, torch.device | None, Tensor | None]


class KeyedDropout(nn.Module):
    """Dropout whose masks depend on the micro-batch's key and the place in the network alone.

    One instance serves a whole model. :meth:`reseed` before each forward pass makes the masks of
    that pass reproducible whatever ran before it.

    On a CPU thresholds have 16 bits: probabilities are exact to 1/65536. A GPU has its own fast
    forms (the library's fused dropout, and dropout within its attention kernels), which draw from
    the device's default generator: the key seeds that. The masks are others than a CPU's, and
    reproducible on the same kind of card with the same versions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reseed(0)

    def reseed(self, seed: int) -> None:
        """Start the masks of one forward pass."""
        self._seed = seed
        self._numpy = np.random.Generator(np.random.SFC64(seed))
        self._seeded: torch.device | None = None

    def replay(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Contexts for a part of the network that is computed now, and once more later.

        The second draws the masks that the first drew, and leaves what comes after it untouched.
        """
        return contextlib.nullcontext(), self._at(self._place())

    @contextlib.contextmanager
    def _at(self, place: _Place) -> Iterator[None]:
        now = self._place()
        self._go(place)
        try:
            yield
        finally:
            self._go(now)

    def _place(self) -> _Place:
        device = self._seeded
        state = None if device is None else _default_generator(device).get_state()
        return self._numpy.bit_generator.state, device, state

    def _go(self, place: _Place) -> None:
        self._numpy.bit_generator.state, self._seeded, state = place
        if self._seeded is not None and state is not None:
            _default_generator(self._seeded).set_state(state)

    def forward(self, x: Tensor, probability: float) -> Tensor:
        """Zero each element with this probability and scale the rest, while training."""
        if x.device.type != "cpu":
            return F.dropout(x, self.for_kernel(probability, x.device))
        mask = self.mask(x.shape, probability, like=x)
        return x if mask is None else x * mask * (1 / (1 - probability))

    def add(self, x: Tensor, branch: Tensor, probability: float, *, fast: bool) -> Tensor:
        """``x + dropout(branch)``; the fast form in one pass, rounded once."""
        if branch.device.type != "cpu":
            return x + F.dropout(branch, self.for_kernel(probability, branch.device))
        mask = self.mask(branch.shape, probability, like=branch)
        if mask is None:
            return x + branch
        scale = 1 / (1 - probability)
        if not fast:
            return x + branch * mask * scale
        out: Tensor = _AddDropped.apply(x, branch, mask, scale)  # type: ignore[no-untyped-call]
        return out

    def mask(self, shape: Sequence[int], probability: float, *, like: Tensor) -> Tensor | None:
        """1 for each element kept, 0 for each dropped, in a tensor's dtype and on its device.

        None where nothing is dropped. The caller scales what is kept by 1 / (1 - probability).
        """
        if not self.training or probability == 0:
            return None
        if like.device.type != "cpu":
            kept = 1 - self.for_kernel(probability, like.device)
            return torch.empty(shape, dtype=like.dtype, device=like.device).bernoulli_(kept)
        threshold = round(probability * 65536) - 32768  # against the full int16 range
        drawn = self._words(math.prod(shape)).view(shape)
        if like.dtype == torch.bfloat16:  # in place: the bits of 1.0, or 0
            return drawn.ge_(threshold).mul_(_ONE_BF16).view(torch.bfloat16)
        return (drawn >= threshold).to(like.dtype)

    def for_kernel(self, probability: float, device: torch.device) -> float:
        """With what probability a kernel that draws by itself is to drop: 0 while not training.

        The device's generator is ready for it.
        """
        if not self.training:
            return 0.0
        if self._seeded != device:
            self._seeded = device
            _default_generator(device).manual_seed(self._seed)
        return probability

    def _words(self, size: int) -> Tensor:
        """int16 [size], uniform. NumPy's SFC64 costs a fraction of torch's own generator."""
        words = self._numpy.integers(-(2**63), 2**63, -(-size // 4), dtype=np.int64)
        return torch.from_numpy(words).view(torch.int16)[:size]


def _default_generator(device: torch.device) -> torch.Generator:
    """The one that the device's kernels draw from; to seed it costs nothing on the GPU."""
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index]
    return torch.default_generator


class _AddDropped(torch.autograd.Function):
    """x + branch * mask * scale."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, branch: Tensor, mask: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return torch.addcmul(x, branch, mask, value=scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (mask,) = ctx.saved_tensors
        return grads[0], (grads[0] * mask).mul_(ctx.scale), None, None
