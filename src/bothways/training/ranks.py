"""The processes of one run: ranks 0 to W - 1, started by ``torchrun``, each with all the weights or
a shard of them.

A step's global batch is cut into micro-batches whose content does not depend on W; rank r takes
numbers r, r + W, ... of them. Rank 0 decides, speaks and writes; the others follow. In one process
nothing is initialised and every exchange is the identity.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from bothways.errors import ConfigError, OtherProcessError, RunError

T = TypeVar("T")

# Gradients are added up in pieces of this size, so that their copy stays small.
_BUCKET_BYTES = 2**25


@dataclass(frozen=True)
class Ranks:
    """This process among the processes of a run.

    Every method that exchanges something must be called by all of them, in the same order.

    Attributes:
        rank: from 0.
        size: W.
    """

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """This process decides, speaks and writes."""
        return self.rank == 0

    @property
    def share(self) -> slice:
        """Which of the micro-batches of a step are this process's."""
        return slice(self.rank, None, self.size)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over the processes, written over ``values``; the same bits everywhere."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def counts(self, *own: int) -> list[int]:
        """Exact sums of whole numbers."""
        return [int(n) for n in self.sum(torch.tensor(own, dtype=torch.int64))]

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether any process has raised it."""
        return [n > 0 for n in self.counts(*map(int, flags))]

    def most(self, own: int) -> int:
        """The largest of the processes' numbers."""
        value = torch.tensor(own)
        if self.size > 1:
            dist.all_reduce(value, dist.ReduceOp.MAX)
        return int(value)

    def told(self, value: T) -> T:
        """Rank 0's value, any Python object."""
        box = [value]
        if self.size > 1:
            dist.broadcast_object_list(box, 0, device=torch.device("cpu"))
        return box[0]

    def first_does(self, action: Callable[[], T]) -> T:
        """What rank 0 gets by an action that it alone takes.

        Raises:
            OtherProcessError: elsewhere, if the action failed at rank 0.
        """
        if self.size == 1:
            return action()
        outcome: tuple[T | None, bool] = None, False
        try:
            if self.first:
                outcome = action(), True
        finally:
            outcome = self.told(outcome)
        value, done = outcome
        if not done:
            raise OtherProcessError("rank 0 has failed")
        return value  # type: ignore[return-value]

    def check_same(self, what: Mapping[str, Any]) -> None:
        """Refuse processes that were started with other options or read other data.

        Raises:
            ConfigError: naming the rank and what differs.
        """
        if self.size == 1:
            return
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, dict(what))
        for rank, other in enumerate(found):
            lines = [
                f"  {key}: {found[0].get(key)} at rank 0, {other.get(key)} at rank {rank}"
                for key in sorted({*found[0], *other})
                if found[0].get(key) != other.get(key)
            ]
            if lines:
                raise ConfigError(
                    "the processes of a run must have the same options and data:\n"
                    + "\n".join(lines)
                    + "\nStart all of them with the same command, on copies of the same corpus."
                )

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Add up each parameter's gradient over the processes, in its own dtype (fp32)."""
        if self.size == 1:
            return
        for bucket in _buckets([p.grad for p in parameters if p.grad is not None]):
            flat = self.sum(torch.cat([gradient.reshape(-1) for gradient in bucket]))
            at = 0
            for gradient in bucket:
                gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient))
                at += gradient.numel()

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()


ALONE = Ranks()
"""One process."""


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


def started_ranks() -> int:
    """How many processes ``torchrun`` says there are."""
    try:
        return int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        raise ConfigError("WORLD_SIZE is no number; unset it, or start with torchrun.") from None


@contextmanager
def joined() -> Iterator[Ranks]:
    """Join the processes that ``torchrun`` started, until the end of the block.

    An error leaves the block as it is at the process that was first to fail. At the others, which
    fail because of it or in the same way, it becomes :class:`OtherProcessError`: it is shown once.
    Inside another such block, this one does nothing.

    Raises:
        ConfigError: the processes cannot find each other.
        RunError: another process has vanished.
    """
    if started_ranks() == 1:
        yield ALONE
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
            if not _first_to_fail(store, lost=lost):
                raise OtherProcessError("another process has failed") from error
            if lost:
                raise RunError(
                    "another process of the run has vanished (killed, or its machine failed). Run "
                    "the same command again to continue from the newest checkpoint; `torchrun "
                    "--max-restarts N` does so by itself."
                ) from error
            raise
        dist.destroy_process_group()


def _join() -> Store:
    """Initialise gloo, and NCCL for tensors on GPUs; the store that all processes share."""
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    try:
        store, rank, size = next(rendezvous("env://"))
        if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
            # torchrun keeps the store when it restarts the processes; they must not find the
            # addresses of those that died. (Several machines count their restarts apart.)
            store = PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"WORLD_SIZE is {started_ranks()}, but the processes cannot find each other: {error}. "
            "Start them with `torchrun --nproc-per-node N -m -- bothways ...`, or unset WORLD_SIZE."
        ) from error
    # Who was first to fail is asked about this start alone.
    return PrefixStore(Ranks(rank, size).told(uuid.uuid4().hex), store)


def _first_to_fail(store: Store, *, lost: bool) -> bool:
    try:
        return int(store.add("failed", 1)) == 1
    except RuntimeError:  # the store was rank 0's: it is gone, and has said why
        return not lost


def _lost_connection(error: BaseException) -> bool:
    """gloo's plain RuntimeError names its own source file."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and "gloo" in str(error)
    )
