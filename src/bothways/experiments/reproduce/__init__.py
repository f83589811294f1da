"""The paper's ablations and some more comparisons, declared as tables and recomputed."""
