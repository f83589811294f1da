"""The compiled loops: the same bits in the process that compiles them and in those after it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.model.kernels import compiled, loops
from bothways.training.optimizer import pieces_of

# Several blocks of rows, and columns that fill no vector register.
R, H, LENGTH, HEADS, VOCABULARY = 100, 203, 37, 2, 131
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
NAMES = sorted(name for name, loop in vars(loops).items() if hasattr(loop, "py_func"))
LOOPS = [name for name in NAMES if getattr(loops, name).targetoptions.get("parallel")]


def _exact(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _calls(  # noqa: C901  (a function for each loop)
    dtype: torch.dtype,
) -> dict[str, Callable[[], list[Tensor]]]:
    """A call of each loop on fixed arrays; what it has written."""
    exact = _exact(dtype)
    generator = torch.Generator().manual_seed(3)

    def given(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, generator=generator).to(kind)

    def vector() -> Tensor:
        return given(H, kind=exact)

    def new(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.zeros(shape, dtype=kind)

    real = np.float64 if dtype == torch.float64 else np.float32
    dropout = np.uint32(2**30), real(4 / 3), np.uint32(5), np.uint32(9)
    blocks = -(-R // loops.BLOCK)
    rows = np.where(np.arange(80) % 9, np.arange(80), -1)  # two sequences of 40, some padding
    lengths = np.array([LENGTH, 20])
    size = HEADS * 12

    def run(name: str, arguments: list[Any], written: list[Tensor]) -> list[Tensor]:
        compiled.run(name, *arguments)
        return written

    def add_norm() -> list[Tensor]:
        out = [new(R, H), new(R, H), new(R, kind=exact), new(R, kind=exact)]
        own = [vector(), vector(), vector(), real(1e-12), dropout]
        return run("add_norm", [given(R, H), given(R, H), *own, *out], out)

    def add_norm_backward() -> list[Tensor]:
        out = [new(R, H), new(R, H), *(new(blocks, H, kind=exact) for _ in range(3))]
        own = [given(R, kind=exact), given(R, kind=exact).abs(), vector(), dropout]
        return run("add_norm_backward", [given(R, H), given(R, H), *own, *out], out)

    def gelu() -> list[Tensor]:
        out = [given(R, H) * 3, new(R, H)]
        return run("gelu", [out[0], vector(), out[1]], out)

    def gelu_backward() -> list[Tensor]:
        out = [given(R, H), new(blocks, H, kind=exact)]
        return run("gelu_backward", [out[0], given(R, H), out[1]], out)

    def dropped() -> list[Tensor]:
        out = [new(R, H)]
        return run("dropped", [given(R, H), dropout, *out], out)

    def split_heads() -> list[Tensor]:
        out = [new(3 * 80 * HEADS, 12)]
        bias = given(3 * size, kind=exact)
        return run(
            "split_heads", [given(80, 3 * size), rows, 40, HEADS, bias, real(0.3), *out], out
        )

    def join_heads() -> list[Tensor]:
        out = [new(3, 3 * size, kind=exact), new(80, 3 * size)]
        return run("join_heads", [given(3 * 80 * HEADS, 12), rows, 40, HEADS, real(0.3), *out], out)

    def attention_softmax() -> list[Tensor]:
        out = [given(2 * HEADS * LENGTH, LENGTH), new(2 * HEADS * LENGTH, LENGTH)]
        own = [lengths, LENGTH, HEADS, False, dropout]
        return run("attention_softmax", [out[0], *own, out[1]], out)

    def attention_softmax_backward() -> list[Tensor]:
        out = [given(R, LENGTH), new(R, LENGTH)]
        given_p = given(R, LENGTH).abs()
        return run("attention_softmax_backward", [given_p, out[0], dropout, out[1]], out)

    def cross_entropy() -> list[Tensor]:
        ids = torch.arange(R) * 7 % VOCABULARY
        ids[::11] = -1
        right = torch.zeros(R, dtype=torch.bool)
        out = [given(R, VOCABULARY + 5), new(R, kind=exact), right]
        out.append(new(-(-R // loops.VOCABULARY_BLOCK), VOCABULARY, kind=exact))
        bias = given(VOCABULARY, kind=exact)
        return run("cross_entropy", [out[0], bias, ids, *out[1:]], out)

    def add_rows() -> list[Tensor]:
        out = [given(9, H)]
        order, starts = np.arange(R), np.array([0, 3, 40, R])
        own = [order, starts, np.array([0, 8, 5]), *out]
        return run("add_rows", [given(R, H, kind=exact), *own], out)

    def transpose() -> list[Tensor]:
        out = [new(H, R)]
        return run("transpose", [given(R, H), *out], out)

    def sum_squares() -> list[Tensor]:
        out = [new(len(PIECES), kind=torch.float32)]
        gradients = [given(H, kind=torch.float32), given(R, H, kind=torch.bfloat16)]
        return run("sum_squares", [PIECES, *_addressed(gradients), *out], [*out, *gradients])

    def adam() -> list[Tensor]:
        gradients = [given(H, kind=torch.float32), given(R, H, kind=torch.bfloat16)]
        kept = [[given(*g.shape, kind=torch.float32).abs() for _ in range(3)] for g in gradients]
        copies = [None, new(R, H, kind=torch.bfloat16)]
        state = np.array(
            [
                [*(x.data_ptr() for x in own), 0 if copy is None else copy.data_ptr()]
                for own, copy in zip(kept, copies, strict=True)
            ]
        )
        rates = np.array([[1.0, 1e-3, 1.5], [0.99, 1e-3, 1.5]], np.float32)
        f = np.float32
        own_ = [state, rates, (f(0.9), f(0.999)), (f(0.1), f(0.001)), f(1e-6), f(0.7)]
        written = [*(x for own in kept for x in own), *(c for c in copies if c is not None)]
        return run("adam", [PIECES, *_addressed(gradients), *own_], written)

    def gelu_tanh() -> list[Tensor]:
        out = [given(R, H) * 3, new(R, H)]
        return run("gelu_tanh", [out[0], vector(), out[1]], out)

    def gelu_of() -> list[Tensor]:
        out = [given(R, H) * 3]
        return run("gelu_of", [out[0], vector()], out)

    def gelu_tanh_of() -> list[Tensor]:
        out = [given(R, H) * 3]
        return run("gelu_tanh_of", [out[0], vector()], out)

    def residual_norm() -> list[Tensor]:
        out = [new(R, H)]
        own = [vector(), vector(), vector(), real(1e-12)]
        return run("residual_norm", [given(R, H), given(R, H), *own, *out], out)

    def embed() -> list[Tensor]:
        out = [new(R, H)]
        places = torch.arange(R)
        ids = [places * 7 % VOCABULARY, places % LENGTH, places % 2]
        tables = [given(rows, H, kind=exact) for rows in (VOCABULARY, LENGTH, 2)]
        return run("embed", [*ids, *tables, vector(), vector(), real(1e-12), *out], out)

    def attention() -> list[Tensor]:
        out = [new(R, size)]
        bounds = np.array([0, LENGTH, LENGTH + 20, R])
        qkv, bias = given(R, 3 * size), given(3 * size, kind=exact)
        own = [qkv, bounds, qkv, bounds, HEADS, bias, real(0.3), False]
        return run("attention", [*own, *out], out)

    return {name: call for name, call in locals().items() if name in LOOPS}


PIECES = pieces_of([H, R * H])


def _addressed(gradients: list[Tensor]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    addresses = np.array([g.data_ptr() for g in gradients])
    return addresses, np.array([g.dtype == torch.bfloat16 for g in gradients])


def digests(names: list[str]) -> dict[str, str]:
    """What each loop computes, by dtype and loop."""
    import hashlib

    found = {}
    for name in names:
        for loop, call in _calls(DTYPES[name]).items():
            written = [x.view(torch.uint8).numpy().tobytes() for x in call()]
            found[f"{name} {loop}"] = hashlib.sha256(b"".join(written)).hexdigest()[:16]
    return found


def in_a_process(cache: Path | None, *names: str) -> dict[str, str]:
    """:func:`digests` in a process of its own; without a cache it keeps nothing it compiles."""
    code = f"import json, test_loops; print(json.dumps(test_loops.digests({list(names)})))"
    if cache is None:
        code = (
            "import numba, functools; njit = numba.njit\n"
            "numba.njit = lambda cache=False, **options: njit(**options)\n" + code
        )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_every_loop_is_called() -> None:
    for dtype in DTYPES.values():
        assert sorted(_calls(dtype)) == LOOPS


@pytest.mark.long
def test_the_process_that_compiles_computes_what_later_ones_do(tmp_path: Path) -> None:
    cold = in_a_process(tmp_path, "fp32", "bf16")
    assert in_a_process(tmp_path, "fp32", "bf16") == cold
    assert {name.split()[1] for name in cold} == set(LOOPS)


@pytest.mark.parametrize("kind", ["gelu", "gelu_tanh"])
def test_gelu_and_its_slope(kind: str) -> None:
    """Near 0 and far from it, against the library's in fp64."""
    x = torch.cat([torch.linspace(-20, 20, 4001), torch.tensor([-1e4, 1e4, 0.0])])[:, None]
    exact = x.double().requires_grad_()
    form = "tanh" if kind == "gelu_tanh" else "none"
    expected = torch.nn.functional.gelu(exact, approximate=form)
    (slope,) = torch.autograd.grad(expected.sum(), exact)
    for dtype, tolerance in ((torch.float32, 4e-7), (torch.float64, 1e-14)):
        z, out = x.to(dtype, copy=True), torch.empty(x.shape, dtype=dtype)
        compiled.add_gelu(z, torch.zeros(1, dtype=dtype), out, kind)
        assert ((out - expected).abs() / expected.abs().clamp(min=1)).max() < tolerance
        assert (z - slope).abs().max() < 3 * tolerance


def test_gelu_of_every_number_of_bf16() -> None:
    # Inference stores the result in bf16, and computes it only as exactly as that asks for.
    bits = np.arange(2**16, dtype=np.uint16)
    x = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).reshape(256, 256)
    found = x.clone()
    compiled.run("gelu_of", found, torch.zeros(256))
    exact = torch.nn.functional.gelu(x.double())
    finite = x.isfinite()
    error = (found.double() - exact)[finite].abs()
    rounding = exact[finite].abs() * 2**-8  # the half of the last place, or less
    assert (error <= rounding + 1.7e-5).all()
    far_below = finite & (x < -4.5)
    assert far_below.sum() > 10_000
    assert (found[far_below] == 0).all()
    assert found[x.isnan()].isnan().all()
    assert torch.equal(found[x > 4.5], x[x > 4.5])


@pytest.mark.slow
def test_so_does_one_without_a_cache(tmp_path: Path) -> None:
    assert in_a_process(None, *DTYPES) == in_a_process(tmp_path, *DTYPES)
