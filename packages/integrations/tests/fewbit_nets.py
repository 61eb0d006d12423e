"""Models for the tests of ``fewbit.convert``, what they keep, and one step of them."""

import torch
import torch.nn.functional as F
from torch import nn

from .nets import normal

X = normal(24, 32)


class Block(nn.Module):
    """A call and a layer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 32)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.act(F.gelu(self.linear(x)))


class Net(nn.Module):
    """Calls in its own forward, in a block's, and in a block of a sequence."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.block = Block()
        self.blocks = nn.Sequential(Block(), nn.Mish())

    def tail(self, x):
        return F.softplus(self.blocks(x), beta=2)

    def forward(self, x):
        return self.tail(self.block(x))


def step(model, x=X):
    """The output, the gradients by the input and by each parameter."""
    x = x.detach().clone().requires_grad_()
    model.zero_grad()
    output = model(x)
    (output * normal(*output.shape, seed=9, dtype=output.dtype)).sum().backward()
    return [output.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]


def equal(one, other):
    """Whether two steps are the same, bit for bit."""
    return all(map(torch.equal, one, other))


def kept_bytes(model, *inputs):
    """Bytes of all storages that autograd is given to keep, but for inputs and parameters."""
    known = {tensor.untyped_storage()._cdata for tensor in (*inputs, *model.parameters())}
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            found[storage._cdata] = storage  # held, so that no address comes to mean another
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(*inputs)
    del output
    return sum(storage.nbytes() for storage in found.values())
