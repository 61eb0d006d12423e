"""Models that are compressed with a plan, for the tests of both together."""

from dataclasses import replace

import torch
from torch import nn

import integrations
from integrations import checkpoint
from integrations.planner.choice import make_mask

from .nets import normal
from .recompute_nets import Transformer, net


def compressed(model, level="L1", **options):
    """The model, with the least peak as its plan unless something else is asked for."""
    return integrations.compress_model(model, level, **{"checkpoint": "optimal", "min_bytes": 0, **options})


def keeping_the_first(model, args, kwargs=None):
    """A plan that keeps what the first operator made, and what cannot be recomputed."""
    plan = checkpoint.plan(model, args, kwargs=kwargs, real=True)
    return replace(plan, choice=replace(plan.choice, mask=make_mask([0]), held=None))


def report(model):
    return integrations.compression(model).report()


def flat(found):
    return torch.cat([value.flatten() for value in found.values()])


def deep_net():
    """Deep enough that something is worth recomputing at L1, too."""
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(10) for layer in (nn.Linear(64, 64), nn.GELU()))).train()


def small_transformer():
    torch.manual_seed(0)
    return Transformer(width=64).train(), (torch.arange(96).reshape(4, 24) % 11,)


def small_resnet():
    model, _, _ = net("resnet")
    return model, (normal(8, 3, 24, 24),)


def deep():
    return deep_net(), (normal(256, 64),)


MODELS = {"resnet": small_resnet, "transformer": small_transformer, "deep": deep}
