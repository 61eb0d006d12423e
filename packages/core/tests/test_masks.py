"""``BitMask`` and ``Positive``: one bit an element, exactly."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import actcore
from actcore import reference

from .samples import DTYPES, NUMELS, name_of, normal, same_bits

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

every_float = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
every_dtype = pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS, *DTYPES], ids=name_of)


def one_of_two(numel, dtype, low, high):
    """A tensor of both values in no order."""
    return torch.where(normal(numel) > 0, torch.tensor(high, dtype=dtype), torch.tensor(low, dtype=dtype))


def value_pairs(dtype):
    """Two values each, the extremes of the dtype among them."""
    if dtype == torch.bool:
        return [(0, 1), (1, 0), (False, True)]
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        # The operator takes its values as float64, so int64's largest that is exact there stands for its largest.
        return [(0, 1), (1, 0), (3, 3), (info.min, min(info.max, 2**53))]
    info = torch.finfo(dtype)
    tiny = info.smallest_normal * info.eps
    return [(0, 1), (1, 0), (0, 2.0), (0.0, -0.0), (-1.5, 0.25), (-info.max, info.max), (0, tiny)]


@every_dtype
def test_two_values_come_back_exactly_in_one_bit_each(dtype):
    for values in value_pairs(dtype):
        for numel in NUMELS:
            x = one_of_two(numel, dtype, *values)
            c = actcore.compress(x, actcore.BitMask(values))
            assert c.nbytes == (numel + 7) // 8
            assert same_bits(actcore.decompress(c), x), (values, numel)


@every_dtype
def test_threads_share_100_003_elements(set_threads, dtype):
    x = one_of_two(100_003, dtype, 0, 1)
    expected = reference.pack_bits(x.to(torch.uint8), 1)
    for threads in (2, 4):
        set_threads(threads)
        c = actcore.compress(x, actcore.BitMask())
        assert same_bits(c.payload[0], expected)
        assert same_bits(c.decompress(), x)
        if dtype in DTYPES:
            assert same_bits(actcore.compress(x, actcore.Positive()).payload[0], expected)


def test_fake_tensors_are_stored_without_a_look_at_their_elements():
    with FakeTensorMode():
        mask = torch.empty(1001)
        stored = actcore.compress(mask, actcore.BitMask((0.0, 2.0)))
        assert (stored.nbytes, stored.decompress().shape) == (126, (1001,))
        assert actcore.compress(torch.empty(1000, dtype=torch.int64), actcore.Narrow(0, 5)).nbytes == 375
    with pytest.raises(ValueError, match="has an element of another value"):
        actcore.compress(torch.ones(1001), actcore.BitMask((0.0, 2.0)))


@every_dtype
def test_a_set_bit_means_the_second_value(dtype):
    x = torch.tensor([1, 0, 0, 0, 0, 0, 1, 0, 1]).to(dtype)
    [mask] = actcore.compress(x, actcore.BitMask()).payload
    assert mask.tolist() == [0b0100_0001, 0b1]
    [mask] = actcore.compress(x, actcore.BitMask((1, 0))).payload
    assert mask.tolist() == [0b1011_1110, 0b0]


class Dispatched(TorchDispatchMode):
    """The names of the operators that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("values", [(0, 1), (1, 0)])
def test_a_bool_is_stored_without_a_look_at_the_flag(values):
    """Each element is one of the two: on a GPU a comparison and an assertion more would be launched."""
    mask = torch.tensor([0, 1, 2, 255] * 100, dtype=torch.uint8).view(torch.bool)
    actcore.compress(mask, actcore.BitMask(values))  # that a bool has both values is looked up once
    with Dispatched() as dispatched:
        c = actcore.compress(mask, actcore.BitMask(values))
    assert dispatched.names.count("actcore.bit_mask_compress.default") == 1
    assert not [name for name in dispatched.names if "_local_scalar_dense" in name or "assert" in name]
    assert torch.equal(c.decompress(), mask)
    with pytest.raises(ValueError, match="has an element of another value"):
        actcore.compress(mask, actcore.BitMask((1, 1)))


@pytest.mark.parametrize("dtype", [*INTEGERS, *DTYPES], ids=name_of)
def test_a_third_value_raises_wherever_it_stands(set_threads, dtype):
    """100,003 elements are shared by threads, one of which finds it."""
    set_threads(4)
    for numel in (1, 8, 127, 128, 129, 100_003):
        for place in {0, numel // 2, numel - 1}:
            x = one_of_two(numel, dtype, 0, 1)
            x[place] = 2
            with pytest.raises(
                ValueError, match=r"BitMask\(values=\(0, 1\)\) stores two values, but the tensor has an element"
            ):
                actcore.compress(x, actcore.BitMask())


@every_float
@pytest.mark.parametrize("strange", [math.nan, math.inf, -0.0])
def test_nan_infinity_and_the_other_zero_are_third_values(dtype, strange):
    x = one_of_two(300, dtype, 0, 1)
    x[100] = strange
    with pytest.raises(ValueError, match="has an element of another value"):
        actcore.compress(x, actcore.BitMask())


@pytest.mark.parametrize(
    ("dtype", "values", "inexact"),
    [
        (torch.float16, (0, 0.1), "0.1"),
        (torch.bfloat16, (0, 257), "257"),
        (torch.float32, (0, 1e-50), "1e-50"),
        (torch.uint8, (0, 256), "256"),
        (torch.uint8, (-1, 0), "-1"),
        (torch.int32, (0, 0.5), "0.5"),
        (torch.int64, (0, 2**53 + 1), "9007199254740993"),
        (torch.bool, (0, 2), "2"),
    ],
    ids=name_of,
)
def test_a_value_that_the_dtype_cannot_hold_raises(dtype, values, inexact):
    with pytest.raises(ValueError, match=rf"must be exact in {dtype}, got {inexact}, which is not"):
        actcore.compress(torch.zeros(9).to(dtype), actcore.BitMask(values))


def special_values(dtype):
    """Both zeros, what is not finite, subnormals of both signs, and ordinary values, at changing places."""
    info = torch.finfo(dtype)
    tiny = info.smallest_normal * info.eps
    special = [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, tiny, -tiny, info.max, -info.max]
    return torch.cat([normal(1000, dtype), torch.tensor(special * 13, dtype=torch.float64).to(dtype)])


@every_float
def test_positive_is_one_where_an_element_is_positive_or_nan(dtype):
    x = special_values(dtype)
    c = actcore.compress(x, actcore.Positive())
    assert same_bits(c.payload[0], reference.pack_bits((~(x <= 0)).to(torch.uint8), 1))
    assert same_bits(actcore.decompress(c), (~(x <= 0)).to(dtype))
    assert c.nbytes == (x.numel() + 7) // 8


@every_float
def test_relus_gradient_from_its_sign_is_torchs_own(dtype):
    """ReLU saves its result; its backward with the stored sign instead gives every bit of its gradient."""
    x = special_values(dtype)
    gradient = normal(x.numel(), dtype, seed=1)
    result = x.relu()
    sign = actcore.decompress(actcore.compress(result, actcore.Positive()))
    backward = torch.ops.aten.threshold_backward
    assert same_bits(backward(gradient, sign, 0), backward(gradient, result, 0))


@every_float
@pytest.mark.parametrize("slope", [0.01, 0.5, -0.3])
def test_leaky_relus_gradient_from_its_sign_is_torchs_own(dtype, slope):
    """Leaky ReLU saves its input. NaN is left out: there the two disagree on which of two gradients to pass."""
    x = special_values(dtype)
    x = x[~x.isnan()]
    gradient = normal(x.numel(), dtype, seed=1)
    sign = actcore.decompress(actcore.compress(x, actcore.Positive()))
    backward = torch.ops.aten.leaky_relu_backward
    assert same_bits(backward(gradient, sign, slope, False), backward(gradient, x, slope, False))
