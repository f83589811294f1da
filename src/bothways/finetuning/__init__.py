"""Labelled data and an encoder to a fine-tuned model, and the feature-based approach."""
