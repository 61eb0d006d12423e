"""One step of a model of others, plainly and compressed."""

import copy
import random

import numpy as np
import torch

import integrations


def compare(model, call):
    """A step of a copy of the model plainly, of one at L0, and of one at L1.1.

    Args:
        model: in training; what is made in a first forward is made in each copy anew.
        call: of a model, its output: a tensor, or tensors in lists and dictionaries.

    Returns:
        The three, each a loss and gradients by name.
    """
    plain = step(copy.deepcopy(model), call)
    off = step(integrations.compress_model(copy.deepcopy(model), "L0"), call)
    bits = step(integrations.compress_model(copy.deepcopy(model), "L1.1", min_bytes=0), call)
    return plain, off, bits


def step(model, call):
    """The loss and the gradients by name; dropout and the like draw the same in every call."""
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - the global one is what models use
    # Some heads begin with zero weights: of the outputs' squares, nothing would have a gradient.
    loss = sum(((output - 1).square().mean() for output in floating(call(model))), start=torch.zeros(()))
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def floating(output):
    """The tensors with a gradient in what a model returns."""
    if isinstance(output, torch.Tensor):
        return [output] if output.requires_grad else []
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, (list, tuple)) else ()
    return [tensor for part in parts for tensor in floating(part)]


def error(exact, found):
    """Of the whole gradient, relative to its norm."""
    squares = sum((found[name] - value).double().square().sum() for name, value in exact.items())
    return (squares / sum(value.double().square().sum() for value in exact.values())).sqrt().item()
