"""What users call: compressing a model, its handle, plans for it, and the control of errors in training."""
