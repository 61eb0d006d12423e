"""A compressed model's handle, and what it is put together from: its level and plan, forwards, state, trial runs."""
