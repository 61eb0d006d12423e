"""``LayerPrecision``: with how many bits a layer stores its input."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

import actcore
from integrations.qmodules.levels import QLevel
from integrations.qmodules.scheme import ModelPrecision

Kind = Literal["linear", "norm", "other"]


class LayerPrecision:
    """The precision of one layer: what its forwards store, and what its backwards tell.

    A layer calls, in this order: ``codec(x)``, ``token()`` and ``stream()`` once in each forward that a backward may
    follow, and ``observe(token, grad_output)`` in the backward of that forward. Under ``torch.compile`` it calls
    ``codec`` alone.

    Attributes:
        level: the level of the model or the one that was set when the layer was built.
        kind: convolutions and linear layers are ``"linear"``, batch normalisations ``"norm"``, all others ``"other"``.
        group: which of ``level.bits`` is the layer's average.
        kernel_locations: places of a convolution's kernel; 1 for a linear layer.
        conv_groups: a convolution's groups.
        channel_dim: the dimension of ``x`` that the weight sums over: 1, or -1 for a linear layer.
        name: the layer's path in its model, which names its noise; empty for a layer built by hand.
        model: what the layers of one converted model share; ``None`` for a layer built by hand.
    """

    def __init__(
        self,
        level: QLevel,
        kind: Kind,
        group: int = 0,
        kernel_locations: int = 1,
        conv_groups: int = 1,
        channel_dim: int = 1,
    ) -> None:
        if isinstance(group, bool) or not isinstance(group, int):
            raise TypeError(f"group must be an int, got {group!r}")
        if not 0 <= group < len(level.bits):
            raise ValueError(
                f"group must be a place in the level's bits {level.bits}, from 0 to {len(level.bits) - 1}, got "
                f"{group}; set config.activation_compression_bits to one number for each group"
            )
        self.level = level
        self.kind = kind
        self.group = group
        self.kernel_locations = kernel_locations
        self.conv_groups = conv_groups
        self.channel_dim = channel_dim
        self.name = ""
        self.model: ModelPrecision | None = None
        self._forwards = 0

    def codec(self, x: Tensor) -> actcore.Codec | None:
        """How the input ``x`` of this forward is stored; ``None`` keeps it exactly."""
        level = self.level
        inner: actcore.Codec | None = None
        if level.compress and x.is_floating_point() and (level.norms or self.kind != "norm"):
            inner = actcore.GroupAffine(int(level.bits[self.group]), level.group_size)
        if level.offload:
            return actcore.Offload(inner or actcore.Raw())
        return inner

    def token(self) -> object:
        """What ``observe`` needs to know of the forward whose ``codec`` was asked for last."""
        return None

    def stream(self) -> int | None:
        """The stream of this forward's noise: one of its own; ``None`` takes one of the process's counter."""
        if not self.name:
            return None
        self._forwards += 1
        stream: int = actcore.stream_of(self.name, self._forwards, 0)
        return stream

    def observe(self, token: object, grad_output: Tensor) -> None:
        """Learns from the gradient of the layer's output, in the backward of the forward that ``token`` is of."""
