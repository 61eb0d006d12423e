"""The layers of ``fewbit``, as in ``torch.nn``."""

from integrations.fewbit.modules.linear import LinearCRS, LinearGRP, RandomizedLinear

__all__ = ["LinearCRS", "LinearGRP", "RandomizedLinear"]
