"""``recompute=True`` for models that compute with DTensors, on one rank: what is recomputed of this rank's parts."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations
from integrations.runtime.formulas.operators import stays_on_rank
from integrations.tracing.call import Call
from integrations.tracing.tensors import is_collective_result

from .formula_nets import FEATURES, ROWS, Between, close, expected, inputs, reads
from .formula_nets import step as formula_step
from .two_ranks import run_two_ranks

if not torch.distributed.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

from torch.distributed._functional_collectives import all_reduce, wait_tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication


class Sharded(Between):
    """The net of ``formula_nets``, whose parameters and activations are DTensors."""

    def __init__(self, mesh, function):
        super().__init__(function)
        self.norm = nn.Parameter(torch.linspace(0.5, 1.5, FEATURES))
        distribute_module(self, mesh)
        self.mesh = mesh

    def forward(self, x):
        h = self.before(DTensor.from_local(x, self.mesh, [Shard(0)]))
        told = h * self.scale
        return told.to_local(), self.after(self.function(self, h)).to_local()


def step(net, between=lambda net: None, **options):
    """What ``formula_nets.step`` finds, of one step. ``between`` is called after the forward."""
    model = integrations.compress_model(net, "L1", **{"recompute": True, **options})
    told, output = model(2 * torch.randn(ROWS, FEATURES, generator=torch.Generator().manual_seed(1)))
    [row] = [one for one in integrations.compression(model).report().rows if reads(one)]
    between(net)
    torch.manual_seed(2)
    gradient = torch.randn_like(output)
    torch.autograd.backward([told, output], [torch.ones_like(told), gradient])
    return net.scale.grad.full_tensor(), net.after.weight.grad.full_tensor(), gradient, row


FUNCTIONS = {
    "relu": lambda net, h: h.relu(),
    "gelu": lambda net, h: F.gelu(h),
    "product": lambda net, h: F.silu(h) * h,
    "layer norm": lambda net, h: F.layer_norm(h, (FEATURES,), net.norm, net.norm),
    "rms norm": lambda net, h: F.rms_norm(h, (FEATURES,), net.norm),
    "concatenated": lambda net, h: torch.cat([h[:, :40].relu(), h[:, 40:]], dim=1),
    "view": lambda net, h: h.relu().view(-1, 2, FEATURES // 2).flatten(1),
    "a part": lambda net, h: DTensor.from_local(h.relu().to_local().tanh(), h.device_mesh, h.placements),
    "to the same dtype": lambda net, h: h.float().relu(),
    "to float64 and back": lambda net, h: h.double().relu().float(),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_backward_gets_the_function_of_what_is_stored(mesh, function):
    net = Sharded(mesh, function)
    h, found, gradient, row = step(net)
    assert row.codec == "recomputed"
    with torch.no_grad():
        y = function(net, DTensor.from_local(h, mesh, [Shard(0)])).to_local()
    assert close(found, expected(gradient, y))


def kept(net, h):
    net.other = h.atan2(h)  # without a rule
    return h.relu()


REFUSED = {
    "in place": lambda net, h: h.relu().mul_(2),
    "a sharded row": lambda net, h: F.layer_norm(h.redistribute(placements=[Shard(1)]), (FEATURES,)),
    "placed in other ways": lambda net, h: h.relu() + h.redistribute(placements=[Shard(1)]).relu(),
    "of what is kept": kept,
}


@pytest.mark.parametrize("function", REFUSED.values(), ids=REFUSED.keys())
def test_what_may_communicate_or_change_without_a_version_is_stored(mesh, function):
    net = Sharded(mesh, function)
    *_, row = step(net)
    assert row.codec != "recomputed"


def assign(y):
    y[:, : FEATURES // 2] = torch.zeros_like(y[:, : FEATURES // 2])


def foreach(y):
    """Changes a DTensor without a change of its version."""
    with torch.no_grad():
        torch.ops.aten._foreach_mul_.Scalar([y], -3.0)


def as_local(y, function):
    return DTensor.from_local(function(y.to_local()), y.device_mesh, y.placements)


@pytest.mark.parametrize("use", [F.silu, lambda y: as_local(y, F.silu), lambda y: as_local(y, torch.clone)])
@pytest.mark.parametrize("change", [assign, foreach])
@pytest.mark.parametrize("recompute", [True, False])
def test_what_was_overwritten_is_not_taken_for_what_it_was(mesh, change, use, recompute):
    """``h[0] = y`` and foreach operators do not return the tensor that they change."""

    def function(net, h):
        y = F.gelu(h)
        net.other = F.silu(y)  # stores it as it was
        change(y)
        return use(y)

    net = Sharded(mesh, function)
    h, found, gradient, row = step(net, recompute=recompute, bits=8)
    assert row.codec != "recomputed"
    with torch.no_grad():
        y = function(net, DTensor.from_local(h, mesh, [Shard(0)])).to_local()
    exact = expected(gradient, y)
    assert (found - exact).norm() < 0.02 * exact.norm()


def test_a_part_that_is_kept_and_changes_with_the_whole(mesh):
    """Nothing is recomputed from it."""

    def function(net, h):
        y = F.gelu(h)
        part = y.to_local()
        net.other = part.atan2(part)  # without a rule
        z = F.silu(part)
        y.detach().mul_(-3.0)
        return DTensor.from_local(z, y.device_mesh, y.placements)

    h, found, gradient, _ = step(Sharded(mesh, function), bits=8)
    exact = expected(gradient, F.silu(F.gelu(h)))
    assert (found - exact).norm() < 0.02 * exact.norm()


@pytest.mark.parametrize("recompute", [True, False])
def test_a_gradient_of_a_gradient_warns(mesh, recompute):
    model = integrations.compress_model(Sharded(mesh, lambda net, h: F.silu(h)), "L1", recompute=recompute)
    x = torch.randn(ROWS, FEATURES).requires_grad_()
    _, output = model(x)
    with pytest.warns(UserWarning, match="create_graph=True"):
        torch.autograd.grad(output.sum(), x, create_graph=True)


def test_plain_tensors_beside_dtensors(mesh):
    """Backward may run outside of the block in which torch takes them."""
    plain = torch.linspace(0.5, 1.5, FEATURES)
    one = torch.tensor(0.5)
    for other, codec in ((plain, "GroupAffine"), (one, "recomputed")):
        model = integrations.compress_model(Sharded(mesh, lambda net, h, other=other: h + other), "L1", recompute=True)
        with implicit_replication():
            told, output = model(torch.randn(ROWS, FEATURES))
        rows = [row for row in integrations.compression(model).report().rows if reads(row)]
        assert [row.codec.partition("(")[0] for row in rows] == [codec]
        (told.sum() + output.sum()).backward()


@pytest.mark.parametrize(("placement", "codec"), [(Shard(0), "recomputed"), (Partial(), "GroupAffine")])
def test_a_saved_result_of_parts_that_are_added_up_is_stored(mesh, placement, codec):
    def forward(net, h):
        return DTensor.from_local(h.to_local(), mesh, [placement]).sigmoid()

    model = integrations.compress_model(Sharded(mesh, forward), "L1", recompute=True)
    model(torch.randn(ROWS, FEATURES))
    rows = [one for one in integrations.compression(model).report().rows if one.operator == "sigmoid"]
    assert [one.codec.partition("(")[0] for one in rows] == [codec]


def test_a_weight_that_changes_before_backward(mesh):
    """Foreach operators of an optimizer change a DTensor without a change of its version."""

    def change(net):
        with torch.no_grad():
            torch._foreach_mul_([net.norm], 2.0)

    net = Sharded(mesh, FUNCTIONS["rms norm"])
    before = net.norm.full_tensor().detach().clone()
    h, found, gradient, row = step(net, change)
    assert row.codec == "recomputed"
    assert close(found, expected(gradient, F.rms_norm(h, (FEATURES,), before)))


def test_a_cast_of_autocast(mesh):
    """The layer's input is a copy of a DTensor in bfloat16."""
    model = integrations.compress_model(Sharded(mesh, lambda net, h: h.float().relu()), "L1", recompute=True)
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(ROWS, FEATURES))
    rows = [one for one in integrations.compression(model).report().rows if reads(one) and not one.owner]
    assert [one.codec for one in rows] == ["recomputed"]


def test_which_calls_need_no_communication(mesh):
    def place(*placements):
        return [DTensor.from_local(torch.ones(4, 4), mesh, [one]) for one in placements]

    x, y, same, whole, other, partial = place(Shard(0), Shard(0), Shard(0), Replicate(), Shard(1), Partial())
    assert stays_on_rank(Call(torch.add, (x, y), {}), same)
    assert stays_on_rank(Call(torch.add, (x, whole), {}), same)
    assert stays_on_rank(Call(torch.add, (torch.ones(4), torch.ones(4)), {}), torch.ones(4))
    for given, result in (((x, other), same), ((partial,), whole), ((x,), whole), ((x,), torch.ones(4)), ((x,), x)):
        assert not stays_on_rank(Call(torch.add, given, {}), result)
    broadcast, row = (distribute_tensor(torch.ones(shape), mesh, [Shard(0)]) for shape in ((4,), (1, 4)))
    for given in broadcast, row, torch.ones(4):
        assert not stays_on_rank(Call(torch.add, (x, given), {}), same)
    assert stays_on_rank(Call(torch.add, (x, torch.tensor(1.0)), {}), same)
    assert stays_on_rank(Call(torch.cat, ([x, y], 1), {}), torch.cat([x, y], 1))
    assert not stays_on_rank(Call(torch.cat, ([x, whole], 1), {}), torch.cat([x, y], 1))
    assert not stays_on_rank(Call(torch.cat, ([x, y], 0), {}), distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)]))
    assert not stays_on_rank(Call(torch.stack, ([x, y], 0), {}), torch.stack([x, y]))
    rows = Call(F.rms_norm, (x, (4,)), {}), Call(F.rms_norm, (other, (4,)), {})
    assert [stays_on_rank(call, call.arguments[0].clone()) for call in rows] == [True, False]


class Reduced(torch.autograd.Function):
    """An all-reduce, for whose result torch waits when an operator reads it."""

    @staticmethod
    def forward(ctx, x):
        return all_reduce(x, "sum", torch.distributed.group.WORLD)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Summed(Between):
    """The net of ``formula_nets`` with a collective's result in the place of ``h``."""

    def __init__(self, function, change=lambda h: None):
        super().__init__(function)
        self.change = change

    def forward(self, x):
        h = Reduced.apply(self.before(x))
        assert is_collective_result(type(h))
        self.change(h)
        return self.scale * h, self.after(self.function(h))


@pytest.mark.usefixtures("mesh")
@pytest.mark.parametrize("bits", [8, 5])
def test_a_result_of_a_collective_is_stored(bits):
    """It was kept exactly, as a tensor without a storage."""
    net = Summed(lambda h: F.relu(h.float()))  # the same tensor
    x = inputs(net)
    h, found, gradient, row = formula_step(net, x, steps=1, product_bits=bits)
    assert row.codec == "recomputed"
    assert close(found, expected(gradient, F.relu(h)))
    exact = net.before(x)
    assert 0 < (h - exact).abs().max() <= (exact.amax() - exact.amin()) / (2**bits - 1)  # the step of any group


@pytest.mark.usefixtures("mesh")
def test_a_result_of_a_collective_that_was_changed_in_place_is_kept():
    net = Summed(F.relu, lambda h: h.add_(1))
    x = inputs(net)
    h, *_, row = formula_step(net, x, steps=1)
    assert torch.equal(h, net.before(x) + 1)
    assert row.codec != "recomputed"


@pytest.mark.usefixtures("mesh")
@pytest.mark.parametrize("use", [F.relu, wait_tensor])
def test_a_result_of_a_collective_that_is_changed_after_it_is_stored(use):
    net = Summed(lambda h: use(h.add_(1)))
    h, found, gradient, row = formula_step(net, inputs(net), steps=1, bits=8)
    assert row.codec != "recomputed"
    exact = expected(gradient, use(h + 1))
    assert (found - exact).norm() < 0.02 * exact.norm()


@pytest.mark.usefixtures("mesh")
def test_an_adaptive_level_keeps_a_result_of_a_collective():
    """It does not measure how rounding it changes the gradient."""
    model = integrations.compress_model(Summed(F.relu), "L2")
    x = inputs(model)
    for _ in range(3):
        trained(model, x)
        rows = integrations.compression(model).report().rows
        assert [row.codec for row in rows if row.why.startswith("a collective's")] == ["kept"]


@pytest.mark.usefixtures("mesh")
def test_the_role_of_a_result_of_a_collective():
    model = integrations.compress_model(Summed(F.relu), "L1", recompute=True)
    model(inputs(model))
    rows = integrations.compression(model).report().rows
    assert [one.role for one in rows if one.operator in ("mul", "rmul") and not one.owner] == ["other"]


@pytest.mark.usefixtures("mesh")
def test_a_plan_keeps_a_result_of_a_collective():
    net = Summed(F.relu)
    x = inputs(net)
    exact = [one.grad for one in trained(copy.deepcopy(net), x)]
    beside = integrations.compress_model(copy.deepcopy(net), "L1", memory="least")
    model = integrations.compress_model(net, memory="least", error=0)
    assert all(map(torch.equal, exact, [one.grad for one in trained(model, x)]))
    trained(beside, x)
    [row] = [one for one in integrations.compression(beside).report().rows if one.why.startswith("a collective's")]
    assert row.codec == "kept"


def trained(model, x):
    """The parameters of a model after a backward."""
    told, output = model(x)
    (told.square().sum() + output.square().sum()).backward()
    return list(model.parameters())


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two ranks found (see ``dtensor_collectives_child.py``)."""
    return run_two_ranks("dtensor_collectives_child.py", tmp_path_factory.mktemp("ranks") / "meet", 180)


@pytest.mark.parametrize("least", ["all", "of the larger part"])
@pytest.mark.parametrize("function", ["gelu", "rms norm", "concatenated", "broadcast", "gathered"])
def test_backward_communicates_as_often_as_without_compression(ranks, function, least):
    """Also where a rank recomputes what the other keeps, since its part is smaller: each waited for the other."""
    for rank, all_found in enumerate(ranks):
        found = all_found[function][least]
        plain, compressed = found["counts"]
        assert plain == compressed
        assert bool(plain) == (function in ("broadcast", "gathered"))
        assert found["error"] < 0.02
        if function in ("gelu", "rms norm"):
            assert (found["codec"] == "recomputed") == (least == "all" or rank == 0)
        if function == "broadcast":
            assert found["codec"] != "recomputed"
