"""The inner loops of training on a CPU, compiled by Numba.

R rows of a flat or tiled array, H columns, A heads, D head size, L keys, V vocabulary.

NumPy has no bf16: loops see its bits as uint16. Arithmetic is fp32 on bf16 and fp32 arrays, and
fp64 on fp64 arrays, which only tests use. Statistics and vectors of parameters have the dtype of
the arithmetic.

Rows are cut into blocks of a fixed size. A block is computed by one thread and has sums of its own,
so results do not depend on the number of threads.

All loops are in one file, because Numba recompiles cached code when the file of a function changes,
but not when a file does that it imports from.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic, overload, register_jitable

BLOCK = 32
"""Rows of a block."""
VOCABULARY_BLOCK = 64
"""Rows of a block of logits; its sums are as long as a row."""

F = np.float32
U = np.uint32

# Sums may be reordered, so that they use vector registers; products and sums may be fused.
# Infinities and NaNs keep their meaning: a diverged training has to be noticed.
_ARITHMETIC = {"reassoc", "contract", "arcp", "nsz"}
_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": _ARITHMETIC, "parallel": True}


def parallel(loop):
    """Compile a loop when it is first called, and keep the result for later processes."""
    try:
        return njit(cache=True, **_OPTIONS)(loop)
    except RuntimeError:  # neither this folder nor the user's cache can be written to
        return njit(**_OPTIONS)(loop)


# ------------------------------------------------------------------------------------- one number
#
# Written so that loops over it become vector instructions: no branches, no calls. Numba widens
# sums of uint32 to 64 bits, so each result is cast back.


@intrinsic
def _float_of_bits(_context, bits):
    def generate(_, builder, __, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def _bits_of_float(_context, value):
    def generate(_, builder, __, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


def load(array, i, j):
    """``array[i, j]`` as the number that it stands for."""
    raise NotImplementedError  # the overload below is what compiled code calls


@overload(load)
def _load(array, i, j):
    if array.dtype == types.uint16:
        return lambda array, i, j: _float_of_bits(U(U(array[i, j]) << U(16)))
    return lambda array, i, j: array[i, j]


def store(array, i, j, value):
    """``array[i, j] = value``; to bf16 it is rounded to nearest, ties to even."""
    raise NotImplementedError  # the overload below is what compiled code calls


@overload(store)
def _store(array, i, j, value):
    if array.dtype != types.uint16:

        def plain(array, i, j, value):
            array[i, j] = value

        return plain

    def rounded(array, i, j, value):
        bits = _bits_of_float(F(value))
        nearest = U(bits + U(U(0x7FFF) + U(U(bits >> U(16)) & U(1))))
        # Rounding up could make a NaN an infinity or zero.
        kept = nearest if value == value else U(bits | U(0x400000))
        array[i, j] = np.uint16(U(kept >> U(16)))

    return rounded


def exp(x):
    """e**x for x of at most 0."""
    raise NotImplementedError  # the overload below is what compiled code calls


@overload(exp)
def _exp(x):
    if x == types.float64:
        return lambda x: math.exp(x)

    def exp32(x):
        # 2**n * e**f with |f| <= log(2) / 2: relative error below 2e-7. The polynomial, and
        # log(2) in two parts, are those of the Cephes library.
        x = max(x, F(-87.0))
        n = np.floor(x * F(1.4426950408889634) + F(0.5))
        f = (x - n * F(0.693359375)) + n * F(2.12194440e-4)
        p = F(1.9875691500e-4)
        p = p * f + F(1.3981999507e-3)
        p = p * f + F(8.3334519073e-3)
        p = p * f + F(4.1665795894e-2)
        p = p * f + F(1.6666665459e-1)
        p = p * f + F(5.0000001201e-1)
        value = p * f * f + f + F(1.0)
        return value * _float_of_bits(U(U(np.int32(n) + np.int32(127)) << U(23)))

    return exp32


@intrinsic
def _float_of_bits64(_context, bits):
    def generate(_, builder, __, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


@intrinsic
def _bits_of_float64(_context, value):
    def generate(_, builder, __, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), generate


def rank(x):
    """An integer in the order of the floats, whose maximum, unlike theirs, is found by vector
    instructions. A NaN is beyond the infinity of its sign."""
    raise NotImplementedError  # the overload below is what compiled code calls


@overload(rank)
def _rank(x):
    if x == types.float64:

        def rank64(x):
            bits = _bits_of_float64(x)
            return bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)

        return rank64

    def rank32(x):
        bits = np.int32(_bits_of_float(x))
        return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))

    return rank32


def unrank(x):
    """The float of a rank."""
    raise NotImplementedError  # the overload below is what compiled code calls


@overload(unrank)
def _unrank(x):
    if x == types.int64:
        return lambda x: _float_of_bits64(x ^ ((x >> 63) & 0x7FFFFFFFFFFFFFFF))
    return lambda x: _float_of_bits(
        U(np.int32(x ^ np.int32(np.int32(x >> np.int32(31)) & np.int32(0x7FFFFFFF))))
    )


def arithmetic(array):
    """The dtype of arithmetic on an array."""
    raise NotImplementedError  # the overload below is what compiled code calls


@overload(arithmetic)
def _arithmetic(array):
    if array.dtype == types.float64:
        return lambda array: np.float64
    return lambda array: np.float32


@register_jitable
def random_word(index, key_0, key_1):
    """32 bits for an index; :func:`bothways.randomness.element_words` in NumPy."""
    x = U(U(index) + key_0)
    x = U(U(U(x ^ U(x >> U(17))) * U(0xED5AD4BB)) ^ key_1)
    x = U(U(x ^ U(x >> U(11))) * U(0xAC4C1B51))
    x = U(U(x ^ U(x >> U(15))) * U(0x31848BAB))
    return U(x ^ U(x >> U(14)))


@register_jitable
def _blocks(rows, size):
    return (rows + size - 1) // size


# ------------------------------------------------------------------------------- [R, H] row by row
#
# ``dropout`` is (threshold, scale, key, key): an element is kept if its word is at least the
# threshold, and then multiplied by the scale; threshold 0 keeps all. Element (i, j) has the word of
# index i * H + j.


@parallel
def dropped(x, dropout, out):
    """``out = dropout(x)``; its own derivative."""
    threshold, scale, key_0, key_1 = dropout
    R, H = x.shape
    for block in prange(_blocks(R, BLOCK)):
        for i in range(block * BLOCK, min(R, block * BLOCK + BLOCK)):
            for j in range(H):
                kept = random_word(i * H + j, key_0, key_1) >= threshold
                store(out, i, j, load(x, i, j) * scale if kept else F(0))


@parallel
def add_norm(x, branch, bias, weight, shift, eps, dropout, total, out, mean, rstd):
    """``total = x + dropout(branch + bias)``, ``out = LayerNorm(total)``.

    ``mean`` and ``rstd`` [R] are the statistics of the rows, before ``total`` is rounded.
    """
    threshold, scale, key_0, key_1 = dropout
    R, H = x.shape
    for block in prange(_blocks(R, BLOCK)):
        row = np.empty_like(bias)
        for i in range(block * BLOCK, min(R, block * BLOCK + BLOCK)):
            s = F(0)
            if threshold == U(0):
                for j in range(H):
                    value = load(x, i, j) + load(branch, i, j) + bias[j]
                    row[j] = value
                    s += value
            else:
                for j in range(H):
                    kept = random_word(i * H + j, key_0, key_1) >= threshold
                    added = (load(branch, i, j) + bias[j]) * scale
                    value = load(x, i, j) + (added if kept else F(0))
                    row[j] = value
                    s += value
            m = s / F(H)
            squares = F(0)
            for j in range(H):
                squares += (row[j] - m) * (row[j] - m)
            r = F(1) / np.sqrt(squares / F(H) + eps)
            mean[i] = m
            rstd[i] = r
            for j in range(H):
                store(total, i, j, row[j])
                store(out, i, j, (row[j] - m) * r * weight[j] + shift[j])


@parallel
def add_norm_backward(
    upstream, total, mean, rstd, weight, dropout, d_total, d_branch, d_weight, d_shift, d_bias
):
    """Gradients of :func:`add_norm`: ``d_total`` is that of ``x``; the last three, [blocks, H], are
    sums over each block's rows.

    Without dropout ``d_branch`` is not written: it is ``d_total``.
    """
    threshold, scale, key_0, key_1 = dropout
    R, H = upstream.shape
    for block in prange(_blocks(R, BLOCK)):
        for j in range(H):
            d_weight[block, j] = F(0)
            d_shift[block, j] = F(0)
            d_bias[block, j] = F(0)
        for i in range(block * BLOCK, min(R, block * BLOCK + BLOCK)):
            m = mean[i]
            r = rstd[i]
            a = F(0)
            b = F(0)
            for j in range(H):
                d = load(upstream, i, j)
                normal = (load(total, i, j) - m) * r
                a += d * weight[j]
                b += d * weight[j] * normal
                d_weight[block, j] += d * normal
                d_shift[block, j] += d
            a /= F(H)
            b /= F(H)
            if threshold == U(0):
                for j in range(H):
                    normal = (load(total, i, j) - m) * r
                    d = r * (load(upstream, i, j) * weight[j] - a - normal * b)
                    store(d_total, i, j, d)
                    d_bias[block, j] += d
            else:
                for j in range(H):
                    normal = (load(total, i, j) - m) * r
                    d = r * (load(upstream, i, j) * weight[j] - a - normal * b)
                    store(d_total, i, j, d)
                    kept = random_word(i * H + j, key_0, key_1) >= threshold
                    d = d * scale if kept else F(0)
                    store(d_branch, i, j, d)
                    d_bias[block, j] += d


# ---------------------------------------------------------------------------------------- attention


@register_jitable
def head_row(group, row, rows, length, heads):
    """Where head ``group`` (of all n * A) of a tile's row is in [n, b, A, L]."""
    part, head = divmod(group, heads)
    sequence, position = divmod(row, length)
    return part * rows * heads + (sequence * heads + head) * length + position


@parallel
def split_heads(flat, rows, length, heads, bias, scale, out):
    """The rows of a tile, with a bias and head by head, as products take them.

    ``flat`` is [T, n * A * D] and ``out`` [n * b * A * L, D]. ``rows`` int64 [b * L] are rows of
    ``flat``; -1 is padding and becomes zeros. The first of the n parts is scaled.
    """
    D = out.shape[1]
    groups = flat.shape[1] // D
    for block in prange(_blocks(len(rows), BLOCK)):
        for r in range(block * BLOCK, min(len(rows), block * BLOCK + BLOCK)):
            row = rows[r]
            for g in range(groups):
                to = head_row(g, r, len(rows), length, heads)
                if row < 0:
                    for d in range(D):
                        store(out, to, d, F(0))
                else:
                    factor = scale if g < heads else F(1)
                    for d in range(D):
                        value = load(flat, row, g * D + d) + bias[g * D + d]
                        store(out, to, d, value * factor)


@parallel
def join_heads(tiled, rows, length, heads, scale, sums, flat):
    """The reverse of :func:`split_heads`, without the bias.

    ``sums`` [blocks, n * A * D] are over each block's rows, in ``flat``'s order of columns: the
    gradient of the bias.
    """
    D = tiled.shape[1]
    groups = flat.shape[1] // D
    for block in prange(_blocks(len(rows), BLOCK)):
        for j in range(groups * D):
            sums[block, j] = F(0)
        for r in range(block * BLOCK, min(len(rows), block * BLOCK + BLOCK)):
            row = rows[r]
            if row < 0:
                continue
            for g in range(groups):
                at = head_row(g, r, len(rows), length, heads)
                factor = scale if g < heads else F(1)
                for d in range(D):
                    value = load(tiled, at, d) * factor
                    store(flat, row, g * D + d, value)
                    sums[block, g * D + d] += value


@parallel
def attention_softmax(scores, lengths, queries, heads, causal, dropout, dropped):
    """Softmax over the keys of each query, in place, and its dropped form.

    ``scores`` is [b * A * Q, L]; keys from ``lengths`` [b] on, or left to right after the query,
    get 0. Without dropout ``dropped`` is not written.
    """
    threshold, scale, key_0, key_1 = dropout
    R, L = scores.shape
    for block in prange(_blocks(R, BLOCK)):
        row = np.empty(L, arithmetic(scores))
        for i in range(block * BLOCK, min(R, block * BLOCK + BLOCK)):
            keys = lengths[i // (queries * heads)]
            if causal:
                keys = min(keys, i % queries + 1)
            first = rank(load(scores, i, 0))
            for j in range(keys):
                first = max(first, rank(load(scores, i, j)))
            highest = unrank(first)
            s = F(0)
            for j in range(keys):
                value = exp(load(scores, i, j) - highest)
                row[j] = value
                s += value
            inverse = F(1) / s
            for j in range(keys):
                store(scores, i, j, row[j] * inverse)
            for j in range(keys, L):
                store(scores, i, j, F(0))
            if threshold != U(0):
                for j in range(keys):
                    kept = random_word(i * L + j, key_0, key_1) >= threshold
                    store(dropped, i, j, row[j] * inverse * scale if kept else F(0))
                for j in range(keys, L):
                    store(dropped, i, j, F(0))


@parallel
def attention_softmax_backward(probabilities, upstream, dropout, dropped):
    """The gradient of the scores, in place of that of the dropped probabilities (``upstream``), and
    the dropped probabilities again.

    Without dropout ``dropped`` is not written.
    """
    threshold, scale, key_0, key_1 = dropout
    R, L = probabilities.shape
    for block in prange(_blocks(R, BLOCK)):
        row = np.empty(L, arithmetic(probabilities))
        for i in range(block * BLOCK, min(R, block * BLOCK + BLOCK)):
            dot = F(0)
            if threshold == U(0):
                for j in range(L):
                    d = load(upstream, i, j)
                    row[j] = d
                    dot += d * load(probabilities, i, j)
            else:
                for j in range(L):
                    kept = random_word(i * L + j, key_0, key_1) >= threshold
                    d = load(upstream, i, j) * scale if kept else F(0)
                    p = load(probabilities, i, j)
                    row[j] = d
                    dot += d * p
                    store(dropped, i, j, p * scale if kept else F(0))
            for j in range(L):
                store(upstream, i, j, load(probabilities, i, j) * (row[j] - dot))


# ------------------------------------------------------------------------ softmax over a vocabulary


@parallel
def cross_entropy(logits, bias, ids, losses, correct, sums):
    """Loss of each row of ``logits + bias``, and whether its first maximum is the target.

    The logits are overwritten with their gradient.

    ``logits`` is [R, V padded], ``bias`` [V]; columns beyond V get 0, as do rows whose target in
    ``ids`` is negative, with loss 0. ``sums`` [blocks, V] are the gradients' over a block's rows.
    """
    R, columns = logits.shape
    V = len(bias)
    for block in prange(_blocks(R, VOCABULARY_BLOCK)):
        row = np.empty_like(bias)
        for j in range(V):
            sums[block, j] = F(0)
        for i in range(block * VOCABULARY_BLOCK, min(R, (block + 1) * VOCABULARY_BLOCK)):
            target = ids[i]
            losses[i] = F(0)
            correct[i] = False
            if target < 0:
                for j in range(columns):
                    store(logits, i, j, F(0))
                continue
            first = rank(load(logits, i, 0) + bias[0])
            for j in range(V):
                value = load(logits, i, j) + bias[j]
                row[j] = value
                first = max(first, rank(value))
            highest = unrank(first)
            of_target = row[target]
            if of_target == highest:
                earlier = 0
                for j in range(target):
                    earlier += row[j] == highest
                correct[i] = earlier == 0
            s = F(0)
            for j in range(V):
                value = exp(row[j] - highest)
                row[j] = value
                s += value
            losses[i] = highest + np.log(s) - of_target
            inverse = F(1) / s
            row[target] -= s
            for j in range(V):
                value = row[j] * inverse
                store(logits, i, j, value)
                sums[block, j] += value
            for j in range(V, columns):
                store(logits, i, j, F(0))
