"""Nested checkpoints: what a segment recomputes is held only in part, and the rest is made once more."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

from actcore import simulate
from integrations import checkpoint
from integrations.capture.graphs.schedule import Schedule
from integrations.checkpoint import Plan, capture
from integrations.planner.problem import training_step
from integrations.runtime.repeating.segments import Segment

from .nets import Net, normal
from .recompute_nets import NETS, net, random_net
from .recompute_reference import LiveBytes, assert_as_plain, counted_peak, outcome, random_kept, simulated_peak
from .recompute_run import run


@pytest.mark.filterwarnings("error::UserWarning")  # none of these forwards leaves its graph
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5])
def test_gradients_buffers_and_generator(name, share):
    model, args, kwargs = net(name)
    graph = capture(model, args, kwargs)
    for seed, of_held in enumerate((0.0, 0.3, 0.6)):
        kept, held = random_kept(graph, share, seed), random_kept(graph, of_held, seed + 100)
        assert Schedule.of(graph, kept, held).inner or share
        assert_as_plain(model, graph, kept, args, kwargs, steps=2, held=held)


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("seed", range(12))
def test_random_nets_with_random_ranks(seed):
    model, args = random_net(seed)
    graph = capture(model, args)
    for number in range(4):
        kept, held = random_kept(graph, number / 8, seed=number), random_kept(graph, 0.4, seed=number + 100)
        assert_as_plain(model, graph, kept, args, {}, held=held)


def wide():
    """Where activations are the most of a step."""
    torch.manual_seed(0)
    layers = (layer for _ in range(8) for layer in (nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Tanh()))
    return nn.Sequential(*layers).train(), (normal(512, 16),)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("made", [wide, lambda: net("resnet")[:2], lambda: net("densenet")[:2]])
def test_the_peak_is_the_one_that_was_foretold(made, share):
    model, args = made()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # the generator's state is some bytes, too
    graph = capture(model, args)
    for seed in range(4):
        kept, held = random_kept(graph, share, seed), random_kept(graph, 0.4, seed + 100)
        assert Schedule.of(graph, kept, held).inner
        model.zero_grad()
        counted = counted_peak(model, graph, kept, *args, held=held)
        # A repeated BatchNorm updates copies of its statistics, float32, of which the graph has nothing.
        widest = max(
            (module.num_features for module in model.modules() if isinstance(module, nn.BatchNorm2d)), default=0
        )
        assert 0 <= counted - simulated_peak(graph, kept, held) <= 2 * 4 * widest


def test_segments_are_those_of_the_simulation():
    """The executor's schedule and the search's numbers are of the same operators."""
    for name in NETS:
        model, args, kwargs = net(name)
        graph = capture(model, args, kwargs)
        for seed in range(6):
            kept = sorted({*random_kept(graph, 0.2, seed), *graph.outputs})
            held = random_kept(graph, 0.4, seed + 100)
            values = range(len(graph.values))
            usage = simulate(training_step(graph), [v in kept for v in values], [v in held for v in values])
            for kind, expected in (("segment", usage.segments), ("inner", usage.inner)):
                found = {}
                for number, op in enumerate(Schedule.of(graph, kept, held).ops):
                    if getattr(op, kind) >= 0:
                        found.setdefault(getattr(op, kind), []).append(number)
                assert sorted(map(tuple, found.values())) == sorted(expected)


@pytest.fixture
def chain():
    """A long chain in training, its input, and a plan for it whose checkpoints are nested."""
    torch.manual_seed(0)
    layers = (layer for _ in range(24) for layer in (nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Dropout(0.1)))
    model, args = nn.Sequential(*layers).train(), (normal(256, 8),)
    plan = checkpoint.plan(model, args)
    assert plan.choice.held is not None
    return model, args, plan


def test_a_plan_is_followed(chain):
    model, args, plan = chain
    twin = copy.deepcopy(model)
    checkpoint.apply(model, plan)
    for one, other in zip(outcome(model, model, args, {}, 2), outcome(twin, twin, args, {}, 2), strict=True):
        assert torch.equal(one, other)


def test_a_plan_is_saved_with_its_ranks(chain, tmp_path):
    _, _, plan = chain
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert loaded.schedule == plan.schedule
    assert any(segment.inner for segment in plan.segments)
    assert sum(segment.seconds for segment in plan.segments) == pytest.approx(plan.seconds)
    assert "(inner)" in str(plan)


def test_plans_hold_what_they_say(chain):
    model, args, plan = chain
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # the generator's state is some bytes, too
    graph = capture(model, args)
    plan = checkpoint.plan(model, args)
    nested = [choice for choice in plan.front if choice.held is not None]
    assert nested
    for choice in nested[:3]:
        model.zero_grad()
        held = [value for value in range(len(graph.values)) if choice.held >> value & 1]
        counted = counted_peak(model, graph, choice.kept, *args, held=held)
        # What is there for a repetition alone is let go within it: the search takes it to stay until that is over.
        assert simulated_peak(graph, choice.kept, held) == counted <= choice.peak + graph.gradients
        assert counted > 0.9 * (choice.peak + graph.gradients)


def test_the_plan_beside_it_is_not_nested(chain):
    _, _, plan = chain
    flat = plan.flat
    assert flat.choice.held is None
    assert flat.flat is flat
    assert not any(segment.inner for segment in flat.segments)
    between = [choice for choice in plan.front if plan.peak <= choice.peak < flat.peak]
    assert between
    assert all(choice.held is not None for choice in between)


def test_what_an_inner_segment_reads_is_made_before_it():
    """Its own values are not there while the outer segment is repeated, which takes more for a moment."""

    def forward(model, x):
        x = x * model.weight
        wide = x.repeat(1, 16) * 2.0
        held = wide.unflatten(1, (16, -1)).sum(1)
        return (x.cos().sin() * held).tanh()

    model, args = Net(forward, weight=normal(6)).train(), (normal(64, 6),)
    graph = capture(model, args)
    by_name = {op.name: op.makes[0] for op in graph.ops}
    kept, held = [graph.ops[0].makes[0]], [by_name["aten.sum.dim_IntList"]]
    schedule = Schedule.of(graph, kept, held)
    assert [op.inner >= 0 for op in schedule.ops if op.name in ("aten.cos.default", "aten.sin.default")] == [True, True]
    assert schedule.ops[graph.values[held[0]].producer].segment >= 0
    assert counted_peak(model, graph, kept, *args, held=held) == simulated_peak(graph, kept, held)


def test_backward_twice(chain):
    model, args, plan = chain
    checkpoint.apply(model, plan)
    loss = model(*args).square().sum()
    loss.backward(retain_graph=True)
    first = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    loss.backward(retain_graph=True)
    for one, parameter in zip(first, model.parameters(), strict=True):
        assert torch.equal(one, parameter.grad)
    model.zero_grad()
    loss.backward()
    for one, parameter in zip(first, model.parameters(), strict=True):
        assert torch.equal(one, parameter.grad)
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


def test_backward_of_a_part(chain):
    """What backward stops at needs no more than it: later parts of the graph are made once more, if they are asked."""
    model, args, plan = chain
    twin = copy.deepcopy(model)
    checkpoint.apply(model, plan)
    found = []
    for one in (model, twin):
        torch.manual_seed(3)
        loss = one(*args).square().sum()
        parts = [one[index].weight for index in (60, 30, 0)]
        found.append([torch.autograd.grad(loss, part, retain_graph=True)[0] for part in parts])
    for ours, plain in zip(*found, strict=True):
        assert torch.equal(ours, plain)


def test_a_change_in_place_is_found(chain):
    model, args, plan = chain
    values = {}
    model[30].register_forward_hook(lambda module, given, out: values.update(given=given[0]))
    checkpoint.apply(model, plan)
    loss = model(*args).sum()
    with torch.no_grad():
        values["given"].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_graph_owns_everything(chain, no_garbage_collection):
    model, args, plan = chain
    with LiveBytes() as live:
        output = run(model, plan.graph, plan.kept, held=[v for v in range(999) if plan.choice.held >> v & 1])(*args)
        output.sum().backward(retain_graph=True)
        model.zero_grad()
        assert live.now > 0
        held = [weakref.ref(thing) for thing in gc.get_objects() if type(thing) is Segment]
        assert held
        del output
        assert live.now == 0
    assert not any(segment() for segment in held)


def test_held_values_are_values_of_the_graph(chain):
    _, _, plan = chain
    with pytest.raises(ValueError, match="held must name values of the graph, 0 to"):
        Schedule.of(plan.graph, [], [len(plan.graph.values)])
