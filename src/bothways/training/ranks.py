"""The processes of one run: ranks 0 to W - 1, started by ``torchrun``, each with all the weights or
a shard of them.

A step's global batch is cut into micro-batches whose content does not depend on W; rank r trains on
micro-batches r, r + W, ... Rank 0 makes the decisions, logs and writes files; the others follow. A
single process initialises nothing, and every collective is the identity.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from bothways.errors import ConfigError, OtherProcessError, RunError
from bothways.io.processes import launcher, when_orphaned

T = TypeVar("T")

# Gradients are summed in buckets of this size, so that the flattened copy stays small.
_BUCKET_BYTES = 2**25


@dataclass(frozen=True)
class Ranks:
    """This process among the processes of a run.

    Every method that communicates must be called by all of them, in the same order.

    Attributes:
        rank: from 0.
        size: W.
    """

    rank: int = 0
    size: int = 1

    @property
    def is_rank0(self) -> bool:
        """Whether this is the process that decides, logs and writes files."""
        return self.rank == 0

    @property
    def micro_batch_slice(self) -> slice:
        """Selects this process's micro-batches from those of a step."""
        return slice(self.rank, None, self.size)

    def sum(self, values: Tensor) -> Tensor:
        """Sum over the processes, in place; bitwise equal on all of them."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def sum_counts(self, *counts: int) -> list[int]:
        """Sum integers over the processes, exactly."""
        return [int(n) for n in self.sum(torch.tensor(counts, dtype=torch.int64))]

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether it is set in any process."""
        return [n > 0 for n in self.sum_counts(*map(int, flags))]

    def max_over_ranks(self, value: int) -> int:
        """The largest of the processes' values."""
        largest = torch.tensor(value)
        if self.size > 1:
            dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def broadcast(self, value: T) -> T:
        """Rank 0's value, any picklable object."""
        box = [value]
        if self.size > 1:
            dist.broadcast_object_list(box, 0, device=torch.device("cpu"))
        return box[0]

    def run_on_rank0(self, action: Callable[[], T]) -> T:
        """Run ``action`` on rank 0 only and return its result on every rank.

        Raises:
            OtherProcessError: on the other ranks, if the action failed on rank 0.
        """
        if self.size == 1:
            return action()
        outcome: tuple[T | None, bool] = None, False
        try:
            if self.is_rank0:
                outcome = action(), True
        finally:
            outcome = self.broadcast(outcome)
        value, succeeded = outcome
        if not succeeded:
            raise OtherProcessError("rank 0 has failed")
        return value  # type: ignore[return-value]

    def check_same(self, values: Mapping[str, Any]) -> None:
        """Refuse processes that were started with different options or read different data.

        Raises:
            ConfigError: names the rank and each differing value.
        """
        if self.size == 1:
            return
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, dict(values))
        expected = gathered[0]
        for rank, other in enumerate(gathered):
            lines = [
                f"  {key}: {expected.get(key)} on rank 0, {other.get(key)} on rank {rank}"
                for key in sorted({*expected, *other})
                if expected.get(key) != other.get(key)
            ]
            if lines:
                raise ConfigError(
                    "the processes of a run must have the same options and data:\n"
                    + "\n".join(lines)
                    + "\nStart all of them with the same command, on copies of the same corpus."
                )

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Sum each parameter's gradient over the processes, in its own dtype (fp32)."""
        if self.size == 1:
            return
        for bucket in _buckets([p.grad for p in parameters if p.grad is not None]):
            flat = self.sum(torch.cat([gradient.reshape(-1) for gradient in bucket]))
            start = 0
            for gradient in bucket:
                gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
                start += gradient.numel()

    def copy_from_rank0(self, tensors: Iterable[Tensor]) -> None:
        """Give tensors, of the same shapes everywhere, rank 0's values."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), 0)

    def barrier(self) -> None:
        """Wait until every process has reached this call."""
        if self.size > 1:
            dist.barrier()


SINGLE_PROCESS = Ranks()
"""A run in one process: nothing is communicated."""


def _buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    size = 0
    for gradient in gradients:
        if bucket and size + gradient.nbytes > _BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += gradient.nbytes
    if bucket:
        yield bucket


def _world_size() -> int:
    """The number of processes that ``torchrun`` started, from its environment variable."""
    try:
        return int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        raise ConfigError("WORLD_SIZE is not a number; unset it, or start with torchrun.") from None


@contextmanager
def process_group() -> Iterator[Ranks]:
    """Join the processes that ``torchrun`` started, until the end of the block.

    The process that fails first raises its error unchanged. The others, which fail as a consequence
    or in the same way, raise :class:`OtherProcessError` instead, so that the error is shown once.
    A nested block reuses the group of the outer one.

    Raises:
        ConfigError: the processes cannot find each other.
        RunError: another process has died.
    """
    if _world_size() == 1:
        yield SINGLE_PROCESS
    elif dist.is_initialized():
        yield Ranks(dist.get_rank(), dist.get_world_size())
    else:
        store = _join()
        try:
            yield Ranks(dist.get_rank(), dist.get_world_size())
        except OtherProcessError:
            raise
        except (Exception, KeyboardInterrupt) as error:
            lost = _lost_connection(error)
            if not _first_to_fail(store):
                raise OtherProcessError("another process has failed") from error
            if lost:
                raise RunError(
                    "another process of the run has died (killed, or its machine failed, or by an "
                    "error that it has shown). Run the same command again to continue from the "
                    "newest checkpoint; `torchrun --max_restarts N` does so by itself. "
                    f"({str(error).partition(chr(10))[0]})"
                ) from error
            raise
        dist.destroy_process_group()


def _join() -> Store:
    """Initialise gloo, and NCCL for tensors on GPUs; returns the store that all ranks share."""
    if "TORCHELASTIC_RUN_ID" in os.environ:  # killed, torchrun would leave its processes behind
        when_orphaned(launcher(), lambda: os.kill(os.getpid(), signal.SIGTERM))
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    try:
        store, rank, size = next(rendezvous("env://"))
        if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
            # torchrun keeps the store when it restarts the processes; they must not read the
            # addresses of those that died. (With several machines, each has its own restart count.)
            store = PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"WORLD_SIZE is {_world_size()}, but the processes cannot find each other: {error}. "
            "Start them with `torchrun --nproc_per_node N -m -- bothways ...`, or unset WORLD_SIZE."
        ) from error
    # A fresh prefix: the counter of failures belongs to this start only.
    return PrefixStore(Ranks(rank, size).broadcast(uuid.uuid4().hex), store)


def _first_to_fail(store: Store) -> bool:
    try:
        return int(store.add("failed", 1)) == 1
    except RuntimeError:  # the store is gone with its host, which may not have said why
        return True


def _lost_connection(error: BaseException) -> bool:
    """Whether a peer was lost. gloo raises a plain RuntimeError that names its source file."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and "gloo" in str(error)
    )
