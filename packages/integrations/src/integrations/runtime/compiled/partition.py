"""``partition``: divides a joint graph into forward and backward within a budget in bytes.

Inductor asks it where it would ask torch's own partitioner. The plan that a model has for eager code gives the budget
and the state of the gradients; what is kept and what is recomputed is searched anew, on the graph that is compiled.
Torch then cuts the graph in two where the marks on its nodes say.
"""

from __future__ import annotations

import hashlib
import operator
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache
from typing import Any

from torch.fx import Graph, GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from integrations._utils.compiling import compiles_with_inductor
from integrations._utils.torch_internals import (
    INDUCTOR,
    callback_handler,
    custom_partitioner_fn,
    inductor_config,
    min_cut_partition,
    top_saved_tensors_default_hooks,
)
from integrations.planner.plan import Plan
from integrations.policies.aten_attention import is_attention
from integrations.policies.aten_nodes import name_of
from integrations.policies.levels import Level
from integrations.policies.stores import NODE_KEY, PLANNED_KEY, Store
from integrations.runtime.compiled.divided_peak import count_peak
from integrations.runtime.compiled.joint_plans import (
    JOINT,
    RUN_EAGER,
    SHARED,
    JointPlan,
    Share,
    find_allowed,
    has_bytes,
    joint_plans,
    refuse,
    require_budget,
)
from integrations.runtime.compiled.joint_search import JointChoice, JointSearch, can_round, count_together
from integrations.runtime.compiled.joint_step import decides_by
from integrations.runtime.compiled.scheduling import hash_sources, schedule_for_budget
from integrations.runtime.compiled.sizes import Limits, find_unknown_size, largest_bytes
from integrations.runtime.compiled.stored import Stored, find_stored

_REGION = "ac_graph_id"  # torch compares it where checkpoints follow each other

_SETTING = "custom_partitioner_fn"

_ATTEMPTS = 5
"""How often a graph is divided until it keeps to its budget. The last attempt is the plan of the least peak."""

_here = threading.local()  # .plan: of the graph that is traced in this thread


@cache
def _make_partitioner() -> Any:
    """What inductor asks, whose class imports inductor."""
    base = custom_partitioner_fn()
    if base is None:
        return None

    class Partitioner(base):  # type: ignore[misc,valid-type]
        """Divides the joint graph of a model that has a plan."""

        def __call__(self, gm: GraphModule, joint_inputs: Sequence[object], **options: Any) -> Any:
            return partition(gm, joint_inputs, options)

        def uuid(self) -> str | None:
            """What tells torch's caches by which plan a graph will be divided."""
            plan: Plan | None = getattr(_here, "plan", None)
            return None if plan is None else hash_plan(plan)

        def __reduce__(self) -> Any:
            """Inductor makes keys of its settings' pickles, as for a graph without a backward."""
            return _make_partitioner, ()

    return Partitioner()


def can_divide() -> bool:
    """Whether this version of torch lets graphs be divided by ``partition``."""
    return _make_partitioner() is not None


def partition(gm: GraphModule, joint_inputs: Sequence[object], options: dict[str, Any]) -> Any:
    """The forward and the backward graph of a joint graph.

    Torch orders backward by itself, and what a rounded value takes follows from what backward does with it, so the peak
    is counted once more on the two graphs. Where it is above the budget, the next plan has so much less. What was to be
    rounded and would be kept exactly is not rounded by the next plan.

    Of sizes that vary, the largest are counted for which the graph runs. For larger ones it is compiled anew.

    Args:
        gm: the joint graph.
        joint_inputs: its inputs.
        options: those of torch's partitioner.
    """
    plan = forget_expected()
    if plan is None:
        return min_cut_partition()(gm, joint_inputs, **options)
    if has_bytes(plan) and (unknown := find_unknown_size(gm.graph)):
        refuse(
            f"{plan.model} under torch.compile: the size of {unknown} depends on data, so its bytes cannot be "
            f"counted for memory=. Pass fallback='least' to follow the plan without a guaranteed budget, or {RUN_EAGER}"
        )
    limits = Limits(gm.graph, plan.graph.inputs)
    with limits.counted():
        divided = _divide(gm, joint_inputs, options, plan, limits.exceeds)
    if has_bytes(plan):
        limits.hold()
    schedule_for_budget()
    return divided


def _divide(gm: GraphModule, joint_inputs: Sequence[object], options: dict[str, Any], plan: Plan, larger: bool) -> Any:
    """The two graphs. Of inputs that are larger than the planned ones, a fraction is that of their own step."""
    in_parts = getattr(_here, "parts", None) is plan
    count: int = options["num_fwd_outputs"]
    most = target = find_allowed(plan)
    level = _get_level()
    search, foreign = JointSearch(plan, count, level is not None), _find_foreign(gm.graph)
    runs = float(plan.graph.in_flight)
    if in_parts:
        # The other graphs are not known yet. They are assumed to save the same part of what the eager step holds.
        runs = max(1.0, plan.uncompressed_peak / max(search.count_plain(gm)[1], 1))
        most = target = int(SHARED * most)
    elif larger:
        plain = count_together(*search.count_plain(gm), runs)
        most = target = find_allowed(plan, plain)
    gradients = 0 if plan.graph.accumulates else _count_gradients(gm.graph, options)
    best: tuple[JointPlan, Any] | None = None
    joint, shares = gm.graph, tuple[Share, ...]()
    for attempt in range(1, _ATTEMPTS + 1):
        gm.graph = joint  # torch's partitioner puts another graph in its place
        choice, is_least = search.search(gm, target if attempt < _ATTEMPTS else 0, runs)
        if in_parts and not shares:
            shares = tuple(search.find_shares(runs))
        _mark(gm, choice, foreign)
        forward, backward = divided = min_cut_partition()(gm, joint_inputs, **options)
        stored = () if level is None else find_stored(forward.graph, backward.graph, level, _may_repeat)
        counted = count_peak(forward, backward, count, plan, stored)
        rounded = sum(one.form.rounds for one in stored)
        variance = choice.variance if rounded else 0.0
        recomputed = len(choice.schedule.recomputed)
        found = JointPlan(recomputed, counted.peak, counted.held, gradients, rounded, variance, shares)
        taken = count_together(found.peak, found.held, runs)
        if best is None or taken < count_together(best[0].peak, best[0].held, runs):
            best = found, divided
        unfit = _find_unfit(choice, stored) - search.barred
        search.barred |= unfit
        if taken <= most or (is_least and not unfit):
            break
        if not unfit:
            target -= taken - most
    assert best is not None
    if not in_parts:
        # Other plans than the last are found from the budget: with a larger one, the same may not be found again.
        last, least = (replace(one, peak=count_together(one.peak, one.held, runs)) for one in (found, best[0]))
        require_budget(plan, least if least.peak <= most else last, "its graph", most)
        plan.others[JOINT] = least
    joint_plans[best[1][0].graph] = best[0]
    return best[1]


def _count_gradients(joint: Graph, options: Mapping[str, Any]) -> int:
    """The bytes of the parameters' gradients that a joint graph returns, as far as torch says which inputs these are.

    Args:
        joint: the graph, which returns a gradient or ``None`` for each of its inputs behind the forward's results.
        options: as for ``partition``.
    """
    results: list[Any] = list(joint.output_node().args[0])[options["num_fwd_outputs"] :]  # type: ignore[arg-type]
    places = options.get("static_lifetime_input_indices") or ()
    found = [results[place] for place in places if place < len(results)]
    return sum(largest_bytes(one.meta["val"]) for one in found if isinstance(one, Node))


def _may_repeat(node: Node) -> bool:
    return not decides_by(node)


def _get_level() -> Level | None:
    """The level of the hooks that will be inlined into the two graphs; ``None`` if there are none."""
    hooks = top_saved_tensors_default_hooks(True)
    return None if hooks is None else getattr(hooks[0], "level", None)


def _find_unfit(choice: JointChoice, stored: Iterable[Stored]) -> set[str]:
    """Names of nodes that were to be rounded, and are kept exactly for what backward does with them."""
    rounded = {node.name for value in choice.schedule.stores for node in choice.step.nodes[value]}
    return rounded & {one.node.name for one in stored if one.form.exact}


def divide_parts(plan: Plan | None) -> Plan | None:
    """Has each graph that is compiled in this thread from now on divided by its share of a plan, or with ``None`` by
    torch alone. Returns the plan before."""
    before: Plan | None = getattr(_here, "parts", None)
    _here.parts = plan
    if plan is None:
        forget_expected()
    return before


def expect_part() -> None:
    """Has the graph that is compiled next divided, where a forward's graphs are."""
    plan: Plan | None = getattr(_here, "parts", None)
    if plan is not None:
        _set(plan)


def hash_plan(plan: Plan) -> str:
    """What tells one plan from another."""
    digest = hashlib.sha256(plan.graph.to_json().encode())
    digest.update(hash_sources().encode())
    digest.update(f"{plan.choice.content()} {plan.memory} {plan.bounds.falls_back}".encode())
    digest.update(f"{plan.bounds.error} {plan.measured}".encode())
    if plan.rounded_candidates is not None:
        digest.update(f"{plan.rounded_candidates.weights} {plan.rounded_candidates.limits}".encode())
    return digest.hexdigest()


def expect(plan: Plan) -> bool:
    """Has the joint graph that is being traced in this thread divided by a plan. Returns whether it will be: only
    inductor asks a partitioner, and not this one if the user has set another."""
    return compiles_with_inductor() and _set(plan)


def _set(plan: Plan) -> bool:
    if INDUCTOR not in sys.modules or plan.compressed or (plan.choice.rounds and not can_round(plan)):
        return False
    config, ours = inductor_config(), _make_partitioner()
    if ours is None or getattr(config, _SETTING, ours) not in (None, ours):
        return False
    before: Plan | None = getattr(_here, "plan", None)
    if before is not None and before is not plan and (has_bytes(before) or has_bytes(plan)):
        forget_expected()
        refuse(
            f"{before.model} and {plan.model} each have a plan, but torch.compile makes one graph of both and can "
            "keep only one budget. Compile each of them by itself, or give the budget to the module around both"
        )
    # A graph that turns out to have no backward is not divided.
    handler = callback_handler()
    if handler is not None and _end not in handler.end_callbacks:  # torch.compiler.reset() removes it
        handler.register_end_callback(_end)
    setattr(config, _SETTING, ours)
    _here.plan = plan
    return True


def _end(given: Any) -> None:
    """Expects nothing any longer: dynamo has compiled a graph, or has failed to."""
    forget_expected()


def forget_expected() -> Plan | None:
    """The plan that was expected to divide a graph in this thread, which is expected no longer."""
    plan: Plan | None = getattr(_here, "plan", None)
    if plan is not None:
        _here.plan = None
        config = inductor_config()
        if getattr(config, _SETTING, None) is _make_partitioner():
            setattr(config, _SETTING, None)
    return plan


def _find_foreign(joint: Graph) -> frozenset[Node]:
    """The nodes of checkpoints around which the model is called: they have marks, and are none of the model's."""
    if not any(PLANNED_KEY in node.meta for node in joint.nodes):
        return frozenset()  # the graph is a part of the model
    return frozenset(node for node in joint.nodes if "recompute" in node.meta and PLANNED_KEY not in node.meta)


def _mark(joint: GraphModule, choice: JointChoice, foreign: Set[Node]) -> None:
    """Writes to the nodes of a joint graph what torch's partitioner is to keep and to recompute, and how what is kept
    is stored.

    Args:
        joint: the graph.
        choice: what is kept and how.
        foreign: nodes whose marks are the user's, and stay.
    """
    step, schedule = choice.step, choice.schedule
    graph = schedule.graph
    read_again = {
        value for op, planned in zip(graph.ops, schedule.ops, strict=True) if planned.segment >= 0 for value in op.reads
    }
    for node in joint.graph.nodes:
        if node not in foreign:
            node.meta.pop("recompute", None)
            node.meta.pop(_REGION, None)
        node.meta[NODE_KEY] = Store()
    for node in step.fused - foreign:
        _write(node, CheckpointPolicy.MUST_RECOMPUTE)
    needed = {value for value, one in enumerate(graph.values) if one.saved >= 0} | read_again
    remade = {op.makes[0] for op in graph.ops if not schedule.recomputed.isdisjoint(op.makes)}
    for value, nodes in enumerate(step.nodes):
        # An operator with several results is repeated for all of them.
        made = graph.ops[graph.values[value].producer].makes
        # Of attention that is computed again, the graph still has the backward that reads what is made in the forward.
        again = graph.rounded and is_attention(name_of(nodes[0].target)) and needed.isdisjoint(made)
        recomputed = made[0] in remade or again
        if not recomputed and value not in needed:
            continue
        kept, views = _split(nodes)
        store = schedule.store_of(value)
        if store is not None and not recomputed:
            for node in nodes:
                node.meta[NODE_KEY] = store
        for node in [one for one in kept if one not in foreign]:
            _write(node, CheckpointPolicy.MUST_RECOMPUTE if recomputed else CheckpointPolicy.MUST_SAVE)
        for node in [one for one in views if one not in foreign]:
            _write(node, CheckpointPolicy.MUST_RECOMPUTE)


def _split(nodes: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """The nodes of a value that stand for its elements, the operator and the node that takes it out of several results;
    and the views of these."""
    maker, *others = nodes
    parts = [node for node in others if node.target is operator.getitem and node.args[0] is maker]
    return [maker, *parts], [node for node in others if node not in parts]


def _write(node: Node, policy: CheckpointPolicy) -> None:
    node.meta["recompute"] = policy
    node.meta[_REGION] = 0
