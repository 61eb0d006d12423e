"""The ways to compress what a model keeps: by hooks, by layers, with recomputation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from torch import nn

import integrations
from integrations import qmodules


@dataclass(frozen=True)
class Conversion:
    """A way to train.

    Attributes:
        kind: ``"plain"``; ``"hooks"``: ``compress_model``, whose report counts bytes; ``"layers"``: Q-layers, of which
            the graph's bytes are counted.
        level: of ``integrations.LEVELS`` or ``qmodules.LEVELS``.
        recomputed: whether backward makes again as much as gives the least peak. The plan is made in the first forward
            and is for a batch of its size.
    """

    kind: Literal["plain", "hooks", "layers"]
    level: str = ""
    recomputed: bool = False

    def convert(self, model: nn.Module, seed: int) -> None:
        """Puts this into a model, in place.

        Raises:
            ValueError: the options do not go together, or the model has no use for them.
        """
        if self.kind == "layers":
            qmodules.QModule(model, self.level, seed=seed)
        elif self.kind == "hooks":
            checkpoint = "optimal" if self.recomputed else None
            integrations.compress_model(model, self.level, checkpoint=checkpoint, seed=seed)


PLAIN = "plain"

WAYS: Mapping[str, Conversion] = MappingProxyType(
    {
        PLAIN: Conversion("plain"),
        **{level: Conversion("hooks", level) for level in ("L1", "L1.1", "L1.2", "L2", "L2.1", "L2.2")},
        **{f"Q-layers {level}": Conversion("layers", level) for level in ("L1", "L2", "L3")},
        **{f"{level} + checkpoint": Conversion("hooks", level, recomputed=True) for level in ("L1", "L1.2", "L2.2")},
    }
)
"""By the name that the command line knows."""
