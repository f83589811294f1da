"""The encoder, its heads, and the folder a model lives in."""
