"""A model of each of timm's families: one step without rounding, bit for bit, and one in 8 bits.

Of the families, which are timm's modules, a run takes every sixteenth; with ACTCORE_LONG=1 (``nox -s peers``) all. The
sweep of bench has a table of models, with tables of what they store; here timm says what there is, and new ones come by
themselves.
"""

import re

import torch

from .libraries import library_or_skip
from .long_form import LONG
from .nets import EIGHT_BITS, assert_same, normal
from .peers.one_step import compare, error

SHARES = 16
MOST = 30e6  # parameters; what has more is made with two blocks, if it takes that
SIDE = 64  # pixels, but for models that take no image so small
SIZES = (
    "zepto",
    "atto",
    "femto",
    "pico",
    "nano",
    "xxs",
    "050",
    "tiny",
    "ti",
    "t",
    "xs",
    "small",
    "s",
    "18",
    "11",
    "b0",
)


def families(timm):
    """The names of the modules that are tried."""
    return timm.list_modules()[:: 1 if LONG else SHARES]


def smallest(timm, family):
    """The model that is named as the smallest."""

    def rank(name):
        parts = re.split(r"[_\d]*_|(?<=[a-z])(?=\d)", name)
        return next((place for place, size in enumerate(SIZES) if size in parts), len(SIZES)), len(name), name

    return min(timm.list_models(module=family), key=rank)


def creations(timm, name):
    """Ways to make it, those for small images first, each with the side of its images."""
    side = timm.get_pretrained_cfg(name).input_size[-1]
    for options in ({"img_size": SIDE}, {}, {"img_size": SIDE, "depth": 2}, {"depth": 2}):
        try:
            with torch.device("meta"):
                size = sum(p.numel() for p in timm.create_model(name, num_classes=10, **options).parameters())
        except (TypeError, ValueError, AssertionError, RuntimeError, NotImplementedError):
            continue
        if size <= MOST:
            yield options, SIDE
            if "img_size" not in options:
                yield options, side


def made(timm, name):
    """The model in training, and a batch."""
    for options, side in creations(timm, name):
        torch.manual_seed(0)
        model = timm.create_model(name, num_classes=10, **options).train()
        x = normal(2, 3, side, side)
        try:
            with torch.no_grad():
                model(x)
        except (AssertionError, RuntimeError, ValueError):
            continue  # not of that side
        return model, x
    return None


def test_a_model_of_each_family():
    timm = library_or_skip("timm")
    taken = 0
    for family in families(timm):
        name = smallest(timm, family)
        found = made(timm, name)
        if found is None:  # too large, or of images of another kind
            continue
        taken += 1
        model, x = found
        plain, off, bits = compare(model, lambda one, x=x: one(x))
        assert torch.equal(off[0], plain[0]), name
        assert_same(plain[1], off[1])
        assert torch.equal(bits[0], plain[0]), name  # what is stored is read in backward alone
        assert error(plain[1], bits[1]) < bound(model), name
    assert taken > 2 * len(families(timm)) / 3  # so that it is told if models are made in other ways


def bound(model):
    """A layer's roundings put EIGHT_BITS of error onto the gradient that passes it. Those of all layers are
    independent, so that their squares add up, and a gradient passes each layer with weights once."""
    layers = sum("weight" in module._parameters for module in model.modules())
    return EIGHT_BITS * layers**0.5
