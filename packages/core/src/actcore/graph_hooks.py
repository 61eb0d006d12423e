"""``graph_hooks``: pack and unpack as ``torch.fx.GraphModule``s, which ``torch.compile`` inlines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from actcore.codec import Codec
from actcore.codecs.offload import Offload
from actcore.codecs.raw import Raw
from actcore.compressed import Compressed
from actcore.device_streams import new_key
from actcore.layout import Layout
from actcore.noise import Streams
from actcore.saved_hooks import hooks


def graph_hooks(codec: Codec, seed: int = 0, streams: Streams | None = None) -> tuple[GraphModule, GraphModule]:
    """Return ``hooks(codec, seed)`` for code under ``torch.compile``: a compiled region then saves the stored forms.

    ::

        pair = actcore.graph_hooks(actcore.GroupAffine(bits=4))      # once: a new pair compiles anew
        with torch.autograd.graph.saved_tensors_hooks(*pair):
            loss = torch.compile(step)(x)
        loss.backward()

    Put the ``with`` around the compiled code, not into it. Under ordinary hooks a compiled region computes everything,
    then packs everything, and unpacks everything before its backward begins. ``torch.compile`` inlines these hooks into
    the two graphs of the region instead. So each tensor is stored after its last use and restored before its first use
    in backward.

    One pair serves all tensors of a region. Floating-point tensors are stored; other tensors, and tensors too small to
    gain, pass through. torch applies the hooks to the tensors that the region computes; inputs, parameters and outputs
    of the region are kept by their owners. ``torch._functorch.config.saved_tensors_hooks_filtering_mode`` changes that
    (``"donated"``, ``"no_static"``, ``"all"``).

    The noise differs from step to step, also in replays of CUDA graphs: streams come from
    ``torch.ops.actcore.next_stream``, with one counter per saved tensor. Outside of compiled regions the pair behaves
    like ``hooks``.

    Args:
        codec: its ``compress`` gets the stream as an int64 tensor of one element, and both its methods are traced.
        seed, streams: as for ``hooks``; ``streams`` is used only outside of compiled regions.

    Raises:
        TypeError, ValueError: as ``hooks``; TypeError for ``Offload``, which cannot be traced.
    """
    if isinstance(codec, Offload):
        raise TypeError(f"codec must be traceable, but {codec!r} copies on its own CUDA streams; use actcore.hooks")
    eager_pack, eager_unpack = hooks(codec, seed, streams)

    def pack(tensor: Tensor) -> Any:
        if not _traced():
            return eager_pack(tensor)
        _compiled[id(pair[0])] = pair
        return _pack(tensor, codec, seed)

    def unpack(packed: Any) -> Tensor:
        return _unpack(packed, codec) if isinstance(packed, (tuple, list)) else eager_unpack(packed)

    pair = _module(pack, "tensor"), _module(unpack, "packed")
    return pair


_compiled: dict[int, tuple[GraphModule, GraphModule]] = {}
"""The pairs that are in compiled code, which live as long as the process: torch knows them by ``id``, and would take
the code of a pair that is gone for a new pair at the same address."""


def _traced() -> bool:
    """Whether a region is compiled. Before it traces the hook, torch up to 2.11 calls it for an example."""
    return get_proxy_mode() is not None or TracingContext.try_get() is not None


def _next_stream(tensor: Tensor) -> Tensor:
    """Of a counter for this tensor; an example needs none, and would take the numbers of those that follow."""
    if get_proxy_mode() is None:
        return tensor.new_empty(1, dtype=torch.int64)
    stream: Tensor = torch.ops.actcore.next_stream(tensor, new_key(tensor.device))
    return stream


def _module(function: Callable[[Any], Any], argument: str) -> GraphModule:
    """A graph of one call. torch traces it for each saved tensor, so that the function may decide by shape and dtype.

    The function is none that torch knows, which keeps its cache of compiled graphs from taking one codec for another.
    """
    graph = Graph()
    graph.output(graph.call_function(function, (graph.placeholder(argument),)))
    return GraphModule({}, graph)


def _pack(tensor: Tensor, codec: Codec, seed: int) -> tuple[Any, ...]:
    """While a region is compiled: what autograd saves. Tensors become outputs of the forward graph, numbers (which may
    be symbols) and the dtype constants of the backward graph."""
    if not tensor.is_floating_point() or isinstance(codec, Raw):
        return (tensor,)
    stream = _next_stream(tensor)
    try:
        compressed = codec.compress(tensor, seed=seed, stream=stream)
    except (TypeError, ValueError):  # not a dtype of this codec
        return (tensor,)
    if isinstance(compressed.codec, Raw):
        return (tensor,)
    layout = compressed.layout
    payload = compressed.payload
    return (len(payload), compressed.dtype, *payload, *layout.shape, *layout.strides)


def _unpack(packed: tuple[Any, ...] | list[Any], codec: Codec) -> Tensor:
    if len(packed) == 1:
        return packed[0]  # type: ignore[no-any-return]
    count, dtype, *rest = packed
    payload, numbers = rest[:count], rest[count:]
    half = len(numbers) // 2
    return codec.decompress(
        Compressed(codec, tuple(payload), Layout(tuple(numbers[:half]), tuple(numbers[half:])), dtype)
    )
