"""Levels of the Q-layers: named, immutable presets with ActNN's names (Chen et al., "ActNN", ICML 2021)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

import actcore

ONE_GROUP = 1 << 40
"""A group size that no tensor exceeds: its two bounds are the whole tensor's (ActNN's ``pergroup=False``)."""

PREFIX = "ActNN-"
"""Before a level's name it says whose level it is: ``compress_model`` has levels of the same names."""

_GROUPS = 3
"""Groups of layers that a single number of bits is for: as many as ActNN had."""


def _require_int(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r}")


@dataclass(frozen=True)
class QLevel:
    """How the Q-layers of a model store their saved tensors.

    Attributes:
        compress: whether saved tensors are stored in fewer bytes.
        bits: average bits per element, one number for each group of layers (a layer's ``group``), or one for all: from
            1 to 8, integer or fractional. If the level is neither per sample nor per layer, the fraction is dropped.
        initial_bits: the bits, 1 to 8, with which the allocation among samples and layers begins; no sample or layer
            gets more.
        group_size: elements that share two bounds, a positive multiple of 32.
        per_sample: whether convolutions and linear layers give each sample of a batch its own bits.
        per_layer: whether the layers of a model share the average bits, according to the effect of each layer's
            rounding on the gradient.
        norms: whether the inputs of normalization layers are quantized.
        norm_adaptive: whether normalization layers give each sample its own bits.
        use_gradient: whether the allocation uses the gradient norms of the samples in earlier epochs. This needs
            ``num_samples`` and the indices of each batch's samples (``QScheme.batch``). Otherwise the batch mean of the
            previous step is used for every sample.
        num_samples: the size of the training set, for ``use_gradient``.
        offload: whether stored tensors are in pinned host memory until backward needs them.
        seed: seed of the random rounding. Two runs with the same seed round alike.
    """

    compress: bool = True
    bits: tuple[float, ...] = (2, 8, 8)
    initial_bits: int = 8
    group_size: int = 256
    per_sample: bool = True
    per_layer: bool = True
    norms: bool = True
    norm_adaptive: bool = True
    use_gradient: bool = False
    num_samples: int | None = None
    offload: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("compress", "per_sample", "per_layer", "norms", "norm_adaptive", "use_gradient", "offload"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        for name in ("initial_bits", "group_size", "seed"):
            _require_int(name, getattr(self, name))
        if isinstance(self.bits, list):  # what ActNN's users write
            object.__setattr__(self, "bits", tuple(self.bits))
        if isinstance(self.bits, (int, float)) and not isinstance(self.bits, bool):
            object.__setattr__(self, "bits", (self.bits,) * _GROUPS)
        if not isinstance(self.bits, tuple):
            raise TypeError(f"bits must be a number, or one for each group of layers, got {self.bits!r}; try (2, 8, 8)")
        if not self.bits:
            raise ValueError("bits must have a number for each group of layers, got none; try (2, 8, 8)")
        for number, bits in enumerate(self.bits):
            if isinstance(bits, bool) or not isinstance(bits, (int, float)):
                raise TypeError(f"bits[{number}] must be a number, got {bits!r}")
            if not (math.isfinite(bits) and 1 <= bits <= 8):
                raise ValueError(f"bits[{number}] must be from 1 to 8, got {bits}; 8 is the most precise")
        if not 1 <= self.initial_bits <= 8:
            raise ValueError(f"initial_bits must be from 1 to 8, got {self.initial_bits}; ActNN has 8")
        if not -(1 << 63) <= self.seed < 1 << 64:
            raise ValueError(f"seed must fit in 64 bits, got {self.seed}")
        if self.num_samples is not None:
            _require_int("num_samples", self.num_samples)
            if self.num_samples < 1:
                raise ValueError(
                    f"num_samples must be the number of samples in the training set, got {self.num_samples}"
                )
        actcore.GroupAffine(8, self.group_size)

    @property
    def off(self) -> bool:
        """Whether all tensors are stored as torch stores them."""
        return not self.compress and not self.offload


LEVELS: Mapping[str, QLevel] = MappingProxyType(
    {
        "L0": QLevel(compress=False, per_sample=False, per_layer=False, norm_adaptive=False),
        "L1": QLevel(bits=(4,), per_sample=False, per_layer=False, norms=False, norm_adaptive=False),
        "L2": QLevel(bits=(4,), per_sample=False, per_layer=False, norm_adaptive=False),
        "L3": QLevel(),
        "L3.1": QLevel(),
        "L4": QLevel(offload=True),
        "L5": QLevel(offload=True),
        "swap": QLevel(compress=False, per_sample=False, per_layer=False, norm_adaptive=False, offload=True),
    }
)
"""The levels by name. L0 is off: torch's own layers. L1 has 4 bits and exact norms, L2 4 bits and norms, too; L3 2 bits
on average, for each sample and each layer its own. L4 is L3 with the stored form on the host, swap takes tensors there
as they are. L3.1 and L5 differed from L3 and L4 in how ActNN treated the allocator, which torch has settings for today
(docs/reference/q-layers.md); here they are the same."""


def resolve_level(level: str | QLevel, options: Mapping[str, Any] | None = None) -> QLevel:
    """Return the level, or the one of that name, with some fields replaced.

    Args:
        level: a level or a name in ``LEVELS``, with or without ``ActNN-`` before it.
        options: fields of ``QLevel`` and their values.

    Raises:
        TypeError: ``level`` is neither a name nor a QLevel, or an option has the wrong type.
        ValueError: the name or an option is unknown, or a value is out of range. The message lists the valid ones.
    """
    if isinstance(level, str):
        if level.removeprefix(PREFIX) not in LEVELS:
            raise ValueError(f"level must be one of {', '.join(LEVELS)}, got {level!r}")
        level = LEVELS[level.removeprefix(PREFIX)]
    elif not isinstance(level, QLevel):
        raise TypeError(f"level must be a QLevel or a name, one of {', '.join(LEVELS)}, got {level!r}")
    valid = [field.name for field in fields(QLevel)]
    for option in options or {}:
        if option not in valid:
            raise ValueError(f"options of a level are {', '.join(valid)}, got {option!r}")
    return replace(level, **options) if options else level
