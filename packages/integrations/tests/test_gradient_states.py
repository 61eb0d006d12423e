"""A step is planned for the gradients that its backward finds: none, those that it adds to, or those that were cleared
after the forward."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import integrations
from integrations import checkpoint, compress_model
from integrations.checkpoint import Plan, plan_of
from integrations.planner import gradient_states
from integrations.planner.gradient_states import GradientHistory, GradientLook, has_gradients

from .nets import normal
from .recompute_reference import LiveBytes

WIDTH = 32
X = normal(64, WIDTH)


def deep(depth: int = 10, width: int = WIDTH) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh()))).train()


def loss(out: Tensor) -> Tensor:
    return out.sum(dtype=torch.float64)


def early(model: nn.Module, step: int) -> bool:
    model.zero_grad()
    return False


def late(model: nn.Module, step: int) -> bool:
    return True


def accumulating(model: nn.Module, step: int) -> bool:
    if step % 4 == 0:
        model.zero_grad()
    return False


def accumulating_late(model: nn.Module, step: int) -> bool:
    return step % 4 == 0


ORDERS = (early, late, accumulating, accumulating_late)
Order = Callable[[nn.Module, int], bool]


def collect_state(plan: Plan) -> str:
    return "accumulating" if plan.graph.accumulates else "clearing" if plan.graph.clears else "fresh"


def train(model: nn.Module, order: Order, steps: int, first: int = 0, none: bool = True) -> Iterator[str]:
    """Yield the state that each step was planned for. An order clears gradients before the forward, or returns whether
    they are cleared after it."""
    for step in range(first, first + steps):
        clears = order(model, step)
        out = loss(model(X))
        if clears:
            model.zero_grad(set_to_none=none)
        out.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.01 * parameter.grad
        yield collect_state(plan_of(model))


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.fixture(scope="module")
def planned() -> Plan:
    plan: Plan = checkpoint.plan(deep(), X, loss=loss, holds_outputs=False)
    return plan


def applied(plan: Plan, share: float) -> nn.Module:
    """A model with a budget in bytes that each state of the gradients can keep to."""
    least = max(plan.peak, plan.accumulating.peak)
    model = deep()
    checkpoint.apply(model, plan.within(int(least + share * (plan.accumulating.plain_peak - least))))
    return model


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (early, ["fresh"] * 5),
        (late, ["fresh", "accumulating", "accumulating", "clearing", "clearing"]),
        (accumulating, ["fresh", *["accumulating"] * 3] * 2),
        (accumulating_late, ["fresh", *["accumulating"] * 7]),
    ],
)
def test_the_state_is_the_one_that_backward_finds(planned: Plan, order: Order, expected: list[str]) -> None:
    assert list(train(applied(planned, 0.0), order, len(expected))) == expected


def test_gradients_that_are_set_to_zero_exist(planned: Plan) -> None:
    assert list(train(applied(planned, 0.0), late, 4, none=False)) == ["fresh", *["accumulating"] * 3]


def test_the_first_accumulation_ends_the_plan_for_cleared_gradients(planned: Plan) -> None:
    model = applied(planned, 0.0)
    assert list(train(model, late, 4))[-1] == "clearing"
    assert list(train(model, accumulating_late, 3, first=1)) == ["clearing", "accumulating", "accumulating"]


def test_a_step_that_finds_no_gradients_says_nothing_about_the_next(planned: Plan) -> None:
    model = applied(planned, 0.0)
    assert list(train(model, late, 4))[-1] == "clearing"
    assert [*train(model, early, 1), *train(model, late, 1)] == ["fresh", "clearing"]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("order", ORDERS)
def test_every_step_keeps_to_the_budget(planned: Plan, order: Order, share: float) -> None:
    model = applied(planned, share)
    budget = plan_of(model).memory
    peaks = []
    with LiveBytes() as live:
        for _ in train(model, order, 6):
            peaks.append(live.peak - live.now)  # beyond the gradients that the step leaves
            live.peak = live.now
    assert max(peaks) <= budget


@pytest.mark.parametrize("frozen", [0, 8])
def test_the_peak_with_cleared_gradients_is_the_one_that_was_foretold(frozen: int) -> None:
    """With LoRA most parameters are frozen, and have no gradients to wait for."""
    model = deep()
    for parameter in model[:frozen].parameters():
        parameter.requires_grad_(False)
    plan = checkpoint.plan(model, X, loss=loss, holds_outputs=False)
    clearing = plan.clearing
    assert clearing.graph.clears
    gradients = sum(one.nbytes for one in model.parameters() if one.requires_grad)
    assert plan.graph.gradients == gradients
    checkpoint.apply(model, plan)
    with LiveBytes() as live:
        list(train(model, late, 4))
        live.peak = live.now
        out = loss(model(X))
        assert plan_of(model) is clearing
        model.zero_grad()
        out.backward()
        del out
    assert live.peak - gradients == clearing.peak


def test_the_plan_itself_is_followed_if_it_keeps_to_the_memory(planned: Plan) -> None:
    """So a loop that clears gradients after the forward gets the same compiled code, and the same rounding."""
    model = applied(planned, 1.0)
    assert list(train(model, late, 4))[-1] == "fresh"
    assert plan_of(model).clearing is plan_of(model)


@pytest.mark.parametrize("memory", ["least", 0.6])
def test_the_order_of_the_loop_changes_no_bits(memory: Any) -> None:
    found = []
    for order in (early, late):
        model = compress_model(deep(), memory=memory, fallback="least")
        list(train(model, order, 6))
        found.append(weights(model))
    plain = deep()
    for _ in range(6):
        plain.zero_grad()
        loss(plain(X)).backward()
        with torch.no_grad():
            for parameter in plain.parameters():
                parameter -= 0.01 * parameter.grad
    assert all(torch.equal(one, other) for one, other in zip(found[0], found[1], strict=True))
    assert all(torch.equal(one, other) for one, other in zip(found[0], weights(plain), strict=True))


def rounding(model: nn.Module) -> nn.Module:
    compress_model(model, memory=0.35, error=0.1, fallback="least")
    return model


@pytest.mark.filterwarnings("ignore:memory with error")
@pytest.mark.parametrize(
    ("order", "steps"),
    [(early, 1), (early, 2), (late, 2), (late, 3), (late, 4), (accumulating, 4), (accumulating_late, 8)],
)
def test_a_resumed_run_follows_the_same_plans(order: Order, steps: int) -> None:
    """A resumed run has no gradients before its first step, which the run before had. With rounding, another plan is
    another gradient. When gradients are cleared is known once they were cleared."""
    model = rounding(deep())
    list(train(model, order, steps))
    state = copy.deepcopy(model.state_dict()), copy.deepcopy(integrations.compression(model).state_dict())
    expected = list(train(model, order, 3, first=steps))
    resumed = rounding(deep())
    resumed.load_state_dict(state[0])
    integrations.compression(resumed).load_state_dict(state[1])
    assert list(train(resumed, order, 3, first=steps)) == expected
    assert all(torch.equal(one, other) for one, other in zip(weights(resumed), weights(model), strict=True))


def test_a_copy_goes_on_as_the_original_does(planned: Plan) -> None:
    model = applied(planned, 0.0)
    list(train(model, late, 4))
    copied = copy.deepcopy(model)
    assert copied[0].weight.grad is None
    assert list(train(copied, late, 2)) == ["clearing", "clearing"]


@pytest.mark.parametrize(
    "content", [{}, {"cleared": 3, "late": True}, {"cleared": 1}, {"cleared": True, "late": True}, 7, [1]]
)
def test_a_state_that_no_history_has_is_refused(content: Any) -> None:
    with pytest.raises(ValueError, match="the state's"):
        GradientHistory.of(content)


def test_a_state_of_an_earlier_version_has_no_history() -> None:
    assert GradientHistory.of(None).content() == {"cleared": 0, "late": False}


def test_a_compiled_model_is_observed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return function(*args, **kwargs)

    model = compress_model(deep(4), memory="least")
    model.compile(backend="eager")
    monkeypatch.setattr("integrations.api.handle.forward._compiled_for", lambda *given: SimpleNamespace(run=run))
    assert list(train(model, late, 4))[-1] == "clearing"


def test_the_hook_keeps_nothing_alive(planned: Plan) -> None:
    model = applied(planned, 0.0)
    list(train(model, late, 2))
    out = model(X)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
    loss(out).backward()


def test_a_measurement_says_nothing_about_the_training(planned: Plan) -> None:
    """A closure clears gradients before its forward, whatever the training does."""
    model = applied(planned, 0.0)
    assert list(train(model, late, 4))[-1] == "clearing"
    handle = integrations.compression(model)
    before = handle._plan_manager.gradients.content()

    def closure() -> None:
        model.zero_grad()
        loss(model(X)).backward()

    with handle.trial_run():
        closure()
    assert handle._plan_manager.gradients.content() == before


def exchange(module: nn.Module, parameter: nn.Parameter) -> None:
    module.register_parameter("weight", parameter)


class TestGradientLook:
    """``GradientLook`` says what ``has_gradients`` says, and reads few parameters for it."""

    @staticmethod
    def look(model: nn.Module) -> bool:
        """What it says once it knows the large parameters; what ``has_gradients`` says, too."""
        look = GradientLook()
        look.has_gradients(model)
        assert look.has_gradients(model) is has_gradients(model)
        return look.has_gradients(model)

    def test_all_and_none(self) -> None:
        model = deep()
        assert not self.look(model)
        loss(model(X)).backward()
        assert self.look(model)

    @pytest.mark.parametrize("layers", range(11))
    def test_some(self, layers: int) -> None:
        model = deep()
        for layer in list(model)[: 2 * layers : 2]:
            for parameter in layer.parameters():
                parameter.grad = torch.zeros_like(parameter)
        assert self.look(model) is (layers > 5)

    def test_it_sees_gradients_come_and_go(self) -> None:
        model, look = deep(), GradientLook()
        for _ in range(3):
            assert not look.has_gradients(model)
            loss(model(X)).backward()
            assert look.has_gradients(model)
            model.zero_grad()

    @pytest.mark.parametrize("kind", ["removed", "frozen", "resized"])
    def test_a_large_parameter_that_is_another(self, kind: str) -> None:
        model, look = deep(), GradientLook()
        loss(model(X)).backward()
        assert look.has_gradients(model)
        for layer in list(model)[::2]:
            if kind == "removed":
                del layer.weight
            elif kind == "frozen":
                layer.weight.requires_grad_(False)
            else:
                exchange(layer, nn.Parameter(torch.zeros(WIDTH, 2 * WIDTH)))
        expected = has_gradients(model)
        assert look.has_gradients(model) is expected is (kind != "resized")

    def test_exchanged_layers_are_seen_after_some_steps(self) -> None:
        model, look = nn.Sequential(deep(), deep(1)), GradientLook()
        loss(model(X)).backward()
        old = model[0]
        assert look.has_gradients(model)
        model[0] = deep()
        assert old[0].weight.grad is not None
        for _ in range(64):
            found = look.has_gradients(model)
        assert not found

    def test_it_reads_few_parameters(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model, look, read = nn.Sequential(nn.Linear(512, 512), deep()), GradientLook(), []
        look.has_gradients(model)
        monkeypatch.setattr(gradient_states, "get_gradient", lambda parameter: read.append(parameter))
        assert not look.has_gradients(model)
        assert len(read) == 1

    def test_it_keeps_no_layer_alive(self) -> None:
        model, look = deep(), GradientLook()
        look.has_gradients(model)
        layer = weakref.ref(model[0])
        del model
        gc.collect()
        assert layer() is None
