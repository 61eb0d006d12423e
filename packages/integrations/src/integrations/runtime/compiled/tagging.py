"""``Tagging``: tells ``torch.compile`` what a plan keeps, how, and what it recomputes.

AOTAutograd traces forward and backward into one graph, and its partitioner divides that in two. For each operator it
decides whether the forward keeps the result or the backward repeats the operator. ``node.meta["recompute"]`` overrides
it; ``torch.utils.checkpoint`` sets its policies there, and ``Tagging`` sets the plan there. How a kept value is stored,
``Tagging`` writes to ``node.meta[NODE_KEY]``, for the hooks of a compressed model (``regions``).
"""

from __future__ import annotations

import operator
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.autograd.graph import saved_tensors_hooks
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.utils.checkpoint import CheckpointPolicy

from actcore import Kept
from integrations._utils.torch_internals import FunctionalTensor, OpOverload, TorchDispatchMode
from integrations._utils.warn import warn
from integrations.capture.dispatch.memory import iter_tensors
from integrations.capture.dispatch.operators import get_traits
from integrations.planner.plan import Plan
from integrations.policies.stores import NODE_KEY, PLANNED_KEY, Store
from integrations.runtime.compiled.joint_plans import has_bytes, has_promise, refuse
from integrations.runtime.compiled.joint_search import VALUE_KEY, EagerValue, can_round
from integrations.runtime.compiled.matching import Operator, Shape, is_same_path, match
from integrations.runtime.compiled.partition import expect
from integrations.runtime.compiled.sizes import Limits

_RECOMPUTE = CheckpointPolicy.MUST_RECOMPUTE

_ENOUGH = 0.9
"""The share of a trace's results that the plan has to have. The others are at most a dropout's mask."""

_VIEWS = frozenset({"aten._unsafe_view.default", "aten._reshape_alias.default"})
"""Operators that share memory although their schemas do not say so."""


class _Traced(NamedTuple):
    called: Operator
    nodes: list[fx.Node]  # the nodes that it was traced into, decompositions included
    results: list[fx.Node | None]  # the nodes of its results, where they are known
    copies: list[fx.Node | None]  # copies of what it changes, made for its repetition
    view: bool
    theirs: bool  # whether a checkpoint in the model has backward repeat it


class Tagging(TorchDispatchMode):
    """Notes the operators of a forward while it is traced, and at its end what the plan says of each.

    Nothing is repeated during the trace: autograd saves the same tensors as in a plain forward.

    Args:
        plan: the model's.
    """

    ac_graph_id = 0  # torch sets the number of the region

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """``False``: the mode is there for compiled code."""
        return True

    def __init__(self, plan: Plan) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._plan = plan
        self._read = _read_by_recomputation(plan)
        self._traced: list[_Traced] = []
        # These replace the hooks of torch.utils.checkpoint, which would repeat the forward.
        self._hooks = saved_tensors_hooks(Kept.of, Kept.unpack)

    def __enter__(self) -> Tagging:
        self._hooks.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._hooks.__exit__(*error)
        if error[0] is None and self._traced:
            if not expect(self._plan):
                self._tag()
            elif can_round(self._plan):
                self._note_values()

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        tracing = get_proxy_mode()
        if tracing is None:  # AOTAutograd's first pass only looks for what the forward changes
            return func(*args, **(kwargs or {}))
        traits, graph = get_traits(func), tracing.tracer.graph
        # Running statistics are changed through copies. A repetition reads the copies: autograd would complain of the
        # statistics themselves, which have changed by then.
        changed = traits.statistics[:2] if traits.updates_statistics(args) else ()
        given, copies = list(args), list[fx.Node | None]()
        for place in changed:
            if isinstance(args[place], Tensor):
                given[place] = args[place].clone()
                copies.append(_find_node(given[place], tracing.tracer))
        before = len(graph.nodes)
        out = func(*given, **(kwargs or {}))
        nodes = list(islice(reversed(graph.nodes), len(graph.nodes) - before))
        theirs = any("recompute" in node.meta for node in nodes)
        for node in () if theirs else nodes:
            node.meta["ac_graph_id"] = self.ac_graph_id
            node.meta[PLANNED_KEY] = True
        for place in changed:
            if isinstance(args[place], Tensor):
                args[place].copy_(given[place])
        tensors = list(iter_tensors(out if isinstance(out, (list, tuple)) else (out,)))
        if nodes and tensors:
            shapes = tuple(map(_get_shape, tensors))
            results = [_find_node(tensor, tracing.tracer) for tensor in tensors]
            called = Operator(str(func), shapes, (None,) * len(shapes))
            self._traced.append(_Traced(called, nodes, results, copies, _is_view(func), theirs))
        return out

    def _tag(self) -> None:
        """Writes to the nodes what the plan says of them."""
        planned = [Operator(op.name, op.shapes, op.makes) for op in self._plan.followed.ops]
        entries = [entry for entry in self._traced if not entry.view]
        traced = [entry.called for entry in entries]
        found = match(planned, traced)
        other_sizes = _share(found, traced) < _ENOUGH
        if other_sizes:
            planned = [op.of_any_sizes() for op in planned]
            found = match(planned, traced)
        share = _share(found, traced)
        if share < _ENOUGH:
            self._drop(
                f"only {share:.0%} of the results of the compiled forward are in the plan. If inputs, mode or "
                "autocast differ in training, make a new plan; if not, the compiler has decomposed operators, and "
                "only eager training can follow the plan"
            )
            return
        if has_bytes(self._plan):
            self._hold_sizes()
        if other_sizes:
            warn(
                f"the plan of {self._plan.model} was made for inputs of other shapes ({self._plan.graph.inputs}): "
                "torch.compile applies it operator by operator, and the memory differs from the plan's"
            )
        other_path = self._has_stores and bool(self._plan.schedule.coarse) and not is_same_path(planned, traced)
        if other_path:
            stored = "in 8 bits" if self._plan.bounds.rounds_unforeseen else "exactly"
            warn(
                f"{self._plan.model}'s forward, as torch.compile traces it, is not the one that was captured: this "
                f"compiled code stores tensors {stored} where the plan has fewer than 8 bits. That keeps the error "
                f"within error={self._plan.error:g}, and less memory is saved"
            )
        saved = {number for number, value in enumerate(self._plan.followed.values) if value.saved >= 0}
        needed, policies = saved | self._read, iter(found)
        for entry in self._traced:
            if entry.view:
                _write_view(entry.nodes)
                continue
            values = next(policies)
            written = [self._policy(value, needed) for value in values]
            if entry.theirs and not any(written):
                continue  # the plan leaves it to the checkpoint
            _write(entry, written)
            if self._plan.choice.stores:
                _keep_drawn(entry)
            self._write_stores(entry, values, other_path)
            for node in entry.copies:
                if node is not None:
                    node.meta["recompute"] = CheckpointPolicy.MUST_SAVE

    def _note_values(self) -> None:
        """Writes to the nodes which values of the eager step they make, for the search on the joint graph. Nothing, if
        the two differ much."""
        assert self._plan.rounded is not None
        planned = [Operator(op.name, op.shapes, op.makes) for op in self._plan.rounded.ops]
        entries = [entry for entry in self._traced if not entry.view]
        traced = [entry.called for entry in entries]
        found = match(planned, traced)
        known = {value for values in found for value in values if value is not None}
        if len(known) < _ENOUGH * len(self._plan.rounded.values):
            return
        same_path = is_same_path(planned, traced)
        exact = [value.exact for value in self._plan.rounded.values]
        for entry, values in zip(entries, found, strict=True):
            first = next((value for value in values if value is not None), None)
            if first is not None:
                inner = EagerValue(first, same_path, exact[first], inner=True)
                for part in entry.nodes:
                    part.meta[VALUE_KEY] = inner
            for node, value in zip(entry.results, values, strict=True):
                if node is not None and value is not None:
                    node.meta[VALUE_KEY] = EagerValue(value, same_path, exact[value])

    def _drop(self, why: str) -> None:
        """Warns that the plan is not followed; raises if it has a memory budget, and no fallback."""
        message = (
            f"the plan of {self._plan.model} is not followed under torch.compile, which chooses the saved tensors "
            f"itself: {why}"
        )
        if has_promise(self._plan):
            refuse(f"{message}; or pass fallback='least' to compress_model, to continue without the plan")
        warn(message)

    def _hold_sizes(self) -> None:
        """Has the compiled code run for no larger sizes than the planned ones."""
        limits = Limits(self._traced[0].nodes[0].graph, self._plan.graph.inputs)
        if limits.exceeds:
            refuse(
                f"the plan of {self._plan.model} was made for smaller inputs ({self._plan.graph.inputs}), and under "
                "torch.compile with this backend larger ones would exceed its budget: plan for the largest inputs, or "
                "pass fallback='least' to compress_model"
            )
        limits.hold()

    def _policy(self, value: int | None, needed: set[int]) -> CheckpointPolicy | None:
        if value is None:
            return None
        if value in self._plan.schedule.recomputed:
            return _RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if value in needed else None

    @property
    def _has_stores(self) -> bool:
        return self._plan.candidates is not None and not self._plan.compressed

    def _write_stores(self, entry: _Traced, values: tuple[int | None, ...], other_path: bool) -> None:
        """Writes to an operator's results how they wait, if the plan has a store for all of its values or for none. On
        another path than the planned one, they have at least 8 bits."""
        if not self._has_stores:
            return
        for node, value in zip(entry.results, values, strict=True):
            if node is not None and value is not None:
                decides = self._plan.followed.values[value].exact and value in self._read
                store = None if decides else self._plan.store_of(value)
                if store is not None and not store.fine and other_path:
                    store = Store(8 if self._plan.bounds.rounds_unforeseen else None, host=store.host)
                node.meta[NODE_KEY] = store


def _read_by_recomputation(plan: Plan) -> set[int]:
    """The values that repetitions read."""
    found = set[int]()
    for op, planned in zip(plan.followed.ops, plan.schedule.ops, strict=True):
        if planned.segment >= 0 or planned.inner >= 0:
            found.update(op.reads)
    return found


def _write(entry: _Traced, policies: list[CheckpointPolicy | None]) -> None:
    """Writes policies to an operator's nodes. The partitioner decides for a node without one."""
    inner = _RECOMPUTE if _RECOMPUTE in policies else None
    if None in entry.results:
        for node in entry.nodes:
            _write_one(node, inner or policies[0])
        return
    results = {node: policy for node, policy in zip(entry.results, policies, strict=True) if node is not None}
    for node in entry.nodes:
        _write_one(node, results.get(node, inner))
    for node in entry.nodes:
        if isinstance(node.meta.get("val"), (list, tuple)):
            _write_several(node, results)


def _keep_drawn(entry: _Traced) -> None:
    """Write to an operator's nodes that what is drawn at random is kept.

    To draw it again, torch saves the generator's state, and asserts that no hooks for saved tensors are there. Of
    random numbers that are only compared, such as by dropout, the truth values are kept.
    """
    inside = set(entry.nodes)
    for node in entry.nodes:
        if isinstance(node.target, OpOverload) and get_traits(node.target).random:
            parts = [user for user in node.users if user in inside]
            masks = all(_is_mask(part) for part in parts)
            for one in parts if parts and masks else [node, *parts]:
                _write_one(one, CheckpointPolicy.MUST_SAVE)
            if parts and masks:
                _write_one(node, None)


def _is_mask(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dtype is torch.bool


def _write_several(node: fx.Node, results: dict[fx.Node, CheckpointPolicy | None]) -> None:
    """Writes to a node that returns several tensors: all of them are recomputed, or none."""
    parts = [user for user in node.users if user.target is operator.getitem]
    if not any(part in results for part in parts):
        return
    recompute = any(results.get(part) is _RECOMPUTE for part in parts)
    _write_one(node, _RECOMPUTE if recompute else CheckpointPolicy.MUST_SAVE)
    for part in parts:
        _write_one(part, _RECOMPUTE if recompute else results.get(part))


def _write_view(nodes: list[fx.Node]) -> None:
    """Has a view recomputed if its base is. Otherwise the partitioner chooses which of the two to keep."""
    for node in nodes:
        if any(given.meta.get("recompute") is _RECOMPUTE for given in node.all_input_nodes):
            _write_one(node, _RECOMPUTE)


def _write_one(node: fx.Node, policy: CheckpointPolicy | None) -> None:
    if policy is None:
        node.meta.pop("recompute", None)
    else:
        node.meta["recompute"] = policy


def _share(found: list[tuple[int | None, ...]], traced: list[Operator]) -> float:
    """The share of the results with a dimension for which the plan has a value."""
    there = [
        value is not None
        for values, op in zip(found, traced, strict=True)
        for value, shape in zip(values, op.shapes, strict=True)
        if shape
    ]
    return sum(there) / len(there) if there else 1.0


def _is_view(func: OpOverload) -> bool:
    return get_traits(func).view or str(func) in _VIEWS


def _get_shape(tensor: Tensor) -> Shape | None:
    """The shape of a tensor. A size that is a symbol is ``None``: comparing it would fix the size."""
    if tensor.dtype is torch.uint8:
        return None
    return tuple(size if type(size) is int else None for size in tensor.shape)


def _find_node(tensor: Tensor, tracer: Any) -> fx.Node | None:
    """The node whose result a tensor is; ``None`` for a subclass, since its parts are traced."""
    if type(tensor) is not FunctionalTensor:
        return None
    node = get_proxy_slot(tensor.from_functional(), tracer, None, lambda found: found.proxy.node)
    return node if isinstance(node, fx.Node) else None
