"""Small models for the trainers of transformers, accelerate and Lightning, and their batches."""

import torch
from torch import nn


def bert(dropout=0.0, **options):
    """A classifier of two layers, in which everything that is large enough is compressed."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        **options,
    )
    return BertForSequenceClassification(config)


def sentences(count=32, length=12):
    """Random ones, with labels: no two batches give the same gradient."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(50, (count, length), generator=generator)
    labels = torch.randint(2, (count,), generator=generator)
    return [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]


def classifier():
    """Two hidden layers of 32."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4))


def points(count=64):
    """Random points of four classes."""
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(count, 16, generator=generator), torch.randint(4, (count,), generator=generator)
    return torch.utils.data.TensorDataset(x, y)


def weights(model):
    """Copies of all parameters and buffers."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def equal(ours, others):
    """Whether two copies are equal, bit for bit."""
    return ours.keys() == others.keys() and all(torch.equal(ours[name], others[name]) for name in ours)
