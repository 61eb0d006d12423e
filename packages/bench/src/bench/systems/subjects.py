"""The models: one of each kind that people train, at sizes of which a step takes a second or so on two cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from bench.networks import needs
from bench.systems import gpu_subjects
from bench.systems.graph_layers import GraphLayers
from bench.systems.subject import Subject, entropy, own_loss


def _resnet50() -> Subject:
    timm = needs("timm")
    model = timm.create_model("resnet50", num_classes=10)
    y = torch.randint(10, (16,))
    blocks = [block for stage in (model.layer1, model.layer2, model.layer3, model.layer4) for block in stage]
    return Subject(model, (torch.randn(16, 3, 96, 96),), entropy(y), "ResNet-50, 16 at 96 x 96", blocks)


def _vit() -> Subject:
    timm = needs("timm")
    model = timm.create_model("vit_tiny_patch16_224", num_classes=10)
    y = torch.randint(10, (8,))
    what = "ViT-tiny, 8 at 224 x 224"
    return Subject(model, (torch.randn(8, 3, 224, 224),), entropy(y), what, list(model.blocks))


def _bert() -> Subject:
    transformers = needs("transformers")
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=1000, **sizes))
    inputs = {"input_ids": torch.randint(1000, (16, 128)), "labels": torch.randint(2, (16,))}
    what = "BERT, 4 layers of 256, 16 x 128 tokens, dropout 0.1"
    return Subject(model, inputs, own_loss, what, list(model.bert.encoder.layer))


def _llama() -> Subject:
    transformers = needs("transformers")
    sizes = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 704}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=512, use_cache=False, **sizes))
    tokens = torch.randint(512, (8, 256))
    what = "Llama, 6 layers of 256, 8 x 256 tokens"
    return Subject(model, {"input_ids": tokens, "labels": tokens}, own_loss, what, list(model.model.layers))


def _gat() -> Subject:
    geometric = needs("torch_geometric.nn")
    model = GraphLayers(geometric.GAT(64, 128, 3, 7, heads=4, dropout=0.5))
    x, edges, y = torch.randn(2000, 64), torch.randint(2000, (2, 20_000)), torch.randint(7, (2000,))
    what = "GAT, 3 layers of 128, 2,000 nodes, 20,000 edges"
    return Subject(model, (x, edges), entropy(y), what, list(model.layers))


def _sage() -> Subject:
    geometric = needs("torch_geometric.nn")
    model = GraphLayers(geometric.GraphSAGE(256, 256, 3, 7, dropout=0.5))
    x, edges, y = torch.randn(10_000, 256), torch.randint(10_000, (2, 50_000)), torch.randint(7, (10_000,))
    what = "GraphSAGE, 3 layers of 256, 10,000 nodes, 50,000 edges"
    return Subject(model, (x, edges), entropy(y), what, list(model.layers))


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(128, 256, num_layers=2, batch_first=True)
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        """``Float["batch 10"]`` of ``Float["batch length 128"]``."""
        states, _ = self.lstm(x)
        logits: Tensor = self.head(states[:, -1])
        return logits


def _lstm() -> Subject:
    y = torch.randint(10, (32,))
    return Subject(_Recurrent(), (torch.randn(32, 128, 128),), entropy(y), "LSTM, 2 layers of 256, 32 x 128 steps")


def _tiny() -> Subject:
    layers = [layer for _ in range(32) for layer in (nn.Linear(32, 32), nn.ReLU())]
    y = torch.randint(10, (64,))
    return Subject(
        nn.Sequential(*layers, nn.Linear(32, 10)), (torch.randn(64, 32),), entropy(y), "MLP, 32 layers of 32, 64 rows"
    )


SUBJECTS: Mapping[str, Callable[[], Subject]] = MappingProxyType(
    {
        "resnet50": _resnet50,
        "vit": _vit,
        "bert": _bert,
        "llama": _llama,
        "sage": _sage,
        "gat": _gat,
        "lstm": _lstm,
        "mlp": _tiny,
    }
)
"""By the name that the command line knows. ``gpu_subjects`` has those at the sizes of a GPU."""

NAMES = (*SUBJECTS, *gpu_subjects.SUBJECTS)
"""Of all models."""

QUICK = ("bert", "gat", "mlp")


def made(name: str, seed: int, device: torch.device) -> Subject:
    """One of ``NAMES``, the same at each call with the seed.

    Raises:
        MissingLibrary: the model's library is not installed.
    """
    torch.manual_seed(seed)
    with device:
        if name in gpu_subjects.SUBJECTS:
            subject = gpu_subjects.SUBJECTS[name](gpu_subjects.SIZES["cuda" if device.type == "cuda" else "cpu"])
        else:
            subject = SUBJECTS[name]()
    subject.model.train()
    return subject
