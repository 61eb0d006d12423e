"""Watches a forward: its calls, who owns its tensors, and the checkpoints that it enters."""
