"""A batch norm that is a Q-layer looks at its input once, and backward computes with the stored, normalized form."""

import copy
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import integrations
from integrations import qmodules
from integrations.qmodules.layers import norms
from integrations.qmodules.layers.saving import Saving
from integrations.tracing.tracker import CallTracker

from .nets import EIGHT_BITS, normal
from .qnets import EIGHT, errors, q_layer, step

# Means up to 1e4 times the deviation. Restoring the input loses so many times 2^-53, and the sums of a channel's some
# 2^12 elements lose 2^6 times that in turn: below 1e-10.
FAR = torch.logspace(-2, 2, 32, dtype=torch.float64)
TOLERANCE = 1e-10


def planes(*shape: int) -> torch.Tensor:
    return (normal(*shape, 32, dtype=torch.float64) * FAR + 100 * FAR.flip(0)).movedim(-1, 1).contiguous()


INPUTS = {
    "rows": planes(4096),
    "planes": planes(4, 32, 32),
    "channels last": planes(4, 32, 32).to(memory_format=torch.channels_last),
    "a slice": planes(4, 32, 33),
    "a slice, channels last": planes(4, 32, 33).to(memory_format=torch.channels_last),
    "another order": planes(4, 32, 32).permute(2, 1, 0, 3).contiguous().permute(2, 1, 0, 3),
    "a constant channel": planes(4, 32, 32).index_fill(1, torch.tensor([3]), 7.0),
}


def norm_of(x: torch.Tensor, **options: object) -> nn.Module:
    torch.manual_seed(0)
    kind = nn.BatchNorm1d if x.dim() == 2 else nn.BatchNorm2d
    layer = kind(32, dtype=torch.float64, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


class Sliced(nn.Module):
    """A layer of all but the first column."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x[..., 1:])


@pytest.fixture
def restores(monkeypatch):
    """A function that has backward restore the input."""
    return lambda: monkeypatch.setattr(Saving, "restore_normalized", Saving.restore)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("name", INPUTS)
def test_gradients_are_those_of_the_restored_input(name, affine, restores):
    x, within = INPUTS[name], Sliced if name.startswith("a slice") else nn.Sequential
    layer = norm_of(x, affine=affine)
    output, found = step(within(q_layer(layer)), x)
    restores()
    same, wanted = step(within(q_layer(layer)), x)
    assert torch.equal(output, same)
    assert max(errors(wanted, found)) < TOLERANCE
    plain, exact = step(within(layer), x)
    assert torch.equal(output, plain)
    assert max(errors(exact, found)) < 0.05  # at 8 bits: it is this norm's gradient, and not nearly another's


def test_the_stored_form_of_another_norm_serves(restores):
    """The second norm has another epsilon, which changes what the first has stored by up to the half."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = norm_of(INPUTS["planes"]), norm_of(INPUTS["planes"], eps=1.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = x * 2
            return self.first(h) + self.second(h)

    model = Two()
    quantized = [qmodules.QModule(copy.deepcopy(model), EIGHT) for _ in range(2)]
    _, found = step(quantized[0], INPUTS["planes"])
    restores()
    _, wanted = step(quantized[1], INPUTS["planes"])
    assert max(errors(wanted, found)) < TOLERANCE
    _, exact = step(model, INPUTS["planes"])
    assert max(errors(exact, found)) < 0.05


def test_the_stored_form_may_have_other_statistics():
    """As those of all ranks, where a SyncBatchNorm has stored the input."""

    class Context:
        eps, needs_input_grad = 1e-5, (True, True, True)

    x, gradient, weight = INPUTS["planes"], normal(4, 32, 32, 32, dtype=torch.float64), FAR.sin()
    over = [0, 2, 3]
    mean, factor = x.mean(over), (x.var(over, correction=0) + 1e-5).rsqrt()
    center, deviation = mean + FAR, FAR * 3
    stored = (x - center[:, None, None]) / deviation[:, None, None]
    given = weight, None, None, mean, factor, True, 1e-5, [True] * 3
    wanted = torch.ops.aten.native_batch_norm_backward(gradient, x, *given)
    statistics = torch.stack([center, deviation])
    found = norms._backward_of_normalized(gradient, (stored, statistics), weight, mean, factor, Context())
    assert max(errors(wanted, found)) < TOLERANCE


@pytest.mark.parametrize("shape", [(256, 32), (16, 32, 4, 4)])
def test_channels_of_less_variance_than_epsilon_keep_their_gradient(shape):
    """They are divided by their own deviation, and not by epsilon's root, beside which their elements are nothing."""
    x = normal(*shape).to(memory_format=torch.channels_last if len(shape) == 4 else torch.contiguous_format)
    x[:, ::2] *= 1e-4
    layer = (nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d)(32)
    (_, wanted), (_, found) = step(layer, x), step(q_layer(layer), x)
    assert max(errors([one[:, ::2] for one in wanted[:1]], [one[:, ::2] for one in found[:1]])) < EIGHT_BITS
    assert max(errors([one[::2] for one in wanted[1:]], [one[::2] for one in found[1:]])) < EIGHT_BITS


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_dtypes(dtype):
    """Also where the parameters are as narrow as the input, and the gradients of these are."""
    x = normal(8, 32, 16, 16).to(dtype)
    for layer in (nn.BatchNorm2d(32).to(dtype), nn.BatchNorm2d(32)):
        _, wanted = step(layer, x)
        _, found = step(q_layer(layer), x)
        assert [one.dtype for one in found] == [one.dtype for one in wanted]
        assert max(errors(wanted, found)) < 0.05


def test_second_derivatives_restore_the_input():
    x, factor = normal(8, 32, 8, 8).requires_grad_(), normal(8, 32, 8, 8, seed=1)

    def penalty(layer):
        (first,) = torch.autograd.grad((layer(x) * factor).tanh().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    layer = nn.BatchNorm2d(32)
    nn.init.normal_(layer.weight)
    with pytest.warns(UserWarning, match="create_graph"):
        found = penalty(q_layer(layer))
    assert max(errors([penalty(layer)], [found])) < 0.05


class Large(TorchDispatchMode):
    """Operators that read or make tensors of many elements, but for views."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.numel, self.called = numel, list[str]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        tensors = [*args, *(found if isinstance(found, (tuple, list)) else (found,))]
        large = any(isinstance(one, torch.Tensor) and one.numel() >= self.numel for one in tensors)
        if large and not func.is_view and "detach" not in str(func):
            self.called.append(func._schema.name.partition("::")[2])
        return found


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_how_often_the_input_goes_through_memory(layout):
    """The norm reads it, then it is normalized, and that is stored. Backward reads the restored elements once."""
    level = qmodules.levels.resolve_level("L3", {})
    layer, x = q_layer(nn.BatchNorm2d(32), level), normal(4, 32, 32, 32).to(memory_format=layout).requires_grad_()
    gradient = torch.ones_like(x)
    layer(x).backward(gradient)  # the first forward also measures the distribution
    with Large(x.numel()) as seen:
        output = layer(x)
    passes = {"native_batch_norm": 2, "group_affine_rows_compress": 1}
    assert {name: seen.called.count(name) for name in seen.called if name in passes} == passes
    assert set(seen.called) <= {*passes, "amax", "amin", "new_zeros"}  # ranges, of 64 groups of a sample, and a scalar
    with Large(x.numel()) as seen:
        output.backward(gradient)
    assert seen.called.count("group_affine_rows_decompress") == 1
    assert seen.called.count("native_batch_norm_backward") == 1
    assert set(seen.called) <= {
        "group_affine_rows_decompress",
        "native_batch_norm_backward",
        "linalg_vector_norm",
        "add_",
    }


@pytest.mark.parametrize("offload", [False, True])
def test_normalized_elements_are_freed(offload, monkeypatch):
    made = []

    def note(*args):
        found = made_by(*args)
        made.append(weakref.ref(found[0]))
        return found

    made_by = norms.normalize_channels
    monkeypatch.setattr(norms, "normalize_channels", note)
    level = qmodules.levels.resolve_level("L3", {"offload": offload})
    x = normal(4, 32, 16, 16)
    output = q_layer(nn.BatchNorm2d(32), level)(x)
    gc.collect()
    assert output.requires_grad
    assert [one() for one in made] == [None]


def test_missing_indices_are_told_of_before_the_norm_runs():
    layer = q_layer(nn.BatchNorm2d(32), qmodules.levels.resolve_level("L3", {"use_gradient": True, "num_samples": 10}))
    with pytest.raises(ValueError, match="batch must be set before each forward"):
        layer(normal(4, 32, 16, 16))
    assert layer.num_batches_tracked == 0
    assert torch.equal(layer.running_mean, torch.zeros(32))


def test_a_compressed_forward_does_not_see_how_bits_are_chosen(monkeypatch):
    """Its function mode would look at each of some 60 operators."""
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
    x = normal(4, 3, 20, 20)
    model(x)
    integrations.compress_model(model, layers="ActNN-L3")
    seen, inner = [], CallTracker.__torch_function__

    def note(self, func, types, args=(), kwargs=None):
        seen.append(func)
        return inner(self, func, types, args, kwargs)

    monkeypatch.setattr(CallTracker, "__torch_function__", note)
    F.cross_entropy(model(x), torch.zeros(4, dtype=torch.long)).backward()
    assert seen
    assert not {torch.Tensor.amax, torch.Tensor.topk, torch.topk, torch.Tensor.nan_to_num} & set(seen)
