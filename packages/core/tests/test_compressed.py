"""``Compressed``: its size, what it shares, how it is moved, copied, saved and loaded."""

import copy
import io
import pickle
from dataclasses import dataclass

import pytest
import torch

import actcore

from .samples import BITS, DTYPES, GROUP_SIZES, NUMELS, hard_ranges, name_of, normal, same_bits

CODECS = [
    actcore.GroupAffine(3),
    actcore.GroupAffine(8, 64, "nearest"),
    actcore.Float8("e5m2"),
    actcore.Positive(),
    actcore.Raw(),
]
every_codec = pytest.mark.parametrize("codec", CODECS, ids=repr)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("bits", BITS)
def test_size_is_the_formula_and_never_above_the_inputs(dtype, bits):
    """ceil(bits * n / 8) bytes and two elements a group, or the tensor itself where that is no less."""
    for numel in NUMELS:
        for group_size in GROUP_SIZES:
            codec = actcore.GroupAffine(bits, group_size)
            x = normal(numel, dtype)
            c = actcore.compress(x, codec)
            formula = -(-bits * numel // 8) + -(-numel // group_size) * 2 * dtype.itemsize
            assert codec.stored_bytes(numel, dtype) == formula
            assert c.nbytes == min(formula, x.nbytes)
            assert c.nbytes == sum(part.untyped_storage().nbytes() for part in c.payload)
            assert c.codec == (codec if formula < x.nbytes else actcore.Raw())


@every_codec
def test_nothing_but_raw_shares_memory_with_the_tensor(codec):
    for numel in (3, 1000):
        x = normal(numel)
        before = actcore.decompress(actcore.compress(x, codec)).clone()
        c = actcore.compress(x, codec)
        x.add_(100)
        same = same_bits(actcore.decompress(c), before)
        assert same == (codec != actcore.Raw())


@every_codec
def test_the_tensor_is_left_as_it_is(codec):
    x = normal(1000).requires_grad_()
    before, version = x.detach().clone(), x._version
    y = actcore.decompress(actcore.compress(x, codec))
    assert same_bits(x, before)
    assert x._version == version
    assert x.requires_grad
    assert not y.requires_grad


def test_decompressing_twice_gives_two_tensors():
    c = actcore.compress(normal(1000), actcore.GroupAffine(4))
    first, second = c.decompress(), c.decompress()
    assert same_bits(first, second)
    assert first.data_ptr() != second.data_ptr()


def saved_and_loaded(c):
    file = io.BytesIO()
    torch.save(c, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@every_codec
@pytest.mark.parametrize(
    "again",
    [saved_and_loaded, lambda c: pickle.loads(pickle.dumps(c)), copy.copy, copy.deepcopy],
    ids=["torch.save", "pickle", "copy", "deepcopy"],
)
def test_a_copy_decompresses_to_the_same(codec, again):
    for x in (normal(1000).view(25, 40).t(), normal(1000)[::3], normal(3), torch.empty(0, 4)):
        c = actcore.compress(x, codec, seed=5)
        d = again(c)
        assert (d.codec, d.layout, d.dtype, d.nbytes) == (c.codec, c.layout, c.dtype, c.nbytes)
        assert same_bits(d.decompress(), c.decompress())
        assert d.decompress().stride() == x.stride()


def test_a_bit_mask_is_saved_with_its_values():
    x = torch.where(normal(100) > 0, 2.0, 0.0)
    loaded = saved_and_loaded(actcore.compress(x, actcore.BitMask((0, 2))))
    assert same_bits(loaded.decompress(), x)


def test_integers_and_rows_are_saved_with_their_codecs():
    x = torch.arange(100).view(4, 25)
    loaded = saved_and_loaded(actcore.compress(x, actcore.Narrow(0, 99)))
    assert (loaded.codec, loaded.nbytes) == (actcore.Narrow(0, 99), 88)
    assert same_bits(loaded.decompress(), x)
    c = actcore.compress(normal(400).view(4, 100).t().contiguous().t(), actcore.GroupAffineRows((1, 2, 3, 8), 32))
    loaded = saved_and_loaded(c)
    assert loaded.codec == c.codec
    assert same_bits(loaded.decompress(), c.decompress())


def test_a_deep_copy_has_memory_of_its_own():
    c = actcore.compress(normal(1000), actcore.GroupAffine(4))
    d = copy.deepcopy(c)
    before = c.decompress()
    for part in d.payload:
        part.zero_()
    assert same_bits(c.decompress(), before)


def test_moving():
    """To a device without memory here; test_cuda moves to one that computes."""
    c = actcore.compress(normal(1000).view(25, 40), actcore.GroupAffine(4))
    moved = c.to("meta")
    assert (moved.device.type, moved.nbytes, moved.codec) == ("meta", c.nbytes, c.codec)
    y = actcore.decompress(moved)
    assert (y.device.type, y.shape, y.dtype) == ("meta", (25, 40), torch.float32)
    stayed = c.to("cpu")
    assert same_bits(stayed.decompress(), c.decompress())
    with pytest.raises(
        TypeError, match=r"device must be a device such as .* got torch.float16; for another dtype compress"
    ):
        c.to(torch.float16)


def test_repr_names_codec_shape_dtype_and_size():
    c = actcore.compress(normal(1024).view(4, 256), actcore.GroupAffine(4))
    assert repr(c) == (
        "Compressed(GroupAffine(bits=4, group_size=256, rounding='stochastic'), shape=(4, 256), "
        "dtype=torch.float32, nbytes=544)"
    )


def test_codecs_are_values():
    """Equal when their fields are, hashable, frozen."""
    assert actcore.GroupAffine(4) == actcore.GroupAffine(bits=4, group_size=256, rounding="stochastic")
    assert actcore.GroupAffine(4) != actcore.GroupAffine(3)
    assert len({actcore.GroupAffine(4), actcore.GroupAffine(4), actcore.Raw(), actcore.Raw(), actcore.BitMask()}) == 3
    with pytest.raises(AttributeError, match="cannot assign to field 'bits'"):
        actcore.GroupAffine(4).bits = 8


def test_small_and_special_tensors_kept_as_they_are_are_exact():
    for name, x in hard_ranges(torch.float32, 2).items():
        c = actcore.compress(x, actcore.GroupAffine(8))
        assert c.codec == actcore.Raw()
        assert same_bits(c.decompress(), x), name


@dataclass(frozen=True)
class Halved:
    """A codec of one's own: two methods, no base class, no registration."""

    scale: float = 1.0

    def compress(self, tensor, *, seed=0, stream=0):
        return actcore.Compressed.of(self, tensor, [(tensor.detach() / self.scale).half()])

    def decompress(self, compressed):
        return compressed.payload[0].to(compressed.dtype) * self.scale


def test_a_codec_of_ones_own():
    x = torch.arange(100.0).view(10, 10)
    c = actcore.compress(x, Halved(2.0))
    assert isinstance(c.codec, actcore.Codec)
    assert c.nbytes == x.nbytes // 2
    assert (c.shape, c.dtype, c.codec) == (x.shape, x.dtype, Halved(2.0))
    assert same_bits(actcore.decompress(c), x)
    assert same_bits(copy.deepcopy(c).decompress(), x)


def test_a_codec_that_returns_something_else():
    class Careless(Halved):
        def compress(self, tensor, *, seed=0, stream=0):
            return (tensor,)

    with pytest.raises(TypeError, match=r"must return an actcore.Compressed from compress, got tuple; make it with"):
        actcore.compress(torch.ones(4), Careless(2.0))


@pytest.mark.filterwarnings("ignore:Sparse CS[RC] tensor support:UserWarning")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc], ids=name_of)
def test_raw_keeps_a_sparse_tensor_and_counts_its_components(layout):
    dense = torch.diag(normal(5))
    c = actcore.compress(dense.to_sparse(layout=layout), actcore.Raw())
    # float32 values; int64 indices: a row and a column each, or one each and 6 pointers.
    assert c.nbytes == 5 * 4 + (10 if layout is torch.sparse_coo else 5 + 6) * 8
    assert c.shape == dense.shape
    assert same_bits(actcore.decompress(c).to_dense(), dense)
    assert "Raw()" in repr(c)


def test_raw_keeps_a_jagged_tensor():
    x = torch.nested.nested_tensor([normal(3), normal(4)], layout=torch.jagged)
    c = actcore.compress(x, actcore.Raw())
    assert c.nbytes == 7 * 4
    assert same_bits(actcore.decompress(c).values(), x.values())
