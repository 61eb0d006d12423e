"""Small models of all kinds, each as its kind is made."""

import torch
import torch.nn.functional as F
from torch import nn

from .nets import mlp, normal


class Block(nn.Module):
    """A transformer's: norms, attention and GELU."""

    def __init__(self):
        super().__init__()
        self.norm, self.fused, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)
        self.norm2, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x):
        x = x + 0  # nobody else's
        q, k, v = (part.view(4, -1, 4, 16).transpose(1, 2) for part in self.fused(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Residual(nn.Module):
    """A residual network's block."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))
        self.last = nn.Conv2d(8, 8, 3)

    def forward(self, x):
        x = F.silu(x + 0)
        y = self.norms[0](self.first(x)).relu()
        return self.last((self.norms[1](self.second(y)) + x).relu())


class Gated(nn.Module):
    """A language model's block: root mean squares, rotated queries and keys, a causal mask, a gated product."""

    def __init__(self):
        super().__init__()
        self.norm, self.norm2 = nn.RMSNorm(64), nn.RMSNorm(64)
        self.fused, self.out = nn.Linear(64, 192, bias=False), nn.Linear(64, 64, bias=False)
        self.gate, self.up, self.down = (nn.Linear(64, 64, bias=False) for _ in range(3))
        angles = torch.outer(torch.arange(16.0), 0.5 ** torch.arange(8))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def turned(self, x):
        a, b = x.chunk(2, -1)
        return torch.cat((a * self.cos - b * self.sin, a * self.sin + b * self.cos), -1)

    def forward(self, x):
        x = x + 0  # nobody else's
        q, k, v = (part.view(4, 16, 4, 16).transpose(1, 2) for part in self.fused(self.norm(x)).chunk(3, -1))
        scores = self.turned(q) @ self.turned(k).transpose(-2, -1) / 4
        mask = torch.ones(16, 16, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(x.shape))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Inverted(nn.Module):
    """A mobile network's block: narrow, wide and depthwise, with channels weighed by what they hold."""

    def __init__(self):
        super().__init__()
        self.wide, self.deep = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.squeeze, self.excite, self.narrow = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1), nn.Conv2d(16, 8, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in (16, 16, 8))

    def forward(self, x):
        x = x * 1
        y = F.hardswish(self.norms[0](self.wide(x)))
        y = F.hardswish(self.norms[1](self.deep(y)))
        y = y * F.hardsigmoid(self.excite(self.squeeze(F.adaptive_avg_pool2d(y, 1)).relu()))
        return x + self.norms[2](self.narrow(y))


class Covariance(nn.Module):
    """Attention between channels, whose queries and keys have length one."""

    def __init__(self):
        super().__init__()
        self.fused, self.out, self.norm = nn.Linear(64, 192), nn.Linear(64, 64), nn.LayerNorm(64)
        self.temperature, self.scale = nn.Parameter(torch.ones(4, 1, 1)), nn.Parameter(torch.full((64,), 0.5))

    def forward(self, x):
        x = x + 0
        q, k, v = (part.view(4, 16, 4, 16).permute(0, 2, 3, 1) for part in self.fused(self.norm(x)).chunk(3, -1))
        weights = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * self.temperature).softmax(-1)
        return x + self.scale * self.out((weights @ v).permute(0, 3, 1, 2).reshape(x.shape))


class Pools(nn.Module):
    """Two scales of a picture: pooled, grown again and joined."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1), nn.Conv2d(16, 8, 1)
        self.norm, self.slope = nn.GroupNorm(2, 8), nn.PReLU(8)

    def forward(self, x):
        y = F.elu(self.norm(self.first(x + 0)))
        z = self.slope(self.second(F.max_pool2d(y, 2)))
        z = F.interpolate(z, scale_factor=2, mode="nearest")
        return F.softplus(self.last(torch.cat((y, z), 1)))


class Messages(nn.Module):
    """Nodes of a graph that add up what their neighbours send."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("source", torch.randint(48, (200,), generator=generator))
        self.register_buffer("target", torch.randint(48, (200,), generator=generator))

    def forward(self, x):
        sent = self.first(x)[self.source]
        y = torch.zeros_like(x).index_add(0, self.target, sent)
        return self.second(F.relu(y)).tanh()


class Recurrent(nn.Module):
    """A gated cell, unrolled."""

    def __init__(self):
        super().__init__()
        self.reads, self.state = nn.Linear(64, 192), nn.Linear(64, 192)

    def forward(self, x):
        state = torch.zeros_like(x[:, 0])
        for step in x.unbind(1):
            (r, z, n), (s, t, m) = self.reads(step).chunk(3, -1), self.state(state).chunk(3, -1)
            z = (z + t).sigmoid()
            state = (1 - z) * (n + (r + s).sigmoid() * m).tanh() + z * state
        return state


NETS = {
    "mlp": (mlp, (48, 64)),
    "gelu": (lambda: nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.LeakyReLU()), (48, 64)),
    "bounded": (lambda: nn.Sequential(nn.Linear(64, 64), nn.Softmax(-1), nn.Linear(64, 64), nn.Tanh()), (48, 64)),
    "residual": (Residual, (4, 8, 16, 16)),
    "block": (Block, (4, 16, 64)),
    "gated": (Gated, (4, 16, 64)),
    "inverted": (Inverted, (4, 8, 16, 16)),
    "covariance": (Covariance, (4, 16, 64)),
    "pools": (Pools, (4, 8, 16, 16)),
    "messages": (Messages, (48, 64)),
    "recurrent": (Recurrent, (48, 4, 64)),
}


def build(name):
    torch.manual_seed(0)
    make, shape = NETS[name]
    return make(), normal(*shape)
