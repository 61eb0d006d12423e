"""The models: one of each kind that people train, at sizes of which a step takes a second or so on one core.

Kernels and not Python take that time: the transformers have 12 layers of 384 or 512.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.models.graph_layers import GraphLayers
from bench.models.image_models import modules_called
from bench.models.libraries import needs
from bench.models.subject import Subject, channels_last, entropy, own_loss, resnet_blocks
from bench.models.transformers import transformer
from bench.suites.memory.systems import gpu_subjects
from bench.suites.memory.systems.peak_subjects import SUBJECTS as PEAKS


def _resnet50() -> Subject:
    model = needs("timm").create_model("resnet50", num_classes=10)
    y = torch.randint(10, (8,))
    images = torch.randn(8, 3, 128, 128)
    return channels_last(
        Subject(model, (images,), entropy(y), "ResNet-50, 8 at 128 x 128, channels last", resnet_blocks(model))
    )


def _vit() -> Subject:
    model = needs("timm").create_model("vit_small_patch16_224", num_classes=10)
    y = torch.randint(10, (4,))
    what = "ViT-small, 12 layers of 384, 4 at 224 x 224"
    return Subject(model, (torch.randn(4, 3, 224, 224),), entropy(y), what, list(model.blocks))


def bert(layers: int, width: int, sequences: int) -> Subject:
    """With a head that classifies, of random weights."""
    model = transformer("BertForSequenceClassification", layers, width, width // 64, 1000)
    inputs = {"input_ids": torch.randint(1000, (sequences, 128)), "labels": torch.randint(2, (sequences,))}
    what = f"BERT, {layers} layers of {width}, {sequences} x 128 tokens, dropout 0.1"
    return Subject(model, inputs, own_loss, what, list(model.bert.encoder.layer))


def _llama() -> Subject:
    model = transformer("LlamaForCausalLM", 12, 512, 8, 1000, inner=1376, use_cache=False)
    tokens = torch.randint(1000, (2, 256))
    what = "Llama, 12 layers of 512, 2 x 256 tokens"
    return Subject(model, {"input_ids": tokens, "labels": tokens}, own_loss, what, list(model.model.layers))


def _unet() -> Subject:
    """That of a diffusion model: residual blocks with group norms, attention below 32 x 32, long skips."""
    model = needs("diffusers").UNet2DModel(
        sample_size=64,
        block_out_channels=(64, 128, 256, 256),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
    )
    images, noise = torch.randn(4, 3, 64, 64), torch.randn(4, 3, 64, 64)
    blocks = modules_called(model, "ResnetBlock2D", "Attention")

    def loss(output: object) -> Tensor:
        found = getattr(output, "sample", None)
        assert isinstance(found, Tensor)
        return F.mse_loss(found, noise)

    what = "U-Net of diffusion, 4 at 64 x 64, channels last"
    return channels_last(Subject(model, (images, torch.randint(1000, (4,))), loss, what, blocks))


def _gat(width: int, nodes: int, edges: int) -> Subject:
    geometric = needs("torch_geometric.nn")
    model = GraphLayers(geometric.GAT(128, width, 3, 7, heads=4, dropout=0.5))
    x, graph, y = torch.randn(nodes, 128), torch.randint(nodes, (2, edges)), torch.randint(7, (nodes,))
    what = f"GAT, 3 layers of {width}, {nodes:,} nodes, {edges:,} edges"
    return Subject(model, (x, graph), entropy(y), what, list(model.layers))


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
        "bert": partial(bert, 12, 512, 4),
        "llama": _llama,
        "unet": _unet,
        "gat": partial(_gat, 256, 5000, 50_000),
        "sage": _sage,
        "lstm": _lstm,
        "mlp": _tiny,
    }
)
"""By the name that the command line knows. ``gpu_subjects`` has those at the sizes of a GPU."""

QUICK: Mapping[str, Callable[[], Subject]] = MappingProxyType(
    {"bert-small": partial(bert, 2, 128, 4), "gat-small": partial(_gat, 64, 1000, 5000), "mlp": _tiny}
)
"""Those of a short run, whose steps take a few milliseconds."""

NAMES = tuple(dict.fromkeys([*SUBJECTS, *QUICK, *PEAKS, *gpu_subjects.SUBJECTS]))
"""Of all models."""


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
            subject = {**SUBJECTS, **QUICK, **PEAKS}[name]()
    subject.model.train()
    return subject
