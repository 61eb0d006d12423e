"""Norms that save their output, as layers."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from integrations._utils.layer_replacement import StandIn, remembered
from integrations.fewbit.functional.channels import (
    capacity,
    channels_to_keep,
    looking_is_free,
    loss_limit,
    too_many_lost,
)
from integrations.fewbit.functional.norms import output_dtype, shared, shares

_PERIOD = 256


class SharedNorm(StandIn):
    """What norms that save their output have in common: see ``LayerNorm``."""

    normalized_shape: tuple[int, ...]
    _kind: ClassVar[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begin()

    @classmethod
    def from_module(cls, module: nn.Module) -> Self:
        """The norm that saves its output, of a norm of torch: with the very parameters and hooks, which both then hold.

        Args:
            module: a layer of exactly the class ``cls.counterpart``.

        Raises:
            TypeError: the layer is of another class.
        """
        cls._require_counterpart(module)
        return cls.in_place_of(module)

    @classmethod
    def in_place_of(cls, module: nn.Module) -> Self:
        """``from_module`` without its check, for a norm that is known to compute the same."""
        layer = cls._in_place_of(module)
        layer._begin()
        return layer

    def _begin(self) -> None:
        self._changes, self._saves_input = 0, False
        self._versions: tuple[int, int] | None = None

    def _output(self, x: Tensor) -> Tensor | None:
        """What the norm makes of ``x``; ``None`` where torch's own norm is to do it."""
        weight, bias = getattr(self, "weight", None), getattr(self, "bias", None)
        if not self.training or not shares(x, self.normalized_shape, weight, bias, self._kind):
            return None
        keep = self._channels(output_dtype(x, weight, self._kind), weight, bias)
        if keep is None:
            return None
        eps: Any = self.eps
        return shared(self._kind, x, self.normalized_shape, weight, bias, eps, keep)

    def _channels(self, dtype: torch.dtype, weight: Tensor | None, bias: Tensor | None) -> int | None:
        """How many channels are kept beside the output; ``None`` if the input is to be saved."""
        if weight is None or looking_is_free(weight):
            return channels_to_keep(weight, bias, dtype)
        if not torch.compiler.is_compiling() and not _captured(weight):
            self._look(dtype, weight, bias)
        return None if self._saves_input else capacity(weight.numel())

    def _look(self, dtype: torch.dtype, weight: Tensor, bias: Tensor | None) -> None:
        """Decides, now and then, whether to save the input. Not twice for the same parameters: a checkpoint that
        computes the forward again expects that the same is saved."""
        versions = weight._version, 0 if bias is None else bias._version
        if versions == self._versions:
            return
        self._versions, self._changes = versions, self._changes + 1
        if self._changes & (self._changes - 1) == 0 or self._changes % _PERIOD == 0:
            # A quarter of what is allowed, because it has to last until the next look.
            self._saves_input = too_many_lost(weight, bias, dtype, loss_limit(dtype) / 4)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._begin()


class LayerNorm(SharedNorm, nn.LayerNorm):
    """``torch.nn.LayerNorm`` that saves its output, which linear layers after it save anyway, in place of its input.

    It is a subclass of torch's layer, with the same arguments, parameters and keys in ``state_dict``, and the same
    values bit for bit. It behaves exactly as torch's layer in ``eval()``, without gradients, inside ``torch.func``, and
    if autocast makes the next layer save a copy in another dtype.

    Backward computes the normalized input from the output, by dividing by the weight. A relative rounding error u of
    the output becomes an error of about ``u (1 + |bias / weight|)`` of the normalized input. In float32 this is about
    torch's own error, in 16 bits one more rounding; in both it is larger for channels whose bias is larger than their
    weight. Channels that would lose more than half of their digits, such as those with a weight of 0, are stored in
    addition to the output, up to 1/32 of the channels. If more channels are affected, the layer saves its input, as
    torch does, and checks again later.

    On the CPU the layer checks its parameters in every forward. On other devices a check waits for the device. There
    the layer always stores 1/32 of the channels, and checks when the parameters have changed for the 1st, 2nd, 4th,
    8th... time, then every 256 changes. A channel that loses its digits between checks gets gradients of NaN.

    The saved tensor is the returned tensor: changing it in place makes backward raise. So operators after such a norm
    must not work in place.
    """

    counterpart = nn.LayerNorm
    _kind = "layer_norm"

    def forward(self, input: Tensor) -> Tensor:
        output = self._output(input)
        return super().forward(input) if output is None else output


class RMSNorm(SharedNorm, nn.RMSNorm):
    """``torch.nn.RMSNorm`` that saves its output, which the next layer saves anyway, in place of its input.

    See ``LayerNorm``. It has no bias: only channels with a weight of 0, or of the smallest numbers, lose their digits.
    """

    counterpart = nn.RMSNorm
    _kind = "rms_norm"

    def forward(self, x: Tensor) -> Tensor:
        output = self._output(x)
        return super().forward(x) if output is None else output


class RoundedRMSNorm(SharedNorm):
    """The RMSNorm of transformers' Llama and its kin, which saves its output. ``convert`` puts it in their place.

    It rounds the normalised input to the input's dtype before it multiplies by the weight, where ``torch.nn.RMSNorm``
    multiplies first. For parameters of another dtype than the input's it is the layer that was there.
    """

    _kind = "rounded_rms_norm"

    @property
    def normalized_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(self._parameters["weight"].shape)  # type: ignore[union-attr]

    @property
    def eps(self) -> float:
        """By either of its names."""
        return float(next(self.__dict__[name] for name in EPSILONS if name in self.__dict__))

    def forward(self, hidden_states: Tensor) -> Tensor:
        weight = self._parameters["weight"]
        assert weight is not None
        output = self._output(hidden_states) if hidden_states.dtype == weight.dtype else None
        if output is not None:
            return output
        original = remembered(self)
        assert original is not None
        return original.forward(hidden_states)  # type: ignore[no-any-return]


EPSILONS = ("variance_epsilon", "eps")
"""How transformers' norms call it."""


def _captured(tensor: Tensor) -> bool:
    """Whether a CUDA graph is being captured, in which nobody can wait for the device."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
