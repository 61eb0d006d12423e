"""``PLAIN``: the types of tensors that are a storage and nothing else."""

from __future__ import annotations

from torch import Tensor, nn

from integrations._utils.torch_internals import FakeTensor

# A fake tensor counts as the real one would: it has everything but elements.
PLAIN = frozenset({Tensor, nn.Parameter, FakeTensor})


def has_elements(tensor: Tensor) -> bool:
    """Whether a tensor has values to look at. A forward on fake tensors only asks what would be saved."""
    return not isinstance(tensor, FakeTensor)
