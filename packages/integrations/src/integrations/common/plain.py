"""``PLAIN``: the types of tensors that are a storage and nothing else."""

from __future__ import annotations

from torch import Tensor, nn

from integrations._torch import FakeTensor

# A fake tensor goes where the real one would: it has no elements, and all else.
PLAIN = frozenset({Tensor, nn.Parameter, FakeTensor})


def has_elements(tensor: Tensor) -> bool:
    """Whether there are values to look at: a forward on fake tensors only asks what would be saved."""
    return not isinstance(tensor, FakeTensor)
