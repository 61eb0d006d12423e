"""A forward that is watched: its calls, who owns its tensors, and the checkpoints that it enters."""
