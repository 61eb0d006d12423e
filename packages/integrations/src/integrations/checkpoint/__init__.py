"""Optimal checkpointing: which tensors to keep and which to compute again, and the training step that does so."""
