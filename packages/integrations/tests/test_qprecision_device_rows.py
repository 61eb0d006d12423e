"""``DeviceRows``: what ``actcore.GroupAffineRows`` stores, with widths that nobody on the host has seen."""

import copy

import pytest
import torch

import actcore
from integrations.qmodules.device_rows import DeviceRows, code_bytes

WIDTHS = (4, 1, 8, 3, 2)


def codec(widths=WIDTHS, group_size=64):
    return DeviceRows(sum(widths), group_size, torch.tensor(widths))


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [256, 300, 333])
def test_the_same_as_widths_that_are_known(dtype, size):
    x = normal(5, size, dtype=dtype)
    stored = actcore.compress(x, codec(), seed=3, stream=4)
    known = actcore.compress(x, actcore.GroupAffineRows(WIDTHS, 64), seed=3, stream=4)
    assert torch.equal(actcore.decompress(stored), actcore.decompress(known))
    assert torch.equal(stored.payload[1], known.payload[1])
    # At most 7 unused bits a row, and a byte a row for its width.
    assert known.nbytes + 5 <= stored.nbytes <= known.nbytes + 10


@pytest.mark.parametrize(
    "make",
    [
        lambda: normal(5, 4, 9, 9).to(memory_format=torch.channels_last),
        lambda: normal(4, 9, 5, 9).permute(2, 0, 1, 3),
        lambda: normal(5, 8, 20)[:, ::2],
        lambda: normal(5, 1, 9, 9).expand(5, 4, 9, 9),
        lambda: normal(1, 4, 9, 9).expand(5, 4, 9, 9),
        lambda: normal(6, 4, 81)[1:],
    ],
    ids=["channels_last", "rows_inside", "strided", "expanded", "one_row", "slice"],
)
def test_layouts(make):
    x = make()
    back = actcore.decompress(actcore.compress(x, codec((8,) * 5)))
    assert back.shape == x.shape
    # A step of 8 bits over at most 9 standard deviations.
    assert (back - x).abs().max() < 9 / 255
    if x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last):
        assert back.stride() == x.stride()


def test_unbiased_and_within_its_variance():
    """The mean of 400 roundings lies within 5 standard deviations of its own for all of 2,560 elements: a normal number
    exceeds that once in 1.7 million; one of a step's two sides has thinner tails still."""
    x = normal(5, 512)
    total = torch.zeros_like(x)
    for stream in range(400):
        total += actcore.decompress(actcore.compress(x, codec(group_size=512), stream=stream))
    step = (x.amax(1) - x.amin(1)) / (2.0 ** torch.tensor(WIDTHS) - 1)
    # Half a step at most, and the 2**-9 step that the codec itself allows its mean.
    assert ((total / 400 - x).abs() < step[:, None] * (5 * 0.5 / 20 + 2**-9)).all()


def test_bytes_known_from_the_sum():
    for size in (1, 7, 8, 100, 255):
        for widths in (WIDTHS, (1,) * 5, (7, 7, 7, 7, 7), (8, 1, 1, 1, 1)):
            needed = sum((size * width + 7) // 8 for width in widths)
            assert needed <= code_bytes(sum(widths), 5, size) <= needed + 5


def test_a_sum_that_is_too_small_is_flagged_as_nan_and_never_overruns():
    """Three rows have 100 bytes together. The third, and what follows it, finds no room."""
    x = normal(3, 400)
    stored = actcore.compress(x, DeviceRows(2, 64, torch.tensor([1, 1, 1])))
    back = actcore.decompress(stored)
    assert back[2].isnan().all()
    assert not back[:2].isnan().any()


def test_too_small_to_gain_is_kept():
    x = normal(5, 2)
    stored = actcore.compress(x, codec())
    assert isinstance(stored.codec, actcore.Raw)
    assert torch.equal(actcore.decompress(stored), x)
    x.zero_()
    assert actcore.decompress(stored).any()


def test_a_group_with_nan_is_nan():
    x = normal(5, 256)
    x[1, 7] = torch.nan
    back = actcore.decompress(actcore.compress(x, codec()))
    assert back[1, :64].isnan().all()
    assert back.isnan().sum() == 64


def test_seeds_and_streams_may_be_tensors():
    x = normal(5, 256)
    plain = actcore.compress(x, codec(), seed=5, stream=(1 << 64) - 3)
    keyed = codec().compress(x, seed=torch.tensor([5]), stream=torch.tensor([-3]))
    assert torch.equal(actcore.decompress(plain), actcore.decompress(keyed))


def test_refuses_what_it_cannot_store():
    with pytest.raises(ValueError, match=r"a width for each row of \(4, 256\), got 5"):
        actcore.compress(normal(4, 256), codec())
    with pytest.raises(ValueError, match="got None"):
        actcore.compress(normal(4, 256), DeviceRows(8))
    with pytest.raises(TypeError, match=r"takes floating-point numbers, got torch\.int64"):
        actcore.compress(torch.ones(5, 256, dtype=torch.int64), codec())


def test_damaged_forms_raise():
    stored = actcore.compress(normal(5, 256), codec())
    codes, bounds, bits = stored.payload
    for payload in ((codes, bounds), (codes, bounds, bits[1:]), (codes, bounds[1:], bits)):
        with pytest.raises((ValueError, RuntimeError), match="damaged"):
            actcore.decompress(actcore.Compressed(stored.codec, payload, stored.layout, stored.dtype))
    cut = actcore.Compressed(stored.codec, (codes[:-9], bounds, bits), stored.layout, stored.dtype)
    assert actcore.decompress(cut)[-1].isnan().all()


def test_the_stored_form_alone_holds_the_widths():
    stored = actcore.compress(normal(5, 256), codec())
    assert stored.codec == DeviceRows(sum(WIDTHS), 64)
    assert stored.codec.bits is None
    again = copy.deepcopy(stored)
    assert torch.equal(actcore.decompress(again), actcore.decompress(stored))
