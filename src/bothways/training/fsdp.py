"""A model whose weights, gradients and moments are sharded over the ranks (FSDP2).

The weights of a layer are gathered for its forward and backward pass, and gradients are summed into
the shards after each micro-batch, so a process holds 1 / W of everything plus one layer. Files on
disk hold whole tensors: a run may continue with any number of processes, sharded or not.

FSDP is imported inside the functions that shard: the import takes a second, and few runs need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from bothways.model.folder import model_like
from bothways.model.model import EncoderModel
from bothways.model.shared import Trainable
from bothways.training.ranks import Ranks


def shard(model: EncoderModel, ranks: Ranks) -> None:
    """Shard a model's parameters, in place; optimizers are made afterwards.

    Each layer is gathered by itself. Embeddings and heads are gathered together, because the token
    embedding is also the output layer's. From here on the model must be called through
    :meth:`EncoderModel.compute`, and equally often by all ranks.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    model.shared.rounded.keeps = False
    mesh = init_device_mesh(model.embedding_VH.device.type, (ranks.size,))
    for module in (*model.encoder.layers, model):
        # Losses are already divided by global counts: gradients are summed, not averaged.
        sharded = fully_shard(module, mesh=mesh)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)  # the only reduction that gloo has
    register_fsdp_forward_method(model, "compute")
    for layer in model.encoder.layers:
        register_fsdp_forward_method(layer, "forward_at")


def parameters(model: Trainable) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The named parameters, sharded as the optimizer has them: evaluation leaves some gathered."""
    if is_sharded(model):
        sharded: Any = model
        sharded.reshard()
    yield from model.named_parameters()


def is_sharded(model: Trainable) -> bool:
    """Whether :func:`shard` was applied to the model."""
    return hasattr(model, "reshard")


def whole(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor, on every rank (all must call); other tensors as they are."""
    return tensor.full_tensor() if _is_shard(tensor) else tensor  # type: ignore[attr-defined]


def _is_shard(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def gather(tensors: Iterable[tuple[str, Tensor]], ranks: Ranks) -> dict[str, Tensor]:
    """Whole tensors on the CPU, on rank 0; nothing elsewhere, but all ranks must call.

    A tensor that is whole and on the CPU already is not copied.
    """
    gathered = {}
    for name, tensor in tensors:
        entire = whole(tensor)
        if ranks.is_rank0:
            gathered[name] = entire.detach().cpu()
    return gathered


def whole_model(model: EncoderModel, ranks: Ranks) -> EncoderModel:
    """The model itself, or a whole copy of a sharded one on rank 0 (all ranks must call)."""
    if not is_sharded(model):
        return model
    state = gather(parameters(model), ranks)
    if not ranks.is_rank0:
        return model
    return model_like(model, state)


def fill(target: Any, value: Tensor | None, ranks: Ranks) -> None:
    """Copy rank 0's tensor into the target on every rank, or into its shards.

    Args:
        target: a tensor, of the same whole shape on all ranks.
        value: the tensor on rank 0; None elsewhere.
        ranks: the processes, all of which must call.
    """
    if value is None:
        value = torch.empty(target.shape, dtype=target.dtype)
    value = value.to(target.device)
    if ranks.size > 1 and not _is_shard(target):
        torch.distributed.broadcast(value, 0)
    with torch.no_grad():
        target.copy_(divided_as(target, value))


def divided_as(target: Any, value: Tensor) -> Tensor:
    """Rank 0's whole tensor, sharded like the target if that is sharded (all ranks must call)."""
    if not _is_shard(target):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, target.device_mesh, target.placements)
