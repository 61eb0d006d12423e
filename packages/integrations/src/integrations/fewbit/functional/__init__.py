"""The functions of ``fewbit``, as in ``torch.nn.functional``."""

from integrations.fewbit.functional.column_rows import linear_crs
from integrations.fewbit.functional.linear import linear_grp, linear_randomized

__all__ = ["linear_crs", "linear_grp", "linear_randomized"]
