"""Defects of ActNN's allocation of bits, each by its number in our list of them."""

import inspect
import itertools

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import actcore
from integrations import qmodules
from integrations.qmodules.device_rows import DeviceRows
from integrations.qmodules.levels import LEVELS, resolve_level
from integrations.qmodules.per_sample import sample_bits
from integrations.qmodules.precision import LayerPrecision

PROFILE = torch.tensor([1 / (2**bits - 1) ** 2 for bits in range(1, 9)], dtype=torch.float64)


def get_bits(model):
    return {
        name: layer.precision.bits
        for name, layer in model.named_modules()
        if isinstance(layer, qmodules.QLayer) and layer.precision.kind != "other"
    }


def test_a11_the_first_iteration_gives_equal_bits():
    """ActNN's sensitivities were all zero in it, and ties gave the first samples 8 bits and the others 1."""
    assert sample_bits(torch.zeros(14), PROFILE, 28).tolist() == [2] * 14
    torch.manual_seed(0)
    rows = torch.randn(1, 512).expand(14, 512).contiguous()  # equal ranges
    codec = LayerPrecision(LEVELS["L3"], "linear").codec(rows)
    assert codec.bits.tolist() == [2] * 14
    model = qmodules.QModule(nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)), "L3")
    model(torch.randn(6, 2, 16, 16))
    assert set(get_bits(model).values()) == {2.0}


class Heads(nn.Module):
    """A backbone on 4 images, and a head on 24 proposals of them; another that only some steps use."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Conv2d(8, 4, 3)
        self.seldom = nn.Conv2d(8, 4, 3)

    def forward(self, x, seldom=False):
        y = self.norm(self.backbone(x)).relu()
        proposals = torch.cat([y[:, :, i : i + 8, i : i + 8] for i in range(6)])
        loss = self.head(proposals).square().mean()
        return loss + self.seldom(y).square().mean() if seldom else loss


def test_a13_layers_of_other_batch_sizes():
    """ActNN took the first layer's batch for everybody's and read beyond its arrays."""
    torch.manual_seed(0)
    model = qmodules.QModule(Heads(), "L3")
    for samples in (4, 2, 5, 1, 3):
        model(torch.randn(samples, 3, 16, 16)).backward()
        found = get_bits(model)
        assert all(1 <= value <= 8 for value in found.values())
    # The step with one sample has 6 proposals, and its allocation counts their elements: 8 x 8 x 8, six times.
    assert len(set(found.values())) > 1


def test_a13_a_layer_that_never_runs_blocks_nobody():
    """ActNN allocated only once every layer had been seen."""
    torch.manual_seed(0)
    model = qmodules.QModule(Heads(), "L3")
    model(torch.randn(4, 3, 16, 16)).backward()
    first = get_bits(model)
    assert len(set(first.values())) > 1
    assert first["seldom"] == 2.0
    model(torch.randn(4, 3, 16, 16), seldom=True).backward()
    with_it = get_bits(model)
    model(torch.randn(4, 3, 16, 16)).backward()
    assert get_bits(model)["seldom"] == with_it["seldom"]


def test_a14_one_bit_and_budgets_below_it():
    """ActNN divided by ``2**0 - 1`` at 1 bit, and took from an empty heap where the target was below 1 bit a sample."""
    for total in (0, 1, 5):
        assert sample_bits(torch.rand(5), PROFILE, total).tolist() == [1] * 5
    precision = LayerPrecision(resolve_level("L3", {"bits": (1,)}), "linear")
    assert precision.codec(torch.randn(4, 2, 16, 16)).bits.tolist() == [1] * 4
    model = qmodules.QModule(nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)), "L3", bits=(1,))
    for _ in range(3):
        model(torch.randn(4, 2, 16, 16)).mean().backward()
    assert set(get_bits(model).values()) == {1.0}


def test_a14_bits_are_never_16():
    """ActNN's squares overflowed there."""
    with pytest.raises(ValueError, match="bits\\[0\\] must be from 1 to 8, got 16"):
        resolve_level("L3", {"bits": (16,)})
    with pytest.raises(ValueError, match="initial_bits must be from 1 to 8, got 16"):
        resolve_level("L3", {"initial_bits": 16})


def test_a14_the_budget_is_met():
    """Rounding down one bit at a time until the sum fits must not fall below it either."""
    torch.manual_seed(0)
    for rows, average in itertools.product((2, 7, 33), (1.1, 2, 3.6, 7.9)):
        total = int(rows * average)
        assert sample_bits(torch.rand(rows) ** 8, PROFILE, total).sum() == max(total, rows)


class NoSynchronisation(TorchDispatchMode):
    """Fails where a value of a tensor would be waited for on the host."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func not in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.nonzero.default,
            torch.ops.aten.is_nonzero.default,
            torch.ops.aten.bincount.default,
            torch.ops.aten.masked_select.default,
            torch.ops.aten.repeat_interleave.Tensor,
        ), f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


class NoTolist(TorchFunctionMode):
    """The same for conversions that no operator shows."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        assert name not in ("tolist", "numpy", "cpu", "item", "__bool__", "__float__", "__int__", "__len__"), name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["linear", "norm"])
def test_a15_a_forward_and_a_backward_wait_for_nothing(kind):
    """ActNN copied to the host four times in each layer's forward, and solved there."""
    precision = LayerPrecision(resolve_level("L3", {"per_layer": False, "use_gradient": True}), kind)
    qmodules.QScheme.num_samples, qmodules.QScheme.batch = 9, torch.arange(4)
    try:
        x = torch.randn(4, 2, 16, 16)
        precision.codec(x)  # the indices are checked once a batch, on the host, where they come from
        with NoSynchronisation(), NoTolist():
            codec = precision.codec(x)
            stored = codec.compress(x, seed=0, stream=precision.stream())
            precision.observe(precision.token(), torch.randn(4, 4, 14, 14))
            codec.decompress(stored)
    finally:
        qmodules.QScheme.num_samples = qmodules.QScheme.batch = None


def test_a15_the_end_of_a_backward_waits_for_nothing():
    """Costs leave for the host in one copy; what is done with them there is done when they have arrived."""
    from integrations.qmodules import scheme

    model = qmodules.QModule(nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3)), "L3")
    shared = model[0].precision.model
    kept = []
    finish, send = scheme.ModelPrecision._finish, scheme._to_host

    def checked(self, backward):
        with NoSynchronisation(), NoTolist():
            finish(self, backward)

    class Event:
        def query(self):
            return False

    def sending(costs, inputs):
        kept.append(costs)
        return costs, inputs, Event()

    scheme.ModelPrecision._finish, scheme._to_host = checked, sending
    try:
        model(torch.randn(4, 2, 16, 16)).mean().backward()
    finally:
        scheme.ModelPrecision._finish, scheme._to_host = finish, send
    assert len(kept) == 1
    assert kept[0].numel() < 100
    assert shared._pending is not None
    assert "synchronize" not in inspect.getsource(scheme)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a15_on_cuda_no_step_synchronises():
    torch.manual_seed(0)
    layers = (nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(1152, 3))
    model = qmodules.QModule(nn.Sequential(*layers).cuda(), "L3")
    x = torch.randn(8, 2, 16, 16, device="cuda")
    model(x).square().mean().backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            model(x).square().mean().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(set(get_bits(model).values())) > 1
    assert isinstance(model[0].precision.codec(x), DeviceRows)
    assert not actcore.missing_on(x.device)
