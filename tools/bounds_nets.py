"""The nets of ``record_bounds.py``: what they are, and the data that they are trained with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Data = Callable[[int], tuple[tuple[Any, ...], dict[str, Any], Any]]
"""A function from the number of a step to the forward's inputs, and what the loss compares the output with."""
Loss = Callable[[Any, Any], Tensor]
Made = tuple[nn.Module, Data, Loss]
ACTIVATIONS = {
    "SiLU": nn.SiLU,
    "Tanh": nn.Tanh,
    "GELU": nn.GELU,
    "ELU": nn.ELU,
    "Mish": nn.Mish,
    "Softplus": nn.Softplus,
}


def drawn(number: int) -> torch.Generator:
    """Return a generator with a seed of its own."""
    return torch.Generator().manual_seed(number)


def mlp(activation: str, width: int, rows: int) -> Made:
    """Five linear layers, which learn what a random linear map says."""
    layers: list[nn.Module] = [nn.Linear(64, width), ACTIVATIONS[activation]()]
    for _ in range(3):
        layers += [nn.Linear(width, width), ACTIVATIONS[activation]()]
    teacher = torch.randn(64, 10, generator=drawn(1))

    def data(step: int) -> Any:
        x = torch.randn(rows, 64, generator=drawn(100 + step))
        return (x,), {}, (x @ teacher).argmax(-1)

    return nn.Sequential(*layers, nn.Linear(width, 10)), data, F.cross_entropy


def images(batch: int, size: int) -> Data:
    """Noise around ten fixed images."""
    means = torch.randn(10, 3, size, size, generator=drawn(3))

    def data(step: int) -> Any:
        source = drawn(200 + step)
        y = torch.randint(0, 10, (batch,), generator=source)
        return (means[y] / 2 + torch.randn(batch, 3, size, size, generator=source),), {}, y

    return data


def timm_model(name: str, batch: int, size: int, **options: Any) -> Made:
    """A model of timm with ten classes."""
    import timm

    return timm.create_model(name, num_classes=10, **options), images(batch, size), F.cross_entropy


def tokens(batch: int, length: int, classes: int, labels: int | None = None) -> Data:
    """Words that mostly follow from the word before."""
    follows = torch.randint(0, classes, (classes,), generator=drawn(5))

    def data(step: int) -> Any:
        source = drawn(300 + step)
        ids = torch.empty(batch, length, dtype=torch.long)
        ids[:, 0] = torch.randint(0, classes, (batch,), generator=source)
        for place in range(1, length):
            other = torch.randint(0, classes, (batch,), generator=source)
            ids[:, place] = torch.where(torch.rand(batch, generator=source) < 0.2, other, follows[ids[:, place - 1]])
        return (), {"input_ids": ids, "labels": ids if labels is None else ids[:, 0] % labels}, None

    return data


def own_loss(output: Any, _: Any) -> Tensor:
    """Return the loss that a model of transformers has computed."""
    found = output.loss
    assert isinstance(found, Tensor)
    return found


def transformer(
    name: str, batch: int, length: int, labels: int | None = None, lora: bool = False, **sizes: Any
) -> Made:
    """A small model of transformers with random weights, by the prefix of its classes."""
    import transformers

    kind = "ForCausalLM" if labels is None else "ForSequenceClassification"
    kind = {"GPT2": "LMHeadModel", "T5": "ForConditionalGeneration"}.get(name, kind)
    if labels is not None:
        sizes["num_labels"] = labels
    model = getattr(transformers, name + kind)(getattr(transformers, f"{name}Config")(vocab_size=512, **sizes))
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
    return model, tokens(batch, length, 512, labels), own_loss


LLAMA = {"hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 4, "num_attention_heads": 4}
LLAMA |= {"num_key_value_heads": 2, "max_position_embeddings": 256}


def graph(name: str, nodes: int, **options: Any) -> Made:
    """A model of PyG on a random graph whose neighbours mostly are of one class."""
    from torch_geometric import nn as geometric

    source = drawn(7)
    y = torch.randint(0, 7, (nodes,), generator=source)
    x = F.one_hot(y, 7).float() @ torch.randn(7, 128, generator=source) / 2
    x += torch.randn(nodes, 128, generator=source)
    starts = torch.randint(0, nodes, (6 * nodes,), generator=source)
    others = torch.randint(0, nodes, (6 * nodes, 8), generator=source)
    same = y[others] == y[starts][:, None]
    ends = others.gather(1, same.float().argmax(1, keepdim=True))[:, 0]
    edges = torch.stack([torch.cat([starts, ends]), torch.cat([ends, starts])])
    model = getattr(geometric, name)(128, 32, 3, 7, dropout=0.5, **options)
    return model, lambda step: ((x, edges), {}, y), F.cross_entropy


def unet(batch: int) -> Made:
    """A denoising net of diffusers."""
    from diffusers import UNet2DModel

    kinds = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    model = UNet2DModel(32, 3, 3, layers_per_block=1, block_out_channels=(32, 64), norm_num_groups=8, **kinds)
    plain = images(batch, 32)

    def data(step: int) -> Any:
        (x,), _, _ = plain(step)
        source = drawn(400 + step)
        noise, when = torch.randn(x.shape, generator=source), torch.randint(0, 1000, (batch,), generator=source)
        share = (1 - when / 1000).view(-1, 1, 1, 1)
        return (share.sqrt() * x + (1 - share).sqrt() * noise, when), {}, noise

    return model, data, lambda output, y: F.mse_loss(output.sample, y)


class Recurrent(nn.Module):
    """A cell of an LSTM, called once for each of 32 parts of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(64, 256), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the classes' logits of inputs of shape (rows, 32 * 64)."""
        hidden = cell = x.new_zeros(len(x), 256)
        for part in x.unflatten(1, (32, 64)).unbind(1):
            hidden, cell = self.cell(part, (hidden, cell))
        logits: Tensor = self.head(hidden)
        return logits


def recurrent(rows: int) -> Made:
    """``Recurrent`` on noise."""

    def data(step: int) -> Any:
        x = torch.randn(rows, 32 * 64, generator=drawn(500 + step))
        return (x,), {}, (x[:, :10]).argmax(1)

    return Recurrent(), data, F.cross_entropy


def nets(times: int = 1) -> dict[str, Callable[[], Made]]:
    """Return the nets of the errors' record; or the models of the peaks', with batches so many times as large."""
    library: dict[str, Callable[[], Made]] = {
        "ViT": lambda: timm_model("vit_tiny_patch16_224", 32 * times, 32, img_size=32, patch_size=4, depth=4),
        "ConvNeXt": lambda: timm_model("convnext_atto", 16 * times, 64, depths=(1, 1, 2, 1)),
        "BERT": lambda: transformer(
            "Bert",
            16 * times,
            64,
            4,
            hidden_size=128,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=4,
        ),
        "Llama": lambda: transformer("Llama", 8 * times, 64, **LLAMA),
        "GAT": lambda: graph("GAT", 1000 * times, heads=4),
        "U-Net": lambda: unet(8 * times),
        "MoE": lambda: transformer("Mixtral", 8 * times, 64, **{**LLAMA, "num_hidden_layers": 2}, num_local_experts=4),
        "ResNet-18": lambda: timm_model("resnet18", 16 * times, 64),
    }
    if times == 1:
        widths = ((64, 256), (512, 2048))
        plain = {
            f"{name} {width}": lambda name=name, width=width, rows=rows: mlp(name, width, rows)
            for name in ACTIVATIONS
            for width, rows in widths
        }
        return {**plain, **library}
    return {
        "SiLU 512": lambda: mlp("SiLU", 512, 1024 * times),
        "GELU 512": lambda: mlp("GELU", 512, 1024 * times),
        "Tanh 512": lambda: mlp("Tanh", 512, 1024 * times),
        "LSTM cell": lambda: recurrent(64 * times),
        **library,
        "GCN": lambda: graph("GCN", 4000 * times),
        "GraphSAGE": lambda: graph("GraphSAGE", 4000 * times),
        "Swin": lambda: timm_model("swin_tiny_patch4_window7_224", 2 * times, 112, img_size=112, embed_dim=48),
        "EfficientNet": lambda: timm_model("efficientnet_b0", 8 * times, 64),
        "GPT-2": lambda: transformer("GPT2", 8 * times, 128, n_embd=128, n_layer=4, n_head=4),
        "T5": lambda: transformer(
            "T5", 8 * times, 64, d_model=128, d_ff=512, num_layers=3, num_heads=4, d_kv=32, decoder_start_token_id=0
        ),
        "LoRA Llama": lambda: transformer("Llama", 8 * times, 128, lora=True, **LLAMA),
        "RegNet": lambda: timm_model("regnety_002", 8 * times, 64),
    }
