"""The inner loops of training and inference on a CPU, compiled by Numba.

R rows of a flat or tiled array, H columns, A heads, D head size, L keys, V vocabulary.

NumPy has no bf16: loops see its bits as uint16. Arithmetic is fp32 on bf16 and fp32 arrays, and
fp64 on fp64 arrays, which only tests use. Statistics and vectors of parameters have the dtype of
the arithmetic.

Rows are cut into blocks of a fixed size. A block is computed by one thread and has sums of its own,
so results do not depend on the number of threads.

The compiler may not change results: no reordered sums, no products fused with sums but those that
are written as :func:`fma`. If it were free to, its choices would differ between the process that
compiles a loop and those that load it from the cache, and a continued run would end with other
bits. So whatever sums a row does it in :data:`LANES` lanes, which is an order that the source
fixes, and that vector registers of every width can follow.

All loops are in one file, because Numba recompiles cached code when the file of a function changes,
but not when a file does that it imports from.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import carray, njit, prange, types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic, models, overload, register_jitable, register_model

BLOCK = 32
"""Rows of a block."""
VOCABULARY_BLOCK = 64
"""Rows of a block of logits; its sums are as long as a row."""

CHUNK = 4096
"""Elements of a parameter that the optimizer updates at a time: few enough for a core's cache."""
LANES = 32
"""Partial sums of a row: enough to hide the time that an addition takes."""

F = np.float32
U = np.uint32

_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": False, "parallel": True}


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
        array[i, j] = _bf16(value)

    return rounded


def peek(array, i, j):
    """:func:`load` for indices that are not negative, which plain ones are checked for: where the
    compiler cannot see that they are not, that keeps loops from becoming vector instructions."""
    raise NotImplementedError  # the overload below is what compiled code calls


@overload(peek)
def _peek(array, i, j):
    if array.dtype == types.uint16:
        return lambda array, i, j: _float_of_bits(U(U(_element(array, i, j)) << U(16)))
    return lambda array, i, j: _element(array, i, j)


@register_jitable
def _bf16(value):
    """The bits of a number, rounded to nearest, ties to even."""
    bits = _bits_of_float(F(value))
    nearest = U(bits + U(U(0x7FFF) + U(U(bits >> U(16)) & U(1))))
    # Rounding up could make a NaN an infinity or zero.
    kept = nearest if value == value else U(bits | U(0x400000))
    return np.uint16(U(kept >> U(16)))


def poke(array, i, j, value):
    """:func:`store` for indices that are not negative."""
    raise NotImplementedError  # the overload below is what compiled code calls


@overload(poke)
def _poke(array, i, j, value):
    if array.dtype == types.uint16:
        return lambda array, i, j, value: _set_element(array, i, j, _bf16(value))
    return lambda array, i, j, value: _set_element(array, i, j, value)


@intrinsic
def fma(context, a, b, c):
    """``a * b + c``, rounded once. In fp32, or in fp64 if one of them is."""
    kind = types.float64 if types.float64 in (a, b, c) else types.float32

    def generate(context, builder, signature, arguments):
        own = zip(arguments, signature.args, strict=True)
        return builder.fma(*(context.cast(builder, value, t, kind) for value, t in own))

    return kind(a, b, c), generate


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
        n = np.floor(fma(x, F(1.4426950408889634), F(0.5)))
        f = fma(n, F(2.12194440e-4), fma(n, F(-0.693359375), x))
        p = fma(F(1.9875691500e-4), f, F(1.3981999507e-3))
        p = fma(p, f, F(8.3334519073e-3))
        p = fma(p, f, F(4.1665795894e-2))
        p = fma(p, f, F(1.6666665459e-1))
        p = fma(p, f, F(5.0000001201e-1))
        value = fma(p * f, f, f) + F(1.0)
        return value * _float_of_bits(U(U(np.int32(n) + np.int32(127)) << U(23)))

    return exp32


def normal_curve(x):
    """The standard normal distribution: its area up to x, and its density at x."""
    raise NotImplementedError  # the overload below is what compiled code calls


@overload(normal_curve)
def _normal_curve(x):
    if x == types.float64:
        return lambda x: (
            0.5 * math.erfc(x * -0.7071067811865476),
            math.exp(-0.5 * x * x) * 0.3989422804014327,
        )

    def normal_curve32(x):
        # The area beyond |x| is exp(-x**2 / 2) times a smooth function, here a polynomial in
        # t = 1 / (1 + 0.35 |x|) with a relative error below 4e-8, fitted by Lawson's algorithm.
        bell = exp(F(-0.5) * x * x)
        t = F(1.0) / fma(F(0.35), abs(x), F(1.0))
        p = fma(F(-2.9164926705e-2), t, F(1.4406576534e-1))
        p = fma(p, t, F(-2.5591232944e-1))
        p = fma(p, t, F(1.5940513562e-1))
        p = fma(p, t, F(-2.3272456211e-2))
        p = fma(p, t, F(1.0557854807e-1))
        p = fma(p, t, F(1.1981452224e-1))
        p = fma(p, t, F(1.3986447490e-1))
        p = fma(p, t, F(1.3962125017e-1))
        beyond = p * t * bell
        area = beyond if x < F(0.0) else F(1.0) - beyond
        return area, bell * F(0.3989422804)

    return normal_curve32


def normal_area(x, array):
    """The first of :func:`normal_curve`, as exact as numbers have to be that are stored in an array
    with x times it."""
    raise NotImplementedError  # the overload below is what compiled code calls


@overload(normal_area)
def _normal_area(x, array):
    if array.dtype != types.uint16:
        return lambda x, array: normal_curve(x)[0]

    def short_area(x, array):
        # Odd, but for the 1/2, and 0 or 1 from -4.5 and 4.5 on. Between them a polynomial in x**2,
        # fitted so that x times it is within 1.6e-5: an eighth of what bf16 rounds 0.06 by.
        c = min(max(x, F(-4.5)), F(4.5))
        u = fma(c * c, F(0.0987654321), F(-1.0))
        p = fma(F(-1.4542331919e-3), u, F(4.4720191509e-3))
        p = fma(p, u, F(-6.7076808773e-3))
        p = fma(p, u, F(1.0343847796e-2))
        p = fma(p, u, F(-1.8259519711e-2))
        p = fma(p, u, F(2.8590491042e-2))
        p = fma(p, u, F(-4.0259771049e-2))
        p = fma(p, u, F(5.4661281407e-2))
        p = fma(p, u, F(-7.7181205153e-2))
        p = fma(p, u, F(1.5690588951e-1))
        return max(fma(p, c, F(0.5)), F(0.0))

    return short_area


def logistic_curve(x):
    """What GELU's tanh form has in place of the normal distribution: an area up to x, and its
    slope."""
    raise NotImplementedError  # the overload below is what compiled code calls


@overload(logistic_curve)
def _logistic_curve(x):
    # (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x**3) is 1 / (1 + exp(-2 u)).
    if x == types.float64:

        def logistic_curve64(x):
            e = math.exp(-abs(1.5957691216057308 * x * (1.0 + 0.044715 * x * x)))
            area = (e if x < 0.0 else 1.0) / (1.0 + e)
            rise = 1.5957691216057308 * (1.0 + 0.134145 * x * x)
            return area, rise * e / ((1.0 + e) * (1.0 + e))

        return logistic_curve64

    def logistic_curve32(x):
        square = x * x
        u = F(1.5957691216) * x * fma(F(0.044715), square, F(1.0))
        e = exp(-abs(u))
        t = F(1.0) / (F(1.0) + e)
        area = e * t if x < F(0.0) else t
        rise = fma(F(0.2140644488), square, F(1.5957691216))
        # exp has a least value, so that far out the rise must not outgrow it.
        slope = rise * (e * t * t) if abs(u) < F(87.0) else F(0.0)
        return area, slope

    return logistic_curve32


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


@intrinsic
def full_registers(context):
    """Let the loops of the function that this is called in use the processor's widest registers.

    The compiler otherwise takes half of those of AVX-512, which on early processors slowed their
    clock; here loops take 1.5 to 2 times as long then. Not inlined, because a caller's limit would
    hold.
    """

    def generate(context, builder, _, __):
        wanted = {"noinline", '"prefer-vector-width"="512"'}
        set.update(builder.function.attributes, wanted)  # its own method knows few attributes
        return context.get_dummy_value()

    return types.none(), generate


@register_jitable
def _blocks(rows, size):
    return (rows + size - 1) // size


# ------------------------------------------------------------------------------------- sums of rows
#
# Lane l adds up elements l, l + LANES, ...; then halves of the lanes are added until one is left.
# Rows have zeros after their end, to the next multiple of LANES.


class _Lanes(types.Type):
    """LANES numbers, which the compiler keeps in vector registers."""

    def __init__(self, dtype):
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, lanes):
        element = ir.DoubleType() if lanes.dtype == types.float64 else ir.FloatType()
        super().__init__(manager, lanes, ir.VectorType(element, LANES))


def _place(context, builder, array_type, array, *indices):
    """The address of an element of a contiguous array."""
    assert array_type.layout == "C"
    view = context.make_array(array_type)(context, builder, array)
    sizes = [builder.extract_value(view.shape, i) for i in range(array_type.ndim)]
    at = indices[0]
    for size, index in zip(sizes[1:], indices[1:], strict=True):
        at = builder.add(builder.mul(at, size), index)
    return builder.gep(view.data, [at])


@intrinsic
def _element(context, array, i, j):
    """``array[i, j]``, for :func:`peek`."""

    def generate(context, builder, signature, arguments):
        return builder.load(_place(context, builder, signature.args[0], *arguments))

    return array.dtype(array, types.intp, types.intp), generate


@intrinsic
def _entry(context, row, j):
    """``row[j]`` for an index that is not negative."""

    def generate(context, builder, signature, arguments):
        return builder.load(_place(context, builder, signature.args[0], *arguments))

    return row.dtype(row, types.intp), generate


@intrinsic
def _set_element(context, array, i, j, value):
    def generate(context, builder, signature, arguments):
        *place, value = arguments
        builder.store(value, _place(context, builder, signature.args[0], *place))
        return context.get_dummy_value()

    return types.none(array, types.intp, types.intp, array.dtype), generate


@intrinsic
def _no_lanes(context, row):
    lanes = _Lanes(row.dtype)

    def generate(context, _, __, ___):
        return ir.Constant(context.get_value_type(lanes), None)

    return lanes(row), generate


@intrinsic
def _lanes_at(context, row, start):
    lanes = _Lanes(row.dtype)

    def generate(context, builder, signature, arguments):
        vector = context.get_value_type(lanes)
        address = _place(context, builder, signature.args[0], *arguments)
        address = builder.bitcast(address, vector.as_pointer())
        return builder.load(address, align=row.dtype.bitwidth // 8)

    return lanes(row, types.intp), generate


@intrinsic
def _lanes_plus(context, a, b):
    return a(a, b), lambda _, builder, __, arguments: builder.fadd(*arguments)


@intrinsic
def _lanes_fma(context, a, b, c):
    def generate(context, builder, _, arguments):
        vector = context.get_value_type(a)
        name = f"llvm.fma.v{LANES}f{a.dtype.bitwidth}"
        kind = ir.FunctionType(vector, [vector] * 3)
        return builder.call(get_or_insert_function(builder.module, kind, name), arguments)

    return a(a, b, c), generate


@intrinsic
def _lanes_of(context, array, i, j):
    """Rows of an array: element ``[i, j]`` in all lanes."""
    lanes = _Lanes(array.dtype)

    def generate(context, builder, signature, arguments):
        vector = context.get_value_type(lanes)
        value = builder.load(_place(context, builder, signature.args[0], *arguments))
        none, zero = ir.Constant(vector, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        order = ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)
        return builder.shuffle_vector(builder.insert_element(none, value, zero), none, order)

    return lanes(array, types.intp, types.intp), generate


@intrinsic
def _lanes_in(context, array, i, j):
    """The elements of an array from ``[i, j]`` on."""
    lanes = _Lanes(array.dtype)

    def generate(context, builder, signature, arguments):
        address = _place(context, builder, signature.args[0], *arguments)
        address = builder.bitcast(address, context.get_value_type(lanes).as_pointer())
        return builder.load(address, align=array.dtype.bitwidth // 8)

    return lanes(array, types.intp, types.intp), generate


@intrinsic
def _put_lanes(context, array, i, j, lanes):
    """Write lanes to an array from ``[i, j]`` on."""

    def generate(context, builder, signature, arguments):
        *place, value = arguments
        address = _place(context, builder, signature.args[0], *place)
        address = builder.bitcast(address, value.type.as_pointer())
        builder.store(value, address, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(array, types.intp, types.intp, lanes), generate


@intrinsic
def _lanes_max(context, a, b):
    def generate(_, builder, __, arguments):
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

    return a(a, b), generate


@intrinsic
def _lanes_exp(context, x):
    """:func:`exp` of each lane."""
    assert x.dtype == types.float32

    def generate(context, builder, _, arguments):
        vector, whole = context.get_value_type(x), ir.VectorType(ir.IntType(32), LANES)

        def number(value):
            return ir.Constant(vector, [F(value).item()] * LANES)

        def integer(value):
            return ir.Constant(whole, [value] * LANES)

        def call(name, *values):
            kind = ir.FunctionType(vector, [vector] * len(values))
            name = f"llvm.{name}.v{LANES}f32"
            return builder.call(get_or_insert_function(builder.module, kind, name), values)

        least = number(-87.0)
        value = builder.select(builder.fcmp_ordered(">", arguments[0], least), arguments[0], least)
        n = call("floor", call("fma", value, number(1.4426950408889634), number(0.5)))
        f = call("fma", n, number(-0.693359375), value)
        f = call("fma", n, number(2.12194440e-4), f)
        p = call("fma", number(1.9875691500e-4), f, number(1.3981999507e-3))
        for factor in (8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
            p = call("fma", p, f, number(factor))
        p = builder.fadd(call("fma", builder.fmul(p, f), f, f), number(1.0))
        power = builder.shl(builder.add(builder.fptosi(n, whole), integer(127)), integer(23))
        return builder.fmul(p, builder.bitcast(power, vector))

    return x(x), generate


@intrinsic
def _highest(context, lanes):
    """The maximum of the lanes."""

    def generate(_, builder, __, arguments):
        (vector,) = arguments
        half = LANES
        while half > 1:
            half //= 2
            low, high = _halves(builder, vector, half)
            vector = builder.select(builder.fcmp_ordered(">", low, high), low, high)
        return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))

    return lanes.dtype(lanes), generate


def _halves(builder, vector, half):
    return [
        builder.shuffle_vector(
            vector,
            ir.Constant(vector.type, ir.Undefined),
            ir.Constant(ir.VectorType(ir.IntType(32), half), list(range(at, at + half))),
        )
        for at in (0, half)
    ]


@intrinsic
def _folded(context, lanes):
    def generate(_, builder, __, arguments):
        (vector,) = arguments
        half = LANES
        while half > 1:
            half //= 2
            vector = builder.fadd(*_halves(builder, vector, half))
        return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))

    return lanes.dtype(lanes), generate


@register_jitable
def zero_row(size, dtype):
    """A row of zeros with room for whole lanes."""
    return np.zeros((size + LANES - 1) // LANES * LANES, dtype)


@register_jitable
def total(row, count):
    """The sum of the first elements of a row in the dtype of arithmetic."""
    lanes = _no_lanes(row)
    for j in range(0, count, LANES):
        lanes = _lanes_plus(lanes, _lanes_at(row, j))
    return _folded(lanes)


@register_jitable
def dot(a, b, count):
    """The sum of products of the first elements of two rows in the dtype of arithmetic."""
    lanes = _no_lanes(a)
    for j in range(0, count, LANES):
        lanes = _lanes_fma(_lanes_at(a, j), _lanes_at(b, j), lanes)
    return _folded(lanes)


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
        full_registers()
        for i in range(block * BLOCK, min(R, block * BLOCK + BLOCK)):
            for j in range(H):
                kept = random_word(i * H + j, key_0, key_1) >= threshold
                store(out, i, j, load(x, i, j) * scale if kept else F(0))


@parallel
def add_norm(x, branch, bias, weight, shift, eps, dropout, total_out, out, mean, rstd):
    """``total_out = x + dropout(branch + bias)``, ``out = LayerNorm(total_out)``.

    ``mean`` and ``rstd`` [R] are the statistics of the rows, before ``total_out`` is rounded.
    """
    threshold, scale, key_0, key_1 = dropout
    R, H = x.shape
    for block in prange(_blocks(R, BLOCK)):
        full_registers()
        row = zero_row(H, arithmetic(x))
        for i in range(block * BLOCK, min(R, block * BLOCK + BLOCK)):
            if threshold == U(0):
                for j in range(H):
                    row[j] = load(x, i, j) + (load(branch, i, j) + bias[j])
            else:
                for j in range(H):
                    kept = random_word(i * H + j, key_0, key_1) >= threshold
                    added = (load(branch, i, j) + bias[j]) * scale
                    row[j] = load(x, i, j) + (added if kept else F(0))
            m = total(row, H) / F(H)
            for j in range(H):
                store(total_out, i, j, row[j])
                row[j] -= m
            r = F(1) / np.sqrt(dot(row, row, H) / F(H) + eps)
            mean[i] = m
            rstd[i] = r
            for j in range(H):
                store(out, i, j, fma(row[j] * r, weight[j], shift[j]))


@parallel
def add_norm_backward(
    upstream, summed, mean, rstd, weight, dropout, d_total, d_branch, d_weight, d_shift, d_bias
):
    """Gradients of :func:`add_norm`: ``d_total`` is that of ``x``; the last three, [blocks, H], are
    sums over each block's rows. ``summed`` is its ``total_out``.

    Without dropout ``d_branch`` is not written: it is ``d_total``.
    """
    threshold, scale, key_0, key_1 = dropout
    R, H = upstream.shape
    for block in prange(_blocks(R, BLOCK)):
        full_registers()
        for j in range(H):
            d_weight[block, j] = F(0)
            d_shift[block, j] = F(0)
            d_bias[block, j] = F(0)
        normal = zero_row(H, arithmetic(upstream))
        scaled = zero_row(H, arithmetic(upstream))
        for i in range(block * BLOCK, min(R, block * BLOCK + BLOCK)):
            m = mean[i]
            r = rstd[i]
            for j in range(H):
                d = load(upstream, i, j)
                normal[j] = (load(summed, i, j) - m) * r
                scaled[j] = d * weight[j]
                d_weight[block, j] = fma(d, normal[j], d_weight[block, j])
                d_shift[block, j] += d
            a = total(scaled, H) / F(H)
            b = dot(scaled, normal, H) / F(H)
            if threshold == U(0):
                for j in range(H):
                    d = r * fma(-b, normal[j], scaled[j] - a)
                    store(d_total, i, j, d)
                    d_bias[block, j] += d
            else:
                for j in range(H):
                    d = r * fma(-b, normal[j], scaled[j] - a)
                    store(d_total, i, j, d)
                    kept = random_word(i * H + j, key_0, key_1) >= threshold
                    d = d * scale if kept else F(0)
                    store(d_branch, i, j, d)
                    d_bias[block, j] += d


@parallel
def gelu(z, bias, out):
    """``out = gelu(z + bias)``; ``z`` becomes the derivative there.

    So that the backward pass, which needs nothing else of it, is a product.
    """
    R, H = z.shape
    for block in prange(_blocks(R, BLOCK)):
        full_registers()
        for i in range(block * BLOCK, min(R, block * BLOCK + BLOCK)):
            for j in range(H):
                x = load(z, i, j) + bias[j]
                area, density = normal_curve(x)
                store(out, i, j, x * area)
                store(z, i, j, fma(x, density, area))


@parallel
def gelu_tanh(z, bias, out):
    """:func:`gelu` in its tanh form (Hendrycks and Gimpel 2016)."""
    R, H = z.shape
    for block in prange(_blocks(R, BLOCK)):
        full_registers()
        for i in range(block * BLOCK, min(R, block * BLOCK + BLOCK)):
            for j in range(H):
                x = load(z, i, j) + bias[j]
                area, slope = logistic_curve(x)
                store(out, i, j, x * area)
                store(z, i, j, fma(x, slope, area))


@parallel
def gelu_backward(d, slope, sums):
    """``d`` times the derivative, in place; ``sums`` [blocks, H] are over each block's rows."""
    R, H = d.shape
    for block in prange(_blocks(R, BLOCK)):
        full_registers()
        for j in range(H):
            sums[block, j] = F(0)
        for i in range(block * BLOCK, min(R, block * BLOCK + BLOCK)):
            for j in range(H):
                value = load(d, i, j) * load(slope, i, j)
                store(d, i, j, value)
                sums[block, j] += value


# ---------------------------------------------------------------------- layers without a gradient
#
# What inference computes between the products: nothing is dropped or kept for a backward pass.


@parallel
def embed(tokens, places, segments, words, positions, kinds, weight, shift, eps, out):
    """``out = LayerNorm(words[tokens] + positions[places] + kinds[segments])``, [T, E].

    Tables without rows are left out, and so is the norm if its weight is empty.
    """
    T, E = out.shape
    for block in prange(_blocks(T, BLOCK)):
        full_registers()
        row = zero_row(E, arithmetic(words))
        for i in range(block * BLOCK, min(T, block * BLOCK + BLOCK)):
            for j in range(E):
                row[j] = words[tokens[i], j]
            if len(positions):
                for j in range(E):
                    row[j] += positions[places[i], j]
            if len(kinds):
                for j in range(E):
                    row[j] += kinds[segments[i], j]
            if len(weight):
                _write_normal(row, weight, shift, eps, i, out)
            else:
                for j in range(E):
                    store(out, i, j, row[j])


@register_jitable
def _write_normal(row, weight, shift, eps, i, out):
    """``out[i] = LayerNorm(row)``."""
    H = out.shape[1]
    m = total(row, H) / F(H)
    for j in range(H):
        row[j] -= m
    r = F(1) / np.sqrt(dot(row, row, H) / F(H) + eps)
    for j in range(H):
        store(out, i, j, fma(row[j] * r, weight[j], shift[j]))


@parallel
def residual_norm(x, branch, bias, weight, shift, eps, out):
    """``out = LayerNorm(x + branch + bias)``, [R, H]; ``out`` may be ``x``."""
    R, H = x.shape
    for block in prange(_blocks(R, BLOCK)):
        full_registers()
        row = zero_row(H, arithmetic(x))
        for i in range(block * BLOCK, min(R, block * BLOCK + BLOCK)):
            for j in range(H):
                row[j] = load(x, i, j) + (load(branch, i, j) + bias[j])
            _write_normal(row, weight, shift, eps, i, out)


@parallel
def gelu_of(z, bias):
    """``z = gelu(z + bias)``, [R, H]."""
    R, H = z.shape
    for block in prange(_blocks(R, BLOCK)):
        full_registers()
        for i in range(block * BLOCK, min(R, block * BLOCK + BLOCK)):
            for j in range(H):
                x = load(z, i, j) + bias[j]
                store(z, i, j, x * normal_area(x, z))


@parallel
def gelu_tanh_of(z, bias):
    """:func:`gelu_of` in its tanh form."""
    R, H = z.shape
    for block in prange(_blocks(R, BLOCK)):
        full_registers()
        for i in range(block * BLOCK, min(R, block * BLOCK + BLOCK)):
            for j in range(H):
                x = load(z, i, j) + bias[j]
                area, _ = logistic_curve(x)
                store(z, i, j, x * area)


_QUERIES = 4  # of a head that are computed together, so that each key is read once for all


@register_jitable
def _combine(factors, rows, count, width, out):
    """``out = factors[:, :count] @ rows``: [_QUERIES, count or more], [count, width] ->
    [_QUERIES, width], up to whole lanes."""
    for at in range(0, width, LANES):
        a = _no_lanes(rows)
        b = _no_lanes(rows)
        c = _no_lanes(rows)
        d = _no_lanes(rows)
        for k in range(count):
            own = _lanes_in(rows, k, at)
            a = _lanes_fma(_lanes_of(factors, 0, k), own, a)
            b = _lanes_fma(_lanes_of(factors, 1, k), own, b)
            c = _lanes_fma(_lanes_of(factors, 2, k), own, c)
            d = _lanes_fma(_lanes_of(factors, 3, k), own, d)
        _put_lanes(out, 0, at, a)
        _put_lanes(out, 1, at, b)
        _put_lanes(out, 2, at, c)
        _put_lanes(out, 3, at, d)


def _powers(scores, i, width):
    """e to the power of a row of scores, less the highest of them, up to whole lanes; their sum."""
    raise NotImplementedError  # the overload below is what compiled code calls


@overload(_powers)
def _powers_overload(scores, i, width):
    if scores.dtype == types.float64:

        def powers64(scores, i, width):
            highest = scores[i, :width].max()
            s = 0.0
            for j in range(width):
                scores[i, j] = math.exp(scores[i, j] - highest)
                s += scores[i, j]
            return s

        return powers64

    def powers32(scores, i, width):
        high = _lanes_in(scores, i, 0)
        for j in range(LANES, width, LANES):
            high = _lanes_max(high, _lanes_in(scores, i, j))
        scores[i, width] = F(0) - _highest(high)  # a place beyond the row, to fill lanes from
        less = _lanes_of(scores, i, width)
        lanes = _no_lanes(scores)
        for j in range(0, width, LANES):
            own = _lanes_exp(_lanes_plus(_lanes_in(scores, i, j), less))
            lanes = _lanes_plus(lanes, own)
            _put_lanes(scores, i, j, own)
        return _folded(lanes)

    return powers32


_TOGETHER = 64  # sequences that one thread computes a head of


@parallel
def attention(queries, query_bounds, keys, key_bounds, heads, bias, scale, causal, out):
    """Each query's mean of values, weighted by the softmax of its products with the keys of its
    sequence: without padding, and without anything kept for a gradient.

    ``queries`` is [N, H or more], and ``keys`` [T, 2 * H or more] ends with the keys and the values
    of all heads; sequence b has the rows ``bounds[b]:bounds[b + 1]`` of each. ``bias`` [3 * H] is
    that of queries, keys and values, and ``out`` [N, H]; rows of no sequence become 0.
    """
    H = out.shape[1]
    D = H // heads
    B = len(key_bounds) - 1
    first = keys.shape[1] - 2 * H
    width = (D + LANES - 1) // LANES * LANES
    groups = (B + _TOGETHER - 1) // _TOGETHER
    for item in prange(heads * groups):  # a head of all sequences takes as long as another
        full_registers()
        head, group = divmod(np.int64(item), groups)
        at = head * D
        begin = group * _TOGETHER
        end = min(B, begin + _TOGETHER)
        longest = np.int64(0)
        for b in range(begin, end):
            longest = max(longest, key_bounds[b + 1] - key_bounds[b])
        size = (longest + LANES - 1) // LANES * LANES
        kind = arithmetic(out)
        # The last row of the keys, with the last column of the queries, hides what is padding.
        q = np.ones((_QUERIES, D + 1), kind)
        k = np.zeros((D + 1, size), kind)
        v = np.zeros((longest, width), kind)
        scores = np.zeros((_QUERIES, size + LANES), kind)
        found = np.zeros((_QUERIES, width), kind)
        for b in range(begin, end):
            start, L = key_bounds[b], key_bounds[b + 1] - key_bounds[b]
            padded = (L + LANES - 1) // LANES * LANES
            for row in range(L):
                for d in range(D):
                    own = peek(keys, start + row, first + at + d)
                    _set_element(k, d, row, own + _entry(bias, H + at + d))
                for d in range(D):
                    own = peek(keys, start + row, first + H + at + d)
                    _set_element(v, row, d, own + _entry(bias, 2 * H + at + d))
            for row in range(padded):
                k[D, row] = F(0) if row < L else F(-1e30)
            for tile in range(query_bounds[b], query_bounds[b + 1], _QUERIES):
                count = min(_QUERIES, query_bounds[b + 1] - tile)
                for i in range(count):
                    for d in range(D):
                        own = peek(queries, tile + i, at + d) + _entry(bias, at + d)
                        _set_element(q, i, d, own * scale)
                _combine(q, k, D + 1, padded, scores)
                if causal:
                    for i in range(count):
                        for j in range(tile + i - query_bounds[b] + 1, padded):
                            _set_element(scores, i, j, F(-1e30))
                for i in range(count):
                    scores[i, size] = F(1) / _powers(scores, i, padded)
                _combine(scores, v, L, width, found)
                for i in range(count):
                    inverse = scores[i, size]
                    for d in range(D):
                        poke(out, tile + i, at + d, found[i, d] * inverse)


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
        full_registers()
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
        full_registers()
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
        full_registers()
        row = zero_row(L, arithmetic(scores))
        for i in range(block * BLOCK, min(R, block * BLOCK + BLOCK)):
            keys = lengths[i // (queries * heads)]
            if causal:
                keys = min(keys, i % queries + 1)
            first = rank(load(scores, i, 0))
            for j in range(keys):
                first = max(first, rank(load(scores, i, j)))
            highest = unrank(first)
            for j in range(keys):
                row[j] = exp(load(scores, i, j) - highest)
            row[keys:] = F(0)
            inverse = F(1) / total(row, keys)
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
        full_registers()
        d = zero_row(L, arithmetic(probabilities))
        p = zero_row(L, arithmetic(probabilities))
        for i in range(block * BLOCK, min(R, block * BLOCK + BLOCK)):
            if threshold == U(0):
                for j in range(L):
                    d[j] = load(upstream, i, j)
                    p[j] = load(probabilities, i, j)
            else:
                for j in range(L):
                    kept = random_word(i * L + j, key_0, key_1) >= threshold
                    d[j] = load(upstream, i, j) * scale if kept else F(0)
                    p[j] = load(probabilities, i, j)
                    store(dropped, i, j, p[j] * scale if kept else F(0))
            mean = dot(d, p, L)
            for j in range(L):
                store(upstream, i, j, p[j] * (d[j] - mean))


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
        full_registers()
        row = zero_row(V, arithmetic(logits))
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
            for j in range(V):
                row[j] = exp(row[j] - highest)
            s = total(row, V)
            losses[i] = highest + np.log(s) - of_target
            inverse = F(1) / s
            row[target] -= s
            for j in range(V):
                value = row[j] * inverse
                store(logits, i, j, value)
                sums[block, j] += value
            for j in range(V, columns):
                store(logits, i, j, F(0))


# ----------------------------------------------------------------------------------- rows of tables


@parallel
def add_rows(upstream, order, starts, ids, table):
    """Add rows of ``upstream`` [T, H] to rows of ``table`` [V, H]; each sum is rounded once.

    Row ``ids[u]`` gets the rows ``order[starts[u]:starts[u + 1]]``, in this order. Ids are
    distinct.
    """
    H = table.shape[1]
    for block in prange(_blocks(len(ids), BLOCK)):
        full_registers()
        row = np.empty(H, arithmetic(table))
        for u in range(block * BLOCK, min(len(ids), block * BLOCK + BLOCK)):
            for j in range(H):
                row[j] = load(table, ids[u], j)
            for at in range(starts[u], starts[u + 1]):
                for j in range(H):
                    row[j] += load(upstream, order[at], j)
            for j in range(H):
                store(table, ids[u], j, row[j])


# -------------------------------------------------------------------------------- transposed arrays

_TILE = 16  # rows and columns that are transposed in registers


@intrinsic
def _transpose_tile(context, source, i, j, out):
    """``out[j:, i:] = source[i:, j:].T`` for a tile of uint16."""

    def generate(context, builder, signature, arguments):
        source, i, j, out = arguments
        vector = ir.VectorType(ir.IntType(16), _TILE)

        def row(array_type, array, first, second, at):
            first = builder.add(first, ir.Constant(first.type, at))
            address = _place(context, builder, array_type, array, first, second)
            return builder.bitcast(address, vector.as_pointer())

        rows = [
            builder.load(row(signature.args[0], source, i, j, at), align=2) for at in range(_TILE)
        ]
        # Interleaving row r with row r + 8 moves one bit of an element's row into its column.
        # When that is done for each of the four bits, the tile is transposed.
        half = _TILE // 2
        for _ in range(4):
            pairs = zip(rows[:half], rows[half:], strict=True)
            rows = [_interleaved(builder, a, b, at) for a, b in pairs for at in (0, half)]
        for at, value in enumerate(rows):
            builder.store(value, row(signature.args[3], out, j, i, at), align=2)
        return context.get_dummy_value()

    return types.none(source, types.intp, types.intp, out), generate


def _interleaved(builder, a, b, start):
    """Elements of two vectors in turns, from ``start`` on, as many as a vector has."""
    order = [at + of for at in range(start, start + _TILE // 2) for of in (0, _TILE)]
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), _TILE), order))


def _transpose(source, i, j, out):
    """``out[j:, i:] = source[i:, j:].T``, for a tile of whole rows and columns."""
    raise NotImplementedError  # the overload below is what compiled code calls


@overload(_transpose)
def _transpose_overload(source, i, j, out):
    if source.dtype == types.uint16:
        return lambda source, i, j, out: _transpose_tile(source, i, j, out)

    def plain(source, i, j, out):
        for row in range(i, i + _TILE):
            for column in range(j, j + _TILE):
                out[column, row] = source[row, column]

    return plain


@parallel
def transpose(source, out):
    """``out = source.T``."""
    R, H = source.shape
    whole_rows, whole_columns = R - R % _TILE, H - H % _TILE
    for block in prange(_blocks(H, 4 * _TILE)):
        full_registers()
        last = min(H, (block + 1) * 4 * _TILE)
        for pair in range(0, whole_rows, 2 * _TILE):  # two tiles fill a line of the cache
            for j in range(block * 4 * _TILE, min(last, whole_columns), _TILE):
                for i in range(pair, min(pair + 2 * _TILE, whole_rows), _TILE):
                    _transpose(source, i, j, out)
        for j in range(block * 4 * _TILE, last):
            for i in range(whole_rows if j < whole_columns else 0, R):
                out[j, i] = source[i, j]


# ---------------------------------------------------------------------------------------- optimizer
#
# Parameters are given by the addresses of their arrays, so that one call updates all of them: a
# call for each would take as long as the update of a small one. They are cut into pieces of at most
# CHUNK elements: int64 [pieces, 3], the parameter, its first element and how many.


@intrinsic
def _pointer(context, address, kind):
    pointer = types.CPointer(kind.dtype)

    def generate(context, builder, _, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(pointer))

    return pointer(types.int64, kind), generate


@register_jitable
def _elements(address, first, count, kind, size):
    """[1, count] numbers of a kind of ``size`` bytes, from the first of an array at an address."""
    return carray(_pointer(address + first * size, kind), (1, count))


@register_jitable
def _copy_scaled(source, factor, row):
    for j in range(source.shape[1]):
        row[j] = load(source, 0, j) * factor


@register_jitable
def _gradient(addresses, in_bf16, piece, factor, row):
    """The piece's gradient times a factor, in fp32, into ``row``."""
    parameter, first, count = piece
    if in_bf16[parameter]:
        _copy_scaled(_elements(addresses[parameter], first, count, np.uint16, 2), factor, row)
    else:
        _copy_scaled(_elements(addresses[parameter], first, count, np.float32, 4), factor, row)


@parallel
def sum_squares(pieces, gradients, in_bf16, sums):
    """The sum of the squares of each piece's gradient, float32 [pieces].

    ``gradients`` int64 [P] are addresses, of bf16 or fp32 as ``in_bf16`` [P] says.
    """
    for at in prange(len(pieces)):
        full_registers()
        row = zero_row(CHUNK, np.float32)
        _gradient(gradients, in_bf16, (pieces[at, 0], pieces[at, 1], pieces[at, 2]), F(1), row)
        sums[at] = dot(row, row, pieces[at, 2])


@parallel
def adam(pieces, gradients, in_bf16, state, rates, betas, others, eps, factor):
    """Update parameters from their gradients times ``factor``.

    ``betas`` are the shares of the old means that stay, ``others`` those of the new values: in fp32
    one minus a beta near 1 would have few right digits.

    ``state`` int64 [P, 4] are addresses of the weights, of the means of the gradient and of its
    square, and of a copy of the weights in bf16, or 0 without one. ``rates`` float32 [P, 3] are
    what a weight is multiplied by, the step along the mean, and what the root of the other is
    multiplied by.
    """
    beta_1, beta_2 = betas
    other_1, other_2 = others
    for at in prange(len(pieces)):
        full_registers()
        parameter, first, count = pieces[at, 0], pieces[at, 1], pieces[at, 2]
        g = np.empty(CHUNK, np.float32)
        _gradient(gradients, in_bf16, (parameter, first, count), factor, g)
        weight = _elements(state[parameter, 0], first, count, np.float32, 4)
        mean = _elements(state[parameter, 1], first, count, np.float32, 4)
        square = _elements(state[parameter, 2], first, count, np.float32, 4)
        kept, step, root = rates[parameter, 0], rates[parameter, 1], rates[parameter, 2]
        for j in range(count):
            m = fma(other_1, g[j], beta_1 * mean[0, j])
            v = fma(other_2 * g[j], g[j], beta_2 * square[0, j])
            mean[0, j] = m
            square[0, j] = v
            weight[0, j] = fma(-step, m / fma(np.sqrt(v), root, eps), weight[0, j] * kept)
        if state[parameter, 3]:
            copy = _elements(state[parameter, 3], first, count, np.uint16, 2)
            for j in range(count):
                store(copy, 0, j, weight[0, j])
