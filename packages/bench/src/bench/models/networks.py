"""Networks of other libraries for what is measured on any model: with random weights and data, in training mode."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from bench.models.subject import Case, needs
from bench.models.transformers import transformer


def image_model(name: str, batch: int, size: int = 64, **options: Any) -> Case:
    """One of timm's image models for 10 classes, its weights as timm draws them.

    Args:
        name: timm's.
        batch: images in a step.
        size: their height and width.
        **options: of timm's ``create_model``.
    """
    if name.startswith("vit_"):  # others take any size
        options["img_size"] = size
    model = needs("timm").create_model(name, num_classes=10, **options)
    x, y = torch.randn(batch, 3, size, size), torch.randint(10, (batch,))
    return Case(model.train(), lambda: F.cross_entropy(model(x), y), f"batch {batch} at {size} x {size}")


def resnet18(batch: int) -> Case:
    """Its last norms start at 1, not at 0 as timm has it: a branch that is multiplied by 0 has no gradient, and no
    tensor in it an error or a sensitivity."""
    return image_model("resnet18", batch, zero_init_last=False)


def resnet50(batch: int) -> Case:
    """As timm draws it."""
    return image_model("resnet50", batch)


def vit_tiny(batch: int) -> Case:
    """12 layers of 192 features, 196 patches."""
    return image_model("vit_tiny_patch16_224", batch, 224)


def bert(batch: int, dropout: float) -> Case:
    """BERT with 4 layers of 256 features and a classification head, on 128 tokens."""
    model = transformer("BertForSequenceClassification", 4, 256, 4, 1000, dropout=dropout)
    ids, y = torch.randint(1000, (batch, 128)), torch.randint(2, (batch,))
    what = f"4 layers of 256, batch {batch}, 128 tokens, dropout {dropout:g}"
    return Case(model.train(), lambda: model(input_ids=ids, labels=y).loss, what)


def llama(batch: int) -> Case:
    """A Llama with 4 layers of 512 features, on 512 tokens."""
    model = transformer("LlamaForCausalLM", 4, 512, 8, 1000, inner=1376, use_cache=False)
    ids = torch.randint(1000, (batch, 512))
    what = f"4 layers of 512, batch {batch}, 512 tokens"
    return Case(model.train(), lambda: model(input_ids=ids, labels=ids).loss, what)


def gcn() -> Case:
    """Three graph convolutions of 128 features, with batch norm and dropout, on a random graph."""
    geometric = needs("torch_geometric.nn")
    model = geometric.GCN(64, 128, 3, 7, dropout=0.5, norm="batch_norm")
    x, edges, y = torch.randn(1000, 64), torch.randint(1000, (2, 5000)), torch.randint(7, (1000,))
    return Case(model.train(), lambda: F.cross_entropy(model(x, edges), y), "3 layers of 128, 1,000 nodes, 5,000 edges")
