"""How large a model is, what a run needs in memory and compute, and how long it will take."""
