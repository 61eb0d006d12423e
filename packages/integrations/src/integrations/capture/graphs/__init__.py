"""A training step as numbers, and what a choice of kept values means for its operators."""
