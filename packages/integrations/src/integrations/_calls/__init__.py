"""A call of a torch function and the tensors that it saves: roles, names, histories, hooks, attention."""
