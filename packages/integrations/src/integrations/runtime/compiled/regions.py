"""What a compiled region saves and in which forms, planned when torch compiles it.

Torch shows both graphs of a region while it traces the hooks of a tensor that goes from one to the other. That is no
public interface; a torch without it has everything in a region kept exactly.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, finalize

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.nn import Parameter

from actcore import Raw, SavedTensor
from integrations._utils.torch_internals import (
    HookPair,
    instruction_translator,
    saved_tensor_hook_context,
    top_saved_tensors_default_hooks,
)
from integrations._utils.warn import warn
from integrations.policies.aten_attention import RECOMPUTED_ATTENTION, recompute_attention
from integrations.policies.aten_nodes import get_operator, hint
from integrations.policies.aten_rules import BackwardUses, find_copies
from integrations.policies.levels import Level
from integrations.policies.stores import NODE_KEY, WAITING
from integrations.runtime.compiled.forms import CompiledForm, make_form
from integrations.runtime.compiled.order import Order
from integrations.tracing.storage.storage_policy import StoragePolicy, compiled, kept, storage_policy

ROLE = "compiled"


@dataclass(eq=False)
class RegionEntry:
    """One tensor that a region saves.

    Attributes:
        key: its number in this process.
        saved: its description. Sizes that vary are those of the first run; the module's path starts where the region
            does.
        form: how it is stored.
        outside: whether it is an input or an output of the region, which eager code may save, too.
        storage_bytes: bytes of its storage; 0 where an earlier entry counts them.
        given: whether it is an input of the region that somebody else may keep alive, and so is kept.
        varies: whether its sizes vary.
        told: whether the session is told of it in every run. It is told of inputs, of tensors that vary in size or take
            noise, and of the region's first tensor.
        silent: on a region's first entry, the entries of which the session is not told.
        counted: whether the device has a counter for its stream.
    """

    key: int
    saved: SavedTensor
    form: CompiledForm
    given: bool = False
    outside: bool = False
    varies: bool = False
    storage_bytes: int = 0
    told: bool = False
    silent: list[RegionEntry] = field(default_factory=list)
    counted: bool = False


@dataclass(eq=False)
class _Region:
    """What a region saves, by the nodes of its forward graph."""

    order: Order
    entries: dict[str, RegionEntry]
    storages: dict[str, tuple[int, int]]  # by node: the number of its storage, and its bytes
    first: RegionEntry | None = None
    counted: set[int] = field(default_factory=set)

    def meet(self, name: str) -> RegionEntry | None:
        """The entry of a node whose hooks are being traced; ``None`` for a parameter or buffer."""
        entry = self.entries.get(name)
        if entry is None:
            return None
        storage, nbytes = self.storages[name]
        entry.storage_bytes = 0 if storage in self.counted else nbytes
        self.counted.add(storage)
        entry.told = entry.given or entry.varies or entry.form.rounds or self.first is None
        if self.first is None:
            self.first = entry
        elif not entry.told:
            self.first.silent.append(entry)
        return entry


entries: dict[int, RegionEntry] = {}
"""The entries of all regions in this process, by key."""

_keys = itertools.count()
_regions: WeakKeyDictionary[Graph, _Region] = WeakKeyDictionary()  # by forward graph


def read_entry(level: Level) -> RegionEntry | None:
    """The entry of the tensor whose hooks are being traced; ``None`` where torch does not say which that is."""
    context = _context()
    if context is None:
        warn("a compiled region keeps all that it saves: this version of torch does not tell which operators use it")
        return None
    forward, backward, node = context["_fw_graph"], context["_bw_graph"], context["_node"]
    if forward not in _regions:  # before the hooks of the first tensor change the graphs
        _regions[forward] = _plan(forward, backward, level)
    _regions[forward].order.settle(forward, backward)
    return _regions[forward].meet(node.name)


def _context() -> dict[str, Any] | None:
    try:
        get_context = saved_tensor_hook_context()
    except ImportError:
        return None
    context: dict[str, Any] | None = get_context()
    return context if context is not None and {"_fw_graph", "_bw_graph", "_node"} <= context.keys() else None


def _plan(forward: Graph, backward: Graph, level: Level) -> _Region:
    """The forms of all tensors that go from one graph to the other.

    A region keeps its inputs exactly: parameters, and the tensors of the caller. An input that the model computed with
    gradients before the region is an activation, and is stored. Views and casts of a parameter, such as those of
    autocast, count as weights: the region keeps them exactly, and the report does not list them.
    """
    taken = {node.name for node in backward.find_nodes(op="placeholder")}
    inputs, ways = _inputs(forward), _planned(forward, level)
    dropped = recompute_attention(backward, partial(_rounds, {node.name: node for node in forward.nodes}, ways, level))
    uses = BackwardUses(forward, backward)
    region = _Region(Order(forward, backward), {}, {})
    outputs = list(forward.output_node().args[0])  # type: ignore[arg-type]  # the saved tensors follow
    exact: dict[int, CompiledForm] = {}  # by storage
    parameters = {node for node in forward.find_nodes(op="placeholder") if _is_weight(inputs.get(node))}
    weights = find_copies(parameters, forward)
    for node in forward.nodes:
        value = node.meta.get("val")
        if not isinstance(value, Tensor) or value.layout is not torch.strided:
            continue
        storage, example = value.untyped_storage(), inputs.get(node)
        given = node.op == "placeholder" and (example is None or example.grad_fn is None)
        if given:
            exact[storage._cdata] = CompiledForm(Raw(), "an input of a compiled region: kept exactly")
        if node.name not in taken or node in weights:
            continue
        way = ways.get(storage._cdata) or compiled(level)
        found = uses.uses_of(node, planned=bool(way.planned))
        saved = _described(value, ", ".join(sorted({use.name for use in found})), _get_module(node))
        if given:
            form = exact[storage._cdata]
        elif node.name in dropped:
            form = CompiledForm(None, RECOMPUTED_ATTENTION)
        else:
            form = make_form(way, saved, found, get_operator(node))
        outside = node.op == "placeholder" or outputs.count(node) > 1
        varies = not all(isinstance(size, int) for size in value.shape)
        entry = RegionEntry(next(_keys), saved, form, given, outside, varies)
        region.entries[node.name] = entries[entry.key] = entry
        region.storages[node.name] = storage._cdata, hint(storage.nbytes())
        if form.exact:
            exact.setdefault(storage._cdata, CompiledForm(Raw(), "its storage is kept exactly for another operator"))
    for name, entry in region.entries.items():
        if not entry.form.exact:
            entry.form = exact.get(region.storages[name][0], entry.form)
    _forget_with_code(tuple(entry.key for entry in region.entries.values()))
    return region


def _is_weight(example: Tensor | None) -> bool:
    """Return whether an input of a region is a parameter, as far as torch tells."""
    return example is None or isinstance(example, Parameter)


def _planned(forward: Graph, level: Level) -> dict[int, StoragePolicy]:
    """How the plan that the forward follows stores the tensors of the region, by storage: views are in the same one."""
    found = {}
    for node in forward.nodes:
        value = node.meta.get("val")
        if NODE_KEY in node.meta and isinstance(value, Tensor) and value.layout is torch.strided:
            store = node.meta[NODE_KEY]
            way = kept(level) if store is None else storage_policy(store, level, WAITING)
            found[value.untyped_storage()._cdata] = way
    return found


def _rounds(nodes: dict[str, Node], ways: dict[int, StoragePolicy], level: Level, node: Node) -> bool:
    """Whether an input of the backward graph may wait in fewer bits for attention.

    Args:
        nodes: nodes of the forward graph, by name.
        ways: how a plan stores tensors, by their storages.
        level: how the others are stored.
        node: the input.
    """
    made = nodes.get(node.name)
    value = None if made is None or made.op == "placeholder" else made.meta.get("val")
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return False
    found = (ways.get(value.untyped_storage()._cdata) or compiled(level)).level
    large = hint(value.numel()) * value.dtype.itemsize >= found.min_bytes
    return large and found.bits is not None and found.attention_bits is not None


def _forget_with_code(keys: tuple[int, ...]) -> None:
    """Has dynamo drop the entries with the code that it is compiling, as it drops the globals of the code; or, if no
    code comes of it, with what it knows of the region. Where torch offers neither, the entries stay.

    Until then the hooks stay, too: dynamo runs the code wherever hooks of the same ids are on top.
    """
    cleanups = getattr(_tracing(), "cleanups", None)
    if isinstance(cleanups, list):
        cleanup = partial(_forget, keys, top_saved_tensors_default_hooks(True))
        cleanups.append(cleanup)
        finalize(cleanup, _forget, keys)  # not every version runs the code's finalizers if compiling fails


def _forget(keys: tuple[int, ...], hooks: HookPair | None = None) -> None:
    for key in keys:
        entries.pop(key, None)


def _tracing() -> Any:
    """Dynamo's state for the region that it is compiling; ``None`` where torch does not tell."""
    try:
        return instruction_translator().current_tx().output
    except (ImportError, AttributeError, AssertionError):
        return None


def _inputs(forward: Graph) -> dict[Node, Tensor]:
    """What the first call passes as the inputs of a region, as far as torch tells."""
    try:
        given = [argument.example for argument in _tracing().graphargs]
    except AttributeError:
        return {}
    found = {}
    for node in forward.find_nodes(op="placeholder"):
        described = node.meta.get("desc")
        index = described.idx if type(described).__name__ == "PlainAOTInput" else len(given)
        example = given[index] if index < len(given) else None
        if isinstance(example, Tensor):
            found[node] = example
    return found


def _described(value: Tensor, operator: str, module: str) -> SavedTensor:
    """Describes a value. Sizes that vary are as they are now; the strides are empty where rows vary in length, so that
    no group fits them."""
    shape = torch.Size(map(hint, value.shape))
    varies = value.dim() > 0 and not isinstance(value.shape[-1], int)
    strides = () if varies else tuple(map(hint, value.stride()))
    return SavedTensor(shape, value.dtype, strides, value.device, operator, ROLE, module)


def _get_module(node: Node) -> str:
    """The path of the module that computed a node, from where the region starts: ``L['self'].layers.0`` is
    ``layers.0``, and so is ``L['args'][0].__self__.layers.0``. In a region that follows a plan, the model is
    ``_model._ref()``."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return re.sub(r"^L\[[^]]*\](\[\d+\])*(\.__self__)?(\._model\._ref\(\))?\.?", "", str(stack[-1][0])) if stack else ""
