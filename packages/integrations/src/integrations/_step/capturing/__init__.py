"""From a model to the graph of its training step. The step itself is not taken."""
