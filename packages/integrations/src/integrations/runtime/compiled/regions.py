"""What a compiled region saves and in which forms, planned when torch compiles it.

Torch shows both graphs of a region while it traces the hooks of a tensor that goes from one to the other. That is no
public interface; a torch without it has everything in a region kept exactly.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, finalize

import torch
from torch import SymBool, SymFloat, SymInt, Tensor
from torch.fx import Graph

from actcore import SavedTensor
from actcore.noise import identity_of
from integrations._utils.compiling import is_own_frame
from integrations._utils.torch_internals import (
    HookPair,
    saved_tensor_hook_context,
    top_saved_tensors_default_hooks,
)
from integrations._utils.warn import warn
from integrations.policies.levels import Level
from integrations.runtime.compiled.direct_calls import call_directly
from integrations.runtime.compiled.forms import CompiledForm
from integrations.runtime.compiled.joint_plans import RUN_EAGER, JointPlan, joint_plans
from integrations.runtime.compiled.order import Order, draw_one_stream, find_symbols
from integrations.runtime.compiled.stored import ROLE, find_stored, forget_stored, get_tracing

if TYPE_CHECKING:
    from integrations.runtime.packing import PackedForward

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
        warn(
            "a compiled region keeps all tensors that it saves: this version of torch does not report which "
            "operators use them"
        )
        return None
    forward, backward, node = context["_fw_graph"], context["_bw_graph"], context["_node"]
    if forward not in _planned_regions:  # before the hooks of the first tensor change the graphs
        _require_numbers(forward)
        _planned_regions[forward] = _plan(forward, backward, level, session)
    region = _planned_regions[forward]
    region.order.settle(forward, backward)
    return region.meet(node.name)


def _require_numbers(forward: Graph) -> None:
    """Checks that a region's forward hands on nothing but tensors and sizes.

    Raises:
        NotImplementedError: it hands on something else, which torch drops where it has saved-tensor hooks.
    """
    values = (node.meta.get("val") for node in forward.output_node().all_input_nodes)
    other = next((one for one in values if not isinstance(one, (Tensor, SymInt, SymFloat, SymBool, NoneType))), None)
    if other is not None:
        name = getattr(getattr(other, "real_obj", other), "__class__", type(other)).__name__
        raise NotImplementedError(
            f"a compiled region saves a {name}, such as the mesh of a DTensor, and torch drops it where saved tensors "
            f"are compressed: its backward would fail. Call integrations.restore_model(model), or {RUN_EAGER}"
        )


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
    """Makes a region of two graphs, with the entries of all tensors that go from one graph to the other."""
    call_directly()
    stored = find_stored(forward, backward, level)
    root = "" if session is None else session.owner_of_forward()[1]
    region = Region(next(_numbers), Order(forward, backward), root, joint_plans.get(forward), find_symbols(forward))
    regions[region.number] = region
    whole, counted = is_own_frame(get_tracing()), set[int]()
    outputs = list(forward.output_node().args[0])  # type: ignore[arg-type]  # the saved tensors follow
    for one in stored:
        value = one.node.meta["val"]
        nbytes = 0 if one.storage in counted else _size(value.untyped_storage().nbytes())
        counted.add(one.storage)
        owner = ""
        if one.example is not None and session is not None:
            nbytes, owner = _count_outside(session, one.example, one.given)
        elif outputs.count(one.node) > 1 and not whole:
            nbytes = 0  # counted where the code around the region saves it
        sizes = tuple(map(_size, value.shape)), tuple(map(_size, value.stride()))
        entry = RegionEntry(next(_numbers), region, one.saved, one.form, *sizes, nbytes, owner)
        occurrence = sum(other.saved == one.saved for other in region.entries.values())
        entry.seed = _signed(level.seed, one.saved, occurrence)
        region.entries[one.node.name] = entries[entry.number] = entry
    forget_stored(forward)
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


def _forget_with_code(region: Region) -> None:
    """Has dynamo drop the region with the code that it is compiling, as it drops the globals of the code; or, if no
    code comes of it, with what it knows of the region. Where torch offers neither, the region stays.

    Until then the hooks stay, too: dynamo runs the code wherever hooks of the same ids are on top.
    """
    cleanups = getattr(get_tracing(), "cleanups", None)
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


def _size(size: Any) -> Any:
    """A size as a number, or as an expression in symbols."""
    return size if isinstance(size, int) else size.node.expr
