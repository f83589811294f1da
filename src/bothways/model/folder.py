"""Networks of model folders: made from an opened folder, and saved as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bothways.errors import ModelError
from bothways.families.config import ModelConfig
from bothways.families.heads import POOLER_KEY, parameters
from bothways.families.parameters import under
from bothways.io.files import explain_disk_errors, new_folder
from bothways.model.encoder import init_weights
from bothways.model.model import EncoderModel
from bothways.model.weight_files import write_tensors
from bothways.randomness import Purpose
from bothways.runtime.folder import (
    CONFIG,
    LoadedModel,
    check_sizes,
    write_description,
)
from bothways.runtime.saving import complete_folder
from bothways.runtime.stored import WEIGHTS
from bothways.runtime.weights import (
    constants,
    has_lstm,
    name_table,
    parts_in,
    same_names,
)
from bothways.tokenization.tokenizer import Tokenizer


def make_network(loaded: LoadedModel) -> EncoderModel:
    """The network of an opened model folder, in evaluation mode, on the CPU, fp32."""
    assert loaded.weights is not None, "a folder that was opened has weights"
    network = _empty(loaded.config, loaded.heads, loaded.lstm, pooler=loaded.pooler)
    state = {name: torch.from_numpy(value) for name, value in loaded.weights.items()}
    network.load_state_dict(state, strict=False, assign=True)
    if loaded.fresh:
        assert network.encoder.pooler is not None
        pooler = network.encoder.pooler.to_empty(device="cpu")
        own = under(network.table(), "encoder.pooler")
        std = loaded.config.init_std
        init_weights(pooler, own, std, seed=0, purpose=Purpose.HEAD, index=POOLER_KEY)
    return network.eval()


def model_like(
    other: EncoderModel, state: Mapping[str, Tensor], config: ModelConfig | None = None
) -> EncoderModel:
    """A model with another one's parts, around the tensors of a state; of its shape, or another."""
    pooler = other.encoder.pooler is not None
    model = _empty(config or other.config, other.outputs, other.lstm_units, pooler=pooler)
    model.load_state_dict(state, assign=True)
    return model.train(other.training)


def _empty(
    config: ModelConfig, heads: Mapping[str, int], lstm: int, *, pooler: bool
) -> EncoderModel:
    with torch.device("meta"):  # only shapes: the weights come from elsewhere
        return EncoderModel(config, heads=heads, lstm=lstm, pooler=pooler)


def describe(network: EncoderModel, tokenizer: Tokenizer, about: dict[str, Any]) -> LoadedModel:
    """What a folder of this network holds beside the weights.

    Args:
        network: any dtype or device.
        tokenizer: with the same vocabulary size.
        about: for bothways.json.
    """
    pooler = network.encoder.pooler is not None
    lstm = network.lstm_units
    return LoadedModel(network.config, tokenizer, about, network.outputs, lstm=lstm, pooler=pooler)


def save_model(
    folder: str | Path,
    model: EncoderModel,
    tokenizer: Tokenizer,
    about: dict[str, Any] | None = None,
    *,
    dtype: str = "float32",
) -> None:
    """Write a model folder that bothways and transformers can load, completely or not at all.

    Args:
        folder: where; an existing folder is replaced.
        model: any dtype or device.
        tokenizer: with the same vocabulary size.
        about: for bothways.json; ``labels`` (list of str) and ``kind`` describe the task head's
            outputs.
        dtype: of the weights on disk; in that of a loaded folder they are the same bits.

    Raises:
        ModelError: the vocabulary's size is not the model's, or the number of labels is not that
            of the outputs.
        DiskError: it could not be written; the old folder is intact.
    """
    with new_folder(Path(folder)) as partial:
        write_model_files(partial, model, tokenizer, about or {}, dtype=dtype)
        complete_folder(partial, describe(model, tokenizer, about or {}))


def write_model_files(
    folder: Path,
    model: EncoderModel,
    tokenizer: Tokenizer,
    about: dict[str, Any],
    write: Callable[[dict[str, Tensor], Path, dict[str, str]], None] = write_tensors,
    dtype: str = "float32",
) -> None:
    """Write the files of :func:`save_model` into an existing folder, the weights by ``write``."""
    check_sizes(model.config, tokenizer, str(folder))
    weights = to_theirs(model.own_state(), model.config, dtype=dtype)
    for name, value in constants(model.config).items():
        weights[name] = torch.from_numpy(value).to(getattr(torch, dtype))
    with explain_disk_errors(folder / WEIGHTS):
        write(weights, folder / WEIGHTS, {"format": "pt"})
    write_description(folder, describe(model, tokenizer, about), dtype=dtype)
    # safetensors makes its files readable by the owner only; give them the other files' mode.
    (folder / WEIGHTS).chmod((folder / CONFIG).stat().st_mode)


def to_theirs(
    state: Mapping[str, Tensor], config: ModelConfig, *, dtype: str = "float32"
) -> dict[str, Tensor]:
    """A model's state in the names and shapes of its family: contiguous, on the CPU.

    Tensors are parts of those of ``state`` where they can be, so that saving takes no copy of it.

    Raises:
        ModelError: two heads that have the same names in a file.
    """
    heads, lstm = parts_in({name: tuple(value.shape) for name, value in state.items()})
    places = name_table(config, heads, lstm=has_lstm(state))
    table = parameters(config, heads, lstm=lstm)
    out: dict[str, Tensor] = {}
    for ours, value in state.items():
        entry, own = table[ours], places[ours]
        rows = entry.matrices if len(own) > 1 else [entry.pieces or len(value)]
        for place, chunk in zip(own, torch.split(value[: sum(rows)], list(rows)), strict=True):
            if place.name in out:
                raise ModelError(same_names(heads, config, place.name))
            chunk = place.formed(chunk.detach().cpu().to(getattr(torch, dtype)))
            out[place.name] = chunk.contiguous()
    return out
