"""Part ``memory``: what ResNet-50 keeps for backward, in a process of its own (``python -m bench.vision.memory``)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from bench.memory import Memory, answer, in_child, saved_bytes, step_bytes
from bench.networks import Case, resnet50
from bench.process_memory import HEAP_ONLY
from integrations import qmodules

MODEL, BATCH = "resnet50", 16

_MODULE = "bench.vision.memory"  # of the child process; this file's name for itself is __main__ there
_WARM_UP = 3  # steps; layers have bits of their own from the second on


def measure(levels: Sequence[str], threads: int) -> list[Memory]:
    """Measures ResNet-50 with torch's own layers (``"L0"``) and at each level, live bytes and peaks in two processes.

    ``stored_bytes`` are those of the tensors in autograd's graph; live bytes are the allocator's.

    Raises:
        BenchError: the child process failed, as it does where timm is missing.
    """
    request = {"levels": ["L0", *levels], "threads": threads}
    exact = in_child(_MODULE, request, HEAP_ONLY)
    return [
        replace(one, peak_bytes=other.peak_bytes) for one, other in zip(exact, in_child(_MODULE, request), strict=True)
    ]


def measure_here(levels: Sequence[str], case: Case) -> list[Memory]:
    """Measures a model in this process: as it is, and at each of ``levels``, the first of which is ``"L0"``."""
    found: list[Memory] = []
    for level in levels:
        if level != "L0":
            qmodules.QModule(case.model, level)
        for _ in range(_WARM_UP):
            case.loss().backward()
        live, peak, reason = step_bytes(case.model, case.loss, case.loss, torch.device("cpu"))
        original = found[0].original_bytes if found else saved_bytes(case.model, case.loss)
        stored = graph_bytes(case.model, case.loss) if found else None
        found.append(Memory(MODEL, level, live, peak, original, stored, not_measured=reason))
        if level != "L0":
            qmodules.revert(case.model)
    return found


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


def _child(request: str) -> None:
    """What the child process does: reads the request, says what it found."""
    wanted = json.loads(request)
    torch.set_num_threads(wanted["threads"])
    torch.manual_seed(0)
    answer(measure_here(wanted["levels"], resnet50(BATCH)))


if __name__ == "__main__":
    _child(sys.argv[1])
