"""Codecs under inductor store logical elements, whatever strides inductor gives to its tensors.

The tests take views of a tensor that the compiled code makes. Its strides at run time may differ from those of the
trace. ``x + x`` is exact in every order of evaluation, so the bytes equal those of eager code.

With ``ACTCORE_LONG=1`` (``nox -s inductor``) every view is compiled for static and for dynamic sizes, and for every
input, otherwise for one of both.
"""

import os

import pytest
import torch
from torch._inductor import config as inductor

import actcore

from .samples import normal, same_bits

pytestmark = pytest.mark.usefixtures("fresh_compiler", "scalar_code")

LONG = os.environ.get("ACTCORE_LONG") == "1"

VIEWS = {
    "whole": lambda y: y,
    "select": lambda y: y[:, 3],
    "narrow": lambda y: y[:, 2:7],
    "step": lambda y: y[:, ::3],
    "last step": lambda y: y[..., 1::2],
    "transpose": lambda y: y.transpose(1, 2),
    "permute": lambda y: y.permute(2, 0, 3, 1),
    "expand": lambda y: y[:, :1].expand(-1, 5, -1, -1),
    "channels last": lambda y: y.contiguous(memory_format=torch.channels_last),
    "step of channels last": lambda y: y.contiguous(memory_format=torch.channels_last)[..., ::2],
    "split": lambda y: y.split(3, 1)[1],
    "unbind": lambda y: y.unbind(2)[1],
    "overlapping": lambda y: y.unfold(3, 4, 2),
    "diagonal": lambda y: y.diagonal(dim1=2, dim2=3),
}
X = normal(1920).view(4, 8, 6, 10)
LARGER = normal(2880).view(6, 8, 6, 10)
TRANSPOSED = normal(1440).view(6, 8, 6, 5).transpose(0, 3)
CODEC = actcore.GroupAffine(4, 32, "nearest")
OTHERS = [actcore.GroupAffine(3, 64), actcore.Float8(), actcore.Positive()]
CASES = [(name, CODEC) for name in VIEWS] + [("step", codec) for codec in OTHERS]


@pytest.fixture
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def scalar_code():
    """The long form has vectors. Kernels without them compile in half the time, and have the same strides."""
    with inductor.patch({"cpp.simdlen": None if LONG else 1}):
        yield


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_inductor_stores_what_eager_code_stores(dynamic):
    """One function has all views, because each compilation takes seconds. The second input of dynamic sizes runs what
    was compiled for the first one."""
    cases = CASES if LONG else CASES[dynamic::2]
    inputs = [X, LARGER] if dynamic else [TRANSPOSED]

    def stored(x):
        y = x + x
        found = []
        for name, codec in cases:
            c = actcore.compress(VIEWS[name](y), codec, seed=1, stream=2)
            found.append((*c.payload, actcore.decompress(c)))
        return found

    function = torch.compile(stored, fullgraph=True, dynamic=dynamic)
    for x in [X, LARGER, TRANSPOSED] if LONG else inputs:
        for case, parts, expected in zip(cases, function(x), stored(x), strict=True):
            for got, part in zip(parts, expected, strict=True):
                assert same_bits(got, part), case


def test_rows_of_several_widths():
    codec = actcore.GroupAffineRows((1, 4, 8, 3), 32)

    def stored(x):
        y = x + x
        found = []
        for view in (lambda y: y.permute(0, 2, 3, 1), lambda y: y[..., ::2]):
            c = actcore.compress(view(y), codec, seed=1)
            found += [*c.payload, actcore.decompress(c)]
        return found

    for got, part in zip(torch.compile(stored, fullgraph=True)(X), stored(X), strict=True):
        assert same_bits(got, part)
