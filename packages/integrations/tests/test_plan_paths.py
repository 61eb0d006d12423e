"""Plans of models whose forward takes another path in some steps: other blocks, fewer blocks, or another branch.

A plan chooses bits by the gradient of the path that was planned. On another path these may be far too few: in a chain
of linear layers and GELUs, the first of 8 layers has a thousandth of the gradient, and all of it if the chain ends
there.
"""

from __future__ import annotations

import copy
import itertools
import random
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import integrations
from integrations.checkpoint import plan_of
from integrations.planner.plan import Plan
from integrations.planner.plans import Plans
from integrations.runtime import replay

from .varying_nets import DEPTH, WIDTH, Attention, Chain, Net, errors, gradient, net

ERROR = 0.1
TOLD = "is not the one that was captured"


PATHS: dict[str, list[Sequence[int]]] = {
    "exits": [range(1), range(4), range(6), range(2), range(1)],
    "depth": [[1, 2, 5], [4], [0, 1, 2, 3, 4, 5], [3, 5], [1, 2]],
    "loops": [[0, 1, 0], [0], [0, 1, 0, 1, 0, 1, 0, 1], [0, 1], [1]],
    "branches": [[0, ~1, 2], [~0, 1, ~2, 3], [0, 1, 2, 3, 4, 5], [~3, ~4], [~0]],
}


@pytest.mark.filterwarnings(f"ignore:.*{TOLD}", "ignore:.*no plan of")
@pytest.mark.parametrize(
    ("kind", "block", "act", "bounds"),
    [
        *((kind, Chain, nn.GELU, {"stores": ("bits",)}) for kind in PATHS),
        ("loops", Chain, nn.SiLU, {}),
        ("branches", Chain, nn.SiLU, {}),
        ("depth", Attention, nn.SiLU, {"memory": 0.5}),
        ("exits", Attention, nn.GELU, {"stores": ("bits", "recompute")}),
    ],
)
def test_each_step_is_within_the_bound(
    kind: str, block: type[nn.Module], act: type[nn.Module], bounds: dict[str, Any]
) -> None:
    """The first forward on another path, too: it runs a second time, since its first tensors had few bits before it was
    known that the path is another one."""
    model, exact = net(block, act)
    integrations.compress_model(model, error=ERROR, **bounds)
    assert max(errors(model, exact, [range(DEPTH)] * 3)) <= ERROR
    assert max(errors(model, exact, [*PATHS[kind], *PATHS[kind], range(DEPTH)])) <= ERROR


@pytest.mark.filterwarnings(f"ignore:.*{TOLD}")
@pytest.mark.parametrize("taped", [False, True], ids=["replayed", "taped"])
@pytest.mark.parametrize("seed", range(2))
def test_the_first_step_on_a_random_path_is_within_the_bound(
    seed: int, taped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loops of random length over random blocks and branches. Without the second run, the error is up to 0.4."""
    monkeypatch.setattr(replay, "FORCED_OFF", taped)
    drawn = random.Random(seed)
    model, exact = net(Chain)
    integrations.compress_model(model, error=ERROR, stores=("bits",))
    assert max(errors(model, exact, [range(DEPTH)] * 2)) <= ERROR
    paths = [[drawn.randrange(-DEPTH, DEPTH) for _ in range(drawn.randint(1, 2 * DEPTH))] for _ in range(3)]
    assert max(errors(model, exact, paths)) <= ERROR


@pytest.mark.parametrize("taped", [False, True], ids=["replayed", "taped"])
def test_the_warning_names_the_module_that_ran(taped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not only the one that was planned, which has done nothing wrong."""
    monkeypatch.setattr(replay, "FORCED_OFF", taped)
    model, _ = net(Chain)
    integrations.compress_model(model, memory=0.8)
    for path in ([0, 1, 2], [0, 1, 2]):
        model.path = path
        gradient(model, 0)
    model.path = [0, ~1, 2]
    told = r"the plan has aten\.\w+\.default in blocks\.2\.linear, .* but the forward ran aten\.tanh\.default"
    with pytest.warns(UserWarning, match=rf"{TOLD}.*{told} in the model itself"):
        gradient(model, 0)


class _Rereads(nn.Module):
    """Read an early value once more if asked to. A sine before that shows that the path differs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.rereads = False

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.a(x))
        y = self.b(h)
        found: Tensor = torch.sin(y) * self.c(h) if self.rereads else self.c(y)
        return found


@pytest.mark.filterwarnings(f"ignore:.*{TOLD}")
@pytest.mark.parametrize("replays", [False, True], ids=["anew", "replayed"])
def test_what_another_operator_reads_is_stored_for_it(replays: bool) -> None:
    """It was stored in the bits that were planned for other readers. Inputs of another shape have a plan of their own,
    which is made for the new path."""
    torch.manual_seed(1)
    model = _Rereads().train()
    exact = copy.deepcopy(model)
    integrations.apply(model, integrations.plan(model, (torch.randn(128, WIDTH),), error=0.3, stores=("bits",)))
    for rereads in (False, False, True) if replays else (True,):
        found = []
        for one in (model, exact):
            one.rereads = rereads
            one.zero_grad()
            one(torch.ones(64, WIDTH).cumsum(0).sin()).square().mean().backward()
            found.append(torch.cat([each.grad.flatten() for each in one.parameters() if each.grad is not None]))
        assert (found[0] - found[1]).norm() <= 0.3 * found[1].norm()
    stored = {row.module: row for row in integrations.compression(model).report().rows if row.role == "input"}
    assert stored["c"].codec == stored["b"].codec  # one copy, with bits for both


class _Adds(Net):
    """Add a multiple of an early value to the result if asked to. That saves nothing for backward."""

    adds = False

    def forward(self, x: Tensor) -> Tensor:
        early: Tensor = self.blocks[0](x)
        for block in list(self.blocks)[1:]:
            x = block(x if block is not self.blocks[1] else early)
        return x + 100 * early if self.adds else x


@pytest.mark.filterwarnings(f"ignore:.*{TOLD}")
@pytest.mark.parametrize("taped", [False, True], ids=["replayed", "taped"])
def test_operators_that_save_nothing_are_another_path(taped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "FORCED_OFF", taped)
    torch.manual_seed(1)
    model = _Adds(Chain, nn.GELU).train()
    exact = copy.deepcopy(model)
    integrations.compress_model(model, error=ERROR, stores=("bits",))
    assert max(errors(model, exact, [range(DEPTH)] * 2)) <= ERROR
    model.adds = exact.adds = True
    assert max(errors(model, exact, [range(DEPTH)])) <= ERROR


class _Turns(Net):
    """Run one block more in each forward. No second run and no capture can put the iterator back."""

    turns = itertools.count(3)

    def forward(self, x: Tensor) -> Tensor:
        for number in range(next(_Turns.turns)):
            x = self.blocks[number % DEPTH](x)
        return x


@pytest.mark.filterwarnings(f"ignore:.*{TOLD}")
@pytest.mark.parametrize(("length", "captured"), [(4, True), (3, True), (3, False)])
def test_a_path_that_changes_in_each_run_has_8_bits(
    length: int, captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third run, at most, needs no plan of its own path. Without that, the forward would run for ever if no plan can
    be made for its inputs."""
    _Turns.turns = itertools.count(3)
    model = _Turns(Chain, nn.GELU).train()
    integrations.apply(model, integrations.plan(model, (torch.randn(4, 16, WIDTH),), error=ERROR, stores=("bits",)))
    assert not plan_of(model).choice.fits_any_path
    if not captured:
        monkeypatch.setattr(Plans, "_asks_for_capture", lambda *_: False)
    model(torch.randn(length, 16, WIDTH)).square().mean().backward()
    stored = [row.codec for row in integrations.compression(model).report().rows if "bits=" in row.codec]
    assert all("bits=8" in codec for codec in stored)
    assert stored


def _forwards(model: Net, paths: Sequence[Sequence[int]]) -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for number, path in enumerate(paths):
            model.path = path
            gradient(model, number)
    return [str(one.message) for one in told if TOLD in str(one.message)]


def test_it_is_said_once_with_what_to_do() -> None:
    model, _ = net(Chain)
    integrations.compress_model(model, error=ERROR, stores=("bits",))
    told = _forwards(model, [range(DEPTH)] * 3 + [*PATHS["exits"]] * 3)
    assert ["From now on no step rounds to fewer than 8 bits" in one for one in told][:2] == [True, False]
    assert "It runs a second time" in told[0]
    assert "restore_model(model) and compress it again" in told[0]
    assert len(told) <= 3  # one for each capture


def test_a_bound_that_8_bits_do_not_keep() -> None:
    """With an error below 0.01, the second run and later steps round nothing."""
    model, exact = net(Chain)
    integrations.compress_model(model, error=0.009, stores=("bits",))
    assert plan_of_trained(model).choice.rounds
    assert "From now on no step rounds, which keeps" in _forwards(model, [range(1)])[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert max(errors(model, exact, PATHS["exits"])) == 0


@pytest.mark.parametrize("kind", ["cut out", "channels last"])
def test_inputs_of_other_strides_take_the_same_path(kind: str) -> None:
    torch.manual_seed(0)
    if kind == "cut out":
        model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))
        inputs = [torch.randn(64, 32), torch.randn(32, 64).t()]
    else:
        model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.GELU(), nn.Conv2d(16, 16, 3), nn.GELU(), nn.Conv2d(16, 8, 3))
        inputs = [x := torch.randn(4, 3, 16, 16), x.to(memory_format=torch.channels_last)]
    integrations.compress_model(model, error=ERROR, stores=("bits",), min_bytes=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for place in (0, 0, 1, 0, 1, 1):
            model(inputs[place]).square().sum().backward()
    assert not plan_of(model).choice.fits_any_path


def plan_of_trained(model: nn.Module) -> Plan:
    gradient(model, 0)
    return plan_of(model)


@pytest.mark.filterwarnings(f"ignore:.*{TOLD}")
def test_a_budget_is_kept_with_8_bits() -> None:
    """The new plan keeps to the same memory. It recomputes values that had few bits before."""
    model, _ = net(Attention)
    integrations.compress_model(model, error=ERROR, memory=0.45)
    before = plan_of_trained(model)
    assert not before.choice.fits_any_path
    for path in (range(2), range(DEPTH), range(DEPTH)):
        model.path = path
        gradient(model, 0)
    after = plan_of(model)
    assert after.choice.fits_any_path
    assert after.accumulating.choice.fits_any_path
    assert after.peak <= before.bounds.memory * before.plain_peak
    assert after.memory == 0.45


def test_a_plan_that_is_solved_again_keeps_to_its_memory() -> None:
    model, _ = net(Attention)
    plan = integrations.plan(model, torch.randn(4, 16, WIDTH), memory=0.45, error=ERROR)
    assert not plan.choice.fits_any_path
    found = Plans(plan, "replan")._for_any_path(plan)
    assert found.choice.fits_any_path
    assert found.memory == 0.45
    assert found.peak <= 0.45 * plan.plain_peak


@pytest.mark.filterwarnings(f"ignore:.*{TOLD}")
def test_the_plans_of_other_inputs_follow() -> None:
    """Plans of the same forward are solved again from their captures."""
    model, _ = net(Chain)
    integrations.apply(
        model, integrations.plan(model, [(torch.randn(4, 16, WIDTH),), (torch.randn(2, 40, WIDTH),)], error=ERROR)
    )
    for shape, path in (((2, 40, WIDTH), range(DEPTH)), ((4, 16, WIDTH), range(1)), ((2, 40, WIDTH), range(DEPTH))):
        model.path = path
        model(torch.randn(shape)).square().mean().backward()
    followed = plan_of(model)
    assert followed.graph.inputs.shapes == ((2, 40, WIDTH),)
    assert followed.choice.fits_any_path


@pytest.mark.filterwarnings(f"ignore:.*{TOLD}")
def test_stores_that_are_not_allowed_are_not_taken_for_the_rest() -> None:
    """Unforeseen tensors were stored in 8 bits although ``stores`` had no bits."""
    model, _ = net(Chain)
    integrations.compress_model(model, error=ERROR, stores=("slopes",))
    gradient(model, 0)
    model.path = [0, ~1, ~2]
    gradient(model, 0)
    assert not [row for row in integrations.compression(model).report().rows if "GroupAffine" in row.codec]
