"""Memory for the arrays of compiled layers."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bothways.model.memory import Frame, Pool


def test_a_pool_uses_memory_again() -> None:
    pool = Pool()
    first = pool.take(torch.float32, 100, 100)
    second = pool.take(torch.float32, 100, 100)
    assert first.data_ptr() != second.data_ptr()
    pool.give(first)
    again = pool.take(torch.bfloat16, 3, 70)
    assert again.data_ptr() != first.data_ptr()  # much too large for it
    assert pool.take(torch.bfloat16, 150, 100).data_ptr() == first.data_ptr()
    assert copy.deepcopy(pool).take(torch.float32, 100, 100).data_ptr() != second.data_ptr()


def test_frames_lie_one_after_the_other() -> None:
    """So all of a step need what its sizes add up to, however they are divided in other steps."""
    pool = Pool()
    for sizes in ((300, 100, 200), (100, 100, 400), (599, 1)):
        frames = [pool.frame() for _ in range(3)]
        taken = [frame.take(torch.float32, size, 16) for frame in frames for size in sizes]
        for one, next_one in itertools.pairwise(taken):
            assert next_one.data_ptr() == one.data_ptr() + one.nbytes
        for frame in reversed(frames):
            frame.release()
    assert len({array.untyped_storage().data_ptr() for array in taken}) == 1


def test_a_frame_without_a_backward_pass_leaves_no_gap() -> None:
    pool = Pool()
    first = pool.frame().take(torch.float32, 1000).data_ptr()
    assert pool.frame().take(torch.float32, 10).data_ptr() == first


@dataclass
class _Held:
    frame: Frame
    arrays: list[tuple[Tensor, int]]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("frame take drop".split()), st.integers(0, 2**25))))
def test_no_two_arrays_of_frames_overlap(actions: list[tuple[str, int]]) -> None:
    """Frames released in any order, arrays larger than a chunk: each array keeps what is in it."""
    pool = Pool()
    held: list[_Held] = []
    for mark, (action, number) in enumerate(actions):
        if action == "frame":
            held.append(_Held(pool.frame(), []))
        elif held and action == "take":
            array = held[number % len(held)].frame.take(torch.int32, number)
            assert array.data_ptr() % 64 == 0
            array[:1] = array[-1:] = mark
            held[number % len(held)].arrays.append((array, mark))
        elif held:
            held.pop(number % len(held)).frame.release()
        for array, before in (pair for one in held for pair in one.arrays):
            assert (array[:1] == before).all()
            assert (array[-1:] == before).all()
