"""Shape, dtype, device and strides come back, and elements that share memory are stored once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import actcore

from .samples import DTYPES, name_of, normal, same_bits

CODECS = [actcore.GroupAffine(8), actcore.Float8(), actcore.Positive(), actcore.Raw()]
every_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: type(codec).__name__)

IMAGES = normal(4 * 8 * 6 * 10).view(4, 8, 6, 10)
VOLUMES = normal(2 * 3 * 4 * 5 * 6).view(2, 3, 4, 5, 6)
LAYOUTS = {
    "scalar": normal(1)[0],
    "one element": normal(1),
    "vector": normal(1000),
    "matrix": normal(1000).view(25, 40),
    "volumes": VOLUMES,
    "transposed": normal(1000).view(25, 40).t(),
    "permuted": VOLUMES.permute(3, 0, 4, 1, 2),
    "channels last": IMAGES.contiguous(memory_format=torch.channels_last),
    "channels last, 3d": VOLUMES.contiguous(memory_format=torch.channels_last_3d),
    "view from the middle": normal(1000)[7:900],
    "every third": normal(1000)[::3],
    "columns": normal(1000).view(25, 40)[:, 5:30],
    "one column": normal(1000).view(25, 40)[:, 3],
    "columns, transposed": normal(1000).view(25, 40)[:, 5:30].t(),
    "channels last, every second": IMAGES.contiguous(memory_format=torch.channels_last)[..., ::2],
    "one of three views of a projection": normal(4 * 5 * 3 * 16).view(4, 5, 3, 16)[:, :, 1],
    "expanded": normal(300).view(1, 300).expand(7, 300),
    "expanded in the middle": normal(600).view(20, 1, 30).expand(20, 9, 30),
    "expanded scalar": normal(1).expand(1_000_000),
    "expanded columns": normal(1000).view(25, 1, 40)[..., 5:30].expand(25, 4, 25),
    "expanded and transposed": normal(300).view(15, 20, 1).expand(15, 20, 3).permute(2, 1, 0),
    "sizes of 1 with odd strides": torch.as_strided(normal(1000), (1, 20, 1, 30), (999, 30, 7, 1)),
    "diagonal": normal(1600).view(40, 40).diagonal(),
    "imaginary part": torch.complex(normal(300), normal(300)).conj().imag,
    "tiny": normal(3),
    "tiny, every second": normal(9)[::2],
    "tiny, expanded": normal(2).view(2, 1).expand(2, 50),
    "empty": torch.empty(0),
    "empty rows": torch.empty(5, 0, 3),
    "empty, transposed": torch.empty(5, 0, 3).transpose(0, 2),
    "empty, expanded": torch.empty(1, 0).expand(8, 0),
}
every_layout = pytest.mark.parametrize("x", LAYOUTS.values(), ids=LAYOUTS)


def assert_same_layout(got, expected):
    """Down to the strides of dimensions of size 1, which address nothing."""
    assert got.shape == expected.shape
    assert got.stride() == expected.stride()
    assert got.dtype == expected.dtype
    assert got.device == expected.device


@every_codec
@every_layout
def test_shape_dtype_and_strides_come_back(codec, x):
    c = actcore.compress(x, codec)
    assert c.shape == x.shape
    assert c.dtype == x.dtype
    assert c.device == x.device
    assert_same_layout(actcore.decompress(c), x)
    assert_same_layout(c.decompress(), x)


@every_layout
def test_every_element_comes_back_to_its_own_place(x):
    """``Positive`` is exact, so a misplaced element shows."""
    assert same_bits(actcore.decompress(actcore.compress(x, actcore.Positive())), (x > 0).to(x.dtype))


@every_layout
def test_group_affine_values_are_near_their_elements(x):
    y = actcore.decompress(actcore.compress(x, actcore.GroupAffine(8)))
    span = (x.max() - x.min()).item() if x.numel() else 0.0
    # No group's range is above the tensor's, and stochastic rounding moves no element by a whole step of it.
    assert torch.all((y - x).abs() <= span / 255)


@every_layout
def test_integers_come_back_to_their_places(x):
    whole = (x * 100).round().clamp(-300, 300)
    numbers = whole.to(torch.int16) if whole.is_contiguous() else torch.empty_like(x, dtype=torch.int16).copy_(whole)
    c = actcore.compress(numbers, actcore.Narrow(-300, 300))
    assert_same_layout(c.decompress(), numbers)
    assert torch.equal(c.decompress(), numbers)


@every_layout
def test_float8_values_are_near_their_elements(x):
    y = actcore.decompress(actcore.compress(x, actcore.Float8()))
    bound = x.abs().max().item() if x.numel() else 0.0
    # A spacing: 2**-3 of an element, and of the smallest normal number, 2**-6 / 448 of the bound, below that.
    assert torch.all((y - x).abs() <= x.abs() / 8 + bound * 2**-9 / 448)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_every_dtype_keeps_channels_last(dtype):
    x = IMAGES.to(dtype).contiguous(memory_format=torch.channels_last)
    for codec in CODECS:
        assert_same_layout(actcore.decompress(actcore.compress(x, codec)), x)


@pytest.mark.parametrize("codec", [actcore.GroupAffine(4), actcore.Positive()], ids=repr)
def test_dense_tensors_are_stored_in_memory_order(codec):
    """So that no copy is made, and a group is a stretch of memory: the payload is that of the flat memory."""
    for name in ("transposed", "permuted", "channels last", "channels last, 3d", "view from the middle"):
        x = LAYOUTS[name]
        memory = x.as_strided((x.numel(),), (1,))
        of_tensor, of_memory = (actcore.compress(t, codec, seed=1).payload for t in (x, memory))
        for one, other in zip(of_tensor, of_memory, strict=True):
            assert same_bits(one, other), name


def test_tensors_with_gaps_are_stored_as_their_contiguous_copy():
    for name in ("every third", "columns", "columns, transposed", "one of three views of a projection"):
        x = LAYOUTS[name]
        one, other = (actcore.compress(t, actcore.GroupAffine(4)).payload[0] for t in (x, x.contiguous()))
        assert same_bits(one, other), name


@pytest.mark.parametrize("codec", [actcore.GroupAffine(4), actcore.Positive(), actcore.BitMask()], ids=repr)
def test_expanded_tensors_are_stored_once(codec):
    for shape in ((7, 300), (300, 7), (7, 300, 5)):
        x = (normal(300) > 0).float()
        stored = actcore.compress(x, codec)
        expanded = x.view([size if size == 300 else 1 for size in shape]).expand(shape)
        c = actcore.compress(expanded, codec)
        assert c.nbytes == stored.nbytes
        assert same_bits(c.payload[0], stored.payload[0])
        assert actcore.decompress(c).untyped_storage().nbytes() == x.nbytes


def test_an_expanded_scalar_is_stored_as_one_element():
    """Too small to gain, so it is kept as it is; the copy that is kept must not be the million elements."""
    c = actcore.compress(torch.tensor(2.5).expand(1_000_000), actcore.GroupAffine(4))
    assert c.nbytes == 4
    assert c.payload[0].untyped_storage().nbytes() == 4


def test_overlapping_windows_come_back_contiguous():
    """The documented exception: windows that overlap (``unfold``) are stored window by window."""
    x = normal(100).unfold(0, 8, 3)
    y = actcore.decompress(actcore.compress(x, actcore.Positive()))
    assert same_bits(y, (x > 0).float())
    assert y.is_contiguous()


@pytest.mark.parametrize("codec", [actcore.GroupAffine(8), actcore.GroupAffineRows((8,) * 100), actcore.Positive()])
def test_a_tensor_of_wide_gaps_comes_back_without_them(codec):
    """A class token of 100 x 1000 x 64 takes 6,400 elements, not 6 million; every second element still has its gaps."""
    tokens = torch.randn(100, 1000, 64)
    back = actcore.decompress(actcore.compress(tokens[:, 0], codec))
    assert back.is_contiguous()
    assert back.untyped_storage().nbytes() == 100 * 64 * 4
    second = tokens[:, :4, ::2]
    assert actcore.decompress(actcore.compress(second.contiguous()[:, ::2], codec)).stride() == (128, 64, 1)


def test_windows_side_by_side_keep_their_strides():
    x = normal(96).unfold(0, 8, 8)
    assert_same_layout(actcore.decompress(actcore.compress(x, actcore.Positive())), x)


@st.composite
def strided_tensors(draw):
    """A tensor of up to 5 dimensions, permuted, sliced with steps, narrowed to one element, and expanded."""
    shape = draw(st.lists(st.integers(0, 6), max_size=5))
    x = torch.arange(1, 1 + torch.Size(shape).numel()).view(shape)
    x = x.permute(draw(st.permutations(range(x.dim()))))
    for dim in range(x.dim()):
        start = draw(st.integers(0, max(0, x.shape[dim] - 1)))
        step = draw(st.sampled_from([1, 1, 2, 3]))
        x = x[(slice(None),) * dim + (slice(start, None, step),)]
    for dim in range(x.dim() + 1):
        if draw(st.integers(0, 5)) == 0:
            x = x.unsqueeze(dim)
            x = x.expand([draw(st.integers(1, 4)) if i == dim else size for i, size in enumerate(x.shape)])
    return x


@settings(deadline=None, max_examples=300)
@given(strided_tensors())
def test_any_view_comes_back(x):
    """Through the layout alone, where every element is a number of its own."""
    layout = actcore.Layout.of(x)
    restored = layout.restore(layout.flatten(x).clone())
    assert_same_layout(restored, x)
    assert torch.equal(restored, x)
    assert layout.stored_numel == len(set(x.reshape(-1).tolist()))
