"""What is in a corpus, in numbers: sizes and lengths of each part."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_QUANTILES = {"min": 0.0, "p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "max": 1.0}


def summarise_split(
    sentence_tokens: NDArray[np.int64], document_tokens: NDArray[np.int64]
) -> dict[str, Any]:
    """Sizes and length quantiles of one split.

    Args:
        sentence_tokens: [S] tokens of each sentence.
        document_tokens: [D] tokens of each document.
    """
    return {
        "documents": int(document_tokens.size),
        "sentences": int(sentence_tokens.size),
        "tokens": int(document_tokens.sum()),
        "sentence_tokens": quantiles(sentence_tokens),
        "document_tokens": quantiles(document_tokens),
    }


def quantiles(values: NDArray[np.int64]) -> dict[str, int]:
    """Quantiles that are values themselves (the lower one between two); empty for no values."""
    if not values.size:
        return {}
    found = np.quantile(values, list(_QUANTILES.values()), method="lower")
    return {name: int(value) for name, value in zip(_QUANTILES, found, strict=True)}


def heldout_note(documents: int, share: float) -> str | None:
    """Why held-out text cannot be measured on, or None where it can."""
    if share == 0:
        return "No held-out part: heldout is 0."
    if documents < 2:
        return (
            f"The held-out part has {documents} document{'' if documents == 1 else 's'}: fewer "
            "than the 2 that next sentence needs, so it cannot be measured on. Give more "
            "documents or a larger heldout."
        )
    return None
