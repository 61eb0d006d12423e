"""Compression of the tensors that autograd saves, for any model, through saved-tensor hooks."""
