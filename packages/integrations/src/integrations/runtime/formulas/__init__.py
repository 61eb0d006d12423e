"""What backward recomputes from tensors that are stored for somebody else, by a level without a plan."""
