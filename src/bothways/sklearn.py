"""Estimators for scikit-learn: ``from bothways.sklearn import TextClassifier``."""

from bothways.errors import explain_missing

with explain_missing("bothways.sklearn"):
    from bothways.api.sklearn import (
        MultiLabelClassifier,
        TextClassifier,
        TextEmbedder,
        TextRegressor,
        TextTagger,
    )

__all__ = [
    "MultiLabelClassifier",
    "TextClassifier",
    "TextEmbedder",
    "TextRegressor",
    "TextTagger",
]
