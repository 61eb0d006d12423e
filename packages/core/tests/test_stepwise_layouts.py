"""Tensors that are not contiguous: values as torch computes them where the elements lie."""

import pytest
import torch

import actcore
from actcore.pointwise import FUNCTIONS, PIECEWISE_LINEAR

from .fused_samples import levels_for
from .samples import DTYPES, name_of, normal, same_bits

LAYOUTS = {
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(0, 3),
    "chunk": lambda x: x.chunk(2, -1)[1],
    "inner step": lambda x: x[..., ::2],
    "expanded": lambda x: x[:1, :, :, :1].expand(3, 16, 7, 9),
}
CURVED = [name for name in FUNCTIONS if name not in PIECEWISE_LINEAR]


@pytest.fixture(autouse=True)
def one_thread():
    """More would part a tensor elsewhere, and torch computes the last elements of a part by other instructions."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def stepped(x, function, **options):
    return actcore.stepwise(x, function, *levels_for(3, x.dtype), **options)


def rounded(x, function, **options):
    return actcore.round_to_levels(x, function, levels_for(3, x.dtype)[1].sort().values, seed=1, **options)


def wave(x, frequency=2.0):
    return torch.tanh(frequency * x) * torch.nn.functional.gelu(x)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("call", [stepped, rounded])
@pytest.mark.parametrize("function", [*CURVED, wave])
def test_values_are_torchs_of_the_tensor_as_it_lies(function, call, dtype):
    images = 3 * normal(2 * 16 * 7 * 18, dtype).view(2, 16, 7, 18)
    for layout in LAYOUTS.values():
        x = layout(images).detach()
        expected = FUNCTIONS.get(function, wave)(x)
        assert same_bits(call(x.requires_grad_(), function).detach(), expected)
        with torch.no_grad():
            assert same_bits(call(x, function), expected)


@pytest.mark.parametrize("call", [stepped, rounded])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
class TestFunctionsOfTheUser:
    def test_parameters_arrive(self, layout, call):
        x = layout(normal(2 * 16 * 7 * 18).view(2, 16, 7, 18))
        assert same_bits(call(x, wave, parameters=[3.0]), wave(x, 3.0))

    def test_what_it_returns_is_never_the_input(self, layout, call):
        x = layout(normal(2 * 16 * 7 * 18).view(2, 16, 7, 18))
        before = x.clone()
        with torch.no_grad():
            call(x, lambda x: x[:]).zero_()
        assert torch.equal(x, before)

    def test_it_may_not_change_its_input(self, layout, call):
        x = layout(normal(2 * 16 * 7 * 18).view(2, 16, 7, 18)).detach().requires_grad_()
        with pytest.raises((ValueError, RuntimeError), match=r"must not change x in place|single memory location|leaf"):
            call(x, lambda x: x.mul_(2))

    def test_it_returns_the_shape(self, layout, call):
        with pytest.raises(ValueError, match="function must be applied to each element and return the shape of x"):
            call(layout(normal(2 * 16 * 7 * 18).view(2, 16, 7, 18)), torch.sum)


def test_transforms_take_layouts():
    x, table = normal(6 * 8).view(6, 8), levels_for(3)

    def total(x):
        return actcore.stepwise(x, "gelu", *table).sum()

    for at in (x.t(), x[:, ::2]):
        expected = torch.func.grad(total)(at.contiguous())
        assert torch.equal(torch.func.grad(total)(at), expected)
        assert torch.equal(torch.func.vmap(torch.func.grad(total))(at), expected)
