"""The models that are trained in every way, at sizes of which a step takes a second or so on one core.

The transformers have 12 layers of 384 or 512, so that kernels and not Python take that time. ``PEAK_SUBJECTS`` are of
other kinds, whose peaks are measured beside their plans'; convolutions are channels last, because in the other order
CPU kernels copy what they read. ``GPU_SUBJECTS`` have the precisions that people train in; on the CPU they are small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.models.architectures import ARCHITECTURES
from bench.models.image_models import modules_called
from bench.models.sized import GraphLayers
from bench.models.subject import Subject, channels_last, entropy, needs, own_loss, resnet_blocks
from bench.models.transformers import transformer
from bench.suites.memory.checkpoint.step import noise


@dataclass(frozen=True)
class GpuSizes:
    """The models' sizes on a device.

    Attributes:
        device: type of the device.
        batch: images in a step.
        size: their height and width.
        stages: blocks of the ResNet's four stages.
        vit, depth: name of the vision transformer in timm, and its blocks.
        hidden, layers, heads, shared_heads, intermediate, vocabulary: of the Llama; keys and values have
            ``shared_heads`` heads.
        length: tokens of a sequence.
    """

    device: str
    batch: int
    size: int
    stages: tuple[int, ...]
    vit: str
    depth: int
    hidden: int
    layers: int
    heads: int
    shared_heads: int
    intermediate: int
    vocabulary: int
    length: int


GPU_SIZES: Mapping[str, GpuSizes] = MappingProxyType(
    {
        # The Llama has the layers of Llama 3.2 1B, and the 32,000 tokens of Llama 2, so that the logits of 8 x 2048
        # tokens are not most of what a step takes: 1.04 billion parameters.
        "cuda": GpuSizes(
            "cuda", 64, 224, (3, 4, 6, 3), "vit_base_patch16_224", 12, 2048, 16, 32, 8, 8192, 32_000, 2048
        ),
        "cpu": GpuSizes("cpu", 2, 32, (1, 1, 1, 1), "vit_tiny_patch16_224", 2, 64, 2, 4, 2, 256, 128, 64),
    }
)


def _gpu_resnet50(sizes: GpuSizes, tf32: bool) -> Subject:
    model = needs("timm").create_model("resnet50", layers=sizes.stages, num_classes=1000)
    blocks = resnet_blocks(model)
    name = f"ResNet-{3 * sum(sizes.stages) + 2}"
    what = f"{name}, {sizes.batch} at {sizes.size} x {sizes.size}, {'TF32' if tf32 else 'AMP'}"
    inputs = (torch.randn(sizes.batch, 3, sizes.size, sizes.size),)
    loss = entropy(torch.randint(1000, (sizes.batch,)))
    if tf32:
        return Subject(model, inputs, loss, what, blocks, tf32=True)
    return Subject(model, inputs, loss, what, blocks, around=_mixed(sizes))


def _gpu_vit(sizes: GpuSizes) -> Subject:
    model = needs("timm").create_model(sizes.vit, img_size=sizes.size, depth=sizes.depth, num_classes=1000)
    loss = entropy(torch.randint(1000, (sizes.batch,)))
    inputs = (torch.randn(sizes.batch, 3, sizes.size, sizes.size),)
    what = f"{sizes.vit}, {sizes.depth} blocks, {sizes.batch} at {sizes.size} x {sizes.size}, AMP"
    return Subject(model, inputs, loss, what, list(model.blocks), around=_mixed(sizes))


def _gpu_llama(sizes: GpuSizes, sequences: int) -> Subject:
    model = transformer(
        "LlamaForCausalLM",
        sizes.layers,
        sizes.hidden,
        sizes.heads,
        sizes.vocabulary,
        inner=sizes.intermediate,
        num_key_value_heads=sizes.shared_heads,
        max_position_embeddings=sizes.length,
        tie_word_embeddings=True,
        use_cache=False,
    ).to(torch.bfloat16)
    tokens = torch.randint(sizes.vocabulary, (sequences, sizes.length))
    what = f"Llama, {sizes.layers} layers of {sizes.hidden}, {sequences} x {sizes.length} tokens, bf16"
    return Subject(model, {"input_ids": tokens, "labels": tokens}, own_loss, what, list(model.model.layers))


def _mixed(sizes: GpuSizes) -> Callable[[], torch.autocast]:
    return partial(torch.autocast, sizes.device, dtype=torch.bfloat16)


GPU_SUBJECTS: Mapping[str, Callable[[GpuSizes], Subject]] = MappingProxyType(
    {
        "resnet50-amp": partial(_gpu_resnet50, tf32=False),
        "llama-8": partial(_gpu_llama, sequences=8),
        "vit-amp": _gpu_vit,
        "llama-1": partial(_gpu_llama, sequences=1),
        "resnet50-tf32": partial(_gpu_resnet50, tf32=True),
    }
)
"""By the name that the command line knows, what is worth most first."""

GPU_WAYS = (
    "plain",
    "L1",
    "lean",
    "each block (torch)",
    "plan, 50 %, exact",
    "L4bit-swap",
    "save_on_cpu",
    "OffloadActivations (TRL)",
    "plan, 20 %, error 0.1",
    "L1.2",
    "torch.compile",
    "L1 + torch.compile",
    "torch.compile, budget 0.5",
)
"""That they are trained in by default, names in ``ways.WAYS``, what is worth most first."""

LAST = frozenset({("llama-8", "save_on_cpu"), ("llama-8", "OffloadActivations (TRL)")})
"""Models and ways that wait for all others: these pin 40 GiB of host memory, torch's anew in each step."""


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


PEAK_SUBJECTS: Mapping[str, Callable[[], Subject]] = MappingProxyType(
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


def _mlp(depth: int, width: int, rows: int) -> Subject:
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    y = torch.randint(10, (rows,))
    what = f"MLP, {depth} layers of {width}, {rows} rows"
    return Subject(nn.Sequential(*layers, nn.Linear(width, 10)), (torch.randn(rows, width),), entropy(y), what)


_tiny = partial(_mlp, 32, 32, 64)


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

COMPILED_SUBJECTS = ("resnet50", "vit", "bert", "llama")
"""Those that are compiled by default, which takes minutes for each way."""

QUICK_COMPILED: Mapping[str, Callable[[], Subject]] = MappingProxyType({"mlp-wide": partial(_mlp, 8, 256, 512)})
"""Those of a short run under ``torch.compile``: few kernels, and a peak of some MiB."""


def _resnet50_twin() -> Subject:
    model = needs("timm").create_model("resnet50", num_classes=10)
    loss = entropy(torch.randint(10, (8,)))
    return Subject(model, (torch.randn(8, 3, 32, 32),), loss, "ResNet-50, 8 at 32 x 32", resnet_blocks(model))


def _vit_twin() -> Subject:
    model = needs("timm").create_model("vit_tiny_patch16_224", img_size=32, num_classes=10)
    loss = entropy(torch.randint(10, (8,)))
    return Subject(model, (torch.randn(8, 3, 32, 32),), loss, "ViT-tiny, 8 at 32 x 32", list(model.blocks))


def _llama_twin() -> Subject:
    model = transformer("LlamaForCausalLM", 16, 64, 4, 128, inner=176, use_cache=False)
    tokens = torch.randint(128, (2, 32))
    what = "Llama, 16 layers of 64, 2 x 32 tokens"
    return Subject(model, {"input_ids": tokens, "labels": tokens}, own_loss, what, list(model.model.layers))


TWINS: Mapping[str, Callable[[], Subject]] = MappingProxyType(
    {"resnet50-twin": _resnet50_twin, "vit-twin": _vit_twin, "llama-twin": _llama_twin}
)
"""With the operators of models in use, at sizes of which a step on one core is mostly the host's time, as on a GPU."""

NAMES = tuple(dict.fromkeys([*SUBJECTS, *QUICK, *QUICK_COMPILED, *PEAK_SUBJECTS, *TWINS, *GPU_SUBJECTS]))
"""Of all models."""


def made(name: str, seed: int, device: torch.device) -> Subject:
    """One of ``NAMES``, the same at each call with the seed.

    Raises:
        MissingLibrary: the model's library is not installed.
    """
    torch.manual_seed(seed)
    with device:
        if name in GPU_SUBJECTS:
            subject = GPU_SUBJECTS[name](GPU_SIZES["cuda" if device.type == "cuda" else "cpu"])
        else:
            subject = {**SUBJECTS, **QUICK, **QUICK_COMPILED, **PEAK_SUBJECTS, **TWINS}[name]()
    subject.model.train()
    return subject
