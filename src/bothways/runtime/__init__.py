"""Encoders with a task head put to use: predictions, entities, ensembles, embeddings."""
