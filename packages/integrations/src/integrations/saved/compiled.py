"""What a region of ``torch.compile`` saves: hooks that are inlined into its graphs, and rows for the report.

AOTAutograd traces a pair of ``GraphModule`` hooks into a region's two graphs, once for each tensor that goes from one
to the other, and shows the graphs meanwhile. That is when a tensor's uses are read (``aten_rules``) and its form is
chosen. What differs from step to step, a row of the report and a stream of noise, an operator of ours asks of the
session in every run: Python's own part of a compiled region runs but once.

The interface that shows the graphs is private to torch. Without it everything in a region is kept exactly.
"""

from __future__ import annotations

import itertools
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn import Parameter

from actcore import Kept, Raw, SavedTensor, uncompiled
from integrations.levels import Level
from integrations.saved.aten_rules import Backward, operator_of
from integrations.saved.compiled_forms import CompiledForm, form_of
from integrations.saved.watch import unpack

ROLE = "compiled"
_COUNTERS = 1 << 48  # keys of actcore's counters, far from those that it gives itself


class Host(Protocol):
    """The session whose hooks are the innermost in a thread."""

    def pack(self, tensor: Tensor) -> Any:
        """Stores what autograd saves outside of compiled regions."""

    def met_in_region(self, entry: Entry, like: Tensor) -> int:
        """Records a tensor that a region saves now; the stream for its noise."""


@dataclass(eq=False)
class Entry:
    """One tensor that a region saves.

    Attributes:
        key: its number in this process.
        saved: its description, sizes that vary as they were first. The module's path starts where the region does.
        form: how it is stored.
        storage_bytes: of the storage that it is in; 0 where an earlier entry counts that.
        given: whether it is an input of the region, which somebody else may keep alive, and which is kept.
        told: whether the session is told of it in every run: of inputs, of what takes noise, and of a region's first.
        silent: the others of the region, on its first.
    """

    key: int
    saved: SavedTensor
    form: CompiledForm
    given: bool = False
    storage_bytes: int = 0
    told: bool = False
    silent: list[Entry] = field(default_factory=list)


@dataclass(eq=False)
class _Region:
    """What a region saves, by node of its forward graph."""

    entries: dict[str, Entry]
    storages: dict[str, tuple[int, int]]  # of each: which, and its bytes
    first: Entry | None = None
    counted: set[int] = field(default_factory=set)

    def meet(self, name: str) -> Entry | None:
        """The entry of a node whose hooks are being traced; ``None`` for a parameter or buffer."""
        entry = self.entries.get(name)
        if entry is None:
            return None
        storage, nbytes = self.storages[name]
        entry.storage_bytes = 0 if storage in self.counted else nbytes
        self.counted.add(storage)
        entry.told = entry.given or entry.form.rounds or self.first is None
        if self.first is None:
            self.first = entry
        elif not entry.told:
            self.first.silent.append(entry)
        return entry


_here = threading.local()  # .host
_entries: dict[int, Entry] = {}
_keys = itertools.count()
_ready: set[int] = set()  # entries whose counter is there


@contextmanager
def hooks_of(host: Host, level: Level) -> Iterator[tuple[Any, Any]]:
    """A pair of saved-tensor hooks that hands what eager code saves to ``host``, and that compiled regions inline.

    The pair is the same one for a level, since a region is compiled anew for another. Nobody who does not compile pays
    for it.
    """
    if "torch._dynamo" not in sys.modules:
        yield host.pack, unpack
        return
    _ask_for_all()
    outer, _here.host = getattr(_here, "host", None), host
    try:
        yield _pair(level)
    finally:
        _here.host = outer


def _ask_for_all() -> None:
    """Has torch apply our hooks to a region's inputs and outputs, too, by a setting that it reads when it compiles.

    It would leave them alone, so that some were in no report: an input that a part of the model keeps alive, say.
    """
    handler = getattr(sys.modules["torch._dynamo"], "callback_handler", None)
    if handler is not None and _start not in handler.start_callbacks:  # torch.compiler.reset() takes them off
        handler.register_start_callback(_start)
        handler.register_end_callback(_end)


_SETTING = "saved_tensors_hooks_filtering_mode"
_settings: list[Any] = []  # while something is compiled: torch compiles one region at a time


def _start(given: Any) -> None:
    config = sys.modules["torch._functorch.config"]
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is not None and isinstance(hooks[0], _Inlineable) and hasattr(config, _SETTING):
        _settings.append(getattr(config, _SETTING))
        setattr(config, _SETTING, "all")


def _end(given: Any) -> None:
    while _settings:
        setattr(sys.modules["torch._functorch.config"], _SETTING, _settings.pop())


@cache
def _pair(level: Level) -> tuple[GraphModule, GraphModule]:
    return _inlineable(lambda packed: _pack(packed, level)), _inlineable(_unpack)


def region_was_compiled() -> bool:
    """Whether there is a region in this process that stores what it saves."""
    return bool(_entries)


class _Inlineable(GraphModule):
    """One of our hooks."""


def _inlineable(function: Callable[[Any], Any]) -> GraphModule:
    """A graph of one call, which torch traces for each tensor. It is none of torch's own functions, which keeps its
    caches from taking one level's code for another's."""
    graph = Graph()
    graph.output(graph.call_function(function, (graph.placeholder("given"),)))
    module = _Inlineable({}, graph)
    hook = uncompiled(function)
    # Each GraphModule has a class of its own. Eager code calls the hook for every tensor: 0.7 us so, and 1.7 us through
    # the graph.
    type(module).__call__ = lambda self, given: hook(given)  # type: ignore[method-assign]
    return module


def _pack(tensor: Tensor, level: Level) -> Any:
    if get_proxy_mode() is None:
        host: Host | None = getattr(_here, "host", None)
        return Kept.of(tensor) if host is None else host.pack(tensor)
    entry = _entry_of(level)
    if entry is None:
        return (tensor,)
    if not entry.told:
        return (entry.key, *entry.form.pack(tensor, level.seed, None))
    stream = torch.ops.integrations.met_in_region(tensor, entry.key)
    packed = entry.form.pack(tensor, level.seed, stream)
    # torch wants what is new before a tensor that is passed on.
    return (entry.key, *packed) if entry.form.rounds else (entry.key, stream, *packed)


def _unpack(packed: Any) -> Tensor:
    if not isinstance(packed, (tuple, list)):
        return unpack(packed)
    if len(packed) == 1:
        return packed[0]  # type: ignore[no-any-return]
    key, *rest = packed
    entry = _entries[key]
    if entry.told and not entry.form.rounds:
        del rest[0]  # the stream, which is there so that the operator is
    return entry.form.unpack(rest, entry.saved.dtype, entry.saved.device)


@torch.library.custom_op(
    "integrations::met_in_region", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)  # the tag: two calls are never one
def met_in_region(like: Tensor, key: int) -> Tensor:
    """Tells the running session that a compiled region saves ``like``; ``Int64[Tensor, "1"]``, the stream for it.

    A replayed CUDA graph runs no Python. There the stream comes from a counter on the device, and nobody is told.
    """
    host: Host | None = getattr(_here, "host", None)
    captured = like.is_cuda and torch.cuda.is_current_stream_capturing()
    counted = None
    if host is None or captured or (like.is_cuda and key not in _ready):  # a capture needs a counter that is there
        counted = torch.ops.actcore.next_stream(like, _COUNTERS + key)
        _ready.add(key)
    if host is None or captured or key not in _entries:
        assert counted is not None
        return counted  # type: ignore[no-any-return]
    stream = host.met_in_region(_entries[key], like)
    signed = stream - (1 << 64) if stream >= 1 << 63 else stream
    return torch.full((1,), signed, dtype=torch.int64, device=like.device)


@met_in_region.register_fake
def _(like: Tensor, key: int) -> Tensor:
    return like.new_empty(1, dtype=torch.int64)


# ---- while a region is compiled ----

_regions: WeakKeyDictionary[Graph, _Region] = WeakKeyDictionary()  # by forward graph


def _entry_of(level: Level) -> Entry | None:
    """The entry of the tensor whose hooks are being traced; ``None`` where torch does not say which that is."""
    context = _context()
    if context is None:
        return None
    forward, backward, node = context["_fw_graph"], context["_bw_graph"], context["_node"]
    if forward not in _regions:  # before the hooks of its first tensor change the graphs
        _regions[forward] = _plan(forward, backward, level)
    return _regions[forward].meet(node.name)


def _context() -> dict[str, Any] | None:
    try:
        from torch._functorch._aot_autograd.graph_compile import _get_saved_tensor_hook_context
    except ImportError:
        return None
    context = _get_saved_tensor_hook_context()
    return context if context is not None and {"_fw_graph", "_bw_graph", "_node"} <= context.keys() else None


def _plan(forward: Graph, backward: Graph, level: Level) -> _Region:
    """The forms of all tensors that go from one graph to the other.

    A region's inputs are kept, as parameters are and what the caller gave: but for what the model computed with
    gradients before the region, which is one more activation.
    """
    taken = {node.name for node in backward.find_nodes(op="placeholder")}
    inputs, uses = _inputs(forward), Backward(forward, backward)
    region = _Region({}, {})
    kept: dict[int, CompiledForm] = {}  # by storage
    for node in forward.nodes:
        value = node.meta.get("val")
        if not isinstance(value, Tensor) or value.layout is not torch.strided:
            continue
        storage, example = value.untyped_storage(), inputs.get(node)
        given = node.op == "placeholder" and (example is None or example.grad_fn is None)
        if given:
            kept[storage._cdata] = CompiledForm(Raw(), "an input of a compiled region: kept exactly")
        if node.name not in taken or (given and (example is None or isinstance(example, Parameter))):
            continue
        found = uses.uses_of(node)
        form = kept[storage._cdata] if given else form_of(level, SavedTensor.of(value), found, operator_of(node))
        names = ", ".join(sorted({use.name for use in found}))
        entry = Entry(next(_keys), _described(value, names, _module_of(node)), form, given)
        region.entries[node.name] = _entries[entry.key] = entry
        region.storages[node.name] = storage._cdata, _hint(storage.nbytes())
        if form.exact:
            kept.setdefault(storage._cdata, CompiledForm(Raw(), "its storage is kept exactly for another operator"))
    for name, entry in region.entries.items():
        if not entry.form.exact:
            entry.form = kept.get(region.storages[name][0], entry.form)
    return region


def _inputs(forward: Graph) -> dict[Node, Tensor]:
    """What the first call gives the inputs of a region, as far as torch tells."""
    try:
        from torch._dynamo.symbolic_convert import InstructionTranslator

        given = [argument.example for argument in InstructionTranslator.current_tx().output.graphargs]
    except (ImportError, AttributeError, AssertionError):
        return {}
    found = {}
    for node in forward.find_nodes(op="placeholder"):
        described = node.meta.get("desc")
        index = described.idx if type(described).__name__ == "PlainAOTInput" else len(given)
        if index < len(given) and isinstance(given[index], Tensor):
            found[node] = given[index]
    return found


def _described(value: Tensor, operator: str, module: str) -> SavedTensor:
    shape, strides = torch.Size(map(_hint, value.shape)), tuple(map(_hint, value.stride()))
    return SavedTensor(shape, value.dtype, strides, value.device, operator, ROLE, module)


def _hint(size: Any) -> int:
    """A size that varies, as it was when the region was compiled. ``int(size)`` would make it one that does not."""
    hint = size if isinstance(size, int) else getattr(size.node, "hint", None)
    return hint if isinstance(hint, int) else 0


def _module_of(node: Node) -> str:
    """Path of the module that computed a node, from where the region starts: ``L['self'].layers.0`` is ``layers.0``."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return re.sub(r"^L\[[^]]*\](\.__self__)?\.?", "", str(stack[-1][0])) if stack else ""
