"""Multi-head attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

import actcore
from actcore.saved_hooks import policy_hooks
from actcore.stored import called
from integrations._utils.autocast import as_matmul
from integrations.policies.arguments import Arguments
from integrations.qmodules.layers.base import QLayer
from integrations.qmodules.layers.linear import LinearFunction
from integrations.qmodules.levels import QLevel
from integrations.qmodules.precision import LayerPrecision
from integrations.qmodules.scheme import ModelPrecision
from integrations.tracing.attention import recomputed
from integrations.tracing.double_backward import is_read
from integrations.tracing.tracker import opened

# What saves query, key, value and the softmax: their errors go through the softmax, and few bits are not enough.
_FACTORS = ("bmm", "baddbmm", "softmax")

Streams = actcore.Streams | None
"""The streams of one forward's noise; ``None`` takes those of the process."""


class QMultiheadAttention(QLayer, nn.MultiheadAttention):
    """``torch.nn.MultiheadAttention`` that stores the tensors that its parts save in few bits.

    The inputs of its projections take the level's bits, the same for all samples, because its first dimension may be
    the sequence. Query, key and value take 8 bits, and backward computes ``scaled_dot_product_attention`` again. With
    ``need_weights=True``, torch's default, that operator is not used, and the softmax takes 8 bits as well. Values and
    dropout are torch's own, bit for bit. Under ``torch.compile`` the layer behaves as torch's own.

    Args:
        group: index into the level's ``bits`` of the projections' average.
    """

    counterpart = nn.MultiheadAttention
    factors: LayerPrecision
    _own = ("precision", "factors")

    def __init__(self, *args: Any, group: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begin(None, group)

    def _new_precision(self, level: QLevel, group: int) -> LayerPrecision:
        same = replace(level, per_sample=False, per_layer=False)
        self.factors = LayerPrecision(replace(same, bits=(8,), initial_bits=8), "other")
        return LayerPrecision(same, "other", group)

    def join(self, path: str, model: ModelPrecision) -> None:
        super().join(path, model)
        self.factors.name, self.factors.model = f"{path}.factors", model

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not all(
            self._stores(tensor, *self.parameters()) for tensor in (query, key, value)
        ):
            return super().forward(query, key, value, *args, **kwargs)
        # Named by the layer and its forward: trial runs must not change the noise of training.
        stream = self.factors.stream()
        with _Parts(self, None if stream is None else actcore.Streams(str(stream))):
            return super().forward(query, key, value, *args, **kwargs)

    def project(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute ``F.linear`` and store ``x``."""
        x, weight, bias = as_matmul(x, weight, bias)
        saving = self._saving(x, weight) if torch.is_grad_enabled() else None
        output: Tensor = F.linear(x, weight, bias) if saving is None else LinearFunction.apply(x, weight, bias, saving)
        return output

    def attend(
        self, streams: Streams, function: Callable[..., Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Tensor:
        """Compute ``scaled_dot_product_attention`` and store query, key and value."""
        given = Arguments(args, kwargs)
        mask = given.get(3, "attn_mask")
        if mask is not None and mask.requires_grad:  # its infinities would become NaN in a quantised form
            return function(*args, **kwargs)
        with self._hooks(self._factor, streams), called("scaled_dot_product_attention"):
            output = recomputed(function, given)
        return function(*args, **kwargs) if output is None else output

    def multiply(
        self, streams: Streams, function: Callable[..., Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Tensor:
        """Compute a product or the softmax, and store its saved tensors."""
        with self._hooks(self._factor, streams):
            return function(*args, **kwargs)

    def drop(
        self, streams: Streams, function: Callable[..., Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Tensor:
        """Apply dropout and store its mask, exactly, in one bit per element."""
        with self._hooks(self._mask, streams):
            return function(*args, **kwargs)

    def _hooks(self, policy: actcore.Policy, streams: Streams) -> saved_tensors_hooks:
        seed = self.precision.level.seed
        return saved_tensors_hooks(*policy_hooks(policy, seed, streams, on_rounded=self._differentiated))

    def _differentiated(self, packed: object) -> None:
        if is_read(packed):
            self.precision.double.meet(True)

    def _factor(self, saved: actcore.SavedTensor) -> actcore.Codec:
        level = self.factors.level
        inner: actcore.Codec = actcore.Raw()
        if level.compress and saved.dtype.is_floating_point and saved.requires_grad:  # a mask asks for none
            inner = actcore.GroupAffine(8, level.group_size)
        return actcore.Offload(inner) if level.offload else inner

    def _mask(self, saved: actcore.SavedTensor) -> actcore.Codec:
        level = self.factors.level
        if saved.dtype is torch.bool:
            inner: actcore.Codec = actcore.BitMask(values=(False, True))
        elif saved.dtype.is_floating_point and level.compress:
            inner = actcore.GroupAffine(1, level.group_size)
        else:
            inner = actcore.Raw()
        return actcore.Offload(inner) if level.offload else inner


class _Parts(TorchFunctionMode):
    """Sees the calls of one forward of attention, and has its layer make those that save much."""

    def __init__(self, layer: QMultiheadAttention, streams: Streams) -> None:
        super().__init__()
        self.layer, self.streams = layer, streams

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            with self:
                return opened(func)(*args, **kwargs)
        if func is F.linear:
            return self.layer.project(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self.layer.attend(self.streams, func, args, kwargs)
        name = getattr(func, "__name__", "")
        if name in _FACTORS:
            return self.layer.multiply(self.streams, func, args, kwargs)
        return self.layer.drop(self.streams, func, args, kwargs) if name == "dropout" else func(*args, **kwargs)
