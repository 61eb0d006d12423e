"""``python -m bench vision``: networks for images, compressed by hooks and by layers."""
