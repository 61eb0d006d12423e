"""A training step as numbers, and what a choice of values to keep means for its operators."""
