"""``python -m bench sensitivity``: how well adaptive levels know which tensors matter, and what that buys."""
