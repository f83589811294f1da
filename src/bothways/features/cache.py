"""The hidden states of an encoder as features: computed once, kept on disk, read by a BiLSTM.

R words read, L layers and the embeddings below them, H hidden size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from bothways.config import LayerChoice
from bothways.errors import ConfigError, ModelError
from bothways.files import explain_disk_errors, new_folder, reserve_space, write_json
from bothways.model.bert import Bert
from bothways.tasks.examples import PREDICT_TOKENS, Examples, length_batches

_ARRAY, _ABOUT = "layers.npy", "features.json"


def cached_layers(
    folder: Path,
    model: Bert,
    examples: Examples,
    *,
    fingerprint: str,
    dtype: torch.dtype,
    say: Callable[[str], None],
) -> NDArray[np.float16]:
    """The hidden states of the words of a file, in every layer; computed unless they are on disk.

    Args:
        folder: where they are kept; replaced if it has another fingerprint.
        model: the encoder.
        examples: the file, encoded.
        fingerprint: of everything the hidden states depend on.
        dtype: arithmetic of the layers.
        say: called with a line before computing starts.

    Returns:
        float16 [R, L + 1, H], the embeddings first, mapped from disk.

    Raises:
        DiskError: the disk has too little room.
        ModelError: a hidden state is not finite, or too large for 16 bits.
    """
    if _fingerprint(folder) != fingerprint:
        shape = (len(examples.read_positions), model.config.layers + 1, model.config.hidden)
        size = np.prod(shape) * 2 / 2**20
        say(
            f"{folder.name}: computing {shape[1]} layers for {shape[0]:,} words from "
            f"{examples.bounds[-1]:,} tokens ({size:,.0f} MiB in {folder})"
        )
        with new_folder(folder) as partial, explain_disk_errors(folder):
            array = open_memmap(partial / _ARRAY, mode="w+", dtype=np.float16, shape=shape)
            # Now: writing to a mapped file could not report a full disk.
            reserve_space(partial / _ARRAY, (partial / _ARRAY).stat().st_size)
            _compute(array, model, examples, dtype)
            array.flush()
            write_json(partial / _ABOUT, {"fingerprint": fingerprint, "shape": shape})
    layers: NDArray[np.float16] = np.load(folder / _ARRAY, mmap_mode="r")
    return layers


def _fingerprint(folder: Path) -> str | None:
    """What the array on disk was computed from; None if it is missing or cut off."""
    try:
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        whole = (folder / _ARRAY).stat().st_size > math.prod(about["shape"]) * 2  # and a header
        return str(about["fingerprint"]) if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


@torch.inference_mode()
def _compute(
    array: NDArray[np.float16], model: Bert, examples: Examples, dtype: torch.dtype
) -> None:
    model.eval()
    for indices in length_batches(examples.lengths, PREDICT_TOKENS):
        batch = examples.batch(indices, max_positions=model.config.positions).to(model.device)
        states = model.encoder.hidden_states(batch.inputs, dtype=dtype)
        words = torch.stack([x_TH.index_select(0, batch.read_positions) for x_TH in states], 1)
        features = words.to(torch.float16).cpu().numpy()
        if not np.isfinite(features).all():
            raise ModelError(
                "a hidden state is not finite in 16 bits; the model's weights are damaged."
            )
        for n, rows in zip(indices, np.split(features, batch.bounds[1:-1]), strict=True):
            array[examples.output_bounds[n] : examples.output_bounds[n + 1]] = rows


def chosen_layers(choice: LayerChoice, layers: int) -> slice:
    """The layers that a choice stands for; the embeddings are number 0.

    Raises:
        ConfigError: the encoder has too few layers.
    """
    chosen = {
        "embeddings": slice(0, 1),
        "second-to-last": slice(layers - 1, layers),
        "last": slice(layers, layers + 1),
        "sum-last-four": slice(layers - 3, layers + 1),
        "concat-last-four": slice(layers - 3, layers + 1),
        "sum-all": slice(1, layers + 1),
    }[choice]
    if chosen.start < (0 if choice == "embeddings" else 1):
        raise ConfigError(
            f"layers: {choice!r} needs {2 if choice == 'second-to-last' else 4} layers, but this "
            f"encoder has {layers}; leave it out, as --layers embeddings last sum-all does."
        )
    return chosen
