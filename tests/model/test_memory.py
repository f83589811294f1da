"""Memory for the arrays of compiled layers."""

from __future__ import annotations

import copy
import itertools
import sys
from concurrent.futures import ThreadPoolExecutor

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bothways.model.kernels.memory import Frame, Pool


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
    pool, first = Pool(), set()
    for sizes in ((300, 100, 200), (100, 100, 400), (599, 1)):
        frames = [pool.frame() for _ in range(3)]
        taken = [frame.take(torch.float32, size, 16) for frame in frames for size in sizes]
        for one, next_one in itertools.pairwise(taken):
            assert next_one.data_ptr() == one.data_ptr() + one.nbytes
        first.add(taken[0].data_ptr())
        for frame in reversed(frames):
            frame.release()
    assert len(first) == 1


def test_a_frame_without_a_backward_pass_leaves_no_gap() -> None:
    pool = Pool()
    first = pool.frame().take(torch.float32, 1000).data_ptr()
    assert pool.frame().take(torch.float32, 10).data_ptr() == first


def test_gaps_are_used_while_others_hold_frames() -> None:
    """As where a loss is held until the next one is computed."""
    pool = Pool()
    held, addresses = pool.frame(), set()
    held.take(torch.float32, 2**20)
    for _ in range(50):
        following = pool.frame()
        addresses.add(following.take(torch.float32, 2**20).data_ptr())
        held = following
    assert len(addresses) == 2
    assert pool.kept == 2**22
    held.release()
    assert pool.kept == 0


def test_threads_get_memory_of_their_own() -> None:
    pool = Pool()

    def take(_: int) -> list[Frame]:
        frames = [pool.frame() for _ in range(200)]
        for frame in frames:
            frame.take(torch.float32, 16)
        return frames

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            held = list(threads.map(take, range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert pool.kept == 4 * 200 * 64
    assert len({span for spans in pool._occupied.values() for span in spans}) == 800
    del held


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("frame take drop".split()), st.integers(0, 2**25))))
def test_no_two_arrays_of_frames_overlap(actions: list[tuple[str, int]]) -> None:
    """Frames released in any order, arrays larger than a chunk."""
    pool = Pool()
    held: list[tuple[Frame, list[Tensor]]] = []
    for action, number in actions:
        if action == "frame":
            held.append((pool.frame(), []))
        elif held and action == "take":
            frame, arrays = held[number % len(held)]
            arrays.append(frame.take(torch.int32, number))
            assert arrays[-1].data_ptr() % 64 == 0
            chunk = arrays[-1].untyped_storage()
            end = arrays[-1].data_ptr() + arrays[-1].nbytes
            assert end <= chunk.data_ptr() + chunk.nbytes()
        elif held:
            held.pop(number % len(held))[0].release()
        spans = sorted((a.data_ptr(), a.data_ptr() + a.nbytes) for _, own in held for a in own)
        for one, next_one in itertools.pairwise(span for span in spans if span[0] < span[1]):
            assert one[1] <= next_one[0]
