"""``Saving``: how one forward of a layer stores its input, and what its backward tells the layer's precision.

The operators by which an input is looked at and stored are not the layer's own: no function mode sees them, such as
that of a compressed forward, which would look at each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import actcore
from actcore.autograd import reads_rounded, restore_saved
from actcore.stored import Absent, Stored, announce, is_heard
from integrations._utils.torch_internals import DisableTorchFunction
from integrations.policies.norms import Normalized, OfChannels
from integrations.qmodules.precision import LayerPrecision
from integrations.qmodules.sharing import once
from integrations.tracing.double_backward import is_wanted


@dataclass(frozen=True)
class Saving:
    """The choice of one forward.

    Attributes:
        codec: stores the layer's input; ``None``: ``choose`` finds it once a norm has normalized the input.
        precision: the layer's, which made the choice.
        token: names the forward to ``precision.observe``.
        stream: of the forward's random rounding; ``None`` takes one of the process's counter.
        layer: what a report calls the layer.
    """

    codec: actcore.Codec | None
    precision: LayerPrecision
    token: object = None
    stream: int | None = None
    layer: str = ""

    def choose(self, x: Tensor, normal: Tensor) -> Saving:
        """Choose the codec of a norm's input, from its normalized elements."""
        with DisableTorchFunction():
            codec = self.precision.codec(x, normal)
        return replace(self, codec=codec or actcore.Raw(), token=self.precision.token())

    def save(self, ctx: Any, x: Tensor | None, *exact: Tensor | None, normalized: Normalized | None = None) -> None:
        """Saves ``x`` by the codec and the others as they are; once, in a Function's ``forward``. A norm may know the
        normalized elements of ``x``."""
        assert self.codec is not None
        ctx.saving = self
        pairs = [(tensor, None) for tensor in exact]
        codec = _normalising(self.codec, normalized) if self.precision.kind == "norm" else self.codec
        codec = codec if x is None else once(codec, x)  # which holds x, so ctx must not
        seed = self.precision.level.seed
        with nullcontext() if torch.compiler.is_compiling() else DisableTorchFunction():
            actcore.save_for_backward(ctx, (x, codec), *pairs, seed=seed, stream=self.stream, operator=self.layer)

    def restore(self, ctx: Any, *readers: int) -> tuple[Tensor | None, ...]:
        """Return the tensors that ``save`` saved, in a Function's ``backward``.

        Args:
            ctx: the context of the Function.
            readers: the inputs of the Function whose gradients read the stored input.
        """
        return self._restore(ctx, readers)

    def restore_normalized(self, ctx: Any, *readers: int) -> tuple[Any, ...]:
        """The same, but an input that is stored normalized is returned as ``Normalized``, if no graph of this backward
        is built."""
        found = self._restore(ctx, readers, () if torch.is_grad_enabled() or torch.compiler.is_compiling() else (0,))
        form = found[0]
        if not isinstance(form, actcore.Compressed):
            return found
        if isinstance(form.codec, actcore.Offload):
            form = form.codec.fetch(form)
        codec = form.codec
        return codec.normalized_in(form) if isinstance(codec, OfChannels) else form.decompress(), *found[1:]

    def _restore(self, ctx: Any, readers: Sequence[int], forms: Sequence[int] = ()) -> tuple[Any, ...]:
        tensors = restore_saved(ctx, forms)
        if reads_rounded(ctx) and any(is_wanted(ctx, reader) for reader in readers):
            self.precision.double.meet(True)
        return tensors

    def announce(self, ctx: Any, *absent: Absent) -> None:
        """Announces what torch's own layer keeps besides, and backward makes again here of what is stored."""
        if is_heard(ctx):
            codec = "made again of the input"
            announce(*(Stored(tensor, self.layer, "internal", codec, more=True) for tensor in absent))

    def observe(self, gradient: Tensor) -> None:
        """Passes on the gradient of the layer's output."""
        if not torch.compiler.is_compiling():
            self.precision.observe(self.token, gradient.detach())


def _normalising(codec: actcore.Codec, normalized: Normalized | None) -> actcore.Codec:
    """A batch norm's: its channels share groups, and the error of one is its step over its own deviation."""
    if isinstance(codec, actcore.Offload):
        return replace(codec, inner=_normalising(codec.inner, normalized))
    return codec if isinstance(codec, actcore.Raw) else OfChannels(codec, normalized)


def placeholder(gradient: Tensor, shape: torch.Size) -> Tensor:
    """Stands for a tensor of which torch's backward looks at the shape alone; it has one element of memory."""
    return gradient.new_zeros(()).expand(shape)
