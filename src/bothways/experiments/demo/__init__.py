"""The demonstration: raw text to a fine-tuned BERT on this machine, without any download."""
