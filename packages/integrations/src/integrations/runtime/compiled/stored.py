"""``find_stored``: what a compiled region saves for backward, and in which forms, read off its two graphs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.nn import Parameter

from actcore import Raw, SavedTensor
from integrations._utils.torch_internals import instruction_translator
from integrations.policies.aten_attention import RECOMPUTED_ATTENTION, recompute_attention
from integrations.policies.aten_nodes import get_operator, hint
from integrations.policies.aten_rules import BackwardUses, count_norm_features, find_copies
from integrations.policies.levels import Level
from integrations.policies.stores import NODE_KEY, WAITING
from integrations.runtime.compiled.forms import CompiledForm, make_form
from integrations.tracing.storage.storage_policy import StoragePolicy, compiled, kept, storage_policy

ROLE = "compiled"


@dataclass(eq=False)
class Stored:
    """One tensor that a region saves.

    Attributes:
        node: its node in the forward graph.
        saved: its description. Sizes that vary are as they are now; the module's path starts where the region does.
        form: how it is stored.
        storage: a number of its storage.
        example: what the first call passes, if it is an input of the region and torch tells.
        given: whether it is an input that the model has not computed with gradients.
    """

    node: Node
    saved: SavedTensor
    form: CompiledForm
    storage: int
    example: Tensor | None
    given: bool


_STORED = "integrations_stored"  # an attribute of the forward graph, which holds what holds its nodes


def find_stored(
    forward: Graph, backward: Graph, level: Level, may_repeat: Callable[[Node], bool] | None = None
) -> tuple[Stored, ...]:
    """The tensors that go from one graph to the other, in the order of the forward.

    A region keeps its inputs exactly: parameters, and the tensors of the caller. An input that the model computed with
    gradients before the region is an activation, and is stored. Views and casts of a parameter, such as those of
    autocast, count as weights: the region keeps them exactly, and they are left out here.

    Attention whose query, key and value are rounded is recomputed in the backward graph, which is changed for that.

    Args:
        forward, backward: the graphs.
        level: how tensors are stored of which no plan says how.
        may_repeat: as for ``BackwardUses.uses_of``.
    """
    found: tuple[Stored, ...] | None = forward.__dict__.get(_STORED)
    if found is None:
        found = forward.__dict__[_STORED] = tuple(_find(forward, backward, level, may_repeat))
    return found


def forget_stored(forward: Graph) -> None:
    """Forgets what ``find_stored`` has found for a graph, with the inputs of the first call."""
    forward.__dict__.pop(_STORED, None)


def _find(forward: Graph, backward: Graph, level: Level, may_repeat: Callable[[Node], bool] | None) -> list[Stored]:
    taken = {node.name for node in backward.find_nodes(op="placeholder")}
    inputs, ways = _inputs(forward), _planned(forward, level)
    dropped = recompute_attention(backward, partial(_rounds, {node.name: node for node in forward.nodes}, ways, level))
    uses = BackwardUses(forward, backward)
    exact: dict[int, CompiledForm] = {}  # by storage
    parameters = {node for node in forward.find_nodes(op="placeholder") if _is_weight(inputs.get(node))}
    weights = find_copies(parameters, forward)
    stored = []
    for node in forward.nodes:
        value = node.meta.get("val")
        if not isinstance(value, Tensor) or value.layout is not torch.strided:
            continue
        storage, example = value.untyped_storage()._cdata, inputs.get(node)
        given = node.op == "placeholder" and (example is None or example.grad_fn is None)
        if given:
            exact[storage] = CompiledForm(Raw(), "an input of a compiled region: kept exactly")
        if node.name not in taken or node in weights:
            continue
        way = ways.get(storage) or compiled(level)
        found = uses.uses_of(node, bool(way.planned), may_repeat if way.planned else None)
        saved = _described(value, ", ".join(sorted({use.name for use in found})), _get_module(node))
        if given:
            form = exact[storage]
        elif node.name in dropped:
            form = CompiledForm(None, RECOMPUTED_ATTENTION)
        else:
            form = make_form(way, saved, found, get_operator(node), count_norm_features(node))
        stored.append(Stored(node, saved, form, storage, example, given))
        if form.exact:
            exact.setdefault(storage, CompiledForm(Raw(), "its storage is kept exactly for another operator"))
    for one in stored:
        if not one.form.exact:
            one.form = exact.get(one.storage, one.form)
    return stored


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


def get_tracing() -> Any:
    """Dynamo's state for the region that it is compiling; ``None`` where torch does not tell."""
    try:
        return instruction_translator().current_tx().output
    except (ImportError, AttributeError, AssertionError):
        return None


def _inputs(forward: Graph) -> dict[Node, Tensor]:
    """What the first call passes as the inputs of a region, as far as torch tells."""
    try:
        given = [argument.example for argument in get_tracing().graphargs]
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
    ``_model._ref()``. A part of a module with a ``__getattr__`` of its own is ``__dict__['_modules']['layers']``."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = re.sub(r"__dict__\['_modules'\]\['([^']*)'\]", r"\1", str(stack[-1][0])) if stack else ""
    return re.sub(r"^L\[[^]]*\](\[\d+\])*(\.__self__)?(\._model\._ref\(\))?\.?", "", path)
