"""``python -m bench fewbit``: few-bit activations and randomized linear layers."""
