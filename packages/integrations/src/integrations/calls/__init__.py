"""A call of a torch function, and what the tensors that it saves are to it: names, histories, hooks, attention."""
