"""What is measured: a convolutional network, a transformer and a graph network, with random weights and data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.errors import BenchError


@dataclass(frozen=True)
class Case:
    """A model in training mode, and a function that computes its loss on one batch.

    Attributes:
        model: with random weights.
        loss: forward of the model.
        what: in words.
    """

    model: nn.Module
    loss: Callable[[], Tensor]
    what: str


def resnet18() -> Case:
    """timm's ResNet-18. Its last norms start at 1, not at 0 as timm has it: a branch that is multiplied by 0 has no
    gradient, and no tensor in it a sensitivity."""
    timm = _needs("timm")
    model = timm.create_model("resnet18", num_classes=10, zero_init_last=False)
    x, y = torch.randn(4, 3, 64, 64), torch.randint(10, (4,))
    return Case(model.train(), lambda: F.cross_entropy(model(x), y), "batch 4 at 64 x 64")


def bert() -> Case:
    """BERT with 4 layers of 256 features and no dropout."""
    transformers = _needs("transformers")
    config = transformers.BertConfig(
        vocab_size=1000,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = transformers.BertForSequenceClassification(config)
    ids, y = torch.randint(1000, (4, 128)), torch.randint(2, (4,))
    return Case(model.train(), lambda: model(input_ids=ids, labels=y).loss, "4 layers of 256, batch 4, 128 tokens")


def gcn() -> Case:
    """Three graph convolutions of 128 features, with batch norm and dropout, on a random graph."""
    geometric = _needs("torch_geometric.nn")
    model = geometric.GCN(64, 128, 3, 7, dropout=0.5, norm="batch_norm")
    x, edges, y = torch.randn(1000, 64), torch.randint(1000, (2, 5000)), torch.randint(7, (1000,))
    return Case(model.train(), lambda: F.cross_entropy(model(x, edges), y), "3 layers of 128, 1,000 nodes, 5,000 edges")


MODELS = MappingProxyType({"resnet18": resnet18, "bert": bert, "gcn": gcn})
"""The models by the name that the command line knows."""


def _needs(name: str) -> Any:
    """A library that only this benchmark needs.

    Raises:
        BenchError: it is not installed.
    """
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BenchError(
            f"{name} cannot be imported ({error}); pip install actcore-bench[sensitivity], or choose another --model"
        ) from error
