"""A plan under ``torch.compile``: the partitioner keeps what the plan keeps, and gradients are those of plain code."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_leaves

from integrations import checkpoint as ck
from integrations.planner.plan_recomputation import plan_of_graph
from integrations.runtime.compiled.matching import Operator, match

from .compiled_peak import compiled_peak
from .nets import assert_nothing_active, normal
from .recompute_nets import net
from .recompute_reference import outcome

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def planned(name, mode="model"):
    model, args, kwargs = net(name)
    twin = copy.deepcopy(model)
    plan = plan_of_graph(type(model).__name__, ck.capture(model, args, kwargs))
    if mode == "compiled first":
        return ck.apply(torch.compile(model, backend="aot_eager"), plan), model, twin, args, kwargs
    ck.apply(model, plan)
    if mode == "model":
        return torch.compile(model, backend="aot_eager", fullgraph=True), model, twin, args, kwargs
    around = torch.compile(lambda *args, **kwargs: model(*args, **kwargs), backend="aot_eager", fullgraph=True)
    return around, model, twin, args, kwargs


def assert_as_plain(function, model, twin, args, kwargs, backend="aot_eager", **options):
    ours = outcome(function, model, args, kwargs, **options)
    torch.compiler.reset()
    plain = outcome(torch.compile(twin, backend=backend), twin, args, kwargs, **options)
    assert len(ours) == len(plain)
    for one, other in zip(ours, plain, strict=True):
        assert torch.equal(one, other)
    assert_nothing_active()


@pytest.mark.parametrize(
    ("name", "mode"), [("residual", "function"), ("residual", "compiled first"), ("transformer", "model")]
)
def test_gradients_statistics_and_masks_are_those_of_plain_code(name, mode):
    """Bit for bit: with ``aot_eager`` the same kernels run on the same inputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_as_plain(*planned(name, mode), steps=2)


def test_structures():
    assert_as_plain(*planned("nested"))


# ---- memory ----


@pytest.mark.parametrize("name", ["resnet", "densenet"])
def test_the_peak_is_that_of_the_plan(name):
    """But for the results of activations in place, which are not in place here: of one at a time."""
    model, args, _ = net(name)
    model = nn.Sequential(*(part for part in model if not isinstance(part, nn.Dropout))) if name == "resnet" else model
    plan = ck.plan(model, args)
    plain = compiled_peak(copy.deepcopy(model), args)
    torch.compiler.reset()
    peak = compiled_peak(ck.apply(model, plan), args)
    largest = max(value.nbytes for value in plan.graph.values)
    assert plan.cut > 0.3
    assert peak <= plan.peak + largest < plain


# ---- as training goes ----


def test_eval_and_no_grad():
    function, model, twin, args, _ = planned("residual")
    function(*args).sum().backward()
    twin.load_state_dict(model.state_dict())
    model.eval(), twin.eval()
    assert torch.equal(function(*args), twin(*args))
    model.train()
    with torch.no_grad():
        assert not function(*args).requires_grad


def test_two_forwards_and_a_retained_graph():
    """The second forward changes the running statistics before the first is repeated."""
    function, model, twin, args, _ = planned("residual")
    found = []
    for call, owner in ((function, model), (twin, twin)):
        torch.compiler.reset()
        torch.manual_seed(0)
        compiled = call if call is function else torch.compile(twin, backend="aot_eager")
        loss = compiled(*args).square().sum() + compiled(args[0] * 2).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        found.append([*(parameter.grad for parameter in owner.parameters()), *owner.buffers()])
    assert all(map(torch.equal, *found))


def test_dynamic_shapes_are_compiled_once():
    model, (tokens,), _ = net("transformer")
    model.times = 1  # with sizes that are symbols, each operator takes three times as long to compile
    ck.apply(model, ck.plan(model, (tokens,)))
    function = torch.compile(model, backend="aot_eager", dynamic=True)
    function(tokens).sum().backward()
    with torch.compiler.set_stance("fail_on_recompile"):
        function(tokens[:3]).sum().backward()


def test_other_sizes_are_said():
    model, (x,), _ = net("residual")
    ck.apply(model, ck.plan(model, (x,)))
    with pytest.warns(UserWarning, match="inputs of other shapes"):
        torch.compile(model, backend="aot_eager", dynamic=False)(x[:2]).sum().backward()


def test_a_saved_tensor_that_is_overwritten():
    """Torch's own error, where a repetition would hide it."""

    class Net(nn.Module):
        bad = False

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            y = self.linear(x).exp()
            z = y.sin() * 1
            if self.bad:
                y.add_(1.0)
            return z + y

    model, x = Net(), normal(3, 4)
    ck.apply(model, ck.plan(model, (x,)))
    model.bad = True
    function = torch.compile(model, backend="aot_eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the traceback that torch prints
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            function(x)


def test_a_compiled_part_of_a_planned_model():
    model, args, kwargs = net("resnet")
    model[3] = torch.compile(model[3], backend="aot_eager")
    twin = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the hooks by which a capture knows modules
        ck.apply(model, ck.plan(model, args))
    counters.clear()
    ours = outcome(model, model, args, kwargs)
    assert not counters["graph_break"]  # it runs in Python, as does the tape: dynamo traced frames of that
    assert all(map(torch.equal, ours, outcome(twin, twin, args, kwargs)))


# ---- what is not followed ----


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.other = False

    def forward(self, x):
        y = self.linear(x).tanh()
        if self.other:
            for _ in range(4):
                y = (y.sin() + y.cos()).log_softmax(-1)
        else:
            torch._dynamo.graph_break()
        return self.linear(y).tanh()


@pytest.mark.parametrize("other", [False, True])
def test_a_broken_graph_and_another_forward_are_compiled_as_they_are(other):
    model, x = Broken(), normal(3, 6)
    twin = copy.deepcopy(model)
    ck.apply(model, ck.plan(model, (x,)))
    model.other = twin.other = other
    with pytest.warns(UserWarning, match="is not followed under torch.compile"):
        ours = outcome(torch.compile(model, backend="aot_eager"), model, (x,), {})
    plain = outcome(torch.compile(twin, backend="aot_eager"), twin, (x,), {})
    assert all(map(torch.equal, ours, plain))


@pytest.mark.parametrize("other", [False, True])
def test_a_budget_that_compiled_code_does_not_follow_raises(other):
    model, x = Broken(), normal(3, 6)
    plan = ck.plan(model, (x,))
    ck.apply(model, plan.within(plan.plain_peak))
    model.other = other
    function = torch.compile(model, backend="aot_eager")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"is not followed under torch\.compile.* or pass fallback='least'"):
            function(x)
        assert_nothing_active()


def test_a_budget_and_larger_inputs():
    """Nothing said that they took more than the budget."""
    model, x = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.Tanh()))), normal(6, 8)
    plan = ck.plan(model, (x,))
    ck.apply(model, plan.within(plan.plain_peak))
    function = torch.compile(model, backend="aot_eager", dynamic=True)
    function(x).sum().backward()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"was made for smaller inputs \(.*plan for the largest inputs"):
            function(torch.cat([x, x]))
    with torch.compiler.set_stance("fail_on_recompile"):
        function(x[:3]).sum().backward()


def test_export_has_no_region():
    model, args, _ = net("densenet")
    ck.apply(model, ck.plan(model, args))
    targets = [str(node.target) for node in torch.export.export(model, args).graph.nodes]
    assert not [target for target in targets if "checkpoint" in target]


@pytest.mark.parametrize("name", ["transformer", "densenet"])
def test_inductors_decompositions_can_be_partitioned(name):
    """An operator of several results is kept or repeated as a whole."""
    model, args, _ = net(name)
    plan = ck.plan(model, args)
    for budget in (plan.peak, plan.plain_peak):
        torch.compiler.reset()
        part = ck.apply(copy.deepcopy(model), plan.within(budget))
        outputs = torch.compile(part, backend="aot_eager_decomp_partition")(*args)
        sum(tensor.sum() for tensor in tree_leaves(outputs)).backward()
        assert all(parameter.grad is not None for parameter in part.parameters())


# ---- matching ----


def test_match():
    def ops(*names):
        return [Operator(f"aten.{name}.default", ((2, 3),), (place,)) for place, name in enumerate(names)]

    def found(planned, traced):
        return [values[0] for values in match(planned, traced)]

    assert found(ops("mm", "relu_", "mm"), ops("mm", "relu", "mm")) == [0, 1, 2]
    assert found(ops("mm", "empty", "mul", "mm"), ops("mm", "dropout", "mm")) == [0, 2, 3]
    assert found(ops("mm", "exp"), ops("mm", "add", "exp", "sin")) == [0, None, 1, None]
    assert found([], ops("mm")) == [None]
    symbolic = [Operator("aten.mm.default", ((None, 3),), (None,))]
    assert found(ops("mm"), symbolic) == [0]
    assert found([Operator("aten.mm.default", ((5, 3),), (0,))], ops("exp")) == [None]
    assert found([Operator("aten.mm.default", ((5, 3),), (0,)).of_any_sizes()], ops("mm")) == [0]
