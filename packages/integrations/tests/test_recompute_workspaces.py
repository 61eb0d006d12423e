"""What operators take on this machine: each call that differs is made on tensors that look like its own."""

import contextlib
import random
from dataclasses import replace

import pytest
import torch
from torch import nn

from integrations import compress_model, compression
from integrations.capture import capture as capturing
from integrations.capture.costs import workspaces
from integrations.capture.costs.calls import DistinctCalls
from integrations.capture.costs.operator_costs import Cost, modelled
from integrations.capture.costs.timed_call import Repeated
from integrations.capture.costs.workspaces import measured, with_workspaces_of_cudnn
from integrations.checkpoint import Graph, apply, capture, plan, plan_of
from integrations.planner.problem import training_step

from .nets import mlp, normal
from .recompute_nets import net

aten = torch.ops.aten


def noted(function, *args, **kwargs):
    calls = DistinctCalls()
    out = function(*args, **kwargs)
    calls.note(function, args, kwargs, out if isinstance(out, tuple) else (out,))
    return calls.distinct[0]


def test_calls_that_are_alike_are_noted_once():
    calls, x = DistinctCalls(), normal(4, 8)

    def place(function, *args):
        return calls.note(function, args, {}, ())

    first = place(aten.mul.Tensor, x, x)
    assert place(aten.mul.Tensor, normal(4, 8, seed=1), x) == first
    others = [
        place(aten.add.Tensor, x, x),
        place(aten.mul.Tensor, x.double(), x),
        place(aten.mul.Tensor, normal(8, 4).t(), x),
        place(aten.mul.Tensor, normal(5, 8)[1:], x),
        place(aten.mul.Scalar, x, 1),
        place(aten.mul.Scalar, x, 1.0),
        place(aten.mul.Scalar, x, True),
        place(aten.mul.Tensor, x.to_sparse(), x),
        place(aten.mul.Tensor, x.to_sparse(), x),  # of what nobody can recompute, nobody knows if it is alike
    ]
    assert others == list(range(1, 10))
    assert [call.device for call in calls.distinct[-3:]] == ["cpu", "", ""]


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (aten.add.Tensor, (normal(6, 4).t(), normal(9, 6)[5:])),
        (aten.cat.default, ([normal(2, 3), normal(4, 3)],)),
        (aten.embedding.default, (normal(5, 3), torch.tensor([4, 1]))),
        (aten.native_batch_norm.default, (normal(4, 3, 2), None, None, None, None, True, 0.1, 1e-5)),
        (aten.sort.default, (normal(3, 4),)),
        (aten._to_copy.default, (normal(3, 4),)),
    ],
)
def test_a_repeated_call_makes_what_the_call_made(function, args):
    out, again = function(*args), Repeated(noted(function, *args).packed())
    made = again()
    outs, mades = (one if isinstance(one, tuple) else (one,) for one in (out, made))
    assert [(one.shape, one.stride(), one.dtype) for one in outs] == [
        (one.shape, one.stride(), one.dtype) for one in mades
    ]
    assert again.new_bytes(made) == sum(one.untyped_storage().nbytes() for one in outs)


def test_a_call_is_measured_on_the_device_of_its_tensors(monkeypatch):
    """The counters of CUDA are those of the current device, which need not be the model's."""
    current, asked = [], []

    @contextlib.contextmanager
    def device(index):
        current.append(index)
        yield
        current.pop()

    monkeypatch.setattr(torch.random, "fork_rng", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(Repeated, "device", torch.device("cuda", 1))
    monkeypatch.setattr(workspaces, "_cost_on_cuda", lambda call: asked.append(current[-1]))
    workspaces._on_cuda([noted(aten.exp.default, normal(4)).packed()])
    assert asked == [torch.device("cuda", 1)]


CONVOLVED = normal(2, 4, 5, 5), normal(4, 4, 3, 3)
ONE, NONE = [1, 1], [0, 0]


@pytest.fixture
def allocator(monkeypatch):
    """A GPU whose convolution takes 1000 bytes, its image's gradient 3000, and its weight's gradient 2000."""
    sums = {"allocated_bytes.all.allocated": 0}

    def run(call):
        mask = call.argument(10) if len(call._args) > 9 else None
        taken = 1000 if mask is None else 3000 * mask[0] + 2000 * mask[1]
        sums["allocated_bytes.all.allocated"] += taken + 512
        return torch.empty(128)  # the result, of 512 bytes

    monkeypatch.setattr(Repeated, "__call__", run)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: dict(sums))
    workspaces._workspace_bytes.cache_clear()
    yield
    workspaces._workspace_bytes.cache_clear()


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        (aten.convolution.default, (*CONVOLVED, None, ONE, ONE, ONE, False, NONE, 1), 1000),
        (
            aten.convolution_backward.default,
            (CONVOLVED[0], *CONVOLVED, None, ONE, ONE, ONE, False, NONE, 1, [True] * 3),
            3000,
        ),
        (
            aten.convolution_backward.default,
            (CONVOLVED[0], *CONVOLVED, None, ONE, ONE, ONE, False, NONE, 1, [False, True, True]),
            2000,
        ),
        (aten.exp.default, CONVOLVED[:1], 7),
    ],
)
def test_workspaces_of_cudnn_are_those_of_one_gradient_at_a_time(function, args, expected, allocator):
    call = replace(noted(function, *args), device="cuda")
    costs = with_workspaces_of_cudnn(lambda calls: [Cost(1.0, 7) for _ in calls])
    assert costs([call]) == [Cost(1.0, expected)]


def test_a_convolution_that_cannot_run_is_as_modelled(allocator, monkeypatch):
    def run(call):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(Repeated, "__call__", run)
    call = replace(noted(aten.convolution.default, *CONVOLVED, None, ONE, ONE, ONE, False, NONE, 1), device="cuda")
    assert with_workspaces_of_cudnn(lambda calls: [Cost(1.0, 7)])([call]) == [Cost(1.0, 7)]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_plans_count_workspaces_of_cudnn():
    model = nn.Sequential(*(nn.Conv2d(64, 64, 3, padding=1) for _ in range(3)), nn.Flatten(), nn.Linear(64 * 256, 1))
    model, x = model.cuda(), normal(64, 64, 16, 16).cuda()
    compress_model(model, memory="least")
    for _ in range(3):
        model.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        model(x).sum().backward()
        taken = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        assert taken <= 1.05 * compression(model).plan.peak + 2**20  # cuBLAS keeps a workspace


def test_where_a_call_runs():
    assert Repeated(noted(aten.cat.default, [normal(2), normal(3)]).packed()).device == torch.device("cpu")
    assert Repeated(noted(aten.ones.default, [2], device=torch.device("meta")).packed()).device == torch.device("meta")


def test_what_is_in_place_makes_nothing_new():
    again = Repeated(noted(aten.add_.Tensor, normal(6, 4), normal(6, 4)).packed())
    assert again.new_bytes(again()) == 0


@pytest.fixture(scope="module")
def on_cpu():
    """Some calls, what was measured, and what the process was like before and after."""
    calls, x, large = DistinctCalls(), normal(4, 4), normal(1 << 20)
    for function, args in (
        (aten.median.default, (large,)),
        (aten.mul.Tensor, (large, large)),
        (aten.median.default, (large[:512],)),
        (aten.bernoulli.p, (x, 0.5)),
        (aten.mul.Tensor, (x.to_sparse(), x)),
        (aten.index_select.default, (x, 0, torch.tensor([[0]]))),  # raises
    ):
        calls.note(function, args, {}, ())

    def state():
        return torch.get_rng_state().tolist(), random.getstate(), torch.get_num_threads()

    before = state()
    return calls.distinct, measured(calls.distinct), before, state()


@pytest.mark.undisturbed
def test_scratch_and_seconds_of_a_cpu(on_cpu):
    """A median sorts a copy of all elements; a product has nothing beside its result."""
    _, (median, product, small, *_), _, _ = on_cpu
    if median.scratch == 0:
        pytest.skip("not measured: the system does not tell what is resident")
    # Pages that each of two CPUs counts by itself, 32 of 4 KiB at a time, in each of two readings.
    besides = 2 * 2 * 128 * 1024
    assert abs(median.scratch + 4 - 4 * (1 << 20)) <= besides  # its result, of 4 bytes, is no scratch
    assert max(product.scratch, small.scratch) <= besides
    assert median.seconds > small.seconds > 0


def test_measuring_touches_nothing(on_cpu):
    _, _, before, after = on_cpu
    assert before == after


def test_what_cannot_be_called_is_as_modelled(on_cpu):
    calls, found, _, _ = on_cpu
    assert found[-2:] == modelled(calls)[-2:]


def test_a_process_that_ends_leaves_what_it_has_found(monkeypatch):
    ending = "import sys; print('cost of call 1 0.5 4096', flush=True); sys.exit('out of it')"
    monkeypatch.setattr(workspaces, "_SCRIPT", ending)
    calls = [noted(aten.mul.Tensor, normal(4), normal(4)), noted(aten.exp.default, normal(4))]
    with pytest.warns(UserWarning, match="ended with code 1 after 1 of 2: out of it"):
        found = measured(calls)
    assert found == [modelled(calls)[0], Cost(0.5, 4096)]


def test_a_capture_asks_once_and_the_search_is_told(monkeypatch):
    asked = []

    def costs(calls):
        asked.append([call.name for call in calls])
        return [Cost(2.0, 1 << 20) if call.name == "aten.addmm.default" else Cost(1.0) for call in calls]

    model, x = mlp(width=8, depth=3).train(), normal(4, 8)
    monkeypatch.setattr(capturing, "measured", costs)
    graph, plain = capture(model, x, measure=True), capture(model, x)
    assert len(asked) == 1
    assert asked[0].count("aten.addmm.default") == 1
    assert [op.scratch for op in graph.ops] == [1 << 20, 0] * 3
    assert [op.seconds for op in graph.ops] == [2.0, 1.0] * 3
    assert training_step(graph).scratch == tuple(op.scratch for op in graph.ops)
    assert graph.other == plain.other
    assert (graph.measured, plain.measured) == (True, False)
    assert Graph.from_json(graph.to_json()) == graph


def test_a_measured_plan_is_measured_again_for_other_shapes(monkeypatch):
    asked = []

    def costs(calls):
        asked.append(len(calls))
        return [Cost(1.0, 1 << 20) for _ in calls]

    monkeypatch.setattr(capturing, "measured", costs)
    model = mlp(width=8, depth=3).train()
    made = plan(model, normal(4, 8), measure=True)
    assert made.plain_peak > 1 << 20 > plan(model, normal(4, 8)).plain_peak
    apply(model, made)
    model(normal(6, 8)).sum().backward()
    assert len(asked) == 2
    assert plan_of(model).plain_peak > 1 << 20


def test_scratch_of_backward_is_beside_what_lives_then(monkeypatch):
    def costs(calls):
        return [Cost(1.0, 1000 if call.name == "aten.mm.default" else 0) for call in calls]

    model, x = mlp(width=8, depth=2).train(), normal(4, 8)
    monkeypatch.setattr(capturing, "measured", costs)
    graph, plain = capture(model, x, measure=True), capture(model, x)
    more = [one - other for one, other in zip(graph.other, plain.other, strict=True)]
    # The gradient of a bias, 32 bytes, is the last thing that a step with a product makes.
    assert max(more) == 1000 - 32
    assert min(more) == 0
    assert not any(more[: len(graph.ops)])


def test_a_repeated_batchnorm_copies_its_statistics():
    model, args, kwargs = net("resnet")
    graph = capture(model, args, kwargs)
    widths = [module.num_features for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert sorted(op.scratch for op in graph.ops if op.scratch) == sorted(2 * 4 * width for width in widths)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_scratch_of_cuda():
    x = normal(1 << 20).cuda()
    calls = [noted(aten.median.default, x), noted(aten.mul.Tensor, x, x), noted(aten.bernoulli.p, x, 0.5)]
    state = torch.cuda.get_rng_state()
    found = measured(calls)
    assert found[0].scratch >= x.nbytes
    assert found[1].scratch == 0
    assert all(cost.seconds > 0 for cost in found)
    assert torch.equal(state, torch.cuda.get_rng_state())
