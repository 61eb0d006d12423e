"""Measures, in a process of its own, what a step takes: plain, by a level, by a plan, and by both.

Bytes are glibc's, as in ``memory_child.py``: those left by the forward, and the most while a node of backward begins.
Prints one JSON object: per net and setting both.
"""

import gc
import json

import torch
from torch import nn

import actcore
import integrations
from integrations import checkpoint

from .memory_child import live_bytes
from .recompute_nets import Residual


def convolutions():
    layers = [nn.Conv2d(3, 8, 3, padding=1), *(Residual(8, 8) for _ in range(5))]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)), torch.randn(8, 3, 32, 32)


def linear():
    layers = [layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(64, 4)), torch.randn(1024, 64)


NETS = {made.__name__: made for made in (convolutions, linear)}
SETTINGS = {
    "plain": lambda model, x: None,
    "level": lambda model, x: integrations.compress_model(model, "L1"),
    "plan": lambda model, x: checkpoint.apply(model, checkpoint.plan(model, x)),
    "codec": lambda model, x: checkpoint.apply(model, checkpoint.plan(model, x), codec=actcore.GroupAffine(8)),
    "both": lambda model, x: integrations.compress_model(model, "L1", checkpoint="optimal"),
}


def measure(model, x):
    """Bytes that a forward leaves, and the most that there are when a node of backward begins or is done."""
    model(x).square().mean().backward()  # the first pass pays for caches and plans
    model.zero_grad(set_to_none=True)
    gc.collect()
    found = [live_bytes()]
    loss = model(x).square().mean()
    gc.collect()
    found.append(live_bytes())

    def note(*given):
        found.append(live_bytes())

    waiting, met = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in met:
            met.add(node)
            node.register_prehook(note)
            node.register_hook(note)
            waiting += [following for following, _ in node.next_functions]
    del met, node, waiting
    loss.backward()
    return {"left": found[1] - found[0], "peak": max(found[1:]) - found[0]}


def main():
    torch.set_num_threads(1)
    answers = {}
    for name, made in NETS.items():
        answers[name] = {}
        for setting, put in SETTINGS.items():
            torch.manual_seed(0)
            model, x = made()
            put(model.train(), x)
            answers[name][setting] = measure(model, x)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
