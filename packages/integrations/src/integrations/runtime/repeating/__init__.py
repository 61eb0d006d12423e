"""A forward that follows a plan, and what of it backward repeats."""
