"""The ways to train, by name: levels, few-bit GELU, randomized linear layers, and what stands beside them."""

from __future__ import annotations

import argparse
import re
from functools import partial
from typing import Any

from torch import nn

from bench.models.subject import Subject
from bench.ways.general import PLAIN, WAYS, Forward, Surroundings, compressed
from integrations import LEVELS

CONTROL = "no gradient"
"""Plain, but gradients are set to zero: what a comparison must tell from all others."""
EACH_BLOCK = "each block (torch)"

KINDS = ("gaussian", "rademacher", "dct", "dft", "rows")
BITS = (1, 2, 3, 4)
PERCENTS = (50, 20, 10)  # FewBit's ratios

DEFAULT = (
    PLAIN,
    CONTROL,
    "L1",
    "L1.1",
    "L1.2",
    "L2",
    "L2.1",
    "L2.2",
    "gelu 3 bits",
    "linear 20 % gaussian",
    "gelu 3 bits + linear 20 % gaussian",
    EACH_BLOCK,
)
QUICK = (PLAIN, CONTROL, "L1", "gelu 3 bits + linear 20 % gaussian")
FEWBIT = (
    PLAIN,
    CONTROL,
    *(f"gelu {bits} bit{'s' * (bits > 1)}" for bits in BITS),
    *(f"linear {percent} % {kind}" for kind in KINDS for percent in PERCENTS),
    "gelu 3 bits + linear 20 % gaussian",
)

FORMS = (
    f"{PLAIN}, {CONTROL}, {EACH_BLOCK}, a level such as L1, 'gelu 3 bits' (1 to 4), 'linear 20 % gaussian' (1 to 100; "
    f"{', '.join(KINDS)}), or the last three with ' + ' between"
)
_LEVELS = [name for name, level in LEVELS.items() if level.bits is not None and not level.offload]
_GELU = re.compile(r"gelu (?P<bits>[1-4]) bits?")
_LINEAR = re.compile(rf"linear (?P<percent>[1-9]\d?|100) % (?P<kind>{'|'.join(KINDS)})")


def way(text: str) -> str:
    """The name of a way, for ``argparse``."""
    if text in (PLAIN, CONTROL, EACH_BLOCK) or _options(text, 0) is not None:
        return text
    raise argparse.ArgumentTypeError(f"must be {FORMS}, got {text!r}")


def ready(name: str, subject: Subject, seed: int) -> tuple[Forward, Surroundings]:
    """What to call in the place of the subject's model, which may change, and the surroundings of a forward.

    Args:
        name: of a way.
        subject: a BERT or RoBERTa.
        seed: of rounding and sketches, apart from torch's generators, so that dropout draws what it draws in a plain
            step.

    Raises:
        DoesNotApply: the way is none for this model.
    """
    if name in (PLAIN, CONTROL, EACH_BLOCK):
        return WAYS[PLAIN if name == CONTROL else name].ready(subject)
    options = _options(name, seed)
    assert options is not None, name
    level = options.pop("level", "L0")
    if "linear" in options:
        options["keep"] = _outside(subject.model)
    return partial(compressed, level)(subject, seed=seed, **options)


def stores(name: str) -> bool:
    """Whether a report says what a way stores: one of ``compress_model``."""
    return name not in (PLAIN, CONTROL, EACH_BLOCK)


def _options(name: str, seed: int) -> dict[str, Any] | None:
    """Of ``compress_model``; ``None`` if there is no such way."""
    options: dict[str, Any] = {}
    for part in name.split(" + "):
        if part in _LEVELS:
            found: dict[str, Any] = {"level": part}
        elif match := _GELU.fullmatch(part):
            found = {"activations": int(match["bits"])}
        elif match := _LINEAR.fullmatch(part):
            ratio = int(match["percent"]) / 100
            found = {"linear": {"proj_dim_ratio": ratio, "matmul": match["kind"], "seed": seed}}
        else:
            return None
        if found.keys() & options.keys():  # two levels, or two sketches
            return None
        options |= found
    return options


def _outside(model: nn.Module) -> list[str]:
    """The linear layers outside of the encoder, which FewBit leaves: they see a row for each sentence, not for each
    word."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and "encoder" not in name.split(".")
    ]
