"""``python -m bench search``: the largest batch, depth, width or length that trains within a given memory."""
