"""Budgets of forwards that break into several graphs under inductor, or of which parts are compiled."""

import copy
import re

import pytest
import torch
import torch._inductor.compile_fx
import torch._inductor.config
from torch import nn
from torch.nn import functional as F

import integrations
from integrations import checkpoint
from integrations.planner.chunked import chunk_op
from integrations.runtime.compiled.joint_plans import JOINT

from .decoder import IDS, SUMS, Decoder, shifted, twin
from .joint_nets import Block, outcome, second_peak, trace_joint
from .long_form import some_of
from .nets import normal, profiled_bytes, relative_error

pytestmark = pytest.mark.usefixtures("fresh_compiler", "nothing_expected", "quick_kernels")


class Loop(nn.Module):
    """A break in a loop, for which dynamo leaves the loop to Python and compiles the layers."""

    def __init__(self, count=2):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
            torch._dynamo.graph_break()
        return x


@pytest.mark.usefixtures("empty_kernels")
def test_graphs_count_in_each_step_whatever_eager_code_saves_between_them():
    """Graphs that ran before eager code had a full session take over were left out. Such a session had dynamo compile
    the operators of eager code, each by itself, so that the next step had none, and every second step was another."""
    model, x = Loop(), normal(8, 16, 32)
    integrations.compress_model(model, memory=0.95, error=0, fallback="least")
    function = torch.compile(model)
    found, reports = [], []
    for _ in range(4):
        outcome(model, function, (x,), steps=1)
        found.append(trace_joint(model))
        rows = integrations.compression(model).report().rows
        reports.append([(row.operator, row.role, row.stored_bytes) for row in rows])
    assert found[1:] == found[:1] * 3
    # In the first step, an operator of eager code began before anything looked at operators.
    assert reports[2:] == reports[1:2] * 2
    eager = [(operator, stored) for operator, role, stored in reports[1] if role != "compiled"]
    assert eager == [("tanh", x.nbytes)] * 2
    assert found[0].held >= 2 * x.nbytes


class Broken(nn.Sequential):
    """Blocks with a graph break after each, so that each is a graph of its own."""

    def forward(self, x):
        for block in self:
            x = block(x)
            torch._dynamo.graph_break()
        return x


def test_many_graphs_share_a_budget_by_what_they_hold():
    """The peak of one block is nearly that of its plain step, whatever it keeps; what four of them hold is not."""
    torch.manual_seed(0)
    model, x = Loop(4).train(), normal(64, 16, 32)
    plain = copy.deepcopy(model)
    exact = outcome(plain, plain, (x,), steps=1)
    integrations.compress_model(model, memory=0.5, error=0)
    assert relative_error(exact, outcome(model, torch.compile(model), (x,), steps=1)) < 1e-5
    plan, joint = checkpoint.plan_of(model), trace_joint(model)
    assert joint.peak <= 0.5 * plan.uncompressed_peak
    assert joint.recomputed % 4 == 0
    assert joint.recomputed > 0
    assert joint.held >= 4 * x.nbytes  # what each block hands on


def compile_forward(block, **options):
    block.forward = torch.compile(block.forward, **options)


@pytest.mark.parametrize(
    ("compile_block", "fullgraph", "before"),
    some_of([nn.Module.compile, compile_forward], [True, False], [True, False]),
)
def test_blocks_that_are_compiled_share_a_budget(compile_block, fullgraph, before):
    """They ran in eager mode under a plan, and raised where they are compiled with ``fullgraph=True``."""
    torch.manual_seed(0)
    model, x = nn.Sequential(*(Block() for _ in range(4))).train(), normal(64, 16, 32)
    plain = copy.deepcopy(model)
    exact = outcome(plain, plain, (x,), steps=1)
    if before:
        integrations.compress_model(model, memory=0.5, error=0)
    for block in model:
        compile_block(block, fullgraph=fullgraph)
    if not before:
        integrations.compress_model(model, memory=0.5, error=0)
    for _ in range(2):
        assert relative_error(exact, outcome(model, model, (x,), steps=1)) < 1e-5
    report = integrations.compression(model).report()
    assert re.match(r"plan\(memory=0\.5, error=0\): saved [\d.]+ [KM]iB in compiled regions; step peak", report.title)
    assert "no rule for" not in str(report)
    assert "eager mode" not in str(report)
    assert trace_joint(model).peak <= 0.5 * checkpoint.plan_of(model).uncompressed_peak
    assert trace_joint(model).recomputed > 0
    peak, gradients = profiled_bytes(lambda: outcome(model, model, (x,), steps=1))
    assert peak - gradients <= 0.5 * checkpoint.plan_of(model).uncompressed_peak


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_plan_of_few_compiled_layers_runs_them_in_eager_mode(backend):
    torch.manual_seed(0)
    model, x = nn.Sequential(*(Block() for _ in range(4))).train(), normal(64, 16, 32)
    plain = copy.deepcopy(model)
    for block in model[:2] if backend == "inductor" else model:
        block.compile(fullgraph=True, backend=backend)
    exact = outcome(plain, plain, (x,), steps=1)
    integrations.compress_model(model, memory=0.5, error=0)
    assert relative_error(exact, outcome(model, model, (x,), steps=1)) == 0.0
    assert JOINT not in checkpoint.plan_of(model).others
    assert "Parts of the model that torch.compile was to compile ran in eager mode. " in str(
        integrations.compression(model).report()
    )


class Behind(nn.Module):
    """A graph with all layers, and a break behind it."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(20_000, 32), Block(), Block())

    def forward(self, words):
        x = self.layers(words)
        torch._dynamo.graph_break()
        return x


@pytest.mark.usefixtures("empty_kernels")
def test_gradients_that_outweigh_activations_leave_room_for_what_is_held():
    """A BERT was refused that kept to its budget. The budget leaves gradients out, but was compared with all that is
    held between forward and backward. The zeros were counted, too, to which inductor adds an embedding's gradient."""
    torch.manual_seed(0)
    model, words = Behind().train(), torch.randint(20_000, (8, 16))
    function = torch.compile(integrations.compress_model(model, memory=300_000, error=0))
    peak = second_peak(model, lambda: function(words).square().mean().backward())
    assert trace_joint(model).held > 300_000
    assert peak <= 300_000


class TiedBehind(Behind):
    """The graph behind the break reads the first one's weight, too."""

    def forward(self, words):
        return F.linear(super().forward(words), self.layers[0].weight)


@pytest.mark.usefixtures("empty_kernels")
def test_a_gradient_to_which_two_graphs_add_counts_once():
    """It was left out of the peak of both, and the step took more than was counted."""
    torch.manual_seed(0)
    model, words = TiedBehind().train(), torch.randint(20_000, (2, 8))
    function = torch.compile(integrations.compress_model(model, memory=0.95, error=0, fallback="least"))
    peak = second_peak(model, lambda: function(words).square().mean().backward())
    assert peak <= 1.05 * trace_joint(model).peak


@pytest.mark.usefixtures("empty_kernels")
def test_compiled_blocks_that_run_in_eager_mode_say_so():
    model, x = nn.Sequential(*(Block() for _ in range(4))).train(), normal(8, 16, 32)
    integrations.compress_model(model, memory=0.9, error=0)
    for block in model:
        block.compile()
    told = r"the compiled parts of the model ran in eager mode, as under torch\.compiler\.set_stance"
    with torch.compiler.set_stance("force_eager"), pytest.raises(ValueError, match=told):
        model(x)
    model(x).sum().backward()


@pytest.mark.usefixtures("empty_kernels")
def test_a_refusal_says_how_compiled_blocks_run_in_eager_mode():
    """``torch.compiler.disable(model)`` alone was suggested, under which compiled blocks are compiled all the same."""
    model, x = nn.Sequential(*(Block() for _ in range(3))).train(), normal(8, 16, 32)
    least = integrations.plan(model, (x,), memory="least").peak  # in eager mode
    integrations.compress_model(model, memory=least, error=0)
    for block in model:
        compile_forward(block)
    with pytest.raises(ValueError, match=r"torch\.compiler\.disable\(model\), and no torch\.compile of its parts$"):
        torch.compiler.disable(model)(x)
    for block in model:
        del block.forward
    torch.compiler.disable(model)(x).sum().backward()


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


@pytest.mark.usefixtures("empty_kernels")
def test_what_eager_code_stores_between_graphs_counts():
    model, x = Saving().train(), normal(64, 16, 32)
    integrations.compress_model(model, memory=0.95, error=0, fallback="least")
    torch.compile(model)(x).square().mean().backward()
    rows = integrations.compression(model).report().rows
    eager = sum(row.stored_bytes for row in rows if row.role != "compiled" and not row.owner)
    graphs = sum(row.stored_bytes for row in rows if row.role == "compiled" and not row.owner)
    assert trace_joint(model).held >= eager + graphs


@pytest.mark.usefixtures("empty_kernels")
def test_a_budget_that_several_graphs_name_holds():
    """With the bytes that they took when they were refused, graphs had larger shares, and took more."""
    torch.manual_seed(0)
    model = Broken(*(nn.Sequential(Block(), Block(), Block()) if place == 5 else nn.Tanh() for place in range(10)))
    plain, x = copy.deepcopy(model), normal(64, 16, 32).requires_grad_()
    integrations.compress_model(model, memory=0.4, error=0)
    with pytest.raises(ValueError, match=r"the 3 graphs into which it breaks .* Pass memory=\d+") as refused:
        torch.compile(model)(x)
    took, named = (int(one) for one in re.search(r"take (\d+) .* Pass memory=(\d+)", str(refused.value)).groups())
    torch.compiler.reset()
    integrations.compress_model(plain, memory=named, error=0)
    torch.compile(plain)(x).square().mean().backward()
    assert took < trace_joint(plain).peak <= named


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
