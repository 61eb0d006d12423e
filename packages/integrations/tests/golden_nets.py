"""Ten small models, each with inputs: their reports and plans are on record, and their forwards are replayed."""

import torch
import torch.nn.functional as F
from torch import nn

from .decoder import Decoder, shifted
from .nets import normal
from .recompute_nets import NETS as HARD


def chain():
    """Linear layers and activations."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(32, 4)), (normal(64, 32),)


def decoder():
    """A language model that returns its loss."""
    return Decoder(shifted), (torch.arange(4 * 40).reshape(4, 40) % 600,)


class GraphNet(nn.Module):
    """Messages along edges, summed at their targets, with dropout, as GNN layers have them."""

    def __init__(self, width=32):
        super().__init__()
        self.first, self.second = nn.Linear(16, width), nn.Linear(width, width)
        self.score, self.norm = nn.Linear(2 * width, 1), nn.BatchNorm1d(width)

    def forward(self, x, edges):
        source, target = edges
        x = F.relu(self.norm(self.first(x)))
        score = F.leaky_relu(self.score(torch.cat([x[source], x[target]], -1)), 0.2).exp()
        total = score.new_zeros(len(x), 1).index_add(0, target, score)
        x = x.new_zeros(len(x), x.shape[1]).index_add(0, target, x[source] * score / total[target])
        return F.log_softmax(self.second(F.dropout(x, 0.5, self.training)), -1)


def graph():
    edges = torch.stack([torch.arange(160) % 40, torch.arange(160) * 7 % 40])
    return GraphNet(), (normal(40, 16), edges)


class UNet(nn.Module):
    """Down, up, and a connection across; GroupNorm and SiLU, as diffusion models have them."""

    def __init__(self, width=8):
        super().__init__()
        self.inner, self.down, self.up = (
            nn.Conv2d(*sizes, 3, padding=1) for sizes in ((3, width), (width,) * 2, (width,) * 2)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(2, width) for _ in range(3))
        self.last = nn.Conv2d(2 * width, 3, 1)

    def forward(self, x):
        inner = F.silu(self.norms[0](self.inner(x)))
        y = F.silu(self.norms[1](self.down(F.avg_pool2d(inner, 2))))
        y = F.silu(self.norms[2](self.up(F.interpolate(y, scale_factor=2.0))))
        return self.last(torch.cat([inner, y], 1))


def unet():
    return UNet(), (normal(4, 3, 12, 12),)


NETS = {**HARD, **{made.__name__: made for made in (chain, decoder, graph, unet)}}


def net(name):
    """Return a model in training, its positional and its named inputs, the same ones each time."""
    torch.manual_seed(0)
    model, args, *kwargs = NETS[name]()
    return model.train(), args, (kwargs[0] if kwargs else {})


def read_loss(output):
    """Return a number that depends on every tensor in the output."""
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, tuple):
        return sum(read_loss(part) for part in output)
    return output.square().mean()
