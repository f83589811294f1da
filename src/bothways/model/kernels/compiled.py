"""Parts of a layer that are not matrix products, in compiled loops, with their gradients.

On a CPU these take as long as the products if library operations do them: each reads and writes
memory, and dropout needs its masks drawn and kept. Here each part reads its inputs once, and masks
are computed again where they are needed. For every part there is a plain form in library
operations, with the same dropout masks.

B sequences, T tokens, R rows, H hidden size, A heads, D = H / A, V vocabulary; of one tile, b
sequences, L length, Q queries per sequence.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from bothways.families.config import ModelConfig
from bothways.model.dropout import KEEP_ALL, Draw
from bothways.model.kernels.memory import Frame, Pool

_DTYPES = (torch.bfloat16, torch.float32, torch.float64)
GELU_LOOPS = {"gelu": "gelu", "gelu_tanh": "gelu_tanh"}
"""The activations that loops compute, and the loops."""
# One of Numba's thread pools ends the process if two threads use it at once.
_ONE_AT_A_TIME = threading.Lock()


def compiles(x: Tensor) -> bool:
    """Whether there are compiled loops for such an array here."""
    return x.device.type == "cpu" and x.dtype in _DTYPES and why_not_compiled() is None


@cache
def why_not_compiled() -> str | None:
    """Why this process has no compiled loops; None if it has."""
    try:
        import numba

        _loops()
    except ImportError as error:  # Numba follows a new Python some months later
        return f"Numba cannot be imported ({error})"
    return "NUMBA_DISABLE_JIT is set" if numba.config.DISABLE_JIT else None  # type: ignore[attr-defined]


def why_not_covered(config: ModelConfig) -> str | None:
    """Why compiled layers do not compute an encoder of this shape, in words; None if they do.

    The loops of embeddings and of the softmax over the vocabulary serve every shape.
    """
    reasons = {
        "norms before the branches": config.norm_at != "post",
        "rotary positions": config.place == "rotary",
        "attention in windows": any(spec.window for spec in config.attention),
        "relative places": config.layer(0).relative,
        "keys that heads share": config.kv_heads > 0,
        "norms by the root mean square": config.norm == "rms",
        "gated layers": config.gated,
        "linear maps without biases": not config.biases,
        "norms without biases": not config.norm_biases,
        f"{config.activation} as activation": config.activation not in GELU_LOOPS,
    }
    found = [words for words, applies in reasons.items() if applies]
    return f"there are no compiled layers with {', '.join(found)}" if found else None


def is_first_use() -> bool:
    """Whether no process has compiled the loops yet, or none could keep the result."""
    path: str | None = _loops().add_norm.stats.cache_path
    return path is None or not any(Path(path).glob("loops.add_norm-*.nbi"))


@cache
def _loops() -> ModuleType:
    """The loops; importing Numba takes a third of a second, so only training does."""
    import numba

    from bothways.model.kernels import loops

    # Where Numba's threads are OpenMP's, starting them sets the number for torch as well.
    threads = torch.get_num_threads()
    numba.get_num_threads()  # starts them
    torch.set_num_threads(threads)
    return loops


def chunk_size() -> int:
    """Elements of a parameter that the optimizer's loop takes at a time."""
    return int(_loops().CHUNK)


def run(name: str, *arguments: Any) -> None:
    """Call a loop with this process's number of threads; tensors become arrays."""
    arrays = [_array(a) if isinstance(a, Tensor) else a for a in arguments]
    _call(getattr(_loops(), name), arrays, _threads())


def _threads() -> int:
    """How many threads a loop has: torch's number, as far as Numba has started as many."""
    import numba

    most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    return min(torch.get_num_threads(), most)


def _call(loop: Callable[..., None], arrays: Sequence[Any], threads: int) -> None:
    """Call a loop with some threads; Numba's own number is the caller's, and stays."""
    import numba

    with _ONE_AT_A_TIME:
        own = numba.get_num_threads()
        if own == threads:
            loop(*arrays)
            return
        numba.set_num_threads(threads)
        try:
            loop(*arrays)
        finally:
            numba.set_num_threads(own)


def runner() -> Callable[..., None]:
    """:func:`run` for many calls in a row by this thread, on tensors that need no gradient; what
    the calls share is done once, which for a short text would take as long as the loops."""
    loops, threads = _loops(), _threads()

    def call(name: str, *arguments: Any) -> None:
        arrays = [_without_gradient(a) if isinstance(a, Tensor) else a for a in arguments]
        _call(getattr(loops, name), arrays, threads)

    return call


def _array(x: Tensor) -> NDArray[Any]:
    return _without_gradient(x.detach())


def _without_gradient(x: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy()
    return array


def add_gelu(z: Tensor, bias: Tensor, out: Tensor, activation: str) -> None:
    """``out = gelu(z + bias)``, [R, H]; ``z`` becomes the derivative there.

    Args:
        z, bias, out: [R, H], [H], [R, H].
        activation: which of :data:`GELU_LOOPS`.
    """
    run(GELU_LOOPS[activation], z, bias, out)


def gelu_backward(d: Tensor, slope: Tensor) -> Tensor:
    """``d`` times the derivative, [R, H], in place; the sum over its rows."""
    sums = block_sums(len(d), d.shape[1], d)
    run("gelu_backward", d, slope, sums)
    return sums.sum(0)


def transpose(x: Tensor, out: Tensor) -> None:
    """``out = x.t()``, [R, H] -> [H, R], contiguous."""
    run("transpose", x, out)


def parameters_for(x: Tensor, *vectors: Tensor) -> list[Tensor]:
    """Copies of vectors of parameters, in the dtype of arithmetic on ``x``.

    Copies, because FSDP could not free a parameter that has become a NumPy array.
    """
    return [vector.detach().to(exact(x), copy=True) for vector in vectors]


def stays_rounded(parameter: Tensor) -> bool:
    """Whether a gradient in the dtype of the layers is kept as it is.

    It is if a step has one gradient of each weight, which then is not summed further.
    """
    return parameter.grad_dtype is None


def gradient_array(pool: Pool, dtype: torch.dtype, *shape: int) -> Tensor:
    """An array for a product that is the gradient of a weight. What is rounded comes from the pool,
    to which the step gives it back."""
    return pool.take(dtype, *shape) if dtype == torch.bfloat16 else torch.empty(shape, dtype=dtype)


def as_gradient(pool: Pool, parameter: Tensor, product: Tensor) -> Tensor:
    """A product, in such an array, as the gradient of a parameter."""
    if product.dtype == parameter.dtype or stays_rounded(parameter):
        return product
    gradient = product.to(parameter.dtype)
    pool.give(product)
    return gradient


def exact(x: Tensor) -> torch.dtype:
    """The dtype of arithmetic on such an array."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def number(value: float, x: Tensor) -> Any:
    """A number in the dtype of arithmetic on such an array."""
    return np.float64(value) if x.dtype == torch.float64 else np.float32(value)


def _dropout(draw: Draw, x: Tensor) -> tuple[Any, ...]:
    return np.uint32(draw.threshold), number(draw.scale, x), *map(np.uint32, draw.keys)


def block_sums(rows: int, columns: int, x: Tensor, *, block: int | None = None) -> Tensor:
    """Room for sums over each block's rows."""
    return torch.empty(-(-rows // (block or _loops().BLOCK)), columns, dtype=exact(x))


# ------------------------------------------------------------------- dropout, addition, LayerNorm


def dropped(x: Tensor, draw: Draw) -> Tensor:
    """``x`` [R, H] without the elements that the draw drops; the rest scaled."""
    if draw is KEEP_ALL:
        return x
    out: Tensor = _Dropped.apply(x, draw)  # type: ignore[no-untyped-call]
    return out


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, draw: Draw) -> Tensor:
        ctx.draw = draw
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        run("dropped", x.contiguous(), _dropout(draw, x), out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Dropped.forward(ctx, grads[0], ctx.draw), None


@dataclass(frozen=True)
class Norm:
    """A LayerNorm of a sum.

    Attributes:
        bias, weight, shift: [H]; the bias of the branch, and the parameters of the norm.
        eps: added to the variance.
        draw: of the branch's dropout.
    """

    bias: Tensor
    weight: Tensor
    shift: Tensor
    eps: float
    draw: Draw


def add_norm(frame: Frame, x: Tensor, branch: Tensor, norm: Norm, out: Tensor) -> list[Tensor]:
    """``out = LayerNorm(x + dropout(branch + bias))``, [R, H]; what the gradient needs, in
    ``frame``."""
    total = frame.take(x.dtype, *x.shape)
    mean, rstd = (frame.take(exact(x), len(x)) for _ in range(2))
    own = (norm.bias, norm.weight, norm.shift, number(norm.eps, x), _dropout(norm.draw, x))
    run("add_norm", x, branch, *own, total, out, mean, rstd)
    return [total, mean, rstd]


def add_norm_backward(
    pool: Pool, upstream: Tensor, saved: Sequence[Tensor], norm: Norm, d_x: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """The gradients of ``x``, in ``d_x``; of ``branch`` (one array with that of ``x`` without
    dropout); and of bias, weight and shift."""
    total = saved[0]
    d_branch = d_x if norm.draw is KEEP_ALL else pool.take(total.dtype, *total.shape)
    sums = [block_sums(len(total), total.shape[1], total) for _ in range(3)]
    own = (*saved, norm.weight, _dropout(norm.draw, total))
    run("add_norm_backward", upstream, *own, d_x, d_branch, *sums)
    d_weight, d_shift, d_bias = (s.sum(0) for s in sums)
    return d_branch, (d_bias, d_weight, d_shift)


# ---------------------------------------------------------------------------------------- attention


@dataclass(frozen=True)
class AttentionTile:
    """What attention needs to know about a tile.

    Attributes:
        rows: for each projection int64 [b * L]; the flat row of each of the tile's rows, -1 for
            padding.
        lengths: int64 [b]; keys of each sequence.
        draw: of its probabilities' dropout.
    """

    rows: tuple[NDArray[np.int64], ...]
    lengths: NDArray[np.int64]
    draw: Draw


@dataclass(frozen=True)
class AttentionPlan:
    """Attention of a batch in tiles.

    Attributes:
        tiles: the tiles.
        flat_rows: of each projection, T or N.
        unused: int64, for each projection; its rows that are in no tile. Their contexts and their
            gradients are 0.
        heads, head_size: A and D.
        causal: a token attends to itself and earlier ones only.
    """

    tiles: Sequence[AttentionTile]
    flat_rows: tuple[int, ...]
    unused: tuple[Tensor, ...]
    heads: int
    head_size: int
    causal: bool

    def split(
        self,
        memory: Pool | Frame,
        flat: Tensor,
        rows: NDArray[np.int64],
        tile: AttentionTile,
        bias: Tensor,
        scale: float = 1.0,
    ) -> Tensor:
        """[T, n * H] -> [n, b * A, L, D]; the bias is added and the first part scaled."""
        n, b = flat.shape[1] // (self.heads * self.head_size), len(tile.lengths)
        L = len(rows) // b
        out = memory.take(flat.dtype, n, b * self.heads, L, self.head_size)
        arguments = (rows, L, self.heads, bias, number(scale, flat))
        run("split_heads", flat, *arguments, out.view(-1, self.head_size))
        return out

    def join(
        self, tiled: Tensor, rows: NDArray[np.int64], flat: Tensor, scale: float = 1.0
    ) -> Tensor:
        """[n, b * A, L, D], the first part scaled, into rows of [T, n * H]; the sum over them."""
        sums = block_sums(len(rows), flat.shape[1], flat)
        arguments = (rows, tiled.shape[2], self.heads, number(scale, flat), sums)
        run("join_heads", tiled.view(-1, self.head_size), *arguments, flat)
        return sums.sum(0)


def attend(
    pool: Pool,
    frame: Frame,
    projections: Sequence[Tensor],
    biases: Sequence[Tensor],
    plan: AttentionPlan,
) -> tuple[Tensor, list[Tensor]]:
    """The contexts, [N, H], and what the gradient needs.

    Args:
        pool: of what is only needed here.
        frame: of the contexts and what the gradient needs.
        projections: without their bias: queries, keys and values of all tokens, [T, 3 * H]; or
            queries of N positions, [N, H], and keys and values, [T, 2 * H].
        biases: of each projection.
        plan: with rows for each projection.
    """
    size = len(projections[0]), plan.heads * plan.head_size
    contexts = frame.take(projections[0].dtype, *size)
    contexts.index_fill_(0, plan.unused[0], 0)
    saved = []
    for tile in plan.tiles:
        packed = [
            plan.split(frame, flat, rows, tile, bias, 1.0 if i else plan.head_size**-0.5)
            for i, (flat, rows, bias) in enumerate(zip(projections, tile.rows, biases, strict=True))
        ]
        q, k, v = (part for split in packed for part in split)
        probabilities = frame.take(q.dtype, len(q), q.shape[1], k.shape[1])
        torch.bmm(q, k.transpose(1, 2), out=probabilities)
        dropped = _softmax(pool, probabilities, tile, plan)
        context = pool.take(q.dtype, 1, *q.shape)
        torch.bmm(dropped, v, out=context[0])
        plan.join(context, tile.rows[0], contexts)
        pool.give(context)
        if dropped is not probabilities:
            pool.give(dropped)
        saved += [*packed, probabilities]
    return contexts, saved


def attend_backward(
    pool: Pool, upstream: Tensor, saved: Sequence[Tensor], plan: AttentionPlan
) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients of the projections and of their biases."""
    n, H = len(plan.unused), upstream.shape[1]
    each = n + 1  # saved of a tile
    widths = [len(packed) * H for packed in saved[:n]]
    gradients = [
        pool.take(upstream.dtype, rows, width)
        for rows, width in zip(plan.flat_rows, widths, strict=True)
    ]
    for gradient, unused in zip(gradients, plan.unused, strict=True):
        gradient.index_fill_(0, unused, 0)
    sums = [torch.zeros(width, dtype=exact(upstream)) for width in widths]
    no_bias = torch.zeros(H, dtype=exact(upstream))
    for at, tile in enumerate(plan.tiles):
        *packed, probabilities = saved[each * at : each * (at + 1)]
        q, k, v = (part for split in packed for part in split)
        d_context = plan.split(pool, upstream, tile.rows[0], tile, no_bias)
        d_scores = pool.take(q.dtype, *probabilities.shape)
        torch.bmm(d_context[0], v.transpose(1, 2), out=d_scores)
        dropped = _softmax_backward(pool, probabilities, d_scores, tile)
        d_packed = [pool.take(q.dtype, *split.shape) for split in packed]
        d_q, d_k, d_v = (part for split in d_packed for part in split)
        torch.bmm(d_scores, k, out=d_q)
        torch.bmm(d_scores.transpose(1, 2), q, out=d_k)
        torch.bmm(dropped.transpose(1, 2), d_context[0], out=d_v)
        for i, (part, rows) in enumerate(zip(d_packed, tile.rows, strict=True)):
            sums[i] += plan.join(part, rows, gradients[i], 1.0 if i else plan.head_size**-0.5)
        if dropped is not probabilities:
            pool.give(dropped)
        pool.give(d_context, d_scores, *d_packed)
    return gradients, sums


def _softmax(pool: Pool, scores: Tensor, tile: AttentionTile, plan: AttentionPlan) -> Tensor:
    """Probabilities in place of the scores, [b * A, Q, L]; what dropout leaves of them."""
    _, Q, L = scores.shape
    dropped = scores if tile.draw is KEEP_ALL else pool.take(scores.dtype, *scores.shape)
    own = (tile.lengths, Q, plan.heads, plan.causal, _dropout(tile.draw, scores))
    run("attention_softmax", scores.view(-1, L), *own, dropped.view(-1, L))
    return dropped


def _softmax_backward(
    pool: Pool, probabilities: Tensor, upstream: Tensor, tile: AttentionTile
) -> Tensor:
    """The scores' gradient in place of that of the dropped probabilities; these again."""
    kept_all, shape = tile.draw is KEEP_ALL, probabilities.shape
    dropped = probabilities if kept_all else pool.take(probabilities.dtype, *shape)
    p, d, out = (x.view(-1, shape[2]) for x in (probabilities, upstream, dropped))
    run("attention_softmax_backward", p, d, _dropout(tile.draw, d), out)
    return dropped


# ---------------------------------------------------------------------- embeddings and their output


class Table:
    """An embedding table whose rows are looked up, and which is also the weight of an output layer.

    Its gradient is one array: the output layer's, to which those of the rows are added. As two uses
    of a parameter, it would be two arrays of the table's size, one of them nearly all zeros.
    """

    def __init__(self) -> None:
        self._parameter: Tensor | None = None
        self._tied: Tensor | None = None
        self._spent = [True]  # whether the backward pass has been there

    def __reduce__(self) -> tuple[type[Table], tuple[()]]:
        """A copy of a model has looked nothing up yet."""
        return Table, ()

    def rows(self, weight_VH: Tensor, copy_VH: Tensor, ids: Tensor, pool: Pool) -> Tensor:
        """The rows of ``ids``, [T, H] in the parameter's dtype.

        Args:
            weight_VH: the parameter.
            copy_VH: its values in the dtype of the layers.
            ids: int64 [T].
            pool: of the gradient.
        """
        self._parameter, self._spent = weight_VH, [False]
        rows, self._tied = _Rows.apply(weight_VH, copy_VH, ids, pool, self._spent)  # type: ignore[no-untyped-call]
        found: Tensor = rows
        return found

    def tied(self, weight_VH: Tensor, dtype: torch.dtype) -> Tensor | None:
        """The weight of the output layer, whose gradient meets that of the rows looked up last;
        None if no rows were, their backward pass is over, or it was used: in the dtype of the
        layers a second gradient would be added with too few digits."""
        tied = self._tied
        if self._spent[0] or self._parameter is not weight_VH or tied is None:
            return None
        if tied.dtype != dtype:
            return None
        self._tied = None
        return tied


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, copy: Tensor, ids: Tensor, pool: Pool, spent: list[bool]
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(weight, ids)
        ctx.set_materialize_grads(False)
        ctx.pool, ctx.spent = pool, spent
        return F.embedding(ids, weight), copy.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        d_rows, gradient = grads
        weight, ids = ctx.saved_tensors
        ctx.spent[0] = True
        if gradient is None:
            gradient = torch.zeros_like(weight)
        else:
            gradient = as_gradient(ctx.pool, weight, gradient)
        if d_rows is not None:
            distinct, order, starts = _grouped(ids.numpy())
            run("add_rows", d_rows.contiguous(), order, starts, distinct, gradient)
        return gradient, None, None, None, None


def _grouped(
    ids: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The distinct ids; the places of the first, those of the second, and so on; and where each
    one's begin."""
    order = np.argsort(ids, kind="stable")
    starts = np.flatnonzero(np.diff(ids[order], prepend=-1))
    return ids[order[starts]], order, np.append(starts, len(ids))


# ------------------------------------------------------------------------ softmax over a vocabulary


def cross_entropy(
    x_MH: Tensor, weight_VH: Tensor, bias_V: Tensor, ids: Tensor, pool: Pool
) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy of ``x @ weight.T + bias``, and the number of correct predictions.

    The gradient of the logits overwrites them in the forward pass, while they are in cache.

    Args:
        x_MH: [M, H].
        weight_VH: [V or more, H] in the dtype of ``x_MH``; rows beyond V are never predicted.
        bias_V: [V].
        ids: int64 [M]; negative ones are not counted.
        pool: for the gradient of the weight.
    """
    loss, correct = _CrossEntropy.apply(x_MH, weight_VH, bias_V, ids, pool)  # type: ignore[no-untyped-call]
    return loss, correct


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_MH: Tensor, weight_VH: Tensor, bias_V: Tensor, ids: Tensor, pool: Pool
    ) -> tuple[Tensor, Tensor]:
        ctx.pool = pool
        logits = torch.mm(x_MH, weight_VH.t())
        if len(ids) and int(ids.max()) >= len(bias_V):  # a loop would not notice
            raise IndexError(f"id {int(ids.max())} in a vocabulary of {len(bias_V)}")
        (bias_V,) = parameters_for(x_MH, bias_V)
        losses = torch.empty(len(ids), dtype=exact(x_MH))
        correct = torch.empty(len(ids), dtype=torch.bool)
        block = _loops().VOCABULARY_BLOCK
        sums = block_sums(len(ids), len(bias_V), x_MH, block=block)
        run("cross_entropy", logits, bias_V, ids, losses, correct, sums)
        ctx.save_for_backward(x_MH, weight_VH, logits, sums.sum(0))
        right = correct.sum()
        ctx.mark_non_differentiable(right)
        return losses.sum(), right

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_MH, weight_VH, d_logits, d_bias = ctx.saved_tensors
        scale = grads[0]
        d_weight = gradient_array(ctx.pool, weight_VH.dtype, *weight_VH.shape)
        torch.mm(d_logits.t(), x_MH * scale, out=d_weight)
        return (d_logits @ weight_VH) * scale, d_weight, d_bias * scale, None, None
