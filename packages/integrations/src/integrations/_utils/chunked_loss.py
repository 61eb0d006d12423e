"""What the loss in chunks and the model of its memory share: its operator's name, and the rows of a block."""

OPERATOR = "integrations::linear_cross_entropy"

WEIGHT_ROWS = 1 << 12
"""Rows of the weight whose gradient is computed at a time, where it is added in a wider dtype."""
