"""A tensor that several layers save, such as a residual block's input, is stored once."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

import actcore
from integrations._utils.torch_internals import top_saved_tensors_default_hooks
from integrations.planner.sensitivity.surroundings import Met, current_trial
from integrations.policies.norms import OfChannels


@dataclass(frozen=True)
class _Stored:
    """A stored form that autograd keeps for some layer. It holds no memory: when backward has freed it, it is gone."""

    version: int
    memory: weakref.ref[torch.UntypedStorage]  # of the tensor that was stored: ``x.data = y`` changes no version
    codec: actcore.Codec  # as it was asked for
    form: actcore.Codec  # as it is stored
    layout: actcore.Layout
    dtype: torch.dtype
    parts: tuple[tuple[weakref.ref[torch.UntypedStorage], int, torch.Size, tuple[int, ...], torch.dtype], ...]

    def compressed(self, device: torch.device) -> actcore.Compressed | None:
        payload = []
        for reference, offset, shape, strides, dtype in self.parts:
            storage = reference()
            if storage is None:
                return None
            part = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, shape, strides)
            payload.append(part)
        return actcore.Compressed(self.form, tuple(payload), self.layout, self.dtype)


# By the tensor itself, not by an attribute of it: that would be pickled and copied with it.
_stored = WeakIdKeyDictionary()
# A trial run has its own: training would go on with its noise, if the closure's graph is still alive.
_stored_in_trials: WeakKeyDictionary[Met, Any] = WeakKeyDictionary()


def _shared_forms() -> Any:
    """The stored forms that this thread's forwards share."""
    trial = current_trial()
    return _stored if trial is None else _stored_in_trials.setdefault(trial, WeakIdKeyDictionary())


@dataclass(frozen=True)
class DedupCodec:
    """A codec for one tensor that several layers may save: the second gets what was stored for the first.

    It does where autograd still keeps that, the tensor was not changed since, and the bits are at least those that
    are asked for now. A smaller one is stored anew.
    """

    codec: actcore.Codec
    tensor: Tensor

    def compress(self, tensor: Tensor, *, seed: int | Tensor = 0, stream: int | Tensor = 0) -> actcore.Compressed:
        """The stored form, of an earlier layer or new; ``tensor`` is an alias of the one that this is for."""
        version, forms = self.tensor._version, _shared_forms()
        found: _Stored | None = forms.get(self.tensor)
        if (
            found is not None
            and found.version == version
            and found.memory() is tensor.untyped_storage()
            and _serves(found.codec, self.codec, len(tensor) if tensor.dim() else 1)
        ):
            compressed = found.compressed(tensor.device)
            if compressed is not None:
                return compressed
        compressed = self.codec.compress(tensor, seed=seed, stream=stream)
        forms[self.tensor] = _Stored(
            version,
            weakref.ref(tensor.untyped_storage()),
            _without_elements(self.codec),
            compressed.codec,
            compressed.layout,
            compressed.dtype,
            tuple(
                (weakref.ref(part.untyped_storage()), int(part.storage_offset()), part.shape, part.stride(), part.dtype)
                for part in compressed.payload
            ),
        )
        return compressed

    def decompress(self, compressed: actcore.Compressed) -> Tensor:
        """By the codec that it is stored with."""
        return compressed.decompress()


def once(codec: actcore.Codec, x: Tensor) -> actcore.Codec:
    """``codec``, but for ``x`` alone, and once for all layers that save ``x``.

    Where hooks pack what is saved, checkpointing's among them, each layer stores its own: such a hook may drop what the
    first layer stored or not, and a segment that is computed again has to save the same. So it is for memory that is
    not torch's, such as a NumPy array's: what its owner writes there, torch's version counter does not see.
    """
    if torch.compiler.is_compiling() or packed() or not x.untyped_storage().resizable():
        return codec
    return DedupCodec(codec, x)


def packed() -> bool:
    """Whether saved-tensor hooks pack what is saved now."""
    return top_saved_tensors_default_hooks(True) is not None


def _without_elements(codec: actcore.Codec) -> actcore.Codec:
    """A codec without the normalised elements of the tensor that it has stored."""
    if isinstance(codec, actcore.Offload):
        return replace(codec, inner=_without_elements(codec.inner))
    return OfChannels(codec.inner) if isinstance(codec, OfChannels) else codec


def _serves(stored: actcore.Codec, wanted: actcore.Codec, rows: int) -> bool:
    """Whether what one codec stored is at least as good as what the other would store."""
    if stored == wanted:
        return True
    if isinstance(stored, actcore.Offload) and isinstance(wanted, actcore.Offload):
        return _serves(stored.inner, wanted.inner, rows)
    if isinstance(stored, OfChannels):  # which serves others, too
        return _serves(stored.inner, wanted.inner if isinstance(wanted, OfChannels) else wanted, rows)
    have, want = _width(stored, rows), _width(wanted, rows)
    alike = getattr(stored, "group_size", None) == getattr(wanted, "group_size", None)
    return alike and have is not None and want is not None and have >= want


def _width(codec: Any, rows: int) -> float | None:
    """Bits per element, on average; ``None`` for a codec that does not quantise groups."""
    total: int | None = getattr(codec, "total", None)  # of widths that were decided on the device, their sum is known
    if total is not None:
        return total / max(rows, 1)
    bits: tuple[int, ...] | int | None = getattr(codec, "bits", None)
    return sum(bits) / max(len(bits), 1) if isinstance(bits, tuple) else bits
