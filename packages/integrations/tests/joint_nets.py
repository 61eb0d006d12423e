"""Small nets for the plans of joint graphs, with what each has that could go wrong when its graph is divided; their
steps, and what is compared of them."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

import integrations
from integrations import checkpoint
from integrations.runtime.compiled.joint_plans import JOINT

from .nets import normal, profiled_bytes

WIDTH = 32


class Block(nn.Module):
    def __init__(self, width=WIDTH, dropout=0.0):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class Attention(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        parts = self.qkv(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4).unbind()
        return x + self.out(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))


class Tied(nn.Module):
    """One weight in the first operator, in the middle and in the last."""

    def __init__(self):
        super().__init__()
        self.embedding, self.middle = nn.Embedding(50, WIDTH), nn.Sequential(Block(), Block())
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens):
        x = self.middle(torch.tanh(self.inner(torch.tanh(self.inner(self.embedding(tokens))))))
        return F.linear(x, self.embedding.weight)


class TwoOutputs(nn.Module):
    """The first is read again for the second, and one of the results is a view."""

    def __init__(self):
        super().__init__()
        self.trunk, self.one, self.other = nn.Sequential(Block(), Block()), nn.Linear(WIDTH, 8), nn.Linear(8, 8)

    def forward(self, x):
        h = self.trunk(x)
        first = torch.sigmoid(self.one(h))
        return first, {"second": self.other(first).tanh(), "view": h.transpose(0, 1)}


def mlp():
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))


def convolutions(inplace=False):
    layers = []
    for width in (3, 8, 8, 8):
        layers += [nn.Conv2d(width, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace)]
    return nn.Sequential(*layers)


def _sequence():
    return (normal(8, 16, WIDTH),)


def _images():
    return (normal(4, 3, 12, 12),)


NETS = {
    "mlp": (mlp, lambda: (normal(64, WIDTH),)),
    "block": (lambda: nn.Sequential(*(Block() for _ in range(4))), _sequence),
    "convolutions": (convolutions, _images),
    "in place": (lambda: convolutions(inplace=True), _images),
    "dropout": (lambda: nn.Sequential(*(Block(dropout=0.2) for _ in range(2))), _sequence),
    "attention": (lambda: nn.Sequential(Attention(), Block()), _sequence),
    "tied": (Tied, lambda: (torch.arange(96).view(6, 16) % 50,)),
    "two outputs": (TwoOutputs, _sequence),
}


def build(name):
    """A net in training mode, always with the same weights, and its inputs."""
    make, inputs = NETS[name]
    torch.manual_seed(0)
    return make().train(), inputs()


def outcome(model, function, inputs, steps=2):
    """Gradients of steps that add to each other, the last step's outputs and all buffers, by name."""
    torch.manual_seed(3)
    model.zero_grad()
    for _ in range(steps):
        outputs = tree_leaves(function(*inputs))
        sum(output.square().mean() for output in outputs).backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    found.update((name, buffer.clone()) for name, buffer in model.named_buffers())
    return found | {f"output {index}": output.detach() for index, output in enumerate(outputs)}


def second_peak(model, step):
    """The bytes that the second of two steps takes at its peak, beside the gradients that it leaves."""
    for _ in range(2):
        model.zero_grad()
        peak, gradients = profiled_bytes(step)
    return peak - gradients


def planned(model, memory="least"):
    integrations.compress_model(model, memory=memory, error=0)
    return torch.compile(model)


def assert_as_plain(ours, plain):
    """Bit for bit: what is recomputed is computed by the same operators from the same elements. Inductor may put a
    recomputed operator into another kernel than the first time, which fuses a product and a sum or not: that is one
    rounding of the elements that it reads, and the gradients' sums of them average it."""
    assert ours.keys() == plain.keys()
    for name, expected in plain.items():
        error = (ours[name] - expected).norm() / expected.norm().clamp_min(1e-30)
        assert error <= torch.finfo(expected.dtype).eps, f"{name}: {error:.2g}"


def trace_joint(model):
    return checkpoint.plan_of(model).others.get(JOINT)
