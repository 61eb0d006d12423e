"""Activation layers that a forward calls and that are nobody's part: made as they are called, or in a plain list."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from integrations import fewbit
from integrations.fewbit import functional

from .fewbit_nets import equal, step


class Loose(nn.Module):
    def __init__(self, activation):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(32, 32)
        self.activation = activation

    def forward(self, x):
        return self.activation(self.linear(x))


IN_A_LIST = [nn.GELU()]
WAYS = {
    "made": lambda x: nn.GELU()(x),
    "in a list": lambda x: IN_A_LIST[0](x),
    "in a checkpoint": lambda x: checkpoint(lambda x: nn.GELU()(x), x, use_reentrant=False),
}


def by_hand(x):
    return functional.gelu(x, bits=3)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_its_call_is_that_of_the_module_around_it(way):
    model = fewbit.convert(Loose(way))
    assert equal(step(model), step(Loose(by_hand)))
    assert not equal(step(model), step(Loose(nn.GELU())))
    assert fewbit.summary(model).calls == {"": ("gelu",)}


@pytest.mark.parametrize("way", [WAYS["made"], WAYS["in a list"]])
def test_compiled(way, fresh_compiler):
    model = fewbit.convert(Loose(way))
    assert equal(step(torch.compile(model, backend="eager", fullgraph=True)), step(Loose(by_hand)))


def test_skip_leaves_those_of_a_part_that_is_skipped():
    model = nn.Sequential(Loose(WAYS["made"]), Loose(WAYS["made"]))
    fewbit.convert(model, skip="1")
    assert equal(step(model), step(nn.Sequential(Loose(by_hand), Loose(nn.GELU()))))


def test_those_of_another_model_are_left():
    teacher = Loose(WAYS["made"])
    student = fewbit.convert(Loose(lambda x: teacher(x)))  # a function, so the teacher is no part of it
    assert equal(step(student), step(Loose(lambda x: teacher(x))))
    assert not fewbit.summary(student).calls


def test_the_model_is_looked_through_once(monkeypatch):
    model = fewbit.convert(Loose(WAYS["made"]))
    step(model)
    monkeypatch.setattr("integrations.fewbit.conversion.places", None)
    step(model)
