"""Models that decide something by their activations, each in its own way."""

import torch
import torch.nn.functional as F
from torch import nn

from .nets import normal


class Deciding(nn.Module):
    """Two layers with a decision between them, and one after it.

    Args:
        decide: of the activations and the module.
        width: of the layers.
    """

    def __init__(self, decide, width=32):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = (nn.Linear(width, width) for _ in range(3))
        self.table = nn.Parameter(torch.randn(16, width))
        self.decide = decide

    def forward(self, x):
        y = self.first(x)  # what a plan keeps, and rounds
        y = self.second(torch.tanh(2 * y))
        return self.last(torch.tanh(self.decide(self, y)))


def routed(net, y):
    """Two of four experts, which are slices of a table, for each row."""
    scores = F.linear(y, net.table[:4]).softmax(-1)
    weights, chosen = scores.topk(2, -1)
    experts = net.table[4:8][chosen]
    return (weights.unsqueeze(-1) * experts * y.unsqueeze(-2)).sum(-2)


def dispatched(net, y):
    """One of four experts for each row, whose rows are gathered, as their number comes out."""
    scores = F.linear(y, net.table[:4]).softmax(-1)
    best = scores.max(-1)
    out = torch.zeros_like(y)
    for expert in range(4):
        rows = torch.where(best.indices == expert)[0]
        out = out.index_add(0, rows, y[rows].sin() * net.table[expert] * best.values[rows, None])
    return out


def quantised(net, y):
    """A codebook's nearest entry, as of a VQ-VAE: straight through, and pulled to each other."""
    nearest = (y.unsqueeze(1) - net.table).square().sum(-1).argmin(-1)
    code = F.embedding(nearest, net.table)
    return y + (code - y).detach() + (code - y).square()


def sparse(net, y):
    """Attention to the four best keys, by a threshold."""
    scores = 3 * y @ y.mT
    least = scores.topk(4, -1).values[..., -1:]
    return scores.masked_fill(scores < least, -torch.inf).softmax(-1) @ y


def guarded(net, y):
    """A root that a mask keeps from what has none: NaN, if the mask is not that of what it reads."""
    inside = y > 0
    return torch.where(inside, torch.where(inside, y, 1.0).sqrt(), 0.0)


def largest(net, y):
    """By its largest: backward looks for it among the elements, and divides by how often it is there."""
    return y / (1 + y.square().amax(-1, keepdim=True))


def stepped(net, y):
    """Whole numbers, straight through, and what is left beside them."""
    return y + ((4 * y).round() / 4 - y).detach() + (4 * y - (4 * y).floor()).sin()


def sorted_rows(net, y):
    """Each row in order, times what its place has."""
    return y.sort(-1).values * net.table[0]


def hard(net, y):
    """The best place of each group of four, which scatter makes a one-hot tensor of."""
    groups = (4 * y).view(-1, 8, 4).softmax(-1)
    best = torch.zeros_like(groups).scatter(-1, groups.argmax(-1, keepdim=True), 1.0)
    return (best - groups.detach() + groups).view(y.shape) * y


def clipped(net, y):
    """Pieces whose sides backward asks for: clamp, relu6, leaky_relu, abs."""
    return (3 * y).clamp(-1, 1) + F.relu6(3 * y) + F.leaky_relu(y, 0.1) * y.abs()


@torch.library.custom_op("integrations_tests::picked", mutates_args=())
def picked_op(y: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return y * table[_places(y)]


@picked_op.register_fake
def _(y, table):
    return torch.empty_like(y)


def _places(y):
    """Which entry of a table each row picks, by a number that a small change of the row changes."""
    return (y.square() * 50).cos()[:, :16].argmax(-1)


def _picked_backward(ctx, gradient):
    y, table = ctx.saved_tensors
    places = _places(y)
    return gradient * table[places], torch.zeros_like(table).index_add_(0, places, gradient * y)


picked_op.register_autograd(_picked_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


class _Picked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, table):
        ctx.save_for_backward(y, table)
        return y * table[_places(y)]

    backward = staticmethod(_picked_backward)


def by_operator(net, y):
    """By an operator of another library, which returns floats; its backward decides once more."""
    return picked_op(y, net.table)


def by_function(net, y):
    """By a Function, of whose backward nobody knows that it decides once more."""
    return _Picked.apply(y, net.table)


DECISIONS = {
    one.__name__: one
    for one in (routed, dispatched, quantised, sparse, guarded, largest, stepped, sorted_rows, hard, clipped)
}


def deciding(name):
    return Deciding(DECISIONS[name]).train(), (normal(64, 32),)


def flipping():
    """ReLUs after norms, whose signs change wherever an activation is small."""
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())]
    return nn.Sequential(*layers).train(), (normal(128, 64),)
