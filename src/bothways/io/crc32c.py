"""CRC-32C (Castagnoli), the checksum of TensorFlow's files, fast enough for gigabytes of weights.

A checksum is linear in its bytes, so that parts of equal length are summed side by side, as lanes
of arrays, and joined: behind n zero bytes, a sum becomes another by a matrix of bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]

_POLYNOMIAL = np.uint32(0x82F63B78)  # reflected
_ALL = 0xFFFFFFFF
_MOST_LANES = 4096  # the words of all lanes at one place stay in the cache
_MASK_DELTA = 0xA282EAD8


def crc32c(data: bytes | NDArray[Any]) -> int:
    """The checksum of bytes, or of an array's: 0xE3069283 for b"123456789"."""
    content = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
    content = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
    if not len(content):
        return 0
    lanes = 1
    while lanes < _MOST_LANES and lanes * 64 < len(content):
        lanes *= 2
    # Zeros in front do not change a sum that begins with 0.
    words = np.zeros((lanes, -(-len(content) // (4 * lanes))), "<u4")
    words.reshape(-1).view(np.uint8)[-len(content) :] = content
    low, high = _tables()
    sums = np.zeros(lanes, np.uint32)
    for column in words.T:
        sums ^= column
        sums = low[sums & 0xFFFF] ^ high[sums >> 16]
    shift = 4 * words.shape[1]
    while len(sums) > 1:
        sums = _behind(sums[::2], shift) ^ sums[1::2]
        shift *= 2
    begun = _behind(np.array([_ALL], np.uint32), len(content))
    return int(sums[0]) ^ int(begun[0]) ^ _ALL


def masked(checksum: int) -> int:
    """As the files hold it, so that the sum of bytes that hold sums is an ordinary one."""
    return ((checksum >> 15 | checksum << 17) + _MASK_DELTA) & _ALL


@cache
def _tables() -> tuple[Words, Words]:
    """What the lower and the upper half of four bytes contribute, [65536] each."""
    values = np.arange(2**16, dtype=np.uint32)
    high = _zero_bits(values, 16)
    return _zero_bits(high, 16), high


def _zero_bits(sums: Words, count: int) -> Words:
    """Sums after some bits of zero."""
    for _ in range(count):
        sums = (sums >> np.uint32(1)) ^ np.where(sums & 1, _POLYNOMIAL, np.uint32(0))
    return sums


def _behind(sums: Words, zeros: int) -> Words:
    """Sums after some bytes of zero."""
    power = 0
    while zeros >> power:
        if zeros >> power & 1:
            sums = _times(_matrix(power), sums)
        power += 1
    return sums


@cache
def _matrix(power: int) -> Words:
    """What each bit of a sum becomes behind 2^power zero bytes, [32]."""
    if power == 0:
        return _zero_bits(np.uint32(1) << np.arange(32, dtype=np.uint32), 8)
    half = _matrix(power - 1)
    return _times(half, half)


def _times(matrix: Words, sums: Words) -> Words:
    bits = (sums[:, None] >> np.arange(32, dtype=np.uint32)) & 1
    found: Words = np.bitwise_xor.reduce(bits * matrix, axis=1).astype(np.uint32)
    return found
