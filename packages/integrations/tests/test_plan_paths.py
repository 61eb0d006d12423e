"""Plans of models whose forward takes another path in some steps: other blocks, fewer blocks, or another branch.

A plan chooses bits by the gradient of the path that was planned. On another path these may be far too few: in a chain
of linear layers and GELUs, the first of 8 layers has a thousandth of the gradient, and all of it if the chain ends
there.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import integrations
from integrations._planning.plan import Plan
from integrations.checkpoint import plan_of

WIDTH, DEPTH = 32, 6
ERROR = 0.1
TOLD = "is not the one that was captured"


class _Chain(nn.Module):
    def __init__(self, act: type[nn.Module]) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(WIDTH, WIDTH), act()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.act(self.linear(x))
        return found


class _Attention(nn.Module):
    def __init__(self, act: type[nn.Module]) -> None:
        super().__init__()
        self.norm, self.products, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.after = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), act(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        products = self.products(self.norm(x)).chunk(3, -1)
        heads = (one.unflatten(-1, (2, -1)).transpose(1, 2) for one in products)
        x = x + self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return x + self.after(x)


class _Net(nn.Module):
    """Run the blocks of ``path``. For a number that is written as ``~number``, add the tanh of the block."""

    def __init__(self, block: type[nn.Module], act: type[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block(act) for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8)
        self.path: Sequence[int] = range(DEPTH)

    def forward(self, x: Tensor) -> Tensor:
        for number in self.path:
            x = self.blocks[number](x) if number >= 0 else x + torch.tanh(self.blocks[~number](x))
        found: Tensor = self.head(self.norm(x))
        return found


PATHS: dict[str, list[Sequence[int]]] = {
    "exits": [range(1), range(4), range(6), range(2), range(1)],
    "depth": [[1, 2, 5], [4], [0, 1, 2, 3, 4, 5], [3, 5], [1, 2]],
    "loops": [[0, 1, 0], [0], [0, 1, 0, 1, 0, 1, 0, 1], [0, 1], [1]],
    "branches": [[0, ~1, 2], [~0, 1, ~2, 3], [0, 1, 2, 3, 4, 5], [~3, ~4], [~0]],
}


def _gradient(model: nn.Module, number: int) -> Tensor:
    given = torch.Generator().manual_seed(number)
    x, y = torch.randn(4, 16, WIDTH, generator=given), torch.randint(8, (4, 16), generator=given)
    model.zero_grad()
    F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
    return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])


def _net(block: type[nn.Module], act: type[nn.Module] = nn.GELU) -> tuple[_Net, _Net]:
    torch.manual_seed(1)
    model = _Net(block, act).train()
    return model, copy.deepcopy(model)


def _errors(model: _Net, exact: _Net, paths: Sequence[Sequence[int]]) -> list[float]:
    found = []
    for number, path in enumerate(paths):
        model.path = exact.path = path
        expected = _gradient(exact, number)
        found.append(float((_gradient(model, number) - expected).norm() / expected.norm()))
    return found


@pytest.mark.filterwarnings(f"ignore:.*{TOLD}", "ignore:.*no plan of")
@pytest.mark.parametrize(
    ("kind", "block", "act", "bounds"),
    [
        *((kind, _Chain, nn.GELU, {"stores": ("bits",)}) for kind in PATHS),
        ("loops", _Chain, nn.SiLU, {}),
        ("branches", _Chain, nn.SiLU, {}),
        ("depth", _Attention, nn.SiLU, {"memory": 0.5}),
        ("exits", _Attention, nn.GELU, {"stores": ("bits", "recompute")}),
    ],
)
def test_each_step_is_within_the_bound(
    kind: str, block: type[nn.Module], act: type[nn.Module], bounds: dict[str, Any]
) -> None:
    """The first forward on another path is an exception: its first tensors were rounded before that was known."""
    model, exact = _net(block, act)
    integrations.compress_model(model, error=ERROR, **bounds)
    assert max(_errors(model, exact, [range(DEPTH)] * 3)) <= ERROR
    _errors(model, exact, PATHS[kind][:1])
    assert max(_errors(model, exact, [*PATHS[kind][1:], *PATHS[kind], range(DEPTH)])) <= ERROR


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
    """It was stored in the bits that were planned for other readers."""
    torch.manual_seed(1)
    model = _Rereads().train()
    integrations.apply(model, integrations.plan(model, (torch.randn(128, WIDTH),), error=0.3, stores=("bits",)))
    for rereads in (False, False, True) if replays else (True,):
        model.rereads = rereads
        model(torch.randn(64, WIDTH)).square().mean().backward()  # smaller than planned: each forward has a tape
    stored = {row.module: row for row in integrations.compression(model).report().rows if row.role == "input"}
    assert "bits=8" in stored["c"].codec
    assert stored["b"].why == "shares a copy with more bits"


def _forwards(model: _Net, paths: Sequence[Sequence[int]]) -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for number, path in enumerate(paths):
            model.path = path
            _gradient(model, number)
    return [str(one.message) for one in told if TOLD in str(one.message)]


def test_it_is_said_once_with_what_to_do() -> None:
    model, _ = _net(_Chain)
    integrations.compress_model(model, error=ERROR, stores=("bits",))
    told = _forwards(model, [range(DEPTH)] * 3 + [*PATHS["exits"]] * 3)
    assert [("may be above error=0.1. No later step rounds to fewer than 8 bits" in one) for one in told][:2] == [
        True,
        False,
    ]
    assert "restore_model(model) and compress it again" in told[0]
    assert len(told) <= 3  # one for each capture


def test_a_bound_that_8_bits_do_not_keep() -> None:
    """With an error below 0.01, later steps round nothing."""
    model, exact = _net(_Chain)
    integrations.compress_model(model, error=0.005, stores=("bits",))
    assert plan_of_trained(model).choice.rounds
    assert "No later step rounds, which keeps" in _forwards(model, [range(1)])[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert max(_errors(model, exact, PATHS["exits"])) == 0


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
    _gradient(model, 0)
    return plan_of(model)


@pytest.mark.filterwarnings(f"ignore:.*{TOLD}")
def test_a_budget_is_kept_with_8_bits() -> None:
    """The new plan keeps to the same memory. It recomputes values that had few bits before."""
    model, _ = _net(_Attention)
    integrations.compress_model(model, error=ERROR, memory=0.45)
    before = plan_of_trained(model)
    assert not before.choice.fits_any_path
    for path in (range(2), range(DEPTH), range(DEPTH)):
        model.path = path
        _gradient(model, 0)
    after = plan_of(model)
    assert after.choice.fits_any_path
    assert after.accumulating.choice.fits_any_path
    assert after.peak <= before.bounds.memory * before.plain_peak
    assert after.memory == 0.45


@pytest.mark.filterwarnings(f"ignore:.*{TOLD}")
def test_the_plans_of_other_inputs_follow() -> None:
    """Plans of the same forward are solved again from their captures."""
    model, _ = _net(_Chain)
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
    model, _ = _net(_Chain)
    integrations.compress_model(model, error=ERROR, stores=("slopes",))
    _gradient(model, 0)
    model.path = [0, ~1, ~2]
    _gradient(model, 0)
    assert not [row for row in integrations.compression(model).report().rows if "GroupAffine" in row.codec]
