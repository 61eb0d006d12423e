"""A model whose checkpoint holds tensors without autograd's knowledge, in every way that there is."""

import functools
from collections import OrderedDict, namedtuple
from types import MethodType

import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

import integrations

from .nets import normal

X = normal(48, 64)
Pair = namedtuple("Pair", "one two")
# Made once and for all, as libraries do with a model's checkpointing function.
recomputed = functools.partial(checkpoint, use_reentrant=False)


def within(function):
    """A decorator that keeps what it wraps in its closure and in an attribute."""

    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


# How a segment gets h and c; each calls net.segment(h, c) in a checkpoint.
WAYS = {
    "keyword": lambda net, h, c: recomputed(net.segment, h, c=c),
    "keywords alone": lambda net, h, c: recomputed(net.segment, h=h, c=c),
    "list": lambda net, h, c: recomputed(lambda h, given: net.segment(h, given[1]), h, [1, c]),
    "tuple": lambda net, h, c: recomputed(lambda given: net.segment(*given), (h, c)),
    "named tuple": lambda net, h, c: recomputed(lambda h, given: net.segment(h, given.two), h, Pair(None, c)),
    "dict": lambda net, h, c: recomputed(lambda h, given: net.segment(h, given["c"][0]), h, {"c": (c,)}),
    "keyword dict": lambda net, h, c: recomputed(
        lambda h, given: net.segment(h, given["c"]), h, given=OrderedDict(c=c)
    ),
    "closure": lambda net, h, c: recomputed(lambda h: net.segment(h, c), h),
    "closure alone": lambda net, a, b: recomputed(lambda: net.segment(a, b)),  # cells are in the order of their names
    "function in the closure": lambda net, h, c: recomputed(within(within(lambda h: net.segment(h, c))), h),
    "default": lambda net, h, c: recomputed(lambda h, c=c: net.segment(h, c), h),
    "keyword default": lambda net, h, c: recomputed(lambda h, *, c=c: net.segment(h, c), h),
    "partial": lambda net, h, c: recomputed(functools.partial(functools.partial(net.segment, c=c), h)),
    "method": lambda net, h, c: recomputed(MethodType(lambda net, h: net.segment(h, c), net), h),
}


class Held(nn.Module):
    """Two branches that meet in a checkpoint with dropout, which notes what it is given."""

    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)
        self.way, self.given, self.storages = way, [], []

    def forward(self, x):
        h, c = self.left(x), self.right(x)
        self.storages = [StorageWeakRef(tensor.untyped_storage()) for tensor in (h, c)]
        return self.way(self, h, c)

    def segment(self, h, c):
        self.given.append((h.detach().clone(), c.detach().clone(), h.requires_grad, c.requires_grad, c.is_leaf))
        return F.dropout(self.last(F.silu(h)) * c, 0.3)


def positional(net, h, c):
    return checkpoint(net.segment, h, c, use_reentrant=False)


def compressed(way, level="L1.1", **options):
    return integrations.compress_model(Held(way), level, **options)
