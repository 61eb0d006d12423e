"""Steps of a model trained in different ways, in turn, and how far their gradients differ from a plain step's."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from bench.errors import reason
from bench.models.architectures import Architecture, Inputs
from bench.runner.clock import steps_in_turn
from bench.suites.memory.checkpoint.results import StepTimes
from bench.suites.memory.checkpoint.step import Setup, build, loss, make_inputs
from bench.ways.checkpoints import PLAIN, CheckpointWay, ready
from bench.ways.general import Forward
from integrations.checkpoint import Plan


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


def measure(
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
    actions = [partial(step, plain, plain, inputs, seed)]
    actions[0]()
    expected = State.of(plain)
    blank = StepTimes(architecture.name, PLAIN, batch, size)
    found: list[StepTimes] = []
    for way, model in models.items():
        entry = replace(blank, way=way.name)
        try:
            action = partial(step, model, ready(way, model, architecture.blocks(model), ways[way]), inputs, seed)
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


def step(model: nn.Module, forward: Forward, inputs: Inputs, seed: int) -> None:
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
