"""What a saved tensor costs beside its bytes: chains of layers so small that little else is left to time.

The time that compression adds to forward and backward holds all that comes with it: the hooks' and operators' dispatch,
the kernels on the few elements that there are, following the calls and modules, and what a step costs once. One chain
saves nothing but what others keep alive, and tells what a tensor costs that the hooks leave alone. With that, and with
the codec of linear operators, called as often with nothing around it, the others tell what a packed one costs besides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

import actcore
import integrations
from bench.runner.clock import in_turn
from bench.suites.memory.activations.results import Overhead

LAYERS = 64  # so many that what a step costs once hardly counts
_ROWS, _FEATURES = 16, 32  # 2 KiB: twice the size from which a level compresses
_CALLS = 5  # steps in a row, so that the clock's own cost does not show


def _linear() -> list[nn.Module]:
    return [nn.Linear(_FEATURES, _FEATURES)]


def _relu() -> list[nn.Module]:
    return [nn.Linear(_FEATURES, _FEATURES), nn.ReLU()]


def _gelu() -> list[nn.Module]:
    return [nn.Linear(_FEATURES, _FEATURES), nn.GELU()]


def _norm() -> list[nn.Module]:
    return [nn.LayerNorm(_FEATURES), nn.Linear(_FEATURES, _FEATURES)]


class _Scale(nn.Module):
    """Saves its factor, which is a buffer."""

    factor: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.ones(_FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def _scale() -> list[nn.Module]:
    return [_Scale()]


CHAINS: Mapping[str, Callable[[], list[nn.Module]]] = MappingProxyType(
    {
        "scale": _scale,
        "linear": _linear,
        "linear, relu": _relu,
        "linear, gelu": _gelu,
        "layer_norm, linear": _norm,
    }
)
"""The layers that are repeated, by name."""


def measure(chain: str, rounds: int, layers: int = LAYERS) -> Overhead:
    """Times one of ``CHAINS`` at L1 and plain, in turn."""
    torch.manual_seed(0)
    plain, compressed = (
        nn.Sequential(*(layer for _ in range(layers) for layer in CHAINS[chain]())).train() for _ in range(2)
    )
    integrations.compress_model(compressed, "L1")
    x = torch.randn(_ROWS, _FEATURES, requires_grad=True)  # so that each layer has a backward
    level = integrations.LEVELS["L1"]
    assert level.bits is not None
    codec = actcore.GroupAffine(level.bits, level.group_size)

    detached = x.detach()

    def step(model: nn.Module) -> None:
        model.zero_grad()
        x.grad = None
        model(x).sum().backward()

    def round_trips() -> None:
        for _ in range(layers):
            actcore.decompress(actcore.compress(detached, codec))

    actions = [lambda: step(plain), lambda: step(compressed), round_trips]
    plain_seconds, seconds, codec_seconds = in_turn(actions, rounds, x.device, _CALLS)
    rows = integrations.compression(compressed).report().rows
    packed = sum(row.codec not in ("kept", "copied") for row in rows)
    codec_each = [total / layers for total in codec_seconds]
    return Overhead(chain, x.nbytes, len(rows), packed, plain_seconds, seconds, codec_each)
