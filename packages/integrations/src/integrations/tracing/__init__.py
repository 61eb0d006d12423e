"""A forward as it is observed: its calls, who owns its tensors, its checkpoints, and what is stored of each storage."""
