"""Levels: named, immutable answers to "how few bits". The names are GACT's (Liu et al., ICML 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from numbers import Real
from os import PathLike
from types import MappingProxyType
from typing import Any, Literal

import actcore

GROUP_SIZE = 256
"""Elements that share two bounds, where no other number is asked for."""


def _require_int(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r}")


@dataclass(frozen=True)
class Level:
    """How a model's saved tensors are stored.

    Attributes:
        bits: bits per element for the inputs of linear operators, whose rounding error enters only the gradient of
            their weight, linearly and without bias; ``None`` quantises nothing. Where the level is adaptive: the
            average over all tensors that are quantised, whichever operator saved them.
        adaptive: whether each tensor gets bits of its own, by how much its error changes the gradient.
        adapt_interval: steps from one adaptation to the next.
        offload: whether what is stored goes to host memory until backward needs it.
        product_bits: bits per element for the factors of elementwise products, at least ``bits``. Their error is
            unbiased, too, but goes on into every gradient below (in GAT it outweighs all others).
        norm_bits: bits per element for the inputs of normalisation layers, and of the squares of those that are written
            out, at least ``bits``; fewer than 8 tilt every gradient below the layer.
        pointwise_bits: bits per element for the inputs of smooth nonlinearities (GELU, SiLU) and the results of
            bounded ones (sigmoid, tanh, softmax), at least ``bits``.
        attention_bits: bits per element for query, key and value of ``scaled_dot_product_attention``, from which
            backward recomputes it, at least ``bits``. Their error goes through the softmax, which multiplies it by the
            spread of its logits, and on into every gradient below.
        checkpoint_bits: bits per element for the inputs of ``torch.utils.checkpoint`` that a gradient goes through, at
            least ``bits``, but for segments that decide something by them; ``None`` keeps them exactly.
        recompute: whether what cheap operators make of tensors that are stored anyway is recomputed from these in
            backward, where it would be rounded otherwise: an activation's result from its input, a norm's from its
            input, products and casts. DTensors that were gathered from all ranks are gathered again; ``"local"``
            forbids that. Where a plan is followed, that says what is recomputed.
        group_size: elements that share two bounds, a positive multiple of 32. At 256, the inputs of linear operators
            share them by 128 in 4 bits or fewer, or by up to 224 where that keeps rows apart; any other size holds for
            all tensors.
        min_bytes: smaller tensors are kept as they are.
        seed: of the random rounding. Two runs with one seed round alike.
        keep: modules whose tensors are kept exactly, with all that is in them: paths as in ``named_modules``, with
            ``*`` and ``?`` as in file names.
    """

    bits: int | None
    adaptive: bool = False
    adapt_interval: int = 1000
    offload: bool = False
    product_bits: int = 8
    norm_bits: int = 8
    pointwise_bits: int = 8
    attention_bits: int = 7
    checkpoint_bits: int | None = 8
    recompute: bool | Literal["local"] = False
    group_size: int = GROUP_SIZE
    min_bytes: int = 1024
    seed: int = 0
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        paths = (self.keep,) if isinstance(self.keep, str) else self.keep
        if not isinstance(paths, (tuple, list)) or not all(isinstance(path, str) for path in paths):
            raise TypeError(f"keep must be paths of modules, 'head' or ('head', 'blocks.0*'), got {self.keep!r}")
        object.__setattr__(self, "keep", tuple(paths))
        for name in ("adaptive", "offload"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if not isinstance(self.recompute, bool) and self.recompute != "local":
            raise TypeError(f'recompute must be True, False or "local", got {self.recompute!r}')
        for name in ("adapt_interval", "group_size", "min_bytes", "seed"):
            _require_int(name, getattr(self, name))
        if self.adapt_interval < 1:
            raise ValueError(f"adapt_interval must be 1 step or more, got {self.adapt_interval}; 1000 is the default")
        if self.adaptive and self.bits is None:
            raise ValueError("bits must be a number where adaptive is True, got None; 4 is a good average")
        if self.recompute and (self.adaptive or self.bits is None):
            raise ValueError(
                "recompute must be False at a level that rounds nothing or chooses the bits of each tensor, got "
                f"{self.recompute!r}; use level='lean', 'L1', 'L1.1' or 'L1.2'"
            )
        if not -(1 << 63) <= self.seed < 1 << 64:
            raise ValueError(f"seed must fit in 64 bits, got {self.seed}")
        if self.min_bytes < 0:
            raise ValueError(f"min_bytes must not be negative, got {self.min_bytes}; 0 compresses every tensor")
        for name in ("bits", "product_bits", "norm_bits", "pointwise_bits", "attention_bits", "checkpoint_bits"):
            bits = getattr(self, name)
            if name in ("bits", "checkpoint_bits") and bits is None:
                continue
            _require_int(name, bits)
            if not 1 <= bits <= 8:
                way_out = "None switches compression off" if name == "bits" else "8 is the most precise"
                raise ValueError(f"{name} must be from 1 to 8, got {bits}; {way_out}")
        actcore.GroupAffine(8, self.group_size)

    @property
    def off(self) -> bool:
        """Whether tensors are stored as autograd stores them."""
        return self.bits is None and not self.offload

    @property
    def rounds_checkpoints(self) -> bool:
        """Whether a checkpoint's inputs, from which backward recomputes its segment, are stored in fewer bits."""
        return self.bits is not None and self.checkpoint_bits is not None

    def title(self, name: str) -> str:
        """The name of this level in a report. ``name`` is the level that it was made of."""
        preset = LEVELS[name]
        changed = [field.name for field in fields(self) if getattr(self, field.name) != getattr(preset, field.name)]
        return f"{name} with {', '.join(f'{name}={getattr(self, name)}' for name in changed)}" if changed else name


LEVELS: Mapping[str, Level] = MappingProxyType(
    {
        "L0": Level(bits=None),
        "L1": Level(bits=4),
        "L1.1": Level(bits=8),
        "L1.2": Level(bits=2, product_bits=4, pointwise_bits=4, attention_bits=4),
        "lean": Level(bits=4, product_bits=5, pointwise_bits=5, norm_bits=6, recompute=True),
        "L2": Level(bits=4, adaptive=True),
        "L2.1": Level(bits=3, adaptive=True),
        "L2.2": Level(bits=2, product_bits=4, pointwise_bits=4, attention_bits=4, adaptive=True),
        "L3": Level(bits=4, adaptive=True, offload=True),
        "swap": Level(bits=None, offload=True),
        "L4bit-swap": Level(bits=4, offload=True),
    }
)
"""The levels by name. L0 is off; L1, L1.1 and L1.2 use 4, 8 and 2 bits, the same for the whole model. lean stores
little more than each block's inputs, and recomputes from these what cheap operators make. L2, L2.1 and L2.2
give each tensor bits of its own, 4, 3 and 2 on average. L3 is L2 with the stored form on the host; L4bit-swap is L1
with its stored form on the host, and swap moves tensors there as they are."""


_OTHERS = (
    "memory",
    "time",
    "error",
    "stores",
    "activations",
    "linear",
    "layers",
    "loss",
    "checkpoint",
    "plan",
    "fallback",
    "strict",
)  # not fields of a level


def _meant(name: object) -> str:
    """Return a hint for a budget or a file that was given in the place of a level; empty for anything else."""
    text = name.strip() if isinstance(name, str) else ""
    if text.endswith(".json") or isinstance(name, PathLike):
        return f"; a saved plan is passed by name: plan={name!r}"
    is_number = isinstance(name, Real) and not isinstance(name, bool)
    if is_number or text[:1].isdigit() or text in ("least", "auto"):
        return f"; a memory budget is passed by name: memory={name!r}"
    alike = get_close_matches(text, LEVELS, n=1)
    return f"; did you mean {alike[0]!r}?" if alike else ""


def resolve_level(name: str, options: Mapping[str, Any]) -> Level:
    """The level of that name with some fields replaced.

    Raises:
        TypeError: the name is not a string, or an option has the wrong type.
        ValueError: the name or an option is unknown, or a value is out of range. The message lists the valid ones.
    """
    if not isinstance(name, str):
        raise TypeError(f"level must be a string, one of {', '.join(LEVELS)}, got {name!r}{_meant(name)}")
    if name not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}, got {name!r}{_meant(name)}")
    valid = [field.name for field in fields(Level)]
    for option in options:
        if option not in valid:
            alike = get_close_matches(option, [*valid, *_OTHERS, "level"], n=1)
            meant = f" Did you mean {alike[0]}=?" if alike else ""
            raise ValueError(
                f"options of a level are {', '.join(valid)}, got {option!r}; compress_model also takes "
                f"{', '.join(_OTHERS)}.{meant}"
            )
    return replace(LEVELS[name], **options)
