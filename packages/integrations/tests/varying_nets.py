"""Models whose forward takes different paths, and the error of their gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, DEPTH = 32, 6


class Chain(nn.Module):
    def __init__(self, act: type[nn.Module]) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(WIDTH, WIDTH), act()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.act(self.linear(x))
        return found


class Attention(nn.Module):
    def __init__(self, act: type[nn.Module]) -> None:
        super().__init__()
        self.norm, self.products, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.after = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), act(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        products = self.products(self.norm(x)).chunk(3, -1)
        heads = (one.unflatten(-1, (2, -1)).transpose(1, 2) for one in products)
        x = x + self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return x + self.after(x)


class Net(nn.Module):
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


def gradient(model: nn.Module, number: int, function: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Return the gradient of a step, as one vector. ``function`` runs the model; ``None``: the model itself."""
    given = torch.Generator().manual_seed(number)
    x, y = torch.randn(4, 16, WIDTH, generator=given), torch.randint(8, (4, 16), generator=given)
    model.zero_grad()
    F.cross_entropy((model if function is None else function)(x).flatten(0, 1), y.flatten()).backward()
    return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])


def net(block: type[nn.Module], act: type[nn.Module] = nn.GELU) -> tuple[Net, Net]:
    torch.manual_seed(1)
    model = Net(block, act).train()
    return model, copy.deepcopy(model)


def errors(
    model: Net, exact: Net, paths: Sequence[Sequence[int]], function: Callable[[Tensor], Tensor] | None = None
) -> list[float]:
    """Return the relative errors of a model's gradients in steps on these paths."""
    found = []
    for number, path in enumerate(paths):
        model.path = exact.path = path
        expected = gradient(exact, number)
        found.append(float((gradient(model, number, function) - expected).norm() / expected.norm()))
    return found
