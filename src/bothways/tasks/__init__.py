"""Labelled data turned into a trained head and predictions."""
