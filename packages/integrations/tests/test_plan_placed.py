"""Plans that recompute nothing: after the first forward, the sites of saved tensors know the plan's values, and no
tape follows the operators. Results are those that a tape leads to, and a forward that is another is right, too.

With ``ACTCORE_LONG=1`` (``nox -s long_runs``) each forward that differs is tried with an exact plan and with one that
rounds, otherwise with one of both.
"""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from contextlib import nullcontext
from itertools import cycle

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import integrations
from integrations.api.handle.remeasuring import Remeasuring
from integrations.checkpoint import plan_of
from integrations.fewbit import RandomizedLinear
from integrations.runtime import plan_executor, replay
from integrations.runtime.repeating.tape import Tape

from .long_form import LONG
from .replay_nets import NETS, WIDTH, InPlace, Net, Overwriting

STORING = ("exact", "bits", "slopes")


@pytest.fixture
def tapes(monkeypatch: pytest.MonkeyPatch) -> list[Tape]:
    """Those of all forwards."""
    found: list[Tape] = []

    class Counted(Tape):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)  # type: ignore[arg-type]
            found.append(self)

    monkeypatch.setattr(plan_executor, "Tape", Counted)
    monkeypatch.setattr(Remeasuring, "waits", lambda *given: False)  # steps aside have tapes of their own
    monkeypatch.setattr(replay, "FORCED_OFF", False)  # where the environment turns it off, these would all have one
    return found


def _net() -> nn.Sequential:
    torch.manual_seed(1)
    layers = (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1))
    return nn.Sequential(*(copy.deepcopy(layer) for _ in range(4) for layer in layers)).train()


def _planned(model: nn.Module, *args: object, error: float = 0.1, **bounds: float) -> nn.Module:
    bounds = bounds or {"memory": 0.5}
    integrations.apply(model, integrations.plan(model, args, error=error, stores=STORING, **bounds))
    return model


def _input(number: int = 0) -> Tensor:
    return torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(number))


def _stepped(model: nn.Module, *args: object) -> list[Tensor]:
    torch.manual_seed(0)
    model(*args).square().mean().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]  # type: ignore[union-attr]


def test_what_a_tape_would_find(tapes: list[Tape], monkeypatch: pytest.MonkeyPatch) -> None:
    """In both states of the gradients, each with a plan of its own, which the steps go to and fro between."""
    model = _net()
    anew = copy.deepcopy(model)
    plan = integrations.plan(model, (_input(),), memory=0.5, error=0.1, stores=STORING)
    found = []
    for twin, off, count in ((model, False, 2), (anew, True, 9)):
        del tapes[:]
        integrations.apply(twin, plan)
        with monkeypatch.context() as patch:
            patch.setattr(replay, "FORCED_OFF", off)
            steps: list[object] = []
            for number in range(9):
                if number % 3 == 0:
                    twin.zero_grad()
                steps += [gradient.tolist() for gradient in _stepped(twin, _input(number))]
                steps += integrations.compression(twin).report().rows
                assert plan_of(twin).choice.rounds
            found.append(steps)
        assert len(tapes) == count
    assert found[0] == found[1]


class _Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.inside = _net(), _net()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = checkpoint(self.inside, self.before(x), use_reentrant=False)
        return found


def _randomized() -> nn.Module:
    return nn.Sequential(_net(), RandomizedLinear(WIDTH, WIDTH, proj_dim=16), _net())


@pytest.mark.parametrize(("made", "each"), [(_Checkpointed, 0), (_randomized, 1)])
def test_who_needs_a_tape_in_each_forward(made: Callable[[], nn.Module], each: int, tapes: list[Tape]) -> None:
    """What a layer announces that it stores has no site. Inputs of a checkpoint have one."""
    model = _planned(made().train(), _input(), memory=0.65)
    assert plan_of(model).choice.rounds
    _stepped(model, _input())
    _stepped(model, _input())  # where gradients are there already
    for _ in range(3):
        count = len(tapes)
        _stepped(model, _input())
        assert len(tapes) == count + each


# What these two write in some steps, torch itself refuses in backward.
KINDS = sorted({*NETS} - {InPlace, Overwriting}, key=str)
ERRORS = (0.0, 0.2)
PAIRS = [(kind, error) for kind in KINDS for error in ERRORS] if LONG else zip(KINDS, cycle(ERRORS), strict=False)
DIFFERING = [pytest.param(kind, error, id=f"{kind.__name__.lower()}-{error}") for kind, error in PAIRS]


@pytest.mark.filterwarnings("ignore:.*not the one that was")
@pytest.mark.parametrize(("kind", "error"), DIFFERING)
def test_a_forward_that_differs(kind: type[Net], error: float) -> None:
    """Right, whatever differs: exact where nothing may be rounded, else no other function's gradient."""
    torch.manual_seed(1)
    model = kind()
    plain = copy.deepcopy(model)
    torch.manual_seed(0)
    _planned(model, _input()[:8], 0, error=error, memory=1.0)
    for number in (0, 0, 1, 1, 2, 2, 3, 4, 5, 0, 1):
        found, expected = [], []
        for one, into in ((model, found), (plain, expected)):
            one.zero_grad()
            torch.manual_seed(0)
            one(_input(number)[:8], number).square().mean().backward()
            into += [p.grad.clone() for p in one.parameters() if p.grad is not None]
        if error:
            flat, exact = (torch.cat([one.flatten() for one in each]) for each in (found, expected))
            assert (flat - exact).norm() < 0.5 * exact.norm(), number
        else:
            assert all(map(torch.equal, found, expected)), number


@pytest.mark.filterwarnings("ignore:.*not the one that was")
@pytest.mark.parametrize("saves", ["another", "fewer"])
@pytest.mark.parametrize("stores", [("exact", "8 bits"), STORING])
def test_what_follows_another_forward(tapes: list[Tape], saves: str, stores: tuple[str, ...]) -> None:
    """If the plan uses at least 8 bits, the next forward has a tape, finds where it differs, and is planned for. With
    fewer bits, the forward runs a second time, and is planned for in front of that."""
    model = _net()
    integrations.apply(model, integrations.plan(model, (_input(),), memory=0.6, error=0.1, stores=stores))
    for number in range(3):
        _stepped(model, _input(number))
    count, plan = len(tapes), plan_of(model)
    if saves == "another":
        model[2] = nn.SiLU()
    else:
        model[-1].p = 0.0
    _stepped(model, _input())
    if stores is not STORING:
        assert len(tapes) == count  # nobody knows yet
        _stepped(model, _input())
        assert tapes[-1].mismatch
        _stepped(model, _input())
    assert plan_of(model) is not plan
    assert plan_of(model).choice.fits_any_path
    assert not tapes[-1].mismatch


def test_a_forward_that_goes_to_and_fro_is_told_of() -> None:
    """Though each one that is another may come where no tape is."""
    model = _planned(_net(), _input())
    plan = plan_of(model)

    def train() -> None:
        for number in range(8):
            model.zero_grad()
            model[-1].p = 0.0 if number % 2 else 0.1
            _stepped(model, _input(number))

    with pytest.warns(UserWarning, match="not the one that was captured"):
        train()
    assert plan_of(model) is not plan


def test_inputs_of_many_shapes(tapes: list[Tape]) -> None:
    """Each has a plan of its own in both states of the gradients, and none is forgotten for the others."""
    model = _planned(_net(), _input()[:32])
    for turn in range(3):
        count = len(tapes)
        for rows in (32, 40, 48, 56, 64):  # none is smaller than a planned one
            model.zero_grad()
            _stepped(model, _input()[:rows])
            _stepped(model, _input()[:rows])
        assert (len(tapes) > count) is (turn == 0)
    model.zero_grad()
    _stepped(model, _input()[:24])  # which follows another's plan, and may be followed by any size
    _stepped(model, _input()[:24])
    assert len(tapes) == count + 2


def test_a_copy_begins_with_a_tape(tapes: list[Tape]) -> None:
    model = _planned(_net(), _input())
    for number in range(3):
        _stepped(model, _input(number))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        count = len(tapes)
        for _ in range(3):
            twin.zero_grad()
            _stepped(twin, _input())
        assert len(tapes) == count + 1
        assert plan_of(twin).choice.rounds


def test_an_error_in_a_forward_changes_nothing(tapes: list[Tape]) -> None:
    model = _planned(_net(), _input())
    twin = copy.deepcopy(model)
    for one in (model, twin):
        for number in range(3):
            _stepped(one, _input(number))
    count = len(tapes)

    def fail(*given: object) -> None:
        raise KeyError

    for one, failing in ((model, fail), (twin, None)):
        hook = one[6].register_forward_pre_hook(failing or (lambda *given: None))
        with pytest.raises(KeyError) if failing else nullcontext():
            one(_input(2))
        hook.remove()
    assert all(map(torch.equal, _stepped(model, _input(3)), _stepped(twin, _input(3))))
    assert len(tapes) == count


def test_threads(tapes: list[Tape]) -> None:
    """Each forward has the stores of its own tensors."""
    model = _net()
    for layer in model[3::4]:
        layer.p = 0.0
    plain = copy.deepcopy(model)
    _planned(model, _input(), error=0.2)
    failures: list[str] = []

    def run(number: int) -> None:
        x, y = (_input(number).requires_grad_() for _ in range(2))
        (exact,) = torch.autograd.grad(plain(y).square().mean(), y)
        for _ in range(5):
            (found,) = torch.autograd.grad(model(x).square().mean(), x)
            if not (found - exact).norm() < 0.5 * exact.norm():
                failures.append(f"{number}: {(found - exact).norm() / exact.norm()}")

    run(0)
    count = len(tapes)
    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(tapes) == count
