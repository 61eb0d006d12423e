"""``python -m bench activations``: what compression does to models of any kind."""
