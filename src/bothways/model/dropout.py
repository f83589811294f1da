"""Keyed dropout: the masks are a function of a seed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bothways.randomness import Purpose, bits, element_words

# Draws made so far, the device whose generator was seeded, and that generator's state. None and
# None if no device's was: the first use will seed it.
_State = tuple[int, torch.device | None, Tensor | None]


@dataclass(frozen=True)
class Draw:
    """One mask on a CPU: element i is kept if its random word is at least the threshold.

    Attributes:
        threshold: below 2**32; 0 keeps everything.
        scale: what kept elements are multiplied by.
        keys: 32 bits each, of :func:`bothways.randomness.element_words`.
    """

    threshold: int
    scale: float
    keys: tuple[int, int]


KEEP_ALL = Draw(0, 1.0, (0, 0))


class KeyedDropout(nn.Module):
    """Dropout whose masks depend only on the micro-batch's key and the place in the network.

    One instance serves a whole model. :meth:`reseed` before each forward pass makes the masks of
    that pass reproducible whatever ran before it.

    On a CPU each mask has keys of its own, from which compiled loops compute any element where they
    need it; the seed and the number of masks before decide them. On a GPU the library's fused
    dropout and the dropout within attention kernels draw from the device's default generator, which
    the key seeds. The masks differ from a CPU's, and are reproducible on the same kind of card with
    the same versions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reseed(0)

    def reseed(self, seed: int) -> None:
        """Start the masks of one forward pass."""
        self._seed = seed
        self._draws = 0
        self._seeded: torch.device | None = None

    @property
    def seed(self) -> int:
        """That of the last :meth:`reseed`, the key of the micro-batch."""
        return self._seed

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
        return self._draws, device, state

    def _set_state(self, saved: _State) -> None:
        self._draws, self._seeded, state = saved
        if self._seeded is not None and state is not None:
            _default_generator(self._seeded).set_state(state)

    def forward(self, x: Tensor, probability: float) -> Tensor:
        """In training, zero each element with this probability and scale the rest."""
        if x.device.type != "cpu":
            return F.dropout(x, self.for_kernel(probability, x.device))
        mask = self.mask(x.shape, probability)
        return x if mask is None else x * mask.to(x.dtype) * (1 / (1 - probability))

    def draw(self, probability: float) -> Draw:
        """The next mask on a CPU; :data:`KEEP_ALL` if nothing is dropped."""
        threshold = min(round(probability * 2**32), 2**32 - 1)
        if not self.training or not threshold:
            return KEEP_ALL
        word = int(bits(self._seed, Purpose.DROPOUT, self._draws))
        self._draws += 1
        keys = word & 0xFFFFFFFF, word >> 32
        return Draw(threshold, 1 / (1 - probability), keys)

    def mask(self, shape: Sequence[int], probability: float) -> Tensor | None:
        """The next mask on a CPU, bool: whether an element is kept; None if nothing is dropped."""
        draw = self.draw(probability)
        if draw is KEEP_ALL:
            return None
        words = element_words(math.prod(shape), *draw.keys)
        return torch.from_numpy(words >= np.uint32(draw.threshold)).view(tuple(shape))

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


def _default_generator(device: torch.device) -> torch.Generator:
    """The generator that the device's kernels draw from; seeding it launches nothing on a GPU."""
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index]
    return torch.default_generator
