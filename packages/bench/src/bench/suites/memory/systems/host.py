"""The tiny layers of part ``host``, and the calls of codecs in a compiled step of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter

import integrations
from integrations.runtime.compiled.direct_calls import direct_call

LAYERS, WIDTH, ROWS = 24, 32, 32

CODECS = ("compress", "decompress", "mask", "pack_bits", "unpack_bits", "stepwise")
"""Parts of the names of codec operators. The operators that only count and note are not among them."""

Call: TypeAlias = tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]


def make_layers(seed: int, device: torch.device) -> tuple[nn.Module, Tensor]:
    """The layers in training mode, and ``Float["rows width"]`` for them; the same at each call with the seed."""
    torch.manual_seed(seed)
    with device:
        blocks = [nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)]
        return nn.Sequential(*blocks).train(), torch.randn(ROWS, WIDTH)


def run_layers(forward: Callable[..., Any], rows: Tensor) -> None:
    """A step of the layers, which adds to the gradients that it finds."""
    forward(rows).sum().backward()


def record_codecs(level: str, seed: int, device: torch.device) -> list[Call]:
    """The calls of codecs in a compiled step of the layers at a level, as inductor's code makes them, in order.

    The step's graphs are those that inductor gets; here they are interpreted node by node.
    """
    # These import inductor, for which a command that compiles nothing need not wait.
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    calls: list[Call] = []

    class Recorder(Interpreter):
        def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if getattr(target, "namespace", "") == "actcore" and any(name in str(target) for name in CODECS):
                calls.append((direct_call(target, device), args, kwargs))
            return super().call_function(target, args, kwargs)

    def interpret(graph: GraphModule, inputs: Sequence[object]) -> Callable[..., Any]:
        boxed: Callable[..., Any] = make_boxed_func(Recorder(graph).run)
        return boxed

    backend = aot_autograd(
        fw_compiler=interpret,
        bw_compiler=interpret,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    layers, rows = make_layers(seed, device)
    torch._dynamo.reset()
    forward = torch.compile(integrations.compress_model(layers, level), backend=backend)
    for _ in range(2):  # the first one compiles
        calls.clear()
        run_layers(forward, rows)
    torch._dynamo.reset()
    return calls


def call_codecs(calls: Sequence[Call]) -> None:
    """Calls them again."""
    with torch.no_grad():
        for target, args, kwargs in calls:
            target(*args, **kwargs)
