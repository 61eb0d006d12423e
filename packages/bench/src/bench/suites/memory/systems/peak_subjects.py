"""More models, of other kinds, whose peaks are measured beside what their plans say, at sizes of tens of MiB.

Convolutions are channels last: in the other order their kernels on a CPU copy what they read, of which no plan knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch

from bench.models.architectures import ARCHITECTURES
from bench.models.graph_layers import GraphLayers
from bench.models.libraries import needs
from bench.models.subject import Subject, channels_last, entropy
from bench.suites.memory.checkpoint.step import noise


def _architecture(name: str, batch: int, size: int) -> Subject:
    """One of ``bench checkpoint``."""
    architecture = ARCHITECTURES[name]
    model, inputs = architecture.build(), architecture.inputs(batch, size)
    images = not isinstance(inputs, dict)
    what = f"{name}, {batch} at {size} x {size}" if images else f"{name}, {batch} x {size} tokens"
    subject = Subject(model, inputs, noise, what, architecture.blocks(model))
    return channels_last(subject) if images else subject


def _timm(name: str, batch: int, size: int) -> Subject:
    model = needs("timm").create_model(name, num_classes=10)
    loss = entropy(torch.randint(10, (batch,)))
    what = f"{name}, {batch} at {size} x {size}"
    return channels_last(Subject(model, (torch.randn(batch, 3, size, size),), loss, what))


def _t5() -> Subject:
    transformers = needs("transformers")
    sizes = {"d_model": 256, "d_ff": 1024, "d_kv": 64, "num_heads": 4, "num_layers": 4}
    model = transformers.T5Model(transformers.T5Config(vocab_size=1000, use_cache=False, **sizes))
    words = torch.randint(1000, (4, 128))
    return Subject(model, {"input_ids": words, "decoder_input_ids": words}, noise, "T5, 4 + 4 layers of 256, 4 x 128")


def _whisper() -> Subject:
    """The encoder, which hears spectrograms: convolutions over time, then attention."""
    transformers = needs("transformers")
    sizes = {"d_model": 256, "encoder_layers": 4, "encoder_ffn_dim": 1024, "encoder_attention_heads": 4}
    config = transformers.WhisperConfig(max_source_positions=500, **sizes)
    model = transformers.models.whisper.modeling_whisper.WhisperEncoder(config)
    return Subject(model, (torch.randn(2, 80, 1000),), noise, "Whisper's encoder, 4 layers of 256, 2 x 1000 frames")


def _autoencoder() -> Subject:
    model = needs("diffusers").AutoencoderKL(
        block_out_channels=(32, 64, 128),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
    )
    return channels_last(Subject(model, (torch.randn(2, 3, 64, 64),), noise, "AutoencoderKL, 2 at 64 x 64"))


def _gcn() -> Subject:
    geometric = needs("torch_geometric.nn")
    model = GraphLayers(geometric.GCN(128, 256, 3, 7, dropout=0.5, norm="batch_norm"))
    x, graph, y = torch.randn(10_000, 128), torch.randint(10_000, (2, 50_000)), torch.randint(7, (10_000,))
    return Subject(model, (x, graph), entropy(y), "GCN, 3 layers of 256, 10,000 nodes, 50,000 edges")


SUBJECTS: Mapping[str, Callable[[], Subject]] = MappingProxyType(
    {
        "vgg11": partial(_architecture, "vgg11", 4, 96),
        "densenet121": partial(_architecture, "densenet121", 4, 96),
        "inception": partial(_architecture, "inception_v3", 4, 128),
        "darts": partial(_architecture, "darts", 4, 32),
        "swin": partial(_architecture, "swin", 2, 224),
        "unet-paper": partial(_architecture, "unet", 1, 188),
        "gpt2": partial(_architecture, "gpt2", 2, 128),
        "efficientnet": partial(_timm, "efficientnet_b0", 4, 128),
        "mobilenet": partial(_timm, "mobilenetv3_large_100", 8, 128),
        "convnext": partial(_timm, "convnext_atto", 4, 128),
        "mixer": partial(_timm, "mixer_s16_224", 4, 224),
        "t5": _t5,
        "whisper": _whisper,
        "autoencoder": _autoencoder,
        "gcn": _gcn,
    }
)
"""By the name that the command line knows."""

BESIDE = ("resnet50", "vit", "bert", "llama", "unet", "gat", "sage")
"""Of the models that are timed, those whose peaks are measured beside these."""
