"""A compressed model's handle and its parts: level and plan, forwards, state, trial runs."""
