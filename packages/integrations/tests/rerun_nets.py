"""A net that may exit early, under a plan with few bits, and how often its forward runs."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

import integrations
from integrations.checkpoint import plan_of

WIDTH, ERROR = 32, 0.1
TOLD = "is not the one that was captured"


class ExitingNet(nn.Module):
    """A chain of linear layers. With ``exits``, it ends after the first layers, where few bits were planned: their
    gradient is the smallest one on the whole path."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Linear(WIDTH, WIDTH), nn.GELU())
        self.first, self.rest = self._chain(layers, 2), self._chain(layers, 4)
        self.exits = False

    def _chain(self, layers: tuple[nn.Module, ...], count: int) -> nn.Sequential:
        return nn.Sequential(*(copy.deepcopy(layer) for _ in range(count) for layer in layers))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.first(x)
        if self.exits:
            return self.on_exit(y)
        found: Tensor = self.rest(y)
        return found

    def on_exit(self, y: Tensor) -> Tensor:
        return y.sin()


Net = TypeVar("Net", bound=ExitingNet)


def make_input(seed: int = 0) -> Tensor:
    return torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(seed))


def planned(model: Net, steps: int = 1, others: Callable[[], tuple[Any, ...]] = tuple) -> Net:
    integrations.compress_model(model.train(), error=ERROR, stores=("bits",), min_bytes=0)
    for seed in range(steps):
        model.zero_grad()
        model(make_input(seed), *others()).square().mean().backward()
    assert not plan_of(model).choice.fits_any_path
    return model


def plain(model: Net) -> Net:
    return integrations.restore_model(copy.deepcopy(model))


def seed_all() -> None:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002


def gradient(model: nn.Module, *args: Any) -> Tensor:
    seed_all()
    model.zero_grad()
    model(make_input(9), *args).square().mean().backward()
    return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])


def measure_error(model: nn.Module, exact: nn.Module, *args: Any) -> float:
    expected = gradient(exact, *args)
    return float((gradient(model, *args) - expected).norm() / expected.norm())


def count_runs(model: ExitingNet) -> list[int]:
    """How often the first layer runs, as the length of a list."""
    found: list[int] = []
    model.first[0].register_forward_pre_hook(lambda *_: found.append(1))
    return found


class Cache:
    """Keys by layer, as transformers has them."""

    def __init__(self) -> None:
        self.layers: list[dict[str, Any]] = [{"keys": None, "seen": 0}]
        self.count = torch.zeros(())

    def update(self, keys: Tensor) -> None:
        self.layers[0]["keys"] = keys.detach()
        self.layers[0]["seen"] += len(keys)
        self.layers.append({})
        self.count += 1


class StatefulNet(ExitingNet):
    """Draw from each generator, decide by what was drawn and counted, and change each kind of state."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout = nn.BatchNorm1d(WIDTH), nn.Dropout(0.2)
        self.calls = 0
        self.outputs: list[float] = []
        self.nested: dict[str, Any] = {"seen": {"shapes": []}, "names": {"a"}}
        self.average = torch.zeros(WIDTH)
        self.generator = torch.Generator().manual_seed(0)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("codes", torch.zeros(WIDTH))

    def forward(self, x: Tensor, cache: Cache | None = None, log: list[int] | None = None) -> Tensor:
        self.calls += 1
        self.steps += 1
        self.codes += x.detach().mean(0)
        self.codes = self.codes.clone()  # the next forward changes another tensor
        self.average.data.mul_(0.5).add_(x.detach().mean(0))  # counts no version
        self.outputs.append(float(x.sum()))
        self.nested["seen"]["shapes"].append(x.shape)
        self.nested["names"].add(str(self.calls))
        if cache is not None:
            cache.update(x)
        if log is not None:
            log.append(self.calls)
        x = self.dropout(self.norm(x)) * (1 + torch.rand((), generator=self.generator))
        chosen = random.random() + float(np.random.rand()) + float(torch.rand(()))  # noqa: NPY002
        return super().forward(x * (1 + self.calls) + int(self.steps) * chosen)
