"""A model whose weights, gradients and moments are divided among the ranks (FSDP2).

Weights of a layer are gathered for its forward and backward pass and gradients summed into the
shards after each micro-batch, so a process holds 1 / W of everything besides one layer. What is
written to disk is whole: a run may go on with any number of processes, sharded or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from bothways.model.folder import empty_model
from bothways.model.heads import Bert
from bothways.training.ranks import Ranks


def shard(model: Bert, ranks: Ranks) -> None:
    """Divide a model's parameters, in place; optimizers are made afterwards.

    Each layer is gathered by itself. Embeddings and heads are gathered together, as the token
    embedding is also the output layer's. From here on the model computes only through its forward
    (:meth:`Bert.forward`), and all ranks must do so equally often.
    """
    mesh = init_device_mesh(model.embedding_VH.device.type, (ranks.size,))
    for part in (*model.encoder.layers, model):
        # Losses are divided by global counts already: gradients are summed, not averaged.
        sharded = fully_shard(part, mesh=mesh)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)  # gloo has no other kind
    for layer in model.encoder.layers:
        register_fsdp_forward_method(layer, "read")


def parameters(model: Bert) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The named parameters, as the optimizer knows them: evaluation leaves some gathered."""
    if isinstance(model, FSDPModule):
        cast(FSDPModule, model).reshard()
    yield from model.named_parameters()


def gather(tensors: Iterable[tuple[str, Tensor]], ranks: Ranks) -> dict[str, Tensor]:
    """Whole copies on the CPU, at rank 0; nothing elsewhere, but all ranks must call."""
    found = {}
    for name, tensor in tensors:
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if ranks.first:
            found[name] = whole.detach().cpu().clone()
    return found


def whole_model(model: Bert, ranks: Ranks) -> Bert:
    """The model itself; of a sharded one a whole copy, at rank 0 (all ranks must call)."""
    if not isinstance(model, FSDPModule):
        return model
    state = gather(parameters(model), ranks)
    if not ranks.first:
        return model
    copy = empty_model(model.config, state)
    copy.load_state_dict(state, assign=True)
    return copy


def fill(target: Tensor, whole: Tensor | None, ranks: Ranks) -> None:
    """Copy rank 0's tensor into every rank's own, or into the shards.

    Args:
        target: of the same shape on all ranks.
        whole: at rank 0.
        ranks: all of which must call.
    """
    if whole is None:
        whole = torch.empty(target.shape, dtype=target.dtype)
    whole = whole.to(target.device)
    if isinstance(target, DTensor):
        whole = distribute_tensor(whole, target.device_mesh, target.placements)
    elif ranks.size > 1:
        torch.distributed.broadcast(whole, 0)
    with torch.no_grad():
        target.copy_(whole)
