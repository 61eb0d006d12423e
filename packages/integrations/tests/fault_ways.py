"""The ways of training in which something fails: each a function that makes a model, and a step of it."""

import torch
from torch import nn

import integrations
from integrations import checkpoint

from .decoder import Decoder, shifted
from .nets import normal

X = normal(64, 64)
IDS = torch.randint(600, (2, 80), generator=torch.Generator().manual_seed(1))


def net():
    """What is stored in every way: signs, masks, codes, results, statistics, and what only the generator knows."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.25), nn.LayerNorm(64)),
        *(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 64)),
    )


def decoder():
    return Decoder(shifted)


def compressed(make=net, **options):
    return lambda: integrations.compress_model(make(), **options)


def with_codec():
    import actcore

    model = net()
    asked = checkpoint.plan(model, (X,))
    return checkpoint.apply(model, asked, codec=actcore.GroupAffine(bits=8))


WAYS = {
    "level": compressed(level="L1"),
    "lean": compressed(level="lean"),
    "adaptive": compressed(level="L2"),
    "swap": compressed(level="swap"),
    "memory": compressed(memory=0.5, error=0.1),
    "exact": compressed(memory=0.7, error=0),
    "recomputed": compressed(level="L0", checkpoint="optimal"),
    "recomputed level": compressed(level="L1", checkpoint="optimal"),
    "codec": with_codec,
    "Q-layers": compressed(level="L0", layers={"level": "L2"}),
    "few bits": compressed(level="L0", activations="fewbit", linear="randomized"),
    "chunked": compressed(decoder, level="L1", loss={"head": "head"}),
    "plain": net,
}


def step(model):
    """Forward and backward, into the gradients that are there."""
    torch.manual_seed(7)
    chunked = any(isinstance(module, Decoder) for module in model.modules())
    loss = model(IDS) if chunked else model(X).square().mean()
    loss.backward()


def gradients(model):
    return {name: None if one.grad is None else one.grad.clone() for name, one in model.named_parameters()}
