"""Part ``memory``: what ResNet-50 keeps for backward, in processes of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from bench.models.networks import resnet50
from bench.models.subject import Case
from bench.runner.memory import PLAIN, Memory, measured_twice, saved_bytes, step_bytes
from integrations import qmodules

MODEL, BATCH = "resnet50", 16

_WARM_UP = 3  # steps; layers have bits of their own from the second on


def measure(levels: Sequence[str], threads: int) -> list[Memory]:
    """Measures ResNet-50 with torch's own layers and at each level.

    ``stored_bytes`` are those of the tensors in autograd's graph; live bytes are the allocator's.
    """
    return measured_twice(measure_resnet50, [Memory(MODEL, level) for level in (PLAIN, *levels)], threads=threads)


def measure_resnet50(entry: Memory) -> Memory:
    """Measures ResNet-50 in this process.

    Raises:
        MissingLibrary: timm is not installed.
    """
    torch.manual_seed(0)
    return measure_here(entry, resnet50(BATCH))


def measure_here(entry: Memory, case: Case) -> Memory:
    """Measures a model in this process, which has Q-layers in the end."""
    original = saved_bytes(case.model, case.loss)
    if entry.level != PLAIN:
        qmodules.QModule(case.model, entry.level)
    for _ in range(_WARM_UP):
        case.loss().backward()
    live, peak, reason = step_bytes(case.model, case.loss, case.loss, torch.device("cpu"))
    stored = None if entry.level == PLAIN else graph_bytes(case.model, case.loss)
    return replace(
        entry, live_bytes=live, peak_bytes=peak, original_bytes=original, stored_bytes=stored, not_measured=reason
    )


def graph_bytes(network: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Bytes of the storages that the graph of a forward keeps, without parameters and buffers.

    Hooks on saved tensors see more: where there are any, Q-layers share nothing.
    """
    others = {tensor.untyped_storage().data_ptr() for tensor in (*network.parameters(), *network.buffers())}
    result = forward()
    saved: dict[int, int] = {}  # bytes by address: all are alive with the result
    nodes, seen = [result.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [other for other, _ in node.next_functions]
        for tensor in _saved_by(node):
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(nbytes for address, nbytes in saved.items() if address not in others)


def _saved_by(node: Node) -> Iterator[Tensor]:
    """What a node of the graph keeps: one of Python names it all, those of torch name each."""
    names = [name for name in dir(node) if name.startswith("_saved_") or name == "saved_tensors"]
    for value in (getattr(node, name) for name in names):
        yield from (one for one in (value if isinstance(value, (tuple, list)) else [value]) if isinstance(one, Tensor))
