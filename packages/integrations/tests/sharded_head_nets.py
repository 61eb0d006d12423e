"""A language model, losses of its logits, and the ways in which two ranks share it, for ``sharded_head_child.py``."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

WIDTH, WORDS, BATCH, LENGTH = 32, 1024, 8, 128


class Net(nn.Module):
    """A language model that returns its logits, or its loss."""

    def __init__(self, words=WORDS, bias=True, loss=None):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.up, self.down = nn.Embedding(words, WIDTH), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, words, bias=bias)
        self.loss = loss
        self.double()

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = x + self.down(torch.tanh(self.up(x)))
        logits = self.head(self.norm(x))
        return logits if self.loss is None else self.loss(logits, tokens)


class Front(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.embedding, self.up, self.down = net.embedding, net.up, net.down

    def forward(self, ids):
        x = self.embedding(ids)
        return x + self.down(torch.tanh(self.up(x)))


class Back(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.norm, self.head = net.norm, net.head

    def forward(self, x):
        return self.head(self.norm(x))


def tokens(words, seed=1):
    return torch.randint(words, (BATCH, LENGTH), generator=torch.Generator().manual_seed(seed))


def labels_of(ids):
    """The labels of rows: the next word; every seventh is ignored, and so is the whole first sequence."""
    labels = ids.roll(-1, 1).flatten().clone()
    labels[::7], labels[:LENGTH] = -100, -100
    return labels


# ---- what is done to the logits ----


def plain(logits, ids):
    return F.cross_entropy(logits.flatten(0, 1), labels_of(ids))


def options(logits, ids):
    weight = torch.linspace(0.5, 2, logits.shape[-1], dtype=torch.float64)
    scaled = 3 * torch.tanh(logits.flatten(0, 1) * 0.7 / 3)
    return F.cross_entropy(scaled, labels_of(ids), weight, label_smoothing=0.1, reduction="sum") / 1000


def each_row(logits, ids):
    rows = F.cross_entropy(logits.flatten(0, 1), labels_of(ids), reduction="none")
    return (rows * torch.linspace(0, 1, rows.numel(), dtype=rows.dtype)).sum() / 100


def log_probabilities(logits, ids):
    chosen = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:].unsqueeze(-1))
    return (chosen * torch.linspace(0, 1, chosen.numel(), dtype=chosen.dtype).view(chosen.shape)).mean()


def selective(logits, ids):
    chosen = logits[:, :-1].gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    return (chosen - logits[:, :-1].logsumexp(-1)).square().mean()


def entropy(logits, ids):
    """Which takes whole logits."""
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean() + logits.argmax(-1).double().mean()


def rows_kept(logits, ids):
    """The same on a view of rows, as transformers cuts them."""
    return F.cross_entropy(logits[:, :-1].double().reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))


# ---- how it is shared ----

BODY = {"up": ColwiseParallel(), "down": RowwiseParallel()}
REPLICATED = {**BODY, "head": ColwiseParallel(output_layouts=Replicate())}
SHARDED = {**BODY, "head": ColwiseParallel(use_local_output=False)}
SEQUENCE = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "head": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
}
GATHERED = {**SEQUENCE, "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())}

TENSOR = {  # the plan of parallelize_module, the loss, arguments of the model, and whether the loss is outside of it
    "replicated": (REPLICATED, plain, {}, False),
    "replicated, outside": (REPLICATED, plain, {}, True),
    "replicated, options": (REPLICATED, options, {}, False),
    "replicated, options, uneven": (REPLICATED, options, {"words": WORDS + 1, "bias": False}, False),
    "replicated, each row": (REPLICATED, each_row, {}, False),
    "replicated, log-probabilities": (REPLICATED, log_probabilities, {}, True),
    "replicated, selective": (REPLICATED, selective, {"words": WORDS + 1}, True),
    "replicated, rows": (REPLICATED, rows_kept, {}, False),
    "sharded": (SHARDED, plain, {"bias": False}, False),
    "sharded, outside": (SHARDED, plain, {}, True),
    "sharded, options": (SHARDED, options, {}, False),
    "sharded, uneven": (SHARDED, plain, {"words": WORDS + 1}, True),
    "sequence": (SEQUENCE, plain, {}, True),
    "sequence, options": (SEQUENCE, options, {}, False),
    "sequence, gathered": (GATHERED, plain, {}, False),
    "whole": (REPLICATED, entropy, {}, True),
}

UNITS = {  # what fully_shard is given before the model, its arguments, the loss, and whether it is outside of the model
    "unit": (["head"], {}, plain, False),
    "unit, outside": (["head"], {}, plain, True),
    "unit, each row": (["head"], {}, each_row, False),
    "unit, log-probabilities": (["head"], {}, log_probabilities, True),
    "unit, selective": (["head"], {}, selective, False),
    "unit, whole": (["head"], {}, entropy, True),
    "group": (["norm", "head"], {}, plain, False),
    "group, outside": (["norm", "head"], {}, plain, True),
    "group, each row": (["norm", "head"], {}, each_row, True),
    "group, kept": (["norm", "head"], {"reshard_after_forward": False}, plain, False),
    "group, whole": (["norm", "head"], {}, entropy, False),
}
