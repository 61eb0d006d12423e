"""A tensor that several operators save is restored once where backward needs it several times in a row."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import integrations
from integrations.tracing.storage import regions as saved_regions

from .nets import normal


class Restored(TorchDispatchMode):
    """Counts what is restored, and how many restored tensors are lent at once."""

    def __init__(self, regions):
        super().__init__()
        self.count, self.lent, self._regions = 0, 0, regions

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.count += function is torch.ops.actcore.group_affine_decompress.default
        lent = [region.lent[2].untyped_storage() for region in self._regions if region.lent is not None]
        self.lent = max(self.lent, len({storage._cdata for storage in lent}))
        return result


@pytest.fixture
def regions(monkeypatch):
    made = weakref.WeakSet()
    begin = saved_regions.Region.__init__
    monkeypatch.setattr(saved_regions.Region, "__init__", lambda self, *given: (begin(self, *given), made.add(self))[0])
    return made


class Projections(nn.Module):
    """What a transformer's layer has: three projections of one tensor, two of another."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.three = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.two = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))

    def forward(self, x):
        h = self.first(x)
        h = self.second(sum(layer(h) for layer in self.three))
        return sum(layer(h) for layer in self.two).sum()


def test_each_tensor_is_restored_once(regions):
    """h twice, and the second layer's input; x is the model's own. It was once for each projection, 6 times."""
    model = integrations.compress_model(Projections(), "L1")
    loss = model(normal(48, 64))
    with Restored(regions) as restored:
        loss.backward()
    assert restored.count == 3
    assert restored.lent == 1
    assert all(region.lent is None for region in regions)


def test_what_waits_in_vain_is_let_go_with_its_graph_or_when_another_is_restored(regions):
    weight = nn.Parameter(normal(64, 64))
    h, other = normal(48, 64) * weight[:48], normal(48, 64) * weight[:48]
    with integrations.compress(nn.Linear(64, 64), level="L1"):
        one, two, three = F.linear(h, weight), F.linear(h, weight), F.linear(other, weight)
    torch.autograd.grad(one.sum(), weight, retain_graph=True)
    [lending] = [region for region in regions if region.lent is not None]
    torch.autograd.grad(three.sum(), weight, retain_graph=True)
    assert lending.lent is None
    torch.autograd.grad(two.sum(), weight, retain_graph=True)
    assert lending.lent is None, "nobody is left who would ask for it"
    del one, two, three, lending
    gc.collect()
    assert not regions


def test_the_gradient_is_that_of_tensors_restored_one_by_one(monkeypatch):
    gradients = []
    for lends in (True, False):
        if not lends:
            monkeypatch.setattr(saved_regions, "used_on", lambda tensor: object())
        model = integrations.compress_model(Projections(), "L1")
        model(normal(48, 64)).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_what_was_changed_in_place_is_not_lent(regions):
    """As a backward of somebody's own may do with what it has unpacked."""
    weight = nn.Parameter(normal(64, 64))
    h = normal(48, 64) * weight[:48]
    with integrations.compress(nn.Linear(64, 64), level="L1"):
        one, two = F.linear(h, weight), F.linear(h, weight)
    [expected] = torch.autograd.grad(one.sum(), weight, retain_graph=True)
    [lending] = [region for region in regions if region.lent is not None]
    lending.lent[2].zero_()
    assert torch.equal(torch.autograd.grad(two.sum(), weight)[0], expected)


def test_parts_of_a_tensor_do_not_take_the_memory_of_all():
    """Each of query, key and value came back in as much memory as the product that they are parts of."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.product = nn.Linear(64, 3 * 64)

        def forward(self, x):
            parts = self.product(x).view(4, 128, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind()
            return F.scaled_dot_product_attention(*parts)

    model = integrations.compress_model(Attention(), "L1")
    output = model(normal(4, 128, 64))
    found = output.grad_fn.saved_tensors[:3]
    assert len({part.untyped_storage()._cdata for part in found}) == 1  # they are stored, and come back, together
    assert found[0].untyped_storage().nbytes() == sum(part.nbytes for part in found)
