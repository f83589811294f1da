"""A model whose weights, gradients and moments are divided among the ranks (FSDP2).

Weights of a layer are gathered for its forward and backward pass and gradients summed into the
shards after each micro-batch, so a process holds 1 / W of everything besides one layer. What is
written to disk is whole: a run may go on with any number of processes, sharded or not.

The library is imported by what shards: it costs every process a second, and few need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from bothways.model.folder import empty_model
from bothways.model.heads import Bert
from bothways.training.ranks import Ranks


def shard(model: Bert, ranks: Ranks) -> None:
    """Divide a model's parameters, in place; optimizers are made afterwards.

    Each layer is gathered by itself. Embeddings and heads are gathered together, as the token
    embedding is also the output layer's. From here on the model computes only through its forward
    (:meth:`Bert.forward`), and all ranks must do so equally often.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(model.embedding_VH.device.type, (ranks.size,))
    for part in (*model.encoder.layers, model):
        # Losses are divided by global counts already: gradients are summed, not averaged.
        sharded = fully_shard(part, mesh=mesh)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)  # gloo has no other kind
    for layer in model.encoder.layers:
        register_fsdp_forward_method(layer, "forward_at")


def parameters(model: Bert) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The named parameters, as the optimizer knows them: evaluation leaves some gathered."""
    if is_sharded(model):
        sharded: Any = model
        sharded.reshard()
    yield from model.named_parameters()


def is_sharded(model: Bert) -> bool:
    """Whether :func:`shard` has had it."""
    return hasattr(model, "reshard")


def whole(tensor: Tensor) -> Tensor:
    """The tensor that a sharded one is a part of, on every rank (all must call); others as is."""
    return tensor.full_tensor() if _is_shard(tensor) else tensor  # type: ignore[attr-defined]


def _is_shard(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def gather(tensors: Iterable[tuple[str, Tensor]], ranks: Ranks) -> dict[str, Tensor]:
    """Whole copies on the CPU, at rank 0; nothing elsewhere, but all ranks must call."""
    found = {}
    for name, tensor in tensors:
        copy = whole(tensor)
        if ranks.is_rank0:
            found[name] = copy.detach().cpu().clone()
    return found


def whole_model(model: Bert, ranks: Ranks) -> Bert:
    """The model itself; of a sharded one a whole copy, at rank 0 (all ranks must call)."""
    if not is_sharded(model):
        return model
    state = gather(parameters(model), ranks)
    if not ranks.is_rank0:
        return model
    copy = empty_model(model.config, state)
    copy.load_state_dict(state, assign=True)
    return copy


def fill(target: Any, value: Tensor | None, ranks: Ranks) -> None:
    """Copy rank 0's tensor into every rank's own, or into the shards.

    Args:
        target: a tensor, of the same whole shape on all ranks.
        value: at rank 0.
        ranks: all of which must call.
    """
    if value is None:
        value = torch.empty(target.shape, dtype=target.dtype)
    value = value.to(target.device)
    if ranks.size > 1 and not _is_shard(target):
        torch.distributed.broadcast(value, 0)
    with torch.no_grad():
        target.copy_(divided_as(target, value))


def divided_as(target: Any, value: Tensor) -> Tensor:
    """A whole tensor of rank 0 as shards like the target's (all ranks must call), if it has any."""
    if not _is_shard(target):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, target.device_mesh, target.placements)
