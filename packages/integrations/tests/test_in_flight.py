"""Memory budgets with several forwards whose backward is not over: ``in_flight``."""

import copy
import gc
import warnings

import pytest
import torch
from torch import nn

import integrations
from integrations.api.handle.pipeline_schedule import find_in_flight
from integrations.planner.plan import Plan
from integrations.runtime.compiled.joint_plans import JOINT

from .decoder import IDS, Decoder, shifted
from .live_bytes import LiveBytes
from .nets import profiled_bytes

WIDTH, ROWS = 32, 512
PARTS = (0.05, 0.3, 0.7)


class Block(nn.Module):
    """Saves much more than it takes and returns."""

    def __init__(self, times=16):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, times * WIDTH), nn.Linear(times * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.sigmoid(torch.tanh(self.up(x))))


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), Block()).train()


X = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
START = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))


def run_1f1b(model, warm, count=4):
    """A stage's step: ``warm`` forwards, then backward and forward in turn, then the other backwards."""
    waiting = [model(X) for _ in range(warm)]
    for _ in range(count - warm):
        waiting.pop(0).backward(START)
        waiting.append(model(X))
    while waiting:
        waiting.pop(0).backward(START)


def measure(model, warm, steps=3):
    """The peak of each step beyond what is alive after it, and the gradients of all steps."""
    peaks, found = [], []
    with LiveBytes() as live:
        for _ in range(steps):
            live.peak = live.now
            run_1f1b(model, warm)
            peaks.append(live.peak - live.now)
            found += [one.grad for one in model.parameters()]
            model.zero_grad()
    return peaks, found


def plan_for(count, **bounds):
    return integrations.plan(make_model(), (X,), in_flight=count, **bounds)


def between(plan, part):
    """Bytes between the least that a plan takes and the plain step's."""
    least = plan.front[0].peak
    return int(least + part * (plan.uncompressed_peak - least))


# ---- budgets ----


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("part", PARTS)
def test_steps_keep_to_the_budget_with_exact_gradients(count, part):
    memory = between(plan_for(count), part)
    plain, model = make_model(), integrations.compress_model(make_model(), memory=memory, in_flight=count)
    peaks, found = measure(model, count)
    _, expected = measure(plain, count)
    plan = integrations.compression(model).plan
    assert plan.peak <= memory
    assert max(peaks) <= 1.05 * memory
    assert max(peaks) > 0.9 * plan.peak
    assert all(map(torch.equal, found, expected))


def test_the_peak_is_that_of_one_forward_and_what_the_others_hold():
    one, three = plan_for(1), plan_for(3)
    assert three.plain_peak == one.accumulating.plain_peak + 2 * one.within(memory=1.0).held
    assert three.peak == three.peak_alone + 2 * three.held
    assert three.accumulating is three
    assert three.clearing is three


def test_a_fraction_is_of_the_plain_steps_with_as_many_forwards():
    plan = plan_for(3, memory=0.5)
    assert 0.3 * plan.uncompressed_peak < plan.peak <= 0.5 * plan.uncompressed_peak
    (peaks, _), (plain, _) = (
        measure(integrations.compress_model(make_model(), memory=0.5, in_flight=3), 3),
        measure(make_model(), 3),
    )
    assert max(peaks) <= 1.05 * 0.5 * max(plain)


def test_plans_of_many_forwards_hold_less():
    """The peak of one forward is in the first block. What the others hold until then changes it little, and is held by
    each of many forwards."""
    model = nn.Sequential(Block(64), *(Block(4) for _ in range(6))).train()
    one, many = (integrations.plan(model, (X,), in_flight=count, memory="least") for count in (1, 16))
    one = one.accumulating
    assert many.held < one.held
    assert many.peak < one.peak_alone + 15 * one.held


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_a_forward_holds_as_much_as_planned(level):
    model = integrations.compress_model(make_model(), level, memory="least", in_flight=3)
    run_1f1b(model, 3)
    plan = integrations.compression(model).plan
    assert plan.compressed == (level == "L1")
    assert plan.peak == plan.peak_alone + 2 * plan.held
    outputs = []
    assert profiled_bytes(lambda: outputs.append(model(X)))[1] == pytest.approx(plan.held, rel=0.05)
    outputs.clear()
    peak, _ = profiled_bytes(lambda: run_1f1b(model, 3))
    assert 0.8 * plan.peak <= peak <= 1.05 * plan.peak


def test_rounding_within_an_error():
    model = integrations.compress_model(make_model(), memory=0.3, error=0.1, in_flight=3)
    (peaks, _), (plain, _) = measure(model, 3, steps=4), measure(make_model(), 3)
    plan = integrations.compression(model).plan
    assert plan.graph.in_flight == 3
    assert plan.peak <= 0.3 * plan.uncompressed_peak
    assert max(peaks) <= 1.05 * 0.3 * max(plain)
    assert integrations.compression(model).measured.relative <= 0.1


@pytest.mark.parametrize("time", [1.25, 1.5, 2.0])
def test_time_memory_and_error_together(time):
    plan = plan_for(3, memory=0.5, time=time, error=0.1)
    assert plan.peak <= 0.5 * plan.uncompressed_peak


def test_a_budget_that_cannot_be_met_is_refused_with_the_bytes():
    least = plan_for(3).front[0].peak
    with pytest.raises(ValueError, match=rf"memory with error=0 and in_flight=3 must be at least {least} bytes"):
        plan_for(3, memory=least - 1)
    with pytest.raises(ValueError, match="MiB of saved tensors of other forwards in flight"):
        integrations.compress_model(make_model(), memory=least, in_flight=30)(X)
    assert plan_for(3, memory=least).peak == least
    with pytest.raises(ValueError, match=r"memory with in_flight=3 must be a budget of at least"):
        integrations.compress_model(make_model(), "L1", memory=1000, in_flight=3)(X)


@pytest.mark.usefixtures("fresh_compiler", "nothing_expected", "empty_kernels")
@pytest.mark.parametrize("part", [0.3, 0.7])
def test_compiled_steps_keep_to_the_budget(part):
    memory = between(plan_for(3), part)
    model = integrations.compress_model(make_model(), memory=memory, in_flight=3)
    function = torch.compile(model)
    run_1f1b(function, 3)  # the first step pays for the compiler
    peak, _ = profiled_bytes(lambda: run_1f1b(function, 3))
    assert peak <= 1.05 * memory
    found = integrations.compression(model).plan.others[JOINT]
    assert 2 * found.held < found.peak <= memory


# ---- forwards in flight ----


def tight(count=1, spare=1.0):
    """A model whose budget is that of the plain step with so many forwards, which its plan keeps to."""
    memory = int(spare * plan_for(count).uncompressed_peak)
    return integrations.compress_model(make_model(), memory=memory, in_flight=count)


def test_one_more_than_said_raises_before_it_runs():
    model = tight(2)
    with LiveBytes() as live:
        outputs = [model(X), model(X)]
        before, live.peak = live.now, live.now
        with pytest.raises(ValueError, match=r"has 2 forwards in flight.* its plan counts 2 .*Pass in_flight=3"):
            model(X)
        assert live.peak == before
    for output in outputs:
        output.backward(START)
    run_1f1b(model, 2)


def test_a_backward_in_between_is_no_forward_in_flight():
    model = tight()
    for _ in range(3):
        loss = model(X).sum()
        loss.backward()  # the variable still holds the graph's nodes in the next forward
    assert loss.requires_grad


@pytest.mark.usefixtures("fresh_compiler")
def test_a_backward_that_torch_compiles_ends_a_forward():
    model = tight(spare=1.1)
    run_1f1b(model, 1)  # so that the plan is that of a backward as it is
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        for _ in range(3):
            loss = model(X).sum()
            loss.backward()
    assert loss.requires_grad


def test_logits_whose_loss_is_in_chunks_are_no_forward_in_flight():
    """The backward of such a loss does not reach the logits, which a variable still holds in the next forward."""
    made = Decoder(lambda logits, ids: logits).train()
    peak = integrations.plan(copy.deepcopy(made), (IDS,), memory="least", loss={"head": "head"}).peak
    model = integrations.compress_model(made, memory=peak, loss={"head": "head"})
    for _ in range(3):
        model.zero_grad()
        logits = model(IDS)
        loss = shifted(logits, IDS)
        loss.backward()
    assert logits.requires_grad
    model.zero_grad()
    losses = [shifted(model(IDS), IDS)]
    with pytest.raises(ValueError, match="has 1 forward in flight"):
        losses.append(shifted(model(IDS), IDS))


def test_a_gradient_that_is_differentiated_ends_a_forward():
    """Its backward does not reach the last layer's output, and a variable holds the graph."""
    model = tight(spare=3.0)
    for _ in range(3):
        x = X.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        penalty = (gradient.norm() - 1).square()
        penalty.backward()
        del gradient
    assert penalty.requires_grad
    assert not integrations.compression(model)._plan_manager._in_flight._others()


def test_a_backward_that_is_left_out_later_raises_with_the_way_out():
    model = tight()
    for _ in range(25):
        model(X).sum().backward()
    left_out = model(X)
    with pytest.raises(ValueError, match=r"has 1 forward in flight.* fallback='least' to continue"):
        model(X)
    del left_out
    model(X).sum().backward()


def test_outputs_that_are_dropped_are_not_in_flight():
    model = tight()
    model(X)
    kept = model(X)
    with pytest.raises(ValueError, match="has 1 forward in flight"):
        model(X)
    cycle = [kept]
    cycle.append(cycle)
    del kept, cycle
    gc.disable()
    try:
        model(X).sum().backward()  # what is only a cycle is freed first
    finally:
        gc.enable()


def test_two_forwards_before_a_backward_go_on_if_they_fit():
    """As in a loss of two inputs: what is not said may fit."""
    model = tight(spare=2.5)
    plain = make_model()
    for net in (model, plain):
        (net(X) - net(2 * X)).square().sum().backward()
    ours, expected = ([one.grad for one in net.parameters()] for net in (model, plain))
    assert all(map(torch.equal, ours, expected))
    with pytest.raises(ValueError, match="Pass in_flight="):
        [model(X) for _ in range(9)]


@pytest.mark.parametrize("bounds", [{"memory": "least"}, {"time": 1.5}, {"memory": 1000, "fallback": "least"}])
def test_without_a_promise_of_bytes_more_forwards_are_told_of_once(bounds):
    told = "has 1 forward in flight, .* when another one starts, but its plan counts 1 at once, so a step may"
    model = integrations.compress_model(make_model(), **bounds)
    run_1f1b(model, 1)
    assert "in flight" not in str(integrations.compression(model).report())
    with pytest.warns(UserWarning, match=rf"{told} take more memory than planned\. Pass in_flight=2") as found:
        run_1f1b(model, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_1f1b(model, 3)
    assert len([one for one in found if "in flight" in str(one.message)]) == 1
    report = " ".join(str(integrations.compression(model).report()).split())
    assert "Up to 3 forwards were in flight at once, and their plan counts 1: the step peak may be larger. " in report


def test_forwards_that_are_planned_for_are_not_told_of():
    model = integrations.compress_model(make_model(), memory="least", in_flight=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_1f1b(model, 3)
    assert "Up to" not in str(integrations.compression(model).report())


@pytest.mark.parametrize("fraction", [0.6, 0.95])
def test_a_fraction_is_of_as_many_forwards_as_there_are(fraction):
    """A plan that takes half of one forward takes half of three, too, if it holds half as much."""
    run_1f1b(integrations.compress_model(make_model(), memory=fraction), 3)


def test_a_graph_that_is_retained_is_in_flight():
    model = tight()
    output = model(X)
    output.backward(START, retain_graph=True)
    with pytest.raises(ValueError, match="has 1 forward in flight"):
        model(X)
    output.backward(START)
    model(X)


def test_a_backward_that_is_split_is_in_flight_until_its_second_part():
    """As in zero-bubble schedules: the gradient of the input first, and the output's graph is dropped then."""
    model, given = tight(), X.clone().requires_grad_()
    output = model(given)
    inner = output.grad_fn.next_functions[1][0]
    torch.autograd.grad(output, given, START, retain_graph=True)
    output.detach_()
    with pytest.raises(ValueError, match="has 1 forward in flight"):
        model(given)
    del inner
    model(given)


def test_a_forward_that_raises_is_not_in_flight():
    model = tight()
    for _ in range(3):
        with pytest.raises(RuntimeError):
            model(X[:, :3])
    model(X)


# ---- where the number goes ----


def test_a_saved_plan_has_it(tmp_path):
    plan = plan_for(3, memory=0.5)
    assert Plan.from_json(plan.to_json()) == plan
    assert "with 3 forwards in flight" in str(plan)
    plan.save(tmp_path / "plan.json")
    model = integrations.compress_model(make_model(), plan=tmp_path / "plan.json")
    peaks, _ = measure(model, 3)
    assert max(peaks) <= 1.05 * plan.peak
    assert "with 3 forwards in flight" in str(integrations.compression(model).report())
    with pytest.raises(ValueError, match="plan= cannot be combined with in_flight=3"):
        integrations.compress_model(make_model(), plan=tmp_path / "plan.json", in_flight=3)


def test_a_resumed_run_has_it():
    model = integrations.compress_model(make_model(), memory=0.5, in_flight=3)
    run_1f1b(model, 3)
    state = integrations.compression(model).state_dict()
    other = integrations.compress_model(make_model(), memory=0.5, in_flight=3)
    integrations.compression(other).load_state_dict(state)
    run_1f1b(other, 3)
    assert integrations.compression(other).plan == integrations.compression(model).plan
    assert "in_flight=3" in repr(integrations.compression(other))


def test_copies_have_it_and_no_forwards():
    model = tight()
    output = model(X)
    run_1f1b(copy.deepcopy(model), 1)
    del output


def test_other_inputs_are_planned_for_as_many():
    model = integrations.compress_model(make_model(), memory=0.5, in_flight=3)
    for rows in (ROWS // 2, ROWS):
        for output in [model(X[:rows]) for _ in range(3)]:
            output.sum().backward()
        assert integrations.compression(model).plan.graph.in_flight == 3


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"memory": 0.5, "in_flight": 0}, ValueError, "in_flight must be 1 or more, got 0"),
        ({"memory": 0.5, "in_flight": 2.0}, TypeError, "in_flight must be a number of forwards as an int, got 2.0"),
        ({"memory": 0.5, "in_flight": True}, TypeError, "in_flight must be a number of forwards"),
        ({"level": "L1", "in_flight": 2}, ValueError, "in_flight must be left out without memory="),
        ({"checkpoint": 0.5, "in_flight": 2}, ValueError, "in_flight must be left out without memory="),
    ],
)
def test_bad_arguments(arguments, error, told):
    with pytest.raises(error, match=told):
        integrations.compress_model(make_model(), **arguments)


def test_without_a_schedule_there_is_one():
    assert find_in_flight(make_model()) == 1
