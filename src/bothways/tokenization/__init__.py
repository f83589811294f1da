"""Text to ids and back: the tokenizer and the learning of its vocabulary."""

from bothways.tokenization.learning import learn_vocabulary
from bothways.tokenization.tokenizer import Encoding, Tokenizer

__all__ = ["Encoding", "Tokenizer", "learn_vocabulary"]
