"""Trains compressed models before and after ``torch._dynamo`` is imported, which takes processes of their own.

This process imports torch and forks once for each way to begin with ``torch.compile``: the results ``late``. Then it
imports the compiler and forks for each way again: the results ``early``. It prints one JSON object. ``imported`` lists
those of ``HEAVY`` that ``integrations`` has imported. ``late`` and ``early`` have for each way whether
``torch._dynamo`` was imported before it began, and the loss and gradients of each of its steps.
"""

import json
import os
import sys

import torch
from torch import nn

BEFORE = set(sys.modules)

import actcore  # noqa: E402, F401 - what these import is asked
import integrations  # noqa: E402
import integrations.fewbit  # noqa: E402

HEAVY = ["torch._dynamo", "sympy", "torch.distributed.tensor", "torch.utils.flop_counter"]
IMPORTED = [name for name in HEAVY if name in sys.modules.keys() - BEFORE]

X = torch.randn(48, 64, generator=torch.Generator().manual_seed(1))


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).train()


class CompilesItself(nn.Module):
    """Compiles a part of itself in the middle of its first forward, as some libraries do with their kernels."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.compiled = mlp(), nn.Linear(8, 8), None

    def part(self, x):
        y = self.second(x).sigmoid()
        torch._dynamo.graph_break()
        return (y * y).exp()

    def forward(self, x):
        x = self.first(x)
        self.compiled = self.compiled or torch.compile(self.part, backend="aot_eager")
        return self.compiled(x).tanh()


def steps(model, run, count=3):
    for _ in range(count):
        model.zero_grad()
        loss = run(X).square().mean()
        loss.backward()
        yield [loss.item(), *(parameter.grad.norm().item() for parameter in model.parameters())]


def inside():
    """The part is compiled while the session of the first forward is entered."""
    model = integrations.compress_model(CompilesItself(), "L1")
    return list(steps(model, model))


def between():
    """The first step is eager, and the next ones are compiled."""
    model = integrations.compress_model(mlp(), "L1")
    found = list(steps(model, model, 1))
    return found + list(steps(model, torch.compile(model, backend="aot_eager")))


def backward():
    """What the forward saved is unpacked after ``torch._dynamo`` was imported."""
    model = integrations.compress_model(mlp(), "L1")
    loss = model(X).square().mean()
    torch.compile(lambda x: x * 2, backend="aot_eager")(X)
    loss.backward()
    return [[loss.item(), *(parameter.grad.norm().item() for parameter in model.parameters())]]


def planned():
    """A plan, followed by a tape in eager code and by marks on the graph in compiled code."""
    model = integrations.compress_model(mlp(), memory=0.8, error=0)
    found = list(steps(model, model, 2))
    return found + list(steps(model, torch.compile(model, backend="aot_eager")))


WAYS = {way.__name__: way for way in (inside, between, backward, planned)}


def forked(way):
    """What a way finds in a fork of this process: whether ``torch._dynamo`` was there before it, and its steps."""
    reading, writing = os.pipe()
    if not os.fork():
        there = "torch._dynamo" in sys.modules
        with os.fdopen(writing, "w") as answer:
            json.dump({"there": there, "steps": WAYS[way]()}, answer)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        found = answer.read()
    os.wait()
    return json.loads(found)


if __name__ == "__main__":
    late = {way: forked(way) for way in WAYS}
    # Compiles once, without a gradient, so that the forks need not each import what dynamo imports on that occasion.
    torch.compile(lambda x: x * 2, backend="aot_eager")(X)
    print(json.dumps({"imported": IMPORTED, "late": late, "early": {way: forked(way) for way in WAYS}}))
