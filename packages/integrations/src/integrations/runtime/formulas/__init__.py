"""A level without a plan that recomputes: backward recomputes tensors from others that are stored anyway."""
