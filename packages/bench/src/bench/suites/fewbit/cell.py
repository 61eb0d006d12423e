"""Parts ``memory`` and ``grid``: the peak of a step of RoBERTa, in a process of its own; ``time``: layers in turn.

The activation peak is the most memory during forward and backward, less what was there before, with ``.grad`` unset,
and less the gradients. On the CPU the kernel counts it: this needs a process with the allocator's setting, see
``bench.runner.process_memory``.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from bench.runner.clock import Action, in_turn
from bench.runner.process_memory import Counters, counters
from bench.suites.fewbit.entries import GridCell, Peak, Sized, Times
from bench.suites.kernels.contenders import ACTCORE, TORCH, Pass
from bench.ways.roberta import ATTENTION, BITS, DROPOUT, RATIO, RATIOS, WAYS, Case, Exchange, Shape
from integrations import fewbit
from integrations.fewbit import FUNCTIONS, FewBitFunction, RandomizedLinear

BATCHES = {"cpu": 16, "cuda": 128}  # sequences; FewBit's table has 128
STEPS = 1  # that count: one is like another to a page or two
QUICK_BATCH = 4
QUICK_SHAPE = Shape(layers=2, vocabulary=1000)
GRID_BITS = (None, 1, 2, 3, 4)  # of GELU; None is the exact one

Measured = TypeVar("Measured", bound=Sized)


def peaks(shape: Shape, batch: int) -> list[Peak]:
    """Those of FewBit's ways, without numbers."""
    network = f"RoBERTa, {shape}, {ATTENTION} attention, dropout {DROPOUT:g}, float32"
    return [Peak(way, network, batch) for way in WAYS]


def cells(shape: Shape, batch: int, quick: bool) -> list[GridCell]:
    """Those of the grid, without numbers."""
    ratios = (None, RATIO) if quick else RATIOS
    bits = (None, BITS) if quick else GRID_BITS
    return [GridCell(one, ratio, grid_network(shape), batch) for ratio in ratios for one in bits]


def grid_network(shape: Shape) -> str:
    """A shape in words that tell it from others."""
    return f"{shape}, {shape.vocabulary:,} words"


def measure_peak(
    entry: Measured, *, way: Mapping[str, Any], shape: Mapping[str, Any], batch: int, steps: int, device: str
) -> Measured:
    """Measures one way to train in this process.

    Args:
        entry: without numbers.
        way, shape: as ``dataclasses.asdict`` makes them of a ``Exchange`` and of the network's ``Shape``.
        batch: sequences of its input.
        steps: that count, after one that pays for caches.
        device: ``"cpu"`` or ``"cuda"``.
    """
    torch.manual_seed(0)
    case = Case(Shape(**shape), Exchange(**way), batch, torch.device(device))
    found = counters(torch.device(device))
    if isinstance(found, str):
        return replace(entry, not_measured=found)
    measured = [_step(case, found) for _ in range(1 + steps)][1:]
    kept, above, whole = (list(values) for values in zip(*measured, strict=True))
    gradients = sum(parameter.grad.nbytes for parameter in case.model.parameters() if parameter.grad is not None)
    return replace(entry, kept_bytes=kept, peak_bytes=above, raw_bytes=whole, gradient_bytes=gradients)


def _step(case: Case, count: Counters) -> tuple[int, int, int]:
    """Bytes of one step: live after the forward, at the peak more than before, and at the peak in all."""
    case.model.zero_grad(set_to_none=True)
    gc.collect()
    live, before = count.live(), count.start_peak()
    loss = case.loss()
    kept = count.live() - live
    loss.backward()
    peak = count.peak()
    return kept, peak - before, peak


ELEMENTS, QUICK_ELEMENTS = 8 * 2**20, 2**18
ROWS, QUICK_ROWS = 4096, 256
FEATURES = (768, 3072)  # of the linear layer, in and out
SKETCHES = ("gaussian", "rademacher", "dct", "dft", "rows")
ROUNDS, QUICK_ROUNDS = 9, 3


def activation(name: str, elements: int, rounds: int, device: torch.device) -> Times:
    """A function in ``BITS`` bits, or in the bits that it has if it is piecewise linear, beside torch's.

    Args:
        name: of ``integrations.fewbit.FUNCTIONS``.
        elements: of the float32 tensor.
        rounds: that count.
        device: where it is.
    """
    x = torch.randn(elements, generator=torch.Generator().manual_seed(0)).to(device)
    function = FUNCTIONS[name]
    passes = (Pass(ACTCORE, few_bit(function)), Pass(TORCH, partial(_plain, function)))
    actions = [contender.action for one in passes for contender in one.contenders(x)]
    own, others = in_turn(actions, rounds, device)
    return Times(name, "activation", elements, own, others)


def few_bit(function: FewBitFunction) -> Callable[[Tensor], Tensor]:
    """``fewbit``'s function of that name, with its default parameters."""
    options: dict[str, Any] = dict(function.defaults) if function.piecewise else {**function.defaults, "bits": BITS}
    if function.name == "gelu_tanh":  # one of torch's two forms of GELU
        return partial(fewbit.functional.gelu, approximate="tanh", **options)
    return partial(getattr(fewbit.functional, function.name), **options)


def _plain(function: FewBitFunction, x: Tensor) -> Tensor:
    return function.call(x, *function.defaults.values())


def linear(rows: int, rounds: int, device: torch.device) -> list[Times]:
    """A linear layer of ``FEATURES`` with every kind of sketch, and ``nn.Linear``, all in turn."""
    torch.manual_seed(0)
    x = torch.randn(rows, FEATURES[0], device=device, requires_grad=True)
    gradient = torch.randn(rows, FEATURES[1], device=device)
    layers = [nn.Linear(*FEATURES)]
    layers += [RandomizedLinear(*FEATURES, proj_dim_ratio=RATIO, matmul=kind) for kind in SKETCHES]
    plain, *others = in_turn([_layer_step(layer.to(device), x, gradient) for layer in layers], rounds, device)
    return [Times(kind, "linear", x.numel(), seconds, plain) for kind, seconds in zip(SKETCHES, others, strict=True)]


def _layer_step(layer: nn.Module, x: Tensor, gradient: Tensor) -> Action:
    """Forward, and the gradients of input, weight and bias."""
    return lambda: torch.autograd.grad(layer(x), [x, *layer.parameters()], gradient)
