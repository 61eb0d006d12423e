"""Small models with what makes checkpointing hard, each with inputs."""

import random

import torch
import torch.nn.functional as F
from torch import nn

from .nets import Net, normal


class Residual(nn.Module):
    """A block of ResNet-18: BatchNorm, activations in place, and a sum in place."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
        self.act = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.norm2(self.conv2(self.act(self.norm1(self.conv1(x)))))
        y += self.shortcut(x)
        return self.act(y)


def resnet():
    blocks = [Residual(3, 8), nn.MaxPool2d(2), nn.Dropout(0.2), Residual(8, 12), Residual(12, 12)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4)), (normal(4, 3, 12, 12),)


def residual():
    """One block, for tests that compile, which takes as long as a net has operators."""
    blocks = [Residual(3, 8), nn.MaxPool2d(2), nn.Dropout(0.2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)]
    return nn.Sequential(*blocks), (normal(4, 3, 12, 12),)


class DenseNet(nn.Module):
    """Every layer reads the concatenation of all before it."""

    def __init__(self, growth=4, layers=4):
        super().__init__()
        widths = [3 + growth * number for number in range(layers)]
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths)
        self.convs = nn.ModuleList(nn.Conv2d(width, growth, 3, padding=1) for width in widths)

    def forward(self, x):
        features = [x]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            features.append(conv(F.relu(norm(torch.cat(features, 1)), inplace=True)))
        return torch.cat(features, 1).mean((2, 3))


def densenet():
    return DenseNet(), (normal(4, 3, 8, 8),)


class Transformer(nn.Module):
    """Embeddings tied to the last layer, SDPA with dropout, one layer used twice."""

    def __init__(self, width=16, words=11):
        super().__init__()
        self.times = 2
        self.words = nn.Embedding(words, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.mlp = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def attend(self, x):
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        found = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        return self.out(found.transpose(1, 2).flatten(2))

    def forward(self, tokens):
        x = self.words(tokens)
        for _ in range(self.times):
            x = x + F.dropout(self.attend(self.norm(x)), 0.1)
            x = x + self.mlp(x)
        return self.head(self.norm(x))


def transformer():
    return Transformer(), (torch.arange(28).reshape(4, 7) % 11,)


class Nested(nn.Module):
    """Inputs and outputs in dictionaries and tuples."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, given, *, scale):
        x, y = given["x"], given["rest"][0]
        a = self.one(x).tanh() * scale
        b = self.two(y).sigmoid()
        return {"sum": a + b, "parts": (a, b.exp().sin())}


def nested():
    return Nested(), ({"x": normal(5, 6), "rest": [normal(5, 6, seed=1)]},), {"scale": normal(6, seed=2)}


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(x, y)
        return x * x + y

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient * (2 * x + y)


class Odd(nn.Module):
    """A function of the user's own, noise in place, writes into slices, complex numbers, and an RNN."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 8)
        self.rnn = nn.GRU(8, 8, batch_first=True)
        self.slope = nn.RReLU()

    def forward(self, x):
        y = Square.apply(self.linear(x))
        y = y + torch.empty_like(y).uniform_() * torch.rand(())
        buffer = y.new_zeros(*y.shape)
        buffer[:, 0] = y[:, 0].sin()
        buffer[:, 1:] = y[:, 1:].cos() * y[:, :1]
        spectrum = torch.fft.rfft(buffer).conj() * 2
        y = torch.fft.irfft(spectrum, n=8) + self.slope(buffer)
        y, _ = self.rnn(y)
        left, right = y.split(4, -1)
        return left.sort(-1).values * right.cumsum(-1).softmax(-1)


def odd():
    return Odd(), (normal(3, 5, 6),)


class Recurrent(nn.Module):
    """Layers whose kernel asks if gradients are enabled."""

    def __init__(self):
        super().__init__()
        self.rnn, self.linear = nn.LSTM(6, 6, 2, dropout=0.2, bidirectional=True), nn.Linear(12, 3)

    def forward(self, x):
        return self.linear(self.rnn(x)[0].tanh())


def recurrent():
    return Recurrent(), (normal(5, 3, 6),)


NETS = {made.__name__: made for made in (resnet, densenet, transformer, nested, odd, recurrent)}
SMALL = {"residual": residual}
"""Nets that are not among those that every way is tried with."""


def net(name):
    """A model in training, its positional and its named inputs."""
    torch.manual_seed(0)
    model, args, *kwargs = (NETS | SMALL)[name]()
    return model.train(), args, (kwargs[0] if kwargs else {})


def random_net(seed):
    """Operators at random, in place and out of place, on what is there."""

    def forward(model, x):
        draw = random.Random(seed).randrange
        known = [x * model.weight]
        for _ in range(12):
            one, other = known[draw(len(known))], known[draw(len(known))]
            kind = draw(8)
            if kind == 0:
                known.append(one + other * 0.5)
            elif kind == 1:
                known.append(torch.tanh(one) @ model.square)
            elif kind == 2:
                known.append((one.t() * 0.3).t().clone().mul_(other.detach()).sigmoid_())
            elif kind == 3:
                known.append(torch.cat([one[:2], other[2:]]))
            elif kind == 4:
                known.append(nn.functional.dropout(one, 0.3))
            elif kind == 5:
                known.append((one * 1.5).add_(other).relu_())
            elif kind == 6:
                known.append(nn.functional.layer_norm(one, (6,)))
            else:
                known += [part.repeat_interleave(2, 1) for part in (one * 2).chunk(2, 1)]
        return sum(known).sin()

    return Net(forward, weight=normal(6, seed=seed), square=normal(6, 6, seed=seed + 1)).train(), (normal(4, 6),)
