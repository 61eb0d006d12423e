"""What is stored once, for one or more saved tensors, and what is measured of it."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from actcore import GroupAffine, Layout
from integrations.planner.sensitivity.identity import Identity
from integrations.planner.sensitivity.rounding import rounding_deviations, rounding_energies, rounding_noise
from integrations.policies.norms import Standardized
from integrations.tracing.storage.forms import Clamped, Packed
from integrations.tracing.storage.regions import Region, View

Copy: TypeAlias = Region | Clamped
"""A stretch of a storage, which several saved tensors may share, or a form of one operator's own."""

# Up to so many elements it is noted, in a byte each, how uncertain the rounding of each element is. Values that take
# few levels, such as a graph's edge weights, lie on codes or far from them (an estimate without this is 1.45 times too
# large). In larger tensors that mostly averages out.
_DETAILED = 65536


def find_copy(packed: Packed) -> Copy | None:
    """The copy that serves a saved tensor; ``None`` if its values are kept, or are not rounded to planned bits."""
    if isinstance(packed, View):
        return None if packed.sign or is_kept(packed.region) else packed.region
    # The range of Sides depends on the width, so its errors do not scale as others do: it keeps the level's bits.
    return packed if isinstance(packed, Clamped) else None


def is_kept(copy: Copy) -> bool:
    """Whether another operator has made the copy keep the memory itself."""
    return isinstance(copy, Region) and copy.kept is not None


def get_layout(copy: Copy) -> Layout:
    """The order in which its elements share groups."""
    return copy.layout if isinstance(copy, Region) else copy.compressed.layout


def read_elements(copy: Copy) -> Tensor:
    """Its elements, in the order in which they are stored."""
    return copy.elements(False) if isinstance(copy, Region) else copy.unpack()


def unpacked_from(packed: Packed, elements: Tensor) -> Tensor:
    """The saved tensor that would be unpacked if its copy had these elements."""
    return packed.get_view(elements) if isinstance(packed, View) else elements


class MeasuredCopy:
    """What a probe finds out about one copy.

    Args:
        copy: the copy, which is not kept alive.
        codec: how it is stored.
        tensor: a saved tensor that the copy serves.
        bits: the width whose rounding error is imitated.
    """

    def __init__(self, copy: Copy, codec: GroupAffine, tensor: Tensor, bits: int) -> None:
        self.identities: list[Identity] = []
        elements = get_layout(copy).flatten(copy.source(tensor))
        self.numel = elements.numel()
        self.dtype = elements.dtype
        self.codec = codec
        self._layout = Layout.of(tensor)
        elements, scales = self._as_rounded(elements)
        self.energies = rounding_energies(elements, codec.group_size, scales)
        small = 0 < elements.numel() <= _DETAILED
        self.deviations = rounding_deviations(elements, codec.group_size, bits) if small else None
        self.effects: list[tuple[int, Tensor]] = []  # where an error ends, or is modelled from there on; its energy
        self.why = "no gradient reached it in the step that was measured"

    def noise(self, flat: Tensor, energy: Tensor, generator: torch.Generator) -> Tensor:
        """Noise like that of rounding the copy, of this energy.

        Args:
            flat: the copy's elements, in the order in which they are stored.
        """
        elements, scales = self._as_rounded(flat)
        noise = rounding_noise(elements, self.codec.group_size, energy, generator, self.deviations, scales)
        return torch.view_as_complex(noise.view(-1, 2)) if flat.is_complex() else noise

    def _as_rounded(self, flat: Tensor) -> tuple[Tensor, Tensor | None]:
        """The elements that are rounded, and the factors by which each is multiplied when restored; ``None`` for 1."""
        if flat.is_complex():
            return torch.view_as_real(flat.resolve_conj()).view(-1), None
        whole = self._layout.dense and self._layout.stored_numel == flat.numel()
        tensor = self._layout.restore(flat) if whole else flat
        if not isinstance(self.codec, Standardized) or not whole or not self.codec.normalizer.takes(tensor):
            return flat, None
        normal, statistics = self.codec.normalizer.normalized(tensor)
        return self._layout.flatten(normal), self._layout.flatten(self.codec.normalizer.scales(statistics, tensor))
