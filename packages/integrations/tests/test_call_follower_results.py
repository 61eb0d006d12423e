"""``CallFollower``: functions that make more than they return, and results of unusual kinds."""

from __future__ import annotations

import copy
import warnings
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import integrations
from integrations.capture.capture import capture
from integrations.planner.problem import SimulatedStep, chosen_entries
from integrations.policies.stores import Store
from integrations.runtime.repeating.call_follower import CallFollower

from .decoder import IDS, llama
from .followed_forwards import Log, chosen, log_forwards, outcome, same
from .nets import Net, normal
from .recompute_run import run


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Log:
    return log_forwards(monkeypatch)


def select(model: Any, x: Tensor) -> Tensor:
    """As many rows as ``x`` has positive sums."""
    y = torch.tanh(x @ model.weight)
    rows = y[x.sum(1) > 0]
    return ((rows.sin() * rows) @ model.weight).exp().sum()


def select_places(model: Any, x: Tensor) -> Tensor:
    """The same by places, which are views of what the operator makes."""
    y = torch.tanh(x @ model.weight)
    (places,) = torch.nonzero(x.sum(1) > 0, as_tuple=True)
    return (y.index_select(0, places).sin() @ model.weight).exp().sum()


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("forward_of", [select, select_places])
def test_shapes_that_depend_on_elements(forward_of: Any, share: float, followed: Log) -> None:
    """As long as they stay the same, a forward is followed by its calls, as that of a graph network whose edges do not
    change. With others it is not the planned one. A function that returns only views of them has a tape."""
    model = Net(forward_of, weight=normal(8, 8)).train()
    x, more = normal(16, 8, seed=2), normal(16, 8, seed=3)
    more[:12] = more[:12].abs()
    twin = copy.deepcopy(model)
    graph = capture(model, (x,), {})
    forward = run(model, graph, chosen(graph, share)[0])
    for given in (x, x, x, more, x, x):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found, _ = outcome(forward, model, (given,), {})
        assert same(found, outcome(twin, twin, (given,), {})[0])
        assert any("not the one that was captured" in str(one.message) for one in told) == (given is more)
    calls = ["tape", "calls", "calls", "calls", "tape", "calls"]
    assert followed == (calls if forward_of is select else ["tape"] * 6)


def test_a_loss_whose_parts_nobody_sees(followed: Log) -> None:
    """Cross-entropy does not return what its two operators make for backward. They are there until it returns anyway,
    so a follower may hold them."""

    def forward_of(model: Any, x: Tensor) -> Tensor:
        return F.cross_entropy(torch.tanh(x @ model.weight) @ model.weight, torch.arange(8))

    model = Net(forward_of, weight=normal(8, 8)).train()
    args = (normal(8, 8, seed=2),)
    twin = copy.deepcopy(model)
    forward = run(model, capture(model, args, {}), ())
    steps = [outcome(forward, model, args, {}) for _ in range(3)]
    plain = outcome(twin, twin, args, {})[0]
    assert followed == ["tape", "calls", "calls"]
    assert all(same(found, plain) and peak <= steps[0][1] for found, peak in steps)


# ---- the loss of a language model in chunks: waiting logits, and gradients that its function stores by itself ----


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "autocast"])
def test_a_language_model_with_its_loss_in_chunks(kind: str, followed: Log) -> None:
    model = llama().bfloat16() if kind == "bfloat16" else llama()
    around = torch.autocast("cpu", torch.bfloat16) if kind == "autocast" else nullcontext()
    integrations.compress_model(model, memory=0.3 if kind == "bfloat16" else 0.4, error=0)
    steps = [language_step(model, around) for _ in range(4)]
    plan = integrations.compression(model).plan
    assert plan.chunked is not None
    assert plan.schedule.recomputed
    assert followed == ["tape", "calls", "calls", "calls"]
    assert all(same(steps[0], step) for step in steps[1:])


def language_step(model: Any, around: Any) -> list[Tensor]:
    with around:
        loss = model(input_ids=IDS, labels=IDS).loss
    loss.backward()
    gradients = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    return [loss.detach(), *gradients]


def test_gradients_that_the_loss_stores_have_their_values(monkeypatch: pytest.MonkeyPatch, followed: Log) -> None:
    """Otherwise a plan that rounds would store them as tensors that it does not know, in 8 bits."""
    model = llama()
    integrations.compress_model(model, memory=0.4)
    found = []
    meet = CallFollower.meet_unplaced

    def noted(self: CallFollower, tensor: Tensor, value: int) -> int:
        found.append((value, meet(self, tensor, value)))
        return found[-1][1]

    monkeypatch.setattr(CallFollower, "meet_unplaced", noted)
    for _ in range(3):
        language_step(model, nullcontext())
    assert followed == ["tape", "calls", "calls"]
    assert len(found) == 4  # the gradients of the head's input and weight, in each of two forwards
    assert all(before == -1 and value >= 0 for before, value in found)
    assert found[:2] == found[2:]


def test_a_head_that_is_frozen_after_all(followed: Log) -> None:
    """The loss stores fewer gradients, by the same function: the forward is not the planned one, as a tape finds."""
    model = llama()
    integrations.compress_model(model, memory=0.4, error=0)
    for _ in range(2):
        language_step(model, nullcontext())
    model.lm_head.weight.requires_grad_(False)
    with pytest.warns(UserWarning, match="fewer tensors"):
        model(input_ids=IDS, labels=IDS).loss.backward()
    assert followed == ["tape", "calls", "calls"]


def test_logits_that_are_asked_for_after_all(followed: Log) -> None:
    """The forward makes them, and is not the planned one."""
    model = llama()
    head, asked = model.lm_head, [False]
    twin = copy.deepcopy(model)
    head.register_forward_hook(lambda module, args, logits: logits.sum() if asked[0] and logits.sum() is None else None)
    integrations.compress_model(model, memory=0.4, loss="chunked")
    for now in (False, False, True, False):
        asked[0] = now
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = language_step(model, nullcontext())
        plain = language_step(twin, nullcontext())
        # Gradients of up to 600 rows, summed in another order.
        assert all(torch.allclose(one, other, rtol=1e-4, atol=1e-6) for one, other in zip(found, plain, strict=True))
        assert any("not the one that was captured" in str(one.message) for one in told) == now
    assert followed == ["tape", "calls", "both", "tape"]


def test_a_cast_of_the_gradients_that_the_loss_stores_is_kept() -> None:
    """Backward would need them in float32 to repeat it."""
    model = llama().bfloat16()
    plan = integrations.plan(model, (), kwargs={"input_ids": IDS, "labels": IDS}, memory="least", loss="chunked")
    graph = plan.followed
    [(number, op)] = [(n, op) for n, op in enumerate(graph.ops) if "linear_cross_entropy" in op.name]
    readers = [one for one in graph.ops[number:] if set(op.makes) & set(one.reads)]
    assert any(one.name == "aten._to_copy.default" and one.shapes[0] == op.shapes[2] for one in readers)
    assert not any(one.repeatable for one in readers)


# ---- results of another kind, and the room for what is not returned ----


def test_a_nested_result(followed: Log) -> None:
    """It cannot be asked for its shape."""
    plain, nested = normal(4, 4), torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(3, 3)])

    def forward_of(model: Any, x: Tensor) -> Tensor:
        y = torch.tanh(x @ model.weight)
        torch.neg(model.other)
        return (y.sin() @ model.weight).exp().sum()

    model = Net(forward_of, weight=normal(8, 8)).train()
    model.other = plain
    args = (normal(8, 8, seed=2),)
    forward = run(model, capture(model, args, {}), ())
    expected = outcome(forward, model, args, {})[0]
    for other in (plain, nested, plain):
        model.other = other
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert same(outcome(forward, model, args, {})[0], expected)
    assert followed[:2] == ["tape", "calls"]


@pytest.mark.parametrize("in_flight", [1, 2])
def test_the_room_that_a_peak_leaves(in_flight: int) -> None:
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.Tanh()))).train()
    plan = integrations.plan(model, (normal(64, 16),), memory="least", in_flight=in_flight)
    step = SimulatedStep(plan.followed, plan.candidates_for(plan.choice))
    usage = step.usage(chosen_entries(plan.choice, plan.candidates_for(plan.choice)))
    ops = len(plan.followed.ops)
    assert [usage.peak - free for free in plan.spare] == list(usage.nbytes[:ops])
    assert min(plan.spare) >= 0
    unknown = replace(plan.choice, stores=((0, Store(3)),))
    assert plan.choosing(unknown, plan.bounds).spare == (0,) * ops
