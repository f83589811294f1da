"""The paper's ablations, and comparisons beside them: tables that are declared and recomputed."""
