"""Plans of models that compute with DTensors, on one rank: what they recompute, and what they keep."""

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout, gelu

import integrations
from integrations.capture.dispatch.dtensors import is_opened
from integrations.capture.dispatch.operators import get_traits
from integrations.checkpoint import apply, capture, plan
from integrations.checkpoint.applied import plan_of
from integrations.planner.savers import Seen

from .nets import profiled_bytes

if not torch.distributed.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module


class Net(nn.Module):
    """Layers, with a function between them, that are given and return DTensors."""

    def __init__(self, mesh, between, whole=True):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)
        distribute_module(self, mesh)
        self.mesh, self.between, self.whole = mesh, between, whole

    def forward(self, x):
        x = DTensor.from_local(x, self.mesh, [Shard(0)])
        x = self.two(self.between(self.one(x).sin()))
        return x if self.whole else x.to_local()


def in_place(x):
    x = x + 1
    y = x * 2
    x.add_(y)
    return x.sin() + y.exp()


def saved_in_place(x):
    y = x.exp()
    y.mul_(2)  # exp has saved it
    return y


def gathered(x):
    return gelu(x.redistribute(placements=[Replicate()]))


def attention(x):
    return (x @ x.cos().t()).softmax(1) @ x.sin()


class Scattered(torch.autograd.Function):
    """A collective that writes into a tensor. Gloo completes it with operators of its own."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        torch.distributed.reduce_scatter_tensor(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, gradient):
        out = torch.empty_like(gradient)
        torch.distributed.all_gather_into_tensor(out, gradient.contiguous())
        return out


def scattered(x):
    part = Scattered.apply(x.exp().to_local())
    return DTensor.from_local(part.sin().tanh(), x.device_mesh, x.placements)


BETWEEN = {
    "pointwise": lambda x: gelu(x.exp()).tanh(),
    "drawn": lambda x: dropout(x.exp(), 0.5).tanh(),
    "in place": in_place,
    "gathered": gathered,
    "scattered": scattered,
    "attention": attention,
    "largest": lambda x: x.exp().amax(1, keepdim=True) + x,
    "several": lambda x: sum(part.exp() for part in x.chunk(2, 1)).repeat(1, 2),
}


def keeping_nothing(made):
    """The plan that keeps only what it has to."""
    return dataclasses.replace(made, choice=dataclasses.replace(made.choice, mask=0))


def with_plan(model, x, **how):
    return apply(model, keeping_nothing(plan(model, x, **how)))


def inputs(rows=16):
    return torch.randn(rows, 16, generator=torch.Generator().manual_seed(1))


def trained(model, after=lambda output: output, rows=16):
    """The gradients of two steps."""
    torch.manual_seed(2)
    found = []
    for _ in range(2):
        after(model(inputs(rows))).square().mean().backward()
        found += [one.grad.full_tensor().clone() for one in model.parameters()]
        model.zero_grad()
    return found


def recomputed(model):
    """The operators that a model's plan recomputes."""
    made = plan_of(model)
    return {made.graph.ops[made.graph.values[value].producer].name for value in made.schedule.recomputed}


@pytest.mark.filterwarnings("error:.*not the one that was captured")
@pytest.mark.parametrize("whole", [True, False], ids=["a DTensor", "a part"])
@pytest.mark.parametrize("between", BETWEEN)
def test_gradients_are_those_of_a_plain_step(mesh, between, whole):
    """Bit for bit. The model returns a DTensor, or the part that this rank has."""
    plain = Net(mesh, BETWEEN[between], whole).train()
    ours = with_plan(copy.deepcopy(plain), inputs())
    assert "aten.sin.default" in recomputed(ours)
    assert all(map(torch.equal, trained(ours), trained(plain)))


@pytest.mark.filterwarnings("error:.*not the one that was captured")
@pytest.mark.parametrize("between", BETWEEN)
def test_captured_on_real_tensors(mesh, between):
    plain = Net(mesh, BETWEEN[between]).train()
    ours = with_plan(copy.deepcopy(plain), inputs(), real=True)
    fake = with_plan(copy.deepcopy(plain), inputs())
    assert recomputed(ours) == recomputed(fake)
    assert all(map(torch.equal, trained(ours), trained(plain)))


class Residual(nn.Module):
    """Blocks whose gradients autograd sums up."""

    def __init__(self, mesh):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))
        distribute_module(self, mesh)
        self.mesh = mesh

    def forward(self, x):
        x = DTensor.from_local(x, self.mesh, [Shard(0)])
        for layer in self.layers:
            x = x + gelu(layer(x.sin()))
        return x.to_local().square().mean()


@pytest.mark.parametrize("memory", [1.0, 0.5])
def test_peaks_are_the_planned_ones(mesh, memory):
    model = integrations.compress_model(Residual(mesh).train(), memory=memory, error=0)
    x = torch.randn(2048, 64)
    model(x).backward()
    model.zero_grad()
    peak, _ = profiled_bytes(lambda: model(x).backward())
    gradients = sum(one.nbytes for one in model.parameters())
    planned = plan_of(model).peak
    assert planned <= peak - gradients < planned + 1024  # and numbers


@pytest.mark.parametrize("whole", [True, False], ids=["a DTensor", "a part"])
def test_sums_of_gradients(mesh, whole):
    """Autograd adds to a plain tensor in place, and to a DTensor in new memory."""

    class Sum(Net):
        def forward(self, x):
            x = self.one(DTensor.from_local(x, self.mesh, [Shard(0)]))
            x = x if whole else x.to_local()
            return (x * 2 + x * 3).sum()

    graph = capture(Sum(mesh, None).train(), torch.ones(256, 16))
    assert max(graph.other) // (256 * 16 * 4) == (3 if whole else 2)


@pytest.mark.filterwarnings("error:.*not the one that was captured")
@pytest.mark.parametrize("between", ["pointwise", "in place", "several"])
def test_autocast(mesh, between):
    """The casts of parameters are recomputed, too."""
    plain = Net(mesh, BETWEEN[between]).train()
    with torch.autocast("cpu", torch.bfloat16):
        ours = with_plan(copy.deepcopy(plain), inputs())
        assert "aten._to_copy.default" in recomputed(ours)
        assert all(map(torch.equal, trained(ours), trained(plain)))


def test_what_is_known_of_parts_of_dtensors(mesh):
    """Casts of parameters are not rounded, and what decides is not recomputed from rounded values."""
    model, seen = Net(mesh, lambda x: x.sin().amax(1, keepdim=True) + x).train(), Seen(recomputes=False)
    with torch.autocast("cpu", torch.bfloat16):
        graph = capture(model, inputs(), hooks=seen.hooks)
    casts = {value for op in graph.ops if op.name == "aten._to_copy.default" and not op.reads for value in op.makes}
    assert len(casts) == 5  # two weights, two biases and the input
    assert len(casts & seen.casts) == 4
    assert {saver.saved.shape for saver in seen.savers} >= {(16, 16), (16, 1)}
    [largest] = [op for op in graph.ops if op.name == "aten.amax.default"]
    assert largest.decides


def test_no_collective_and_nothing_drawn_is_repeated(mesh):
    for between in BETWEEN:
        names = recomputed(with_plan(Net(mesh, BETWEEN[between]).train(), inputs()))
        assert not any("c10d" in name or "dropout" in name for name in names)


def test_random_operators_are_not_opened():
    """On a GPU, torch sets the generator before it calls them on the parts."""
    aten = torch.ops.aten
    assert not is_opened(get_traits(aten.native_dropout.default), (DTensor,))
    assert is_opened(get_traits(aten.sin.default), (DTensor,))
    assert not is_opened(get_traits(aten.sin.default), (nn.Parameter,))


@pytest.mark.filterwarnings("error:.*not the one that was captured")
def test_smaller_inputs(mesh):
    """While the model follows its plan, torch looks for the placements of results that it has not met yet."""
    plain = Net(mesh, BETWEEN["pointwise"]).train()
    ours = with_plan(copy.deepcopy(plain), torch.randn(24, 16))
    made = plan_of(ours)
    assert all(map(torch.equal, trained(ours, rows=9), trained(plain, rows=9)))
    assert plan_of(ours) is made


def test_all_is_captured_without_elements(mesh):
    for between in BETWEEN:
        assert capture(Net(mesh, BETWEEN[between]).train(), inputs()).note == ""


def test_a_saved_dtensor_that_was_changed_in_place_raises(mesh):
    model = with_plan(Net(mesh, saved_in_place).train(), inputs())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        trained(model)


def test_an_output_may_be_changed_in_place(mesh):
    """What reads it is not recomputed from the changed one."""

    def change(output):
        with torch.no_grad():
            output[0].mul_(2)
        return output[0] + output[1]

    class Pair(Net):
        def forward(self, x):
            first = self.one(DTensor.from_local(x, self.mesh, [Shard(0)])) + 1
            first.add_(1)  # so that it is kept
            return first, self.two((first + 2).sin()).sin()

    plain = Pair(mesh, None).train()
    ours = with_plan(copy.deepcopy(plain), inputs())
    assert all(map(torch.equal, trained(ours, change), trained(plain, change)))
