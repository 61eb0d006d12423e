"""Measures, in a process of its own, what a forward of two pre-norm blocks leaves alive, with torch's norms and with
those that save their output. See ``memory_child.py``; prints one JSON object."""

import json

import torch
from memory_child import ROWS, WIDTH, left_alive
from torch import nn

from integrations.fewbit.modules import LayerNorm, RMSNorm


class Block(nn.Module):
    """A transformer's, with a mixing of tokens in place of attention, whose own savings are not the subject."""

    def __init__(self, norm):
        super().__init__()
        self.norms = nn.ModuleList([norm(WIDTH), norm(WIDTH)])
        self.mix, self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.mix(self.norms[0](x))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


def main():
    torch.set_num_threads(1)
    found = {}
    for plain, shared in ((nn.LayerNorm, LayerNorm), (nn.RMSNorm, RMSNorm)):
        found[plain.__name__] = {
            name: left_alive(nn.Sequential(nn.Linear(WIDTH, WIDTH), Block(kind), Block(kind)), torch.randn(ROWS, WIDTH))
            for name, kind in (("plain", plain), ("shared", shared))
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
