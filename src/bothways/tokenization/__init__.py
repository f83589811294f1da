"""Text to ids and back: the tokenizer and the learning of its vocabulary."""
