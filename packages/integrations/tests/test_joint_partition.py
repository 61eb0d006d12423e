"""Plans of joint graphs under inductor: gradients are those of plain inductor, and nothing of a plan stays behind.

With ``ACTCORE_LONG=1`` all nets are compiled, otherwise some.
"""

import copy
import gc
import weakref

import pytest
import torch
import torch._inductor.compile_fx
import torch._inductor.config
from torch import nn
from torch._dynamo.utils import counters

import integrations
from integrations import checkpoint
from integrations.runtime.compiled import partition
from integrations.runtime.compiled.joint_plans import JOINT

from .joint_nets import NETS, assert_as_plain, build, outcome, planned, trace_joint
from .long_form import LONG
from .nets import normal

pytestmark = pytest.mark.usefixtures("fresh_compiler", "nothing_expected", "quick_kernels")
SOME = ["convolutions", "attention"]


@pytest.mark.parametrize("name", NETS if LONG else SOME)
def test_gradients_statistics_and_outputs_are_those_of_plain_inductor(name, divided):
    model, inputs = build(name)
    plain = copy.deepcopy(model)
    steps = 2 if LONG else 1  # the second one adds to gradients, and is compiled anew
    expected = outcome(plain, torch.compile(plain), inputs, steps)
    assert not divided
    torch.compiler.reset()
    found = outcome(model, planned(model), inputs, steps)
    assert_as_plain({n: t.float() for n, t in found.items()}, {n: t.float() for n, t in expected.items()})
    joint = trace_joint(model)
    if joint is None:
        assert checkpoint.plan_of(model).choice.stores  # a plan that packs masks is followed operator by operator
    else:
        assert divided
        assert joint.recomputed > 0


# ---- who divides what ----


@pytest.mark.usefixtures("empty_kernels")
def test_another_backend_follows_the_plan_and_leaves_nothing_for_the_next_graph(divided):
    """Once inductor was imported, other backends kept everything, and inductor's next graph was divided by the plan."""
    model, inputs = build("block")
    kept = []
    for compiles in (False, True):
        twin = integrations.compress_model(copy.deepcopy(model), level=None, memory=0.5, error=0)
        function = torch.compile(twin, backend="aot_eager") if compiles else twin
        function(*inputs).square().mean().backward()
        report = integrations.compression(twin).report()
        kept.append(sum(row.stored_bytes for row in report.rows if not row.owner and row.codec != "recomputed"))
    assert kept[0] == kept[1]
    other = nn.Linear(8, 8)
    torch.compile(other)(normal(3, 8)).sum().backward()
    assert not divided


@pytest.mark.usefixtures("empty_kernels")
def test_a_graph_without_backward(divided):
    """It is never divided, and inductor can make a key of its settings all the same."""
    model, inputs = build("mlp")
    plan = checkpoint.plan(model, inputs)
    checkpoint.apply(model, plan)
    model.requires_grad_(False)
    function = torch.compile(model)
    before = counters["inductor"]["fxgraph_cache_bypass"]
    assert not function(*inputs).requires_grad
    assert counters["inductor"]["fxgraph_cache_bypass"] == before
    assert torch._inductor.config.custom_partitioner_fn is None
    torch.compile(other := nn.Linear(8, 8))(normal(3, 8)).sum().backward()
    assert other.weight.grad is not None
    assert not divided


@pytest.mark.usefixtures("empty_kernels")
def test_the_partitioner_of_a_user_stays(divided):
    asked = []

    class Theirs(torch._inductor.custom_graph_pass.CustomPartitionerFn):
        def __call__(self, gm, joint_inputs, **options):
            asked.append(gm)
            return partition.min_cut_partition()(gm, joint_inputs, **options)

        def uuid(self):
            return None

    theirs = Theirs()
    model, inputs = build("mlp")
    integrations.compress_model(model, memory="least", error=0)
    with torch._inductor.config.patch(custom_partitioner_fn=theirs):
        torch.compile(model)(*inputs).square().mean().backward()
        assert torch._inductor.config.custom_partitioner_fn is theirs
    assert len(asked) == 1
    assert not divided
    assert trace_joint(model) is None


@pytest.mark.usefixtures("empty_kernels")
def test_an_error_while_a_graph_is_divided(monkeypatch):
    model, inputs = build("mlp")
    function = planned(model)

    def fail(*arguments):
        raise RuntimeError("failed here")

    with monkeypatch.context() as patched:
        patched.setattr(partition.JointSearch, "search", fail)
        with pytest.raises(Exception, match="failed here"):
            function(*inputs)
    assert torch._inductor.config.custom_partitioner_fn is None
    torch.compiler.reset()
    function(*inputs).square().mean().backward()
    assert trace_joint(model) is not None


def test_an_error_in_the_forward_while_it_is_traced():
    model, inputs = build("mlp")
    function = planned(model)
    with pytest.raises(Exception, match="shape"):
        function(inputs[0][:, :5])
    assert torch._inductor.config.custom_partitioner_fn is None
    assert getattr(partition._here, "plan", None) is None


def test_inside_of_a_function_that_is_one_graph(divided):
    model, inputs = build("block")
    plain = copy.deepcopy(model)
    integrations.compress_model(model, memory=0.5, error=0)
    model(*inputs).square().mean().backward()
    function, other = (torch.compile(lambda x, one=one: one(x), fullgraph=True) for one in (model, plain))
    assert_as_plain(outcome(model, function, inputs), outcome(plain, other, inputs))
    # The graph is the same for steps that add to gradients, whose budget is the smaller one.
    plan = checkpoint.plan_of(model).accumulating
    assert divided == [plan]
    joint = plan.others[JOINT]
    assert joint.recomputed > 0
    assert joint.peak <= plan.uncompressed_peak // 2


def test_two_plans_in_one_graph_are_refused():
    """One of the budgets was lost: the graph was divided by the plan that was traced last."""
    (one, inputs), (other, _) = build("block"), build("block")
    for model in (one, other):
        checkpoint.apply(model, integrations.plan(model, *inputs, memory=0.6, error=0))
    function = torch.compile(lambda x: one(x) + other(x), fullgraph=True)
    with pytest.raises(Exception, match=r"each have a plan, but torch.compile makes one graph of both"):
        function(*inputs)
    assert torch._inductor.config.custom_partitioner_fn is None


@pytest.mark.usefixtures("empty_kernels")
def test_a_checkpoint_around_the_model_stays():
    """What a user's checkpoint recomputes is not kept, although its input comes from a model with a plan."""
    model, (x,) = build("block")
    checkpoint.apply(model, integrations.plan(model, x, memory=0.99, error=0))

    def around(y):
        return y + torch.sin(torch.cos(torch.sin(y).exp()).exp())

    def step(x):
        return torch.utils.checkpoint.checkpoint(around, model(x), use_reentrant=False)

    saved = []
    count = partition.count_peak

    def counted(forward, backward, outputs, plan, stored):
        names = {node.name for node in backward.graph.find_nodes(op="placeholder")}
        saved.extend(str(node.target) for node in forward.graph.nodes if node.name in names)
        return count(forward, backward, outputs, plan, stored)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(partition, "count_peak", counted)
        torch.compile(step, fullgraph=True)(x).square().mean().backward()
    assert saved
    assert not {"aten.sin.default", "aten.cos.default", "aten.exp.default"} & set(saved)


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_sizes_that_only_the_data_tell_have_no_bytes():
    torch.manual_seed(0)
    layers = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.Tanh())))

    class Selecting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            return self.layers(x[x[:, 0] > -3])

    model, x = Selecting().train(), normal(64, 32)
    checkpoint.apply(model, integrations.plan(model, x, memory=0.8, error=0))
    with pytest.raises(ValueError, match="depends on data, so its bytes cannot be counted"):
        torch.compile(model, fullgraph=True)(x)


@pytest.mark.usefixtures("empty_kernels")
def test_what_was_found_of_a_graph_does_not_keep_its_inputs():
    model, (x,) = build("mlp")
    x = x.clone()
    planned(model)(x).square().mean().backward()
    reference = weakref.ref(x)
    del x
    torch.compiler.reset()
    gc.collect()
    assert reference() is None
