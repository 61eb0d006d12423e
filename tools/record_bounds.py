"""Records whether training keeps to ``memory=`` and ``error=``: the tables of docs/reliability.md.

    python tools/record_bounds.py errors bounds.jsonl
    python tools/record_bounds.py peaks bounds.jsonl
    python tools/record_bounds.py table bounds.jsonl

``errors`` trains 20 nets for 200 steps of Adam beside plain twins. ``peaks`` takes the first steps of 20 models and
asks the kernel, or CUDA's allocator, for each peak. ``table`` prints what was recorded, in Markdown. With
``--device cuda`` the models of ``peaks`` have eight times the batch.

Each model runs in a process of its own, with one thread. Records are appended, and what is recorded already is left
out, so that a run that was stopped goes on. Needs timm, transformers, PEFT, diffusers and PyG; peaks on a CPU need
Linux with glibc.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import integrations
from bench.runner.process_memory import ENVIRONMENT, counters

STEPS, EVERY, ERROR, LARGE = 200, 10, 0.1, 1e-3
BUDGETS = ("least", 0.5)
PEAK_BUDGETS = ("least", 0.3, 0.5)
TIMES = {"cpu": 4, "cuda": 32}  # the batches of the peaks' models, over those of the errors'

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


def made_on(device: torch.device, made: Callable[[], Made]) -> Made:
    """Return a net on a device, with data that come to it. Weights and data are the same on each device."""
    torch.manual_seed(0)
    model, data, loss = made()
    return model.to(device).train(), lambda step: tree_map_only(Tensor, lambda one: one.to(device), data(step)), loss


# ---- errors ----


def record_errors(name: str, device: torch.device) -> Iterable[dict[str, Any]]:
    """Yield for each budget how wrong gradients are in each tenth step."""
    for memory in BUDGETS:
        model, data, loss = made_on(device, nets()[name])
        twin = copy.deepcopy(model)
        integrations.compress_model(model, memory=memory, error=ERROR, fallback="least")
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        whole: dict[int, float] = {}
        tensor: dict[int, float] = {}
        for step in range(STEPS):
            args, kwargs, y = data(step)
            optimizer.zero_grad()
            if step % EVERY == 0:
                twin.load_state_dict(model.state_dict())
                twin.zero_grad()
                with torch.random.fork_rng():
                    loss(twin(*args, **kwargs), y).backward()
            loss(model(*args, **kwargs), y).backward()
            if step % EVERY == 0:
                whole[step], tensor[step] = relative_errors(model, twin)
            optimizer.step()
        handle = integrations.compression(model)
        yield {
            "kind": "errors",
            "device": device.type,
            "net": name,
            "memory": memory,
            "whole": whole,
            "tensor": tensor,
            "share": handle.plan.peak / handle.plan.plain_peak,
            "rounds": bool(handle.plan.choice.rounds),
        }


def relative_errors(model: nn.Module, twin: nn.Module) -> tuple[float, float]:
    """Return the relative error of the whole gradient, and the largest of a tensor with 0.1 % of the parameters."""
    count = sum(one.numel() for one in model.parameters())
    errors, energies, worst = 0.0, 0.0, 0.0
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        if one.grad is None or other.grad is None:
            continue
        error = (one.grad - other.grad).double().square().sum().item()
        energy = other.grad.double().square().sum().item()
        errors, energies = errors + error, energies + energy
        if one.numel() > LARGE * count and energy:
            worst = max(worst, (error / energy) ** 0.5)
    return (errors / energies) ** 0.5, worst


# ---- peaks ----


def record_peaks(name: str, device: torch.device) -> Iterable[dict[str, Any]]:
    """Yield for each budget, bound on the error and kind of step the peaks of the first steps over the budget."""
    counter = counters(device)
    if isinstance(counter, str):
        raise SystemExit(f"peaks cannot be measured: {counter}")
    small = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to(device)
    integrations.plan(small, torch.randn(4, 8, device=device), memory=1.0)  # measures rates
    made = nets(TIMES[device.type])[name]

    def peak(model: nn.Module, data: Data, loss: Loss, step: int, fresh: bool) -> int:
        args, kwargs, y = data(step)
        if fresh:
            model.zero_grad()
        counter.start_peak()
        loss(model(*args, **kwargs), y).backward()
        most = counter.peak()
        return most - counter.start_peak()  # beyond what is left

    model, data, loss = made_on(device, made)
    plain = [peak(model, data, loss, step, True) for step in range(3)][-1]
    for memory in PEAK_BUDGETS:
        for error in (0, ERROR):
            model, data, loss = made_on(device, made)
            integrations.compress_model(model, memory=memory, error=error, fallback="least")
            found: dict[str, list[float]] = {}
            for kind in ("fresh", "accumulating"):
                for step in range(4):
                    most = peak(model, data, loss, step, kind == "fresh")
                    plan = integrations.compression(model).plan
                    asked = 0 if isinstance(memory, str) else memory * plan.plain_peak
                    found.setdefault(kind, []).append(most / max(plan.peak, asked))
            yield {
                "kind": "peaks",
                "device": device.type,
                "net": name,
                "memory": memory,
                "error": error,
                **found,
                "share": plan.peak / plan.plain_peak,
                "planned_plain": plan.plain_peak,
                "measured_plain": plain,
            }


# ---- tables ----


def tables(records: list[dict[str, Any]]) -> str:
    """Return both tables in Markdown."""
    lines = ["| net | " + " | ".join(f"{memory}: whole, tensor, memory" for memory in BUDGETS) + " |", "|---|---|---|"]
    errors = {(one["net"], one["memory"]): one for one in records if one["kind"] == "errors"}
    for net in dict.fromkeys(net for net, _ in errors):
        cells = []
        for memory in BUDGETS:
            one = errors.get((net, memory))
            cells.append(
                "" if one is None
                else f"exact, {one['share']:.2f}" if not one["rounds"] and not max(one["whole"].values())
                else f"{max(one['whole'].values()):.3f}, {max(one['tensor'].values()):.2f}, {one['share']:.2f}"
            )  # fmt: skip
        lines.append(f"| {net} | {' | '.join(cells)} |")
    kinds = " | ".join(f"{memory}, error {error}" for memory in PEAK_BUDGETS for error in (0, ERROR))
    lines += ["", f"| model | plain, MiB | planned | {kinds} |", "|---" * 9 + "|"]
    peaks = {(one["net"], one["memory"], one["error"]): one for one in records if one["kind"] == "peaks"}
    for net in dict.fromkeys(net for net, _, _ in peaks):
        cells, plain = [], (0, 0)
        for memory in PEAK_BUDGETS:
            for error in (0, ERROR):
                one = peaks.get((net, memory, error))
                if one is not None:
                    plain = one["measured_plain"], one["planned_plain"]
                cells.append("" if one is None else f"{max(one['fresh']):.2f} / {max(one['accumulating']):.2f}")
        lines.append(f"| {net} | {plain[0] / 2**20:.0f} | {plain[1] / 2**20:.0f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Record, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("errors", "peaks", "table"))
    parser.add_argument("file", type=Path, help="records, one in each line")
    parser.add_argument("--net", help="record this one here, instead of all in processes")
    parser.add_argument("--device", default="cpu", type=torch.device, help="to record on, or whose records to print")
    parser.add_argument("--jobs", default=1, type=int, help="processes at once; no time is recorded")
    asked = parser.parse_args()
    records = [json.loads(line) for line in asked.file.read_text().splitlines()] if asked.file.exists() else []
    records = [one for one in records if one.get("device", "cpu") == asked.device.type]
    if asked.what == "table":
        print(tables(records))
        return
    if asked.net:
        warnings.filterwarnings("ignore", category=UserWarning)
        torch.set_num_threads(1)
        place = {"torch": torch.__version__, "machine": platform.machine(), "python": platform.python_version()}
        if asked.device.type == "cuda":
            place["machine"] = torch.cuda.get_device_name(asked.device)
        for record in (record_errors if asked.what == "errors" else record_peaks)(asked.net, asked.device):
            with asked.file.open("a") as out:
                out.write(json.dumps({**record, **place}) + "\n")
        return
    done = {one["net"] for one in records if one["kind"] == asked.what}

    def run(name: str) -> None:
        command = [sys.executable, __file__, asked.what, str(asked.file), "--net", name, "--device", str(asked.device)]
        environment = {**os.environ, "INTEGRATIONS_PROGRESS": "0", **ENVIRONMENT}
        subprocess.run(command, env=environment, check=False)

    with ThreadPoolExecutor(asked.jobs) as pool:
        for name in nets(1 if asked.what == "errors" else TIMES[asked.device.type]):
            if name not in done:
                pool.submit(run, name)


if __name__ == "__main__":
    main()
