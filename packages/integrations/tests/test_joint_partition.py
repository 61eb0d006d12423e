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
from torch.utils._pytree import tree_leaves

import integrations
from integrations import checkpoint
from integrations.planner.chunked import chunk_op
from integrations.runtime.compiled import partition
from integrations.runtime.compiled.joint_plans import JOINT
from integrations.runtime.compiled.joint_search import JointSearch

from .decoder import IDS, SUMS, Decoder, shifted, twin
from .joint_nets import NETS, Attention, Block, build
from .long_form import LONG
from .nets import normal, profiled_bytes, relative_error

pytestmark = pytest.mark.usefixtures("fresh_compiler", "nothing_expected")
SOME = ["convolutions", "attention"]


@pytest.fixture
def nothing_expected():
    """Inductor's settings are the user's after every test, and no plan waits for a graph."""
    yield
    assert torch._inductor.config.custom_partitioner_fn is None
    assert torch._inductor.config.allow_buffer_reuse
    assert getattr(partition._here, "plan", None) is None


@pytest.fixture
def divided(monkeypatch):
    """The plans by which graphs are divided."""
    found, count = [], partition.count_peak

    def noted(forward, backward, outputs, plan, stored):
        found.append(plan)
        return count(forward, backward, outputs, plan, stored)

    monkeypatch.setattr(partition, "count_peak", noted)
    return found


def outcome(model, function, inputs, steps=2):
    """Gradients of steps that add to each other, the last step's outputs and all buffers, by name."""
    torch.manual_seed(3)
    model.zero_grad()
    for _ in range(steps):
        outputs = tree_leaves(function(*inputs))
        sum(output.square().mean() for output in outputs).backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    found.update((name, buffer.clone()) for name, buffer in model.named_buffers())
    return found | {f"output {index}": output.detach() for index, output in enumerate(outputs)}


def planned(model, memory="least"):
    integrations.compress_model(model, memory=memory, error=0)
    return torch.compile(model)


def assert_as_plain(ours, plain):
    """Bit for bit: what is recomputed is computed by the same operators from the same elements. Inductor may put a
    recomputed operator into another kernel than the first time, which fuses a product and a sum or not: that is one
    rounding of the elements that it reads, and the gradients' sums of them average it."""
    assert ours.keys() == plain.keys()
    for name, expected in plain.items():
        error = (ours[name] - expected).norm() / expected.norm().clamp_min(1e-30)
        assert error <= torch.finfo(expected.dtype).eps, f"{name}: {error:.2g}"


def trace_joint(model):
    return checkpoint.plan_of(model).others.get(JOINT)


@pytest.mark.parametrize("name", NETS if LONG else SOME)
def test_gradients_statistics_and_outputs_are_those_of_plain_inductor(name, divided):
    model, inputs = build(name)
    plain = copy.deepcopy(model)
    expected = outcome(plain, torch.compile(plain), inputs)
    assert not divided
    torch.compiler.reset()
    found = outcome(model, planned(model), inputs)
    assert_as_plain({n: t.float() for n, t in found.items()}, {n: t.float() for n, t in expected.items()})
    joint = trace_joint(model)
    if joint is None:
        assert checkpoint.plan_of(model).choice.stores  # a plan that packs masks is followed operator by operator
    else:
        assert divided
        assert joint.recomputed > 0


# ---- who divides what ----


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


def test_a_graph_without_backward(divided, caplog):
    """It is never divided, and inductor can make a key of its settings all the same."""
    model, inputs = build("mlp")
    plan = checkpoint.plan(model, inputs)
    checkpoint.apply(model, plan)
    model.requires_grad_(False)
    function = torch.compile(model)
    assert not function(*inputs).requires_grad
    assert "pickle" not in caplog.text
    assert torch._inductor.config.custom_partitioner_fn is None
    torch.compile(other := nn.Linear(8, 8))(normal(3, 8)).sum().backward()
    assert other.weight.grad is not None
    assert not divided


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
    with pytest.raises(Exception, match=r"have a plan each, and torch.compile makes one graph of both"):
        function(*inputs)
    assert torch._inductor.config.custom_partitioner_fn is None


def test_a_checkpoint_around_the_model_stays():
    """Its marks were removed with those of plans before, and what it recomputes was kept."""
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
    with pytest.raises(ValueError, match="follows from data, so that its bytes cannot be counted"):
        torch.compile(model, fullgraph=True)(x)


def test_what_was_found_of_a_graph_does_not_keep_its_inputs():
    model, (x,) = build("mlp")
    x = x.clone()
    planned(model)(x).square().mean().backward()
    reference = weakref.ref(x)
    del x
    torch.compiler.reset()
    gc.collect()
    assert reference() is None


# ---- budgets ----


def test_a_budget_that_does_not_fit_names_one_that_does():
    """The least that eager code takes is not enough: inductor has tanh and its derivative in other places."""
    model, inputs = build("mlp")
    eager = integrations.plan(model, *inputs, memory="least", error=0)
    function = planned(model, eager.peak)
    with pytest.raises(ValueError, match=rf"under torch.compile: .* memory={eager.peak} allows {eager.peak}") as caught:
        function(*inputs)
    least = int(str(caught.value).split("Pass memory=")[1].split(",")[0])
    assert least > eager.peak
    torch.compiler.reset()
    integrations.restore_model(model)
    planned(model, least)(*inputs).square().mean().backward()
    assert trace_joint(model).peak == least


def test_the_least_is_tried_before_a_budget_is_refused(monkeypatch):
    """A message names the least, which was refused where other plans came close to it in each attempt."""
    model, inputs = build("mlp")
    most, found = 50_000, []
    search, count = JointSearch.search, partition.count_peak

    def noted(self, gm, target, runs):
        choice, is_least = search(self, gm, target, runs)
        found.append(is_least)
        return choice._replace(peak=0), is_least

    def counted(*arguments):
        return count(*arguments)._replace(peak=most if found[-1] else most + 1)

    monkeypatch.setattr(JointSearch, "search", noted)
    monkeypatch.setattr(partition, "count_peak", counted)
    planned(model, most)(*inputs).square().mean().backward()
    assert not any(found[:-1])
    assert len(found) > 2
    assert trace_joint(model).peak == most


def test_a_budget_that_does_not_fit_with_a_fallback():
    model, inputs = build("mlp")
    eager = integrations.plan(model, *inputs, memory="least", error=0)
    plan = eager.within(eager.peak)
    integrations.compress_model(model, plan=plan, fallback="least")
    torch.compile(model)(*inputs).square().mean().backward()
    assert trace_joint(model).peak > eager.peak


def test_dynamic_shapes_are_compiled_once(divided):
    model, (x,) = build("block")
    function = planned(model)
    plain = copy.deepcopy(model)
    integrations.restore_model(plain)
    for count in (8, 5):
        x = normal(count, 16, 32)
        torch._dynamo.mark_dynamic(x, 0)
        found = outcome(model, function, (x,), steps=1)
        assert relative_error(outcome(plain, plain, (x,), steps=1), found) < 1e-5
    assert {plan.model for plan in divided} == {"Sequential"}


def rows(count):
    return (normal(count, 32),)


@pytest.fixture
def applied(divided):
    """A model with a plan for 64 rows within bytes, its twin, and what torch compiles of it."""
    model, inputs = build("mlp")
    plain = copy.deepcopy(model)
    eager = checkpoint.plan(model, inputs)
    checkpoint.apply(model, eager.within(int(0.9 * eager.plain_peak)))
    return model, plain, torch.compile(model)


def test_a_budget_holds_for_sizes_that_vary(applied, divided):
    """The second size is compiled for all that are no larger than planned. It was counted for itself alone."""
    model, plain, function = applied
    for count in (64, 20, 50, 64):
        found = outcome(model, function, rows(count), steps=1)
        assert relative_error(outcome(plain, plain, rows(count), steps=1), found) < 1e-5
    assert len(divided) == 2
    joint = trace_joint(model)
    assert joint.recomputed > 0
    with pytest.raises(ValueError, match=r"under torch\.compile: its graph would take"):
        function(*rows(96))
    outcome(model, function, rows(30), steps=1)


def test_a_budget_holds_for_declared_sizes(applied, divided):
    """``mark_dynamic`` says how large a size may be."""
    model, _, function = applied
    for most in (64, 96):
        torch.compiler.reset()
        (x,) = rows(20)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=most)
        if most == 64:
            outcome(model, function, (x,), steps=1)
            joint = trace_joint(model)
            assert joint.recomputed > 0
        else:
            with pytest.raises(ValueError, match=r"under torch\.compile: its graph would take"):
                function(x)


def test_a_fraction_is_of_the_step_of_larger_inputs(divided):
    model, inputs = build("mlp")
    eager = checkpoint.plan(model, inputs)
    checkpoint.apply(model, eager.within(0.9))
    function = torch.compile(model)
    peaks = []
    for count in (64, 128):
        outcome(model, function, rows(count), steps=1)
        peaks.append(trace_joint(model).peak)
    assert peaks[0] < 0.9 * eager.plain_peak < peaks[1]


def test_a_budget_with_a_loss_in_chunks(divided):
    """The loss runs in Python behind a graph break, and counts. The first forward did not find the graphs before it."""
    model = twin(Decoder(shifted).train(), level=None, memory=1.0, error=0)
    function = torch.compile(model)
    for _ in range(2):
        model.zero_grad()
        function(IDS).backward()
    expected = Decoder(shifted).train()
    expected(IDS).backward()
    found = ({name: one.grad for name, one in net.named_parameters()} for net in (expected, model))
    assert relative_error(*found) < SUMS
    assert divided
    plan = checkpoint.plan_of(model)
    loss = plan.graph.ops[chunk_op(plan.graph)]
    assert IDS[:, 1:].numel() * 32 * 4 + loss.scratch < trace_joint(model).peak <= plan.uncompressed_peak


@pytest.mark.parametrize("autocast", [False, True])
def test_steps_that_add_to_gradients_have_a_plan_of_their_own(divided, autocast):
    model, inputs = build("mlp")
    plain = copy.deepcopy(model)
    integrations.compress_model(model, memory=1.0, error=0)
    function = torch.compile(model)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found, expected = outcome(model, function, inputs, steps=3), outcome(plain, plain, inputs, steps=3)
    assert relative_error(expected, found) < (0.01 if autocast else 1e-5)
    assert [plan.graph.accumulates for plan in divided] == [False, True]
    assert all(plan.others[JOINT].peak <= plan.uncompressed_peak for plan in divided)


def test_bfloat16_autocast():
    model, inputs = build("block")
    plain = copy.deepcopy(model)
    found = []
    for one, function in ((plain, torch.compile(plain)), (model, planned(model))):
        torch.compiler.reset()
        with torch.autocast("cpu", torch.bfloat16):
            found.append(outcome(one, function, inputs, steps=1))
    assert_as_plain(found[1], found[0])
    assert trace_joint(model).recomputed > 0


def test_the_measured_peak_is_within_the_planned_one():
    """Inductor frees what was read at once, in the backward, too, which is compiled later. By itself it keeps more for
    reuse than it knows of: this step took 1.1 times what was planned."""
    torch.manual_seed(0)
    model, x = nn.Sequential(*(layer for _ in range(2) for layer in (Attention(), Block()))), normal(8, 16, 32)
    function, gradient = planned(model), normal(8, 16, 32)
    for _ in range(2):
        model.zero_grad()
        peak, gradients = profiled_bytes(lambda: function(x).backward(gradient))
    assert peak - gradients <= trace_joint(model).peak


# ---- forwards that break ----


class Loop(nn.Module):
    """A break in a loop, for which dynamo leaves the loop to Python and compiles the layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
            torch._dynamo.graph_break()
        return x


def test_graphs_count_in_each_step_whatever_eager_code_saves_between_them():
    """Graphs that ran before eager code had a full session take over were left out. Such a session had dynamo compile
    the operators of eager code, each by itself, so that the next step had none, and every second step was another."""
    model, x = Loop(), normal(8, 16, 32)
    plain = copy.deepcopy(model)
    exact = outcome(plain, plain, (x,), steps=1)
    integrations.compress_model(model, memory=0.95, error=0, fallback="least")
    function = torch.compile(model)
    found, reports = [], []
    for _ in range(4):
        assert relative_error(exact, outcome(model, function, (x,), steps=1)) < 1e-5
        found.append(trace_joint(model))
        rows = integrations.compression(model).report().rows
        reports.append([(row.operator, row.role, row.stored_bytes) for row in rows])
    assert found[1:] == found[:1] * 3
    # In the first step, an operator of eager code began before anything looked at operators.
    assert reports[2:] == reports[1:2] * 2
    eager = [(operator, stored) for operator, role, stored in reports[1] if role != "compiled"]
    assert eager == [("tanh", x.nbytes)] * 3
    assert found[0].held >= 3 * x.nbytes


class Broken(nn.Sequential):
    """Blocks with a graph break after each, so that each is a graph of its own."""

    def forward(self, x):
        for block in self:
            x = block(x)
            torch._dynamo.graph_break()
        return x


def test_many_graphs_share_a_budget_by_what_they_hold():
    """The peak of one block is nearly that of its plain step, whatever it keeps; what eight of them hold is not."""
    torch.manual_seed(0)
    model, x = Broken(*(Block() for _ in range(8))).train(), normal(64, 16, 32)
    plain = copy.deepcopy(model)
    exact = outcome(plain, plain, (x,), steps=1)
    integrations.compress_model(model, memory=0.4, error=0)
    assert relative_error(exact, outcome(model, torch.compile(model), (x,), steps=1)) < 1e-5
    plan, joint = checkpoint.plan_of(model), trace_joint(model)
    assert joint.peak <= 0.4 * plan.uncompressed_peak
    assert joint.recomputed % 8 == 0
    assert joint.recomputed > 0
    assert joint.held >= 8 * x.nbytes  # what each block hands on


class Saving(Loop):
    """Eager code between the graphs, which saves tensors."""

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            torch._dynamo.graph_break()
            for _ in range(8):
                x = torch.tanh(x)
                torch._dynamo.graph_break()
        return x


def test_what_eager_code_stores_between_graphs_counts():
    model, x = Saving().train(), normal(64, 16, 32)
    integrations.compress_model(model, memory=0.95, error=0, fallback="least")
    torch.compile(model)(x).square().mean().backward()
    rows = integrations.compression(model).report().rows
    eager = sum(row.stored_bytes for row in rows if row.role != "compiled" and not row.owner)
    graphs = sum(row.stored_bytes for row in rows if row.role == "compiled" and not row.owner)
    assert trace_joint(model).held >= eager + graphs
