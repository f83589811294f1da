"""What a masked LM puts in for masks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bothways.arrays import softmax
from bothways.batch import collate
from bothways.errors import NonFiniteError
from bothways.families.heads import MASKED_LM
from bothways.runtime.folder import LoadedModel
from bothways.tokenization.tokenizer import Encoding


def outputs_at(
    loaded: LoadedModel, head: str, encoding: Encoding, positions: Sequence[int]
) -> NDArray[np.float32]:
    """The outputs [R, C] of a head at R positions of a sequence.

    Raises:
        NonFiniteError: one is not finite.
    """
    batch = collate([encoding.ids], [encoding.segments], max_positions=loaded.config.positions)
    outputs = loaded.engine.compute(batch, {head: np.array(positions, dtype=np.int64)})[head]
    if not np.isfinite(outputs).all():
        raise NonFiniteError("the model's output is not finite; its weights are damaged.")
    return outputs


def mask_probabilities(
    loaded: LoadedModel, encoding: Encoding, positions: Sequence[int]
) -> NDArray[np.float64]:
    """The probability of every piece at M masks, [M, V].

    Args:
        loaded: a model with a masked-LM head.
        encoding: of a text.
        positions: of the masks among its tokens.

    Raises:
        NonFiniteError: the model's output is not finite.
    """
    logits_MV = outputs_at(loaded, MASKED_LM, encoding, positions).astype(np.float64)
    return softmax(logits_MV, axis=-1)
