"""One training step of an architecture: its activation peak, its time, and its gradients beside a plain step's."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils._pytree import tree_leaves

from bench.errors import reason
from bench.models.architectures import ARCHITECTURES, Architecture, Inputs
from bench.runner.clock import steps_in_turn
from bench.runner.memory import peak_bytes
from bench.runner.process_memory import Counters, counters, limit_allocation
from bench.suites.memory.checkpoint.entries import Peak, StepTimes
from bench.ways.checkpoints import PLAIN, CheckpointWay, ready
from bench.ways.general import Forward
from integrations.checkpoint import Plan


@dataclass(frozen=True)
class Setup:
    """How models and inputs are made.

    Attributes:
        device: that they are on.
        seed: of weights, inputs and gradients.
        channels_last: whether images and kernels are in that order, in which convolutions on a CPU copy nothing.
    """

    device: torch.device
    seed: int = 0
    channels_last: bool = False

    def put(self, tensor: Tensor) -> Tensor:
        """A tensor, where and how it is to be."""
        images = self.channels_last and tensor.dim() == 4
        return tensor.to(self.device, memory_format=torch.channels_last if images else torch.preserve_format)


def build(architecture: Architecture, setup: Setup) -> nn.Module:
    """The model, its weights drawn from the seed."""
    torch.manual_seed(setup.seed)
    model: nn.Module = architecture.build().to(setup.device)
    if setup.channels_last:
        model.to(memory_format=torch.channels_last)
    return model


def make_inputs(architecture: Architecture, batch: int, size: int, setup: Setup) -> Inputs:
    """Its inputs, drawn from the seed."""
    torch.manual_seed(setup.seed)
    inputs = architecture.inputs(batch, size)
    if isinstance(inputs, dict):
        return {name: setup.put(tensor) for name, tensor in inputs.items()}
    return tuple(setup.put(tensor) for tensor in inputs)


def loss(forward: Forward, inputs: Inputs, seed: int) -> Tensor:
    """``noise`` of what a forward returns.

    Args:
        forward: of the model.
        inputs: of it.
        seed: of dropout and of the noise.
    """
    torch.manual_seed(seed)
    return noise(forward(**inputs) if isinstance(inputs, dict) else forward(*inputs), seed)


def noise(outputs: object, seed: int = 0) -> Tensor:
    """A number whose gradient in every output of a forward is noise.

    No more memory than a plan knows of: a cross-entropy would keep a copy of its input, which for language models is as
    large as all else. The outputs live until the number does, as in ``y = model(x); loss = criterion(y)``.

    Args:
        outputs: tensors, in whatever they are returned in.
        seed: of the noise.
    """
    found = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.requires_grad]
    total: Tensor = _Noise.apply(seed, *found)
    return total


class _Noise(Function):
    """A number whose gradient in each of ``outputs`` is drawn when backward starts."""

    @staticmethod
    def forward(ctx: Any, seed: int, *outputs: Tensor) -> Tensor:
        ctx.seed, ctx.outputs = seed, outputs
        return torch.zeros((), device=outputs[0].device)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        generator = torch.Generator(ctx.outputs[0].device).manual_seed(ctx.seed)
        drawn = (torch.randn(one.shape, generator=generator, dtype=one.dtype, device=one.device) for one in ctx.outputs)
        return None, *drawn


LONG = 2.0  # modelled seconds of a step from which few samples go before it; it takes about as long on two cores
FEW = 2  # samples of that one; BatchNorm needs two


def measure_peak(
    peak: Peak,
    *,
    way: Mapping[str, Any],
    plan: str | None,
    device: str,
    seed: int,
    channels_last: bool,
    memory_limit: int,
) -> Peak:
    """Measure the activation peak of one step in this process, which may take so much memory from its first on.

    The peak is the most memory during forward and backward, less what was there before, with ``.grad`` unset, and less
    the gradients. A step that pays for caches goes before; where a step takes long, that one is of few samples.

    Args:
        peak: without the measured one.
        way: as ``dataclasses.asdict`` makes it of a ``CheckpointWay``.
        plan: for ways that follow one, as JSON.
        device, seed, channels_last: as in ``Setup``.
        memory_limit: bytes that the process may take on the CPU.
    """
    setup = Setup(torch.device(device), seed, channels_last)
    if device == "cpu":
        _limit(memory_limit)
    count = counters(setup.device)
    if isinstance(count, str):
        return replace(peak, failure=count)
    step = ARCHITECTURES[peak.model], CheckpointWay(**way), None if plan is None else Plan.from_json(plan)
    return replace(peak, peak_bytes=_measured(peak, *step, setup, count))


@cache  # a process has one limit
def _limit(nbytes: int) -> None:
    limit_allocation(nbytes)


def _measured(
    peak: Peak, architecture: Architecture, way: CheckpointWay, plan: Plan | None, setup: Setup, count: Counters
) -> int:
    model = build(architecture, setup)
    forward = ready(way, model, architecture.blocks(model), plan)
    loss(forward, make_inputs(architecture, peak.warm_up, peak.size, setup), setup.seed).backward()
    inputs = make_inputs(architecture, peak.batch, peak.size, setup)
    return peak_bytes(model, lambda: loss(forward, inputs, setup.seed), count)


@dataclass(frozen=True)
class State:
    """What one step leaves behind.

    Attributes:
        gradients: of the parameters that have one, by name.
        buffers: by name.
    """

    gradients: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module) -> State:
        """A copy of what a model holds now."""
        gradients = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
        return cls(gradients, {name: one.clone() for name, one in model.named_buffers()})


def measure_times(
    architecture: Architecture,
    batch: int,
    size: int,
    ways: Mapping[CheckpointWay, Plan | None],
    rounds: int,
    setup: Setup,
) -> list[StepTimes]:
    """Times steps, and compares the first one's gradients and buffers.

    Args:
        architecture: the model.
        batch, size: of its inputs.
        ways: to train it besides the plain one, with a plan for those that follow one.
        rounds: that count.
        setup: how the model and its inputs are made.
    """
    plain, seed = build(architecture, setup), setup.seed
    inputs = make_inputs(architecture, batch, size, setup)
    models = {way: copy.deepcopy(plain) for way in ways}
    actions = [partial(run_step, plain, plain, inputs, seed)]
    actions[0]()
    expected = State.of(plain)
    blank = StepTimes(architecture.name, PLAIN, batch, size)
    found: list[StepTimes] = []
    for way, model in models.items():
        entry = replace(blank, way=way.name)
        try:
            action = partial(run_step, model, ready(way, model, architecture.blocks(model), ways[way]), inputs, seed)
            action()
            state = State.of(model)
            entry = replace(
                entry,
                gradients=difference(state.gradients, expected.gradients),
                buffers=difference(state.buffers, expected.buffers),
            )
            actions.append(action)
        except Exception as error:  # whatever one way fails with, others are to be timed
            entry = replace(entry, failure=reason(error))
        found.append(entry)
    times = iter(steps_in_turn(actions, rounds, setup.device))
    plain_seconds = next(times)
    timed = [
        entry if entry.failure else replace(entry, seconds=next(times), plain_seconds=plain_seconds) for entry in found
    ]
    return [replace(blank, seconds=plain_seconds, plain_seconds=plain_seconds), *timed]


def run_step(model: nn.Module, forward: Forward, inputs: Inputs, seed: int) -> None:
    """Forward and backward; the gradients are in the model."""
    model.zero_grad(set_to_none=True)
    loss(forward, inputs, seed).backward()


def difference(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """The largest difference of any element, as a part of the largest element of all that are expected.

    Raises:
        ValueError: they are not the same tensors' gradients.
    """
    if found.keys() != expected.keys():
        odd = min(found.keys() ^ expected.keys())
        raise ValueError(f"{odd} has a gradient in plain training or in this one, and not in both")
    distance = max((_distance(one, expected[name]) for name, one in found.items()), default=0.0)
    return distance / max(float(one.abs().max()) for one in expected.values() if one.numel()) if distance else 0.0


def _distance(one: Tensor, other: Tensor) -> float:
    if torch.equal(one, other) or not one.numel():
        return 0.0
    return float((one.double() - other.double()).abs().max())
