"""The feature-based approach (the paper's Table 7): hidden states of a frozen encoder, kept on
disk, and taggers trained on them."""
