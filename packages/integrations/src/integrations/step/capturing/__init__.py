"""From a model to the graph of its training step, which is looked at and not taken."""
