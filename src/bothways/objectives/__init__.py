"""What weights are trained for: targets, and losses as sums."""
