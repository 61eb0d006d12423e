"""A small language model, and what becomes of its logits' loss."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

import integrations

from .libraries import library_or_skip
from .nets import relative_error

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


def llama(**fields):
    """A causal language model of transformers, of two layers."""
    transformers = library_or_skip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=CLASSES, use_cache=False, **sizes, **fields)
    return transformers.LlamaForCausalLM(config).train()


def shifted(logits, ids):
    return F.cross_entropy(logits[..., :-1, :].float().contiguous().view(-1, CLASSES), ids[:, 1:].reshape(-1))


def twin(model, **options):
    return integrations.compress_model(copy.deepcopy(model), loss={"head": "head"}, **{"level": "L0", **options})


def step(model, ids=IDS):
    model.zero_grad()
    loss = model(ids)
    loss.backward()
    return loss.detach(), {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


def assert_same_step(found, wanted):
    """Requires the loss and the gradients of a plain step, up to the order of sums."""
    (loss, gradients), (exact, expected) = found, wanted
    assert abs(loss - exact) <= 1e-6 * abs(exact)
    assert relative_error(expected, gradients) <= SUMS


def exchanged(model):
    return integrations.compression(model).report().exchanged
