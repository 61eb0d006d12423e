"""Losses whose largest tensor never exists as a whole.

from integrations.losses import linear_cross_entropy

loss = linear_cross_entropy(hidden, model.lm_head.weight, labels)
"""

from integrations.losses._linear import LinearCrossEntropyLoss, linear_cross_entropy

__all__ = ["LinearCrossEntropyLoss", "linear_cross_entropy"]
