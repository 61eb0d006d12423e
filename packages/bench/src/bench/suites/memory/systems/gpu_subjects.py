"""The models that a GPU is measured with, in the precisions that people train them in.

On the CPU the same are small, so that what runs on a GPU can be seen to run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch

from bench.models.libraries import needs
from bench.models.subject import Subject, entropy, own_loss, resnet_blocks
from bench.models.transformers import transformer


@dataclass(frozen=True)
class Sizes:
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


SIZES: Mapping[str, Sizes] = MappingProxyType(
    {
        # The Llama has the layers of Llama 3.2 1B, and the 32,000 tokens of Llama 2, so that the logits of 8 x 2048
        # tokens are not most of what a step takes: 1.04 billion parameters.
        "cuda": Sizes("cuda", 64, 224, (3, 4, 6, 3), "vit_base_patch16_224", 12, 2048, 16, 32, 8, 8192, 32_000, 2048),
        "cpu": Sizes("cpu", 2, 32, (1, 1, 1, 1), "vit_tiny_patch16_224", 2, 64, 2, 4, 2, 256, 128, 64),
    }
)


def _resnet50(sizes: Sizes, tf32: bool) -> Subject:
    model = needs("timm").create_model("resnet50", layers=sizes.stages, num_classes=1000)
    blocks = resnet_blocks(model)
    name = f"ResNet-{3 * sum(sizes.stages) + 2}"
    what = f"{name}, {sizes.batch} at {sizes.size} x {sizes.size}, {'TF32' if tf32 else 'AMP'}"
    inputs = (torch.randn(sizes.batch, 3, sizes.size, sizes.size),)
    loss = entropy(torch.randint(1000, (sizes.batch,)))
    if tf32:
        return Subject(model, inputs, loss, what, blocks, tf32=True)
    return Subject(model, inputs, loss, what, blocks, around=_mixed(sizes))


def _vit(sizes: Sizes) -> Subject:
    model = needs("timm").create_model(sizes.vit, img_size=sizes.size, depth=sizes.depth, num_classes=1000)
    loss = entropy(torch.randint(1000, (sizes.batch,)))
    inputs = (torch.randn(sizes.batch, 3, sizes.size, sizes.size),)
    what = f"{sizes.vit}, {sizes.depth} blocks, {sizes.batch} at {sizes.size} x {sizes.size}, AMP"
    return Subject(model, inputs, loss, what, list(model.blocks), around=_mixed(sizes))


def _llama(sizes: Sizes, sequences: int) -> Subject:
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


def _mixed(sizes: Sizes) -> Callable[[], torch.autocast]:
    return partial(torch.autocast, sizes.device, dtype=torch.bfloat16)


SUBJECTS: Mapping[str, Callable[[Sizes], Subject]] = MappingProxyType(
    {
        "resnet50-amp": partial(_resnet50, tf32=False),
        "llama-8": partial(_llama, sequences=8),
        "vit-amp": _vit,
        "llama-1": partial(_llama, sequences=1),
        "resnet50-tf32": partial(_resnet50, tf32=True),
    }
)
"""By the name that the command line knows, what is worth most first."""

WAYS = (
    "plain",
    "L1",
    "lean",
    "each block (torch)",
    "plan, 50 %, exact",
    "L4bit-swap",
    "save_on_cpu",
    "plan, 20 %, error 0.1",
    "L1.2",
    "torch.compile",
    "L1 + torch.compile",
    "torch.compile, budget 0.5",
)
"""That they are trained in by default, names in ``ways.WAYS``, what is worth most first."""

LAST = frozenset({("llama-8", "save_on_cpu")})
"""Models and ways that wait for all others: torch pins and unpins 40 GiB of host memory in each step of this one."""
