"""A token store turned into a trained encoder."""
