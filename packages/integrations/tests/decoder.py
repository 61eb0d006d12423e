"""A small language model, and what becomes of its logits' loss."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

import integrations

CLASSES, WIDTH, BATCH, LENGTH = 600, 32, 4, 150
IDS = torch.randint(CLASSES, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
# Gradients of up to 600 rows, summed in another order than torch's product sums them: sqrt(600) half units of 2^-24,
# and as much again by each product behind the head's.
SUMS = 5e-6


class Decoder(nn.Module):
    """A language model of one layer, and what is done to its logits."""

    def __init__(self, loss, bias=True):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES, bias=bias)
        self.loss = loss

    def forward(self, ids):
        return self.loss(self.head(torch.tanh(self.layer(self.embedding(ids)))), ids)


def shifted(logits, ids):
    return F.cross_entropy(logits[..., :-1, :].float().contiguous().view(-1, CLASSES), ids[:, 1:].reshape(-1))


def twin(model, **options):
    return integrations.compress_model(copy.deepcopy(model), loss={"head": "head"}, **{"level": "L0", **options})


def step(model, ids=IDS):
    model.zero_grad()
    loss = model(ids)
    loss.backward()
    return loss.detach(), {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


def exchanged(model):
    return integrations.compression(model).report().exchanged
