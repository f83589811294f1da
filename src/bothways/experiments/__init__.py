"""The paper's tables, benchmarks, the demonstration, and plans of runs."""
