"""Records whether training keeps to ``memory=`` and ``error=``: the tables of docs/results/budgets-and-bounds.md.

    python tools/record_bounds.py errors bounds.jsonl
    python tools/record_bounds.py peaks bounds.jsonl
    python tools/record_bounds.py times bounds.jsonl
    python tools/record_bounds.py table bounds.jsonl

``errors`` trains 20 nets for 200 steps of Adam beside plain twins. ``peaks`` takes the first steps of 20 models and
asks the kernel, or CUDA's allocator, for each peak. ``times`` tells how long the first steps of some of these take
beside later ones; nothing else may run meanwhile. ``table`` prints what was recorded, in Markdown. With
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
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from bounds_nets import Data, Loss, Made, nets
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import integrations
from bench.runner.process_memory import ENVIRONMENT, counters

STEPS, EVERY, ERROR, LARGE = 200, 10, 0.1, 1e-3
BUDGETS = ("least", 0.5)
PEAK_BUDGETS = ("least", 0.3, 0.5)
TIMES = {"cpu": 4, "cuda": 32}  # the batches of the peaks' models, over those of the errors'
TIMED = ("ViT", "ResNet-18", "SiLU 512", "BERT", "Llama", "LoRA Llama")
OF_TIMED = 4  # the batches of the timed models, over those of the peaks'
FIRST, LATER = 3, 5  # steps


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


# ---- times ----


def record_times(name: str, device: torch.device) -> Iterable[dict[str, Any]]:
    """Yield for each bound on the error the time that the first steps take beyond later ones, in plain steps."""
    made = nets(OF_TIMED * TIMES[device.type])[name]

    def seconds(model: nn.Module, data: Data, loss: Loss, step: int) -> float:
        args, kwargs, y = data(step)
        model.zero_grad()
        started = time.perf_counter()
        loss(model(*args, **kwargs), y).backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    plain = statistics.median([seconds(*made_on(device, made), step=step) for step in range(FIRST)])
    for error in (0, ERROR):
        model, data, loss = made_on(device, made)
        integrations.compress_model(model, memory="least", error=error, fallback="least")
        found = [seconds(model, data, loss, step) for step in range(FIRST + LATER)]
        later = statistics.median(found[FIRST:])
        yield {
            "kind": "times",
            "device": device.type,
            "net": name,
            "error": error,
            "plain": plain,
            "later": later / plain,
            "extra": (sum(found[:FIRST]) - FIRST * later) / plain,
        }


# ---- tables ----


def tables(records: list[dict[str, Any]]) -> str:
    """Return the tables in Markdown."""
    errors = {(one["net"], one["memory"]): one for one in records if one["kind"] == "errors"}
    peaks = {(one["net"], one["memory"], one["error"]): one for one in records if one["kind"] == "peaks"}
    times = {(one["net"], one["error"]): one for one in records if one["kind"] == "times"}
    found = [
        *(errors_table(errors, memory) for memory in BUDGETS),
        *(peaks_table(peaks, error) for error in (0, ERROR)),
        times_table(times),
    ]
    return "\n\n".join(found)


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """Return one table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def errors_table(errors: dict[Any, dict[str, Any]], memory: float | str) -> str:
    """Return the largest errors of each net with one budget."""
    rows = []
    for net in dict.fromkeys(net for net, _ in errors):
        one = errors.get((net, memory))
        cells = ["", "", ""]
        if one is not None:
            whole, tensor = (max(one[kind].values()) for kind in ("whole", "tensor"))
            exact = not one["rounds"] and not whole
            cells = ["exact", "exact"] if exact else [f"{whole:.3f}", f"{tensor:.2f}"]
            cells.append(f"{one['share']:.2f}")
        rows.append([net, *cells])
    return table([f"memory={memory!r}".replace("'", '"'), "whole gradient", "largest tensor", "planned memory"], rows)


def peaks_table(peaks: dict[Any, dict[str, Any]], error: float) -> str:
    """Return each model's largest peaks over its budgets, with one bound on the error."""
    rows = []
    for net in dict.fromkeys(net for net, _, _ in peaks):
        ours = [peaks.get((net, memory, error)) for memory in PEAK_BUDGETS]
        plain = next((one for one in ours if one is not None), {"measured_plain": 0, "planned_plain": 0})
        cells = ["" if one is None else f"{max(one['fresh']):.2f} / {max(one['accumulating']):.2f}" for one in ours]
        bytes_of = [f"{plain[kind] / 2**20:.0f}" for kind in ("measured_plain", "planned_plain")]
        rows.append([net, *bytes_of, *cells])
    return table([f"error={error}", "plain, MiB", "planned plain, MiB", *map(str, PEAK_BUDGETS)], rows)


def times_table(times: dict[Any, dict[str, Any]]) -> str:
    """Return what the first steps and later ones take, in plain steps."""
    rows = []
    for net in dict.fromkeys(net for net, _ in times):
        pair = [times[net, error] for error in (0, ERROR) if (net, error) in times]
        cells = [f"{one[kind]:{digits}f}" for one in pair for kind, digits in (("extra", ".1"), ("later", ".2"))]
        rows.append([net, f"{pair[0]['plain']:.2f}", *cells])
    heads = [f"error={error}: {kind}" for error in (0, ERROR) for kind in ("extra", "later step")]
    return table(["model", "plain step, s", *heads], rows)


def main() -> None:
    """Record, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("errors", "peaks", "times", "table"))
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
        recording = {"errors": record_errors, "peaks": record_peaks, "times": record_times}[asked.what]
        for record in recording(asked.net, asked.device):
            with asked.file.open("a") as out:
                out.write(json.dumps({**record, **place}) + "\n")
        return
    done = {one["net"] for one in records if one["kind"] == asked.what}

    def run(name: str) -> None:
        command = [sys.executable, __file__, asked.what, str(asked.file), "--net", name, "--device", str(asked.device)]
        environment = {**os.environ, "INTEGRATIONS_PROGRESS": "0", **ENVIRONMENT}
        subprocess.run(command, env=environment, check=False)

    with ThreadPoolExecutor(asked.jobs) as pool:
        for name in TIMED if asked.what == "times" else nets(1 if asked.what == "errors" else TIMES[asked.device.type]):
            if name not in done:
                pool.submit(run, name)


if __name__ == "__main__":
    main()
