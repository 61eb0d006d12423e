"""``python -m bench llm``: language models in every way: the loss alone, whole steps, and training on sentences."""
