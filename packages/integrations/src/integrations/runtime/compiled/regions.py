"""What a compiled region saves and in which forms, planned when torch compiles it.

Torch shows both graphs of a region while it traces the hooks of a tensor that goes from one to the other. That is no
public interface; a torch without it has everything in a region kept exactly.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, finalize

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.nn import Parameter

from actcore import Raw, SavedTensor
from actcore.noise import identity_of
from integrations._utils.compiling import is_own_frame
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
from integrations.runtime.compiled.order import Order, draw_one_stream, find_symbols
from integrations.runtime.compiled.partition import JointPlan, joint_plans
from integrations.tracing.storage.storage_policy import StoragePolicy, compiled, kept, storage_policy

if TYPE_CHECKING:
    from integrations.runtime.packing import PackedForward

ROLE = "compiled"

DESCRIBED = SavedTensor(torch.Size(()), torch.float32, (), torch.device("cpu"), "", ROLE, "", 0)
"""What stands for every tensor that a compiled region saves."""


@dataclass(eq=False)
class RegionEntry:
    """One tensor that a region saves.

    Attributes:
        number: its number in this process.
        region: the region.
        saved: its description. Sizes that vary are those of the first run; the module's path starts where the region
            does.
        form: how it is stored.
        shape, strides, nbytes: of the tensor, and the bytes of its storage, which are 0 where another entry or the code
            around the region counts them. Sizes that vary are expressions in the region's symbols.
        owner: who keeps it alive anyway, in words; empty if only the region does.
        seed: of its noise; the stream is the region's.
        draws: whether it calls the operator that draws the region's stream.
    """

    number: int
    region: Region
    saved: SavedTensor
    form: CompiledForm
    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    nbytes: Any
    owner: str = ""
    seed: int = 0
    draws: bool = False

    def sizes(self, values: Sequence[int]) -> tuple[torch.Size, tuple[int, ...], int]:
        """The shape, strides and bytes for these values of the region's symbols."""
        symbols = dict(zip(self.region.symbols, values, strict=False))

        def number(size: Any) -> int:
            return size if isinstance(size, int) else int(size.xreplace(symbols))

        return torch.Size(map(number, self.shape)), tuple(map(number, self.strides)), number(self.nbytes)


@dataclass(eq=False)
class Region:
    """What a region saves.

    Attributes:
        number: its number in this process.
        order: where its graphs store and restore.
        root: the module in which it was compiled.
        joint: what its joint graph's plan has found; ``None`` if torch alone has divided it.
        symbols: those of its sizes that vary, and whose values its operator notes.
        entries: by the nodes of its forward graph.
        met: the entries whose hooks are traced, in their order.
    """

    number: int
    order: Order
    root: str
    joint: JointPlan | None
    symbols: tuple[Any, ...] = ()
    entries: dict[str, RegionEntry] = field(default_factory=dict)
    met: list[RegionEntry] = field(default_factory=list)

    def meet(self, name: str) -> RegionEntry | None:
        """The entry of a node whose hooks are being traced; ``None`` for a parameter or buffer."""
        entry = self.entries.get(name)
        if entry is not None and entry not in self.met:
            entry.draws = entry.form.rounds or not self.met
            self.met.append(entry)
        return entry


entries: dict[int, RegionEntry] = {}
"""The entries of all regions in this process, by number."""

regions: dict[int, Region] = {}
"""The regions in this process, by number."""

_numbers = itertools.count()
_planned_regions: WeakKeyDictionary[Graph, Region] = WeakKeyDictionary()  # by forward graph


def read_entry(level: Level, session: PackedForward | None) -> RegionEntry | None:
    """The entry of the tensor whose hooks are being traced; ``None`` where torch does not say which that is.

    Args:
        level: how tensors are stored that no plan has.
        session: the forward in which the region is compiled.
    """
    context = _context()
    if context is None:
        warn("a compiled region keeps all that it saves: this version of torch does not tell which operators use it")
        return None
    forward, backward, node = context["_fw_graph"], context["_bw_graph"], context["_node"]
    if forward not in _planned_regions:  # before the hooks of the first tensor change the graphs
        _planned_regions[forward] = _plan(forward, backward, level, session)
    region = _planned_regions[forward]
    region.order.settle(forward, backward)
    return region.meet(node.name)


def draw_once(entry: RegionEntry) -> None:
    """Has the region of a tensor, whose forward hooks are in the graph, draw its stream once."""
    context = _context()
    if context is not None:
        draw_one_stream(context["_fw_graph"], entry.region.symbols)


def _context() -> dict[str, Any] | None:
    try:
        get_context = saved_tensor_hook_context()
    except ImportError:
        return None
    context: dict[str, Any] | None = get_context()
    return context if context is not None and {"_fw_graph", "_bw_graph", "_node"} <= context.keys() else None


def _plan(forward: Graph, backward: Graph, level: Level, session: PackedForward | None) -> Region:
    """The forms of all tensors that go from one graph to the other.

    A region keeps its inputs exactly: parameters, and the tensors of the caller. An input that the model computed with
    gradients before the region is an activation, and is stored. Views and casts of a parameter, such as those of
    autocast, count as weights: the region keeps them exactly, and the report does not list them.
    """
    taken = {node.name for node in backward.find_nodes(op="placeholder")}
    inputs, ways = _inputs(forward), _planned(forward, level)
    dropped = recompute_attention(backward, partial(_rounds, {node.name: node for node in forward.nodes}, ways, level))
    uses = BackwardUses(forward, backward)
    root = "" if session is None else session.owner_of_forward()[1]
    region = Region(next(_numbers), Order(forward, backward), root, joint_plans.get(forward), find_symbols(forward))
    regions[region.number] = region
    whole, counted = is_own_frame(_tracing()), set[int]()
    outputs = list(forward.output_node().args[0])  # type: ignore[arg-type]  # the saved tensors follow
    exact: dict[int, CompiledForm] = {}  # by storage
    storages: dict[int, int] = {}  # by entry
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
        nbytes = 0 if storage._cdata in counted else _size(storage.nbytes())
        counted.add(storage._cdata)
        owner = ""
        if example is not None and session is not None:
            nbytes, owner = _count_outside(session, example, given)
        elif outputs.count(node) > 1 and not whole:
            nbytes = 0  # counted where the code around the region saves it
        sizes = tuple(map(_size, value.shape)), tuple(map(_size, value.stride()))
        entry = RegionEntry(next(_numbers), region, saved, form, *sizes, nbytes, owner)
        occurrence = sum(one.saved == saved for one in region.entries.values())
        entry.seed = _signed(level.seed, saved, occurrence)
        region.entries[node.name] = entries[entry.number] = entry
        storages[entry.number] = storage._cdata
        if form.exact:
            exact.setdefault(storage._cdata, CompiledForm(Raw(), "its storage is kept exactly for another operator"))
    for entry in region.entries.values():
        if not entry.form.exact:
            entry.form = exact.get(storages[entry.number], entry.form)
    _forget_with_code(region)
    return region


def _count_outside(session: PackedForward, example: Tensor, given: bool) -> tuple[int, str]:
    """The bytes of the storage of a region's input that nothing before has counted, and who keeps it alive anyway."""
    storage = example.untyped_storage()
    owner = session.owners.holder(storage, session.tracker.foreign) if given else ""
    return 0 if owner else session.storages.original_bytes(storage), owner


def _signed(seed: int, saved: SavedTensor, occurrence: int) -> int:
    """The seed for one of a region's tensors, as an int64."""
    found = identity_of(f"{seed}\0{saved.module}\0{saved.operator}\0{occurrence}")
    return found - (1 << 64) if found >> 63 else found


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


def _forget_with_code(region: Region) -> None:
    """Has dynamo drop the region with the code that it is compiling, as it drops the globals of the code; or, if no
    code comes of it, with what it knows of the region. Where torch offers neither, the region stays.

    Until then the hooks stay, too: dynamo runs the code wherever hooks of the same ids are on top.
    """
    cleanups = getattr(_tracing(), "cleanups", None)
    if isinstance(cleanups, list):
        numbers = tuple(entry.number for entry in region.entries.values())
        cleanup = partial(_forget, region.number, numbers, top_saved_tensors_default_hooks(True))
        cleanups.append(cleanup)
        finalize(cleanup, _forget, region.number, numbers)  # some versions keep the finalizers of code that failed


def _forget(region: int, numbers: tuple[int, ...], hooks: HookPair | None = None) -> None:
    if regions is None:
        return  # the interpreter is ending: names of modules are cleared before torch's weak references die
    regions.pop(region, None)
    for number in numbers:
        entries.pop(number, None)


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


def _size(size: Any) -> Any:
    """A size as a number, or as an expression in symbols."""
    return size if isinstance(size, int) else size.node.expr


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
