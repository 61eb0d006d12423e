"""One model measured: stored bytes, the gradient's error, times, what the process holds; and the cost of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor, nn

import actcore
import integrations
from bench.models.networks import bert, gcn, image_model, llama, resnet18, resnet50, vit_tiny
from bench.models.subject import Case
from bench.runner.clock import in_turn
from bench.runner.gradients import backward, gradient, relative_error
from bench.runner.memory import PLAIN, Memory, measure_step, measured_twice
from bench.suites.memory.activations.entries import Adaptation, InitialError, LevelResult, Overhead

MODELS: Mapping[str, Callable[[], Case]] = MappingProxyType(
    {
        "resnet18": partial(resnet18, 16),
        "resnet50": partial(resnet50, 16),
        "vit_tiny": partial(vit_tiny, 4),
        "bert": partial(bert, 4, 0.1),
        "llama": partial(llama, 4),
        "gcn": gcn,
    }
)
"""By the name that the command line knows."""


def made(name: str) -> tuple[Case, torch.Tensor]:
    """One of ``MODELS``, the same at each call, and a state of torch's generator from which its steps start.

    Raises:
        MissingLibrary: the model's library is not installed.
    """
    torch.manual_seed(0)
    return MODELS[name](), torch.get_rng_state()


def compressed(name: str, level: str) -> tuple[Case, torch.Tensor, integrations.Compression]:
    """The same at a level, with its handle; at an adaptive one after two steps, in which it has made its plan."""
    case, generator = made(name)
    handle = integrations.compression(integrations.compress_model(case.model, level))
    if handle.level.adaptive:
        for _ in range(2):
            backward(case, generator)
        assert handle.plan is not None
    return case, generator, handle


def measure_levels(name: str, levels: Sequence[str], steps: int, rounds: int) -> list[LevelResult]:
    """Measures one of ``cases.MODELS``.

    Args:
        name: of the model.
        levels: names of ``integrations.LEVELS``.
        steps: in which the gradient's error is measured, each with noise of its own.
        rounds: of timed steps that count.
    """
    plain, generator = made(name)
    exact = gradient(plain, generator)
    cases, errors, reports = [], [], []
    for level in levels:
        case, _, handle = compressed(name, level)
        errors.append([relative_error(gradient(case, generator), exact) for _ in range(steps)])
        reports.append(handle.report())
        cases.append(case)

    actions = [partial(backward, case, generator) for case in (plain, *cases)]
    plain_seconds, *seconds = in_turn(actions, rounds, torch.device("cpu"))
    return [
        LevelResult(name, level, plain.what, report.original_bytes, report.stored_bytes, error, times, plain_seconds)
        for level, report, error, times in zip(levels, reports, errors, seconds, strict=True)
    ]


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


def measure_overhead(chain: str, rounds: int, layers: int = LAYERS) -> Overhead:
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


def measure_memory(name: str, levels: Sequence[str], threads: int) -> list[Memory]:
    """Measures one of ``cases.MODELS``: untouched, and at each level."""
    return measured_twice(measure_memory_here, [Memory(name, level) for level in (PLAIN, *levels)], threads=threads)


def measure_memory_here(entry: Memory) -> Memory:
    """Measures one model at one level in this process."""
    case, _ = made(entry.model)
    return measure_step(entry, case.model, case.loss, case.loss, torch.device("cpu"))


def measure_adaptation(name: str, level: str, rounds: int) -> Adaptation:
    """Times steps of one of ``cases.MODELS`` at an adaptive level, those that make a plan and those that follow one."""
    case, generator, handle = compressed(name, level)
    before = handle.plan

    def measured() -> None:
        nonlocal before
        handle.adapt_soon()  # as when a step is due
        backward(case, generator)
        plan = handle.plan  # is made when somebody asks, or the next forward starts
        assert plan is not before
        before = plan

    ordinary, adapting = in_turn([partial(backward, case, generator), measured], rounds, torch.device("cpu"))
    return Adaptation(name, level, handle.level.adapt_interval, ordinary, adapting)


INITIAL_MODELS = (
    "resnet18",
    "densenet121",
    "mobilenetv3_small_100",
    "vit_tiny_patch16_224",
    "repvgg_a0",
    "xcit_nano_12_p16_224",
)
"""timm's names of models whose operators differ as much as six models' can."""

INITIAL_LEVELS = ("L1", "L1.1")


def measure_initial(name: str, steps: int, levels: Sequence[str] = INITIAL_LEVELS) -> list[InitialError]:
    """The error at each of some levels in some steps, each with noise of its own, of one of timm's models.

    Raises:
        MissingLibrary: timm is not installed.
    """
    torch.manual_seed(0)
    plain, generator = image_model(name, 4), torch.get_rng_state()
    exact = gradient(plain, generator)
    found = []
    for level in levels:
        torch.manual_seed(0)
        case = image_model(name, 4)
        integrations.compress_model(case.model, level)
        errors = [relative_error(gradient(case, generator), exact) for _ in range(steps)]
        found.append(InitialError(name, level, plain.what, errors))
    return found
