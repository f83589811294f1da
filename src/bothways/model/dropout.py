"""Dropout that is a function of its key."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_ONE_BF16 = 0x3F80  # the bits of 1.0
# Where the generators stand: NumPy's state, the device's generator and its state. Without one, the
# device has not drawn yet and will start from the seed.
_Place = tuple[Any, torch.Generator | None, Any]


class KeyedDropout(nn.Module):
    """Dropout whose masks depend on the micro-batch's key and the place in the network alone.

    One instance serves a whole model. :meth:`reseed` before each forward pass makes the masks of
    that pass reproducible whatever ran before it. Thresholds have 16 bits: probabilities are exact
    to 1/65536.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reseed(0)

    def reseed(self, seed: int) -> None:
        """Start the masks of one forward pass."""
        self._seed = seed
        self._numpy = np.random.Generator(np.random.SFC64(seed))
        self._torch: torch.Generator | None = None

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
        state = None if self._torch is None else self._torch.get_state()
        return self._numpy.bit_generator.state, self._torch, state

    def _go(self, place: _Place) -> None:
        self._numpy.bit_generator.state, self._torch, state = place
        if self._torch is not None:
            self._torch.set_state(state)

    def forward(self, x: Tensor, probability: float) -> Tensor:
        """Zero each element with this probability and scale the rest, while training."""
        mask = self.mask(x.shape, probability, like=x)
        return x if mask is None else x * mask * (1 / (1 - probability))

    def add(self, x: Tensor, branch: Tensor, probability: float, *, fast: bool) -> Tensor:
        """``x + dropout(branch)``; the fast form in one pass, rounded once."""
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
        threshold = round(probability * 65536) - 32768  # against the full int16 range
        drawn = self._words(math.prod(shape), like.device).view(shape)
        if like.dtype == torch.bfloat16:  # in place: the bits of 1.0, or 0
            return drawn.ge_(threshold).mul_(_ONE_BF16).view(torch.bfloat16)
        return (drawn >= threshold).to(like.dtype)

    def _words(self, size: int, device: torch.device) -> Tensor:
        """int16 [size], uniform."""
        words = -(-size // 4)
        if device.type == "cpu":
            # NumPy's SFC64 costs a fraction of torch's own generator on a CPU.
            raw = torch.from_numpy(self._numpy.integers(-(2**63), 2**63, words, dtype=np.int64))
        else:
            if self._torch is None:
                self._torch = torch.Generator(device).manual_seed(self._seed)
            raw = torch.empty(words, dtype=torch.int64, device=device)
            raw.random_(-(2**63), None, generator=self._torch)
        return raw.view(torch.int16)[:size]


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
