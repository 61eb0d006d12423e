"""What the tests of hooks share: a small model, and a codec that notes what it is asked."""

from dataclasses import dataclass

import torch
from torch.autograd.graph import saved_tensors_hooks

import actcore

from .samples import normal

EIGHT_BITS = actcore.GroupAffine(bits=8)
X = normal(64 * 48).view(64, 48)


@dataclass(frozen=True)
class Noting:
    """``codec``, noting what it stores and under which streams."""

    codec: actcore.Codec
    shapes: list
    streams: list

    def compress(self, tensor, *, seed=0, stream=0):
        self.shapes.append(tuple(tensor.shape))
        self.streams.append((seed, stream))
        return self.codec.compress(tensor, seed=seed, stream=stream)

    def decompress(self, compressed):
        raise AssertionError("the stored form names its own codec")


def noting(codec=EIGHT_BITS):
    return Noting(codec, [], [])


def under(codec, **options):
    return saved_tensors_hooks(*actcore.hooks(codec, **options))


def mlp():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(48, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32))
