"""Trains compressed models before and after ``torch._dynamo`` is imported, which takes a process of its own.

With ``early`` as its first argument it imports ``torch._dynamo`` first. The others name ways to begin with
``torch.compile``. Prints one JSON object: whether ``torch._dynamo`` was there before the first of them, and the loss
and gradients of each step, by way.
"""

import json
import sys

import torch
from torch import nn

import integrations

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

if __name__ == "__main__":
    when, *names = sys.argv[1:]
    if when == "early":
        import torch._dynamo
    there = "torch._dynamo" in sys.modules
    found = {}
    for name in names:
        found[name] = WAYS[name]()
        torch.compiler.reset()
    print(json.dumps({"there": there, "steps": found}))
