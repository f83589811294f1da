"""Keyed dropout: the masks are a function of a seed."""

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
# NumPy's generator state, the device whose generator was seeded, and that generator's state. None
# and None if no device's was: the first use will seed it.
_State = tuple[Any, torch.device | None, Tensor | None]


class KeyedDropout(nn.Module):
    """Dropout whose masks depend only on the micro-batch's key and the place in the network.

    One instance serves a whole model. :meth:`reseed` before each forward pass makes the masks of
    that pass reproducible whatever ran before it.

    On a CPU thresholds have 16 bits: probabilities are exact to 1/65536. On a GPU the library's
    fused dropout and the dropout within attention kernels draw from the device's default generator,
    which the key seeds. The masks differ from a CPU's, and are reproducible on the same kind of
    card with the same versions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reseed(0)

    def reseed(self, seed: int) -> None:
        """Start the masks of one forward pass."""
        self._seed = seed
        self._bits = np.random.SFC64(seed)
        self._seeded: torch.device | None = None

    def replay(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Contexts for computing a part of the network now, and for recomputing it later.

        The second draws the same masks as the first, and does not affect later draws.
        """
        return contextlib.nullcontext(), self._restored(self._get_state())

    @contextlib.contextmanager
    def _restored(self, state: _State) -> Iterator[None]:
        """Draw from an earlier state within the block, and from the present one after it."""
        now = self._get_state()
        self._set_state(state)
        try:
            yield
        finally:
            self._set_state(now)

    def _get_state(self) -> _State:
        device = self._seeded
        state = None if device is None else _default_generator(device).get_state()
        return self._bits.state, device, state

    def _set_state(self, saved: _State) -> None:
        self._bits.state, self._seeded, state = saved
        if self._seeded is not None and state is not None:
            _default_generator(self._seeded).set_state(state)

    def forward(self, x: Tensor, probability: float) -> Tensor:
        """In training, zero each element with this probability and scale the rest."""
        if x.device.type != "cpu":
            return F.dropout(x, self.for_kernel(probability, x.device))
        mask = self.mask(x.shape, probability, like=x)
        return x if mask is None else x * mask * (1 / (1 - probability))

    def add(self, x: Tensor, branch: Tensor, probability: float, *, fast: bool) -> Tensor:
        """``x + dropout(branch)``; the fast form makes one pass and rounds once."""
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
        """1 for each kept element, 0 for each dropped one, with the dtype and device of ``like``.

        None if nothing is dropped. The caller scales the kept elements by 1 / (1 - probability).
        """
        if not self.training or probability == 0:
            return None
        if like.device.type != "cpu":
            keep = 1 - self.for_kernel(probability, like.device)
            return torch.empty(shape, dtype=like.dtype, device=like.device).bernoulli_(keep)
        threshold = round(probability * 65536) - 32768  # against the full int16 range
        drawn = self._words(math.prod(shape)).view(shape)
        if like.dtype == torch.bfloat16:  # in place: the bits of 1.0, or 0
            return drawn.ge_(threshold).mul_(_ONE_BF16).view(torch.bfloat16)
        return (drawn >= threshold).to(like.dtype)

    def for_kernel(self, probability: float, device: torch.device) -> float:
        """The dropout probability for a kernel that draws by itself; 0 while not training.

        Seeds the device's generator if this forward pass has not yet done so.
        """
        if not self.training:
            return 0.0
        if self._seeded != device:
            self._seeded = device
            _default_generator(device).manual_seed(self._seed)
        return probability

    def _words(self, size: int) -> Tensor:
        """int16 [size], uniform. NumPy's SFC64 costs a fraction of torch's own generator."""
        words = self._bits.random_raw(-(-size // 4))
        return torch.from_numpy(words.view(np.int16))[:size]


def _default_generator(device: torch.device) -> torch.Generator:
    """The generator that the device's kernels draw from; seeding it launches nothing on a GPU."""
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
