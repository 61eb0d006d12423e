"""``torch.compile``: no graph break, and the bytes of eager."""

import os
import subprocess
import sys

import pytest
import torch
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch._dynamo.testing import CompileCounterWithBackend

import actcore
from actcore.compiling import constant_when_traced

from .samples import DTYPES, name_of, normal, same_bits

LONG = os.environ.get("ACTCORE_LONG") == "1"

LAYOUTS = {
    "contiguous": normal(1200).view(30, 40),
    "transposed": normal(1200).view(30, 40).t(),
    "columns": normal(1200).view(30, 40)[:, 5:30],
    "expanded": normal(1200).view(1, 1200).expand(3, 1200),
    "channels last": normal(2 * 6 * 10 * 10).view(2, 6, 10, 10).contiguous(memory_format=torch.channels_last),
    "tiny": normal(2),
}
CODECS = [actcore.GroupAffine(3), actcore.GroupAffine(4, 64, "nearest"), actcore.Float8("e5m2"), actcore.Positive()]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(function, **options):
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


EACH = [
    (codec, dynamic)
    for number, codec in enumerate(CODECS)
    for dynamic in (False, True)
    if LONG or number % 2 == dynamic
]


@pytest.mark.parametrize(("codec", "dynamic"), EACH, ids=str)
def test_compress_and_decompress(codec, dynamic):
    """Every layout through one compiled function: from the second on, its sizes and strides are symbols. With
    ``ACTCORE_LONG=1`` (``nox -s inductor``) each codec is tried with static and with dynamic sizes."""

    def round_trip(x):
        c = actcore.compress(x, codec, seed=3, stream=4)
        return actcore.decompress(c), *c.payload

    function = compiled(round_trip, dynamic=dynamic)
    for name, x in LAYOUTS.items():
        for got, expected in zip(function(x), round_trip(x), strict=True):
            assert same_bits(got, expected), name
            assert got.stride() == expected.stride(), name


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_the_operators(dtype):
    """What graph-module hooks are made of: the raw calls, on every dtype."""

    def through_operators(x):
        codes, bounds = torch.ops.actcore.group_affine_compress(x, 4, 256, True, 1, 2)
        value = torch.ops.actcore.group_affine_decompress(codes, bounds, x.numel(), 4, 256)
        mask = torch.ops.actcore.positive_mask(x)
        sign = torch.ops.actcore.bit_mask_decompress(mask, x.numel(), x.dtype, 0.0, 1.0)
        again, misfit = torch.ops.actcore.bit_mask_compress(sign, 0.0, 1.0)
        unpacked = torch.ops.actcore.unpack_bits(again, 1, x.numel())
        packed, misfit = torch.ops.actcore.pack_bits(unpacked, 1)
        return codes, bounds, value, mask, sign, again, unpacked, packed, misfit

    x = normal(1000, dtype)
    for got, expected in zip(compiled(through_operators)(x), through_operators(x), strict=True):
        assert same_bits(got, expected)


def test_pack_and_unpack():
    codes = torch.arange(100).remainder(8).to(torch.uint8)
    packed = compiled(actcore.pack_bits)(codes, 3)
    assert same_bits(packed, actcore.pack_bits(codes, 3))
    assert same_bits(compiled(actcore.unpack_bits)(packed, 3, 100), codes)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32], ids=name_of)
def test_bit_mask(dtype):
    mask = (normal(1000) > 0).to(dtype)
    round_trip = compiled(lambda x: actcore.decompress(actcore.compress(x, actcore.BitMask())))
    assert same_bits(round_trip(mask), mask)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_narrow(dynamic):
    round_trip = compiled(lambda x: actcore.decompress(actcore.compress(x, actcore.Narrow(-4, 3000))), dynamic=dynamic)
    for x in (torch.arange(600).view(20, 30), torch.arange(3000).view(30, 100).t(), torch.arange(70)[::3]):
        got = round_trip(x)
        assert same_bits(got, x)
        assert got.stride() == x.stride()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_rows(dynamic):
    codec = actcore.GroupAffineRows((1, 4, 8, 3), 64)

    def store(x):
        c = actcore.compress(x, codec, seed=3)
        return actcore.decompress(c), *c.payload

    function = compiled(store, dynamic=dynamic)
    for x in (normal(1200).view(4, 300), normal(800).view(4, 2, 100), normal(400).view(100, 4).t()):
        for got, expected in zip(function(x), store(x), strict=True):
            assert same_bits(got, expected)
            assert got.stride() == expected.stride()


def test_a_third_value_raises_in_compiled_code_too():
    """There it is asserted beside the graph, so it is a RuntimeError, with the same text."""
    store = compiled(lambda x: actcore.compress(x, actcore.BitMask()).payload[0])
    with pytest.raises(RuntimeError, match="stores two values, but the tensor has an element of another"):
        store(torch.full((100,), 2.0))
    store = compiled(lambda x: actcore.compress(x, actcore.Narrow(0, 9)).payload[0])
    with pytest.raises(RuntimeError, match="stores values from low to high"):
        store(torch.full((100,), 10))
    pack = compiled(actcore.pack_bits)
    with pytest.raises(RuntimeError, match="codes must be below"):
        pack(torch.full((100,), 8, dtype=torch.uint8), 3)


def test_a_compressed_crosses_the_border_of_a_compiled_region():
    x = normal(1200).view(30, 40)
    c = compiled(lambda x: actcore.compress(x, actcore.GroupAffine(4), seed=1))(x)
    expected = actcore.compress(x, actcore.GroupAffine(4), seed=1)
    assert (c.codec, c.layout, c.dtype) == (expected.codec, expected.layout, expected.dtype)
    assert same_bits(compiled(actcore.decompress)(c), expected.decompress())


@pytest.mark.parametrize("codec", [*CODECS, actcore.Narrow(-4, 3000)], ids=repr)
def test_a_size_that_changes_is_compiled_once(codec):
    """The operators that undo a stored form took its length as a number of the graph: each size compiled anew."""
    counter = CompileCounterWithBackend("aot_eager")

    def round_trip(x):
        return actcore.decompress(actcore.compress(x, codec))

    function = torch.compile(round_trip, fullgraph=True, dynamic=True, backend=counter)
    for size in (512, 768, 1280):
        x = torch.randint(2, (size, 4)) if isinstance(codec, actcore.Narrow) else torch.randn(size, 4)
        assert function(x).shape == (size, 4)
    assert counter.frame_count == 1


# ---- what torch.compile is told of a function, without torch._dynamo ----


class Callback:
    """A hook that notes what would compile the frames it calls; ``None`` where nothing would."""

    def __init__(self):
        self.seen = []

    def __call__(self, value):
        self.seen.append(get_eval_frame_callback())
        return value


@torch._dynamo.disable(recursive=False)
def called(hook, x):
    return hook(x)


def test_a_shielded_hook_is_not_compiled():
    plain, shielded = Callback(), Callback()
    function = torch.compile(lambda hook, x: called(hook, x), backend="eager")
    function(plain, normal(4))
    function(actcore.uncompiled(shielded), normal(4))
    assert shielded.seen == [None]
    assert None not in plain.seen  # so that the shield is what made the difference


def test_the_mark_is_torchs():
    def ours():
        pass

    def torchs():
        pass

    constant_when_traced(ours)
    torch.compiler.assume_constant_result(torchs)
    assert vars(ours) == vars(torchs) != {}


BEFORE = """
import sys, torch, actcore
pack, unpack = actcore.hooks(actcore.GroupAffine(4))
assert "torch._dynamo" not in sys.modules
import torch._dynamo
torch._dynamo.config.error_on_recompile = True

def function(x):
    y = x.sin()
    torch._dynamo.graph_break()
    return y.exp().sum()

gradients = []
for hooks in (pack, unpack), actcore.hooks(actcore.GroupAffine(4), streams=actcore.Streams()):
    x = torch.linspace(-2, 2, 4096).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(*hooks):
        torch.compile(function, backend="aot_eager")(x).backward()
    gradients.append(x.grad)
assert torch.equal(*gradients) and gradients[0].norm() > 1
"""


def test_hooks_may_be_older_than_the_compiler():
    """And ``import actcore`` does not import it, which takes a second."""
    subprocess.run([sys.executable, "-c", BEFORE], check=True, timeout=300)
