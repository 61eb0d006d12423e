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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from actcore import checkpoint_plans, simulate
from integrations._utils.compiling import compiles_with_inductor
from integrations._utils.torch_internals import (
    INDUCTOR,
    callback_handler,
    custom_partitioner_fn,
    inductor_config,
    min_cut_partition,
)
from integrations.capture.costs.calibrating import calibrated
from integrations.capture.graphs.graph import Graph
from integrations.capture.graphs.schedule import Schedule
from integrations.planner.budget import LEAST, allowed_bytes
from integrations.planner.errors import BudgetError
from integrations.planner.plan import Plan
from integrations.planner.problem import training_step
from integrations.report.words import format_bytes
from integrations.runtime.compiled.graph_memory import GraphMemory
from integrations.runtime.compiled.joint_step import TANGENTS, JointStep, count_workspace
from integrations.runtime.compiled.sizes import Limits

_REGION = "ac_graph_id"  # torch compares it where checkpoints follow each other

JOINT = "joint"
"""The key in ``Plan.others`` of the plan that a compiled graph follows."""

_SETTING = "custom_partitioner_fn"

_SHARED = 0.8
"""The part of a budget that the graphs share into which a forward breaks. The rest is for what they hand on."""

_ATTEMPTS = 5
"""How often a graph is divided until it keeps to its budget."""

_here = threading.local()  # .plan: of the graph that is traced in this thread


@dataclass(frozen=True)
class JointPlan:
    """What is kept and recomputed of a joint graph.

    Attributes:
        recomputed: how many values backward recomputes.
        peak: bytes of the activation peak, as counted.
        held: bytes that are alive between forward and backward.
    """

    recomputed: int
    peak: int
    held: int


joint_plans: WeakKeyDictionary[FxGraph, JointPlan] = WeakKeyDictionary()
"""By the forward graph that inductor gets: what the joint graph's plan has found."""


def require_together(plan: Plan, found: Sequence[JointPlan]) -> None:
    """Checks a forward that has run several compiled graphs.

    Args:
        plan: the plan of the eager step.
        found: the graphs' plans, in the order of their runs; one that has run twice is there twice.

    Raises:
        BudgetError: together they exceed the budget.
    """
    held = sum(one.held for one in found)
    peak = held + max(one.peak - one.held for one in found)
    plan.others[JOINT] = JointPlan(sum(one.recomputed for one in found), peak, held)
    _require_budget(plan, peak, f"the {len(found)} graphs into which it breaks")


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


def partition(gm: GraphModule, joint_inputs: Sequence[object], options: dict[str, Any]) -> Any:
    """The forward and the backward graph of a joint graph.

    Of sizes that vary, the largest are counted for which the graph runs. For larger ones it is compiled anew.

    Torch orders backward by itself, so the peak is counted once more on the two graphs; where it is above the budget,
    the next plan has so much less.

    Args:
        gm: the joint graph.
        joint_inputs: its inputs.
        options: those of torch's partitioner.
    """
    plan = forget_expected()
    if plan is None:
        return min_cut_partition()(gm, joint_inputs, **options)
    limits = Limits(gm.graph, plan.graph.inputs)
    with limits.counted():
        divided = _divide(gm, joint_inputs, options, plan, limits.exceeds)
    if _has_bytes(plan):
        limits.hold()
    return divided


def _divide(gm: GraphModule, joint_inputs: Sequence[object], options: dict[str, Any], plan: Plan, larger: bool) -> Any:
    """The two graphs. Of inputs that are larger than the planned ones, a fraction is that of their own step."""
    in_parts = getattr(_here, "parts", None) is plan
    count: int = options["num_fwd_outputs"]
    most = target = _allowed(plan)
    best: tuple[JointPlan, Any] | None = None
    for _ in range(_ATTEMPTS):
        step = JointStep(gm, count, calibrated)
        graph = _in_state(step.graph, plan)
        if best is None and (in_parts or larger):
            plain = simulate(training_step(graph), [True] * len(graph.values)).peak - graph.gradients
            if in_parts:
                most = target = int(_SHARED * plain * _allowed(plan) / max(plan.uncompressed_peak, 1))
            else:
                most = target = _allowed(plan, max(plain, plan.uncompressed_peak))
        schedule, peak, is_least = search(graph, target)
        _mark(gm, step, schedule)
        forward, backward = divided = min_cut_partition()(gm, joint_inputs, **options)
        counted, held = count_peak(forward, backward, count, plan)
        found = JointPlan(len(schedule.recomputed), max(peak, counted), held)
        if best is None or found.peak < best[0].peak:
            best = found, divided
        if found.peak <= most or is_least:
            break
        target -= found.peak - most
    assert best is not None
    if not in_parts:
        _require_budget(plan, best[0].peak, "its graph", most)
        plan.others[JOINT] = best[0]
    joint_plans[best[1][0].graph] = best[0]
    return best[1]


def _allowed(plan: Plan, plain: int | None = None) -> int:
    """The bytes of a plan's budget; of its peak if it has none, or asks for the least.

    Args:
        plan: the plan.
        plain: bytes of the step that keeps everything; ``None``: as planned.
    """
    asked = allowed_bytes(plan.memory, plan.uncompressed_peak if plain is None else plain)
    return plan.peak if asked is None else asked


def _has_bytes(plan: Plan) -> bool:
    """Whether the compiled step has a budget in bytes that it may not exceed."""
    return plan.memory is not None and plan.memory != LEAST and not plan.bounds.falls_back


def _require_budget(plan: Plan, peak: int, what: str, most: int | None = None) -> None:
    """Raises ``BudgetError`` if a compiled step exceeds the budget, and may not.

    Args:
        plan: the plan of the eager step.
        peak: the compiled step's, in bytes.
        what: what was compiled, in words.
        most: the bytes that it may take; ``None``: those of the plan's budget.
    """
    most = _allowed(plan) if most is None else most
    if peak <= most or not _has_bytes(plan):
        return
    refuse(
        f"{plan.model} under torch.compile: {what} would take {peak} bytes ({format_bytes(peak)}) at its peak, and "
        f"memory={plan.memory!r} allows {most}. torch.compile takes operators apart, and others than the eager step's "
        f"are alive at once. Pass memory={peak}, or fallback='least', or have the model follow its plan in eager code "
        "with torch.compiler.disable(model)"
    )


def refuse(why: str) -> NoReturn:
    """Raises ``BudgetError`` for a plan that compiled code cannot follow, in its forward if torch is compiling it."""
    error = _here.failure = BudgetError(why)
    raise error


def has_promise(plan: Plan) -> bool:
    """Whether a step that does not follow the plan breaks what the user was promised."""
    return plan.memory is not None and not plan.bounds.falls_back


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
    digest.update(f"{plan.choice.content()} {plan.memory} {plan.bounds.falls_back}".encode())
    return digest.hexdigest()


def take_failure(error: BaseException | None) -> BudgetError | None:
    """The error for which a graph was not divided in this thread, if torch has wrapped it in this one."""
    failure: BudgetError | None = getattr(_here, "failure", None)
    _here.failure = None
    seen = list[BaseException]()
    while failure is not None and error is not None and error is not failure and error not in seen:
        seen.append(error)
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
    return None if error is None else failure


def expect(plan: Plan) -> bool:
    """Has the joint graph that is being traced in this thread divided by a plan, of which nothing is rounded. Returns
    whether it will be: only inductor asks a partitioner, and not this one if the user has set another."""
    return compiles_with_inductor() and _set(plan)


def _set(plan: Plan) -> bool:
    if INDUCTOR not in sys.modules or plan.compressed:
        return False
    config, ours = inductor_config(), _make_partitioner()
    if ours is None or getattr(config, _SETTING, ours) not in (None, ours):
        return False
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


def search(graph: Graph, most: int) -> tuple[Schedule, int, bool]:
    """The fastest schedule of a joint graph whose peak is at most so many bytes, or else the one of the least peak; its
    activation peak; and whether that is the least.

    Args:
        graph: the joint graph's step.
        most: the bytes.
    """
    front = checkpoint_plans(training_step(graph)).front
    flat = [one for one in front if one.held is None]  # torch repeats nothing twice
    least = min(flat, key=lambda one: one.peak)
    fitting = [one for one in flat if one.peak - graph.gradients <= most]
    best = min(fitting, key=lambda one: (one.seconds, one.peak), default=least)
    kept = [value for value, is_kept in enumerate(best.kept) if is_kept]
    return Schedule.of(graph, kept), best.peak - graph.gradients, best is least


def _in_state(graph: Graph, plan: Plan) -> Graph:
    """The step of a joint graph in the state of the gradients that a plan is for."""
    if plan.graph.accumulates:
        return replace(graph, gradients=0, accumulates=True)
    return graph.clearing if plan.graph.clears else graph


def count_peak(forward: GraphModule, backward: GraphModule, forward_outputs: int, plan: Plan) -> tuple[int, int]:
    """The activation peak of a compiled step, and what is alive between its forward and its backward, in bytes.

    Args:
        forward, backward: its graphs.
        forward_outputs: how many of the forward's results are the model's.
        plan: the plan of the eager step, for the state of its gradients.
    """
    outputs = list(forward.graph.output_node().args[0])  # type: ignore[arg-type]
    ahead = GraphMemory(forward.graph, lambda node: False, lambda node: True)
    made = ahead.kernels()
    peaks = ahead.alive(made, ahead.memories.values(), ahead.lasting)
    peaks = [nbytes + count_workspace(node) for node, nbytes in zip(made, peaks, strict=True)]
    returned = {
        one for node in outputs[:forward_outputs] if isinstance(node, Node) for one in ahead.find_memories(node)
    }
    held = sum(one.nbytes for one in returned)
    saved = {node.name for node in outputs[forward_outputs:] if isinstance(node, Node) and ahead.find_memories(node)}
    shared = {node.name for node in outputs if isinstance(node, Node) and returned & {*ahead.find_memories(node)}}
    behind = GraphMemory(
        backward.graph,
        lambda node: node.name.startswith(TANGENTS) or (node.name in saved and node.name not in shared),
        lambda node: True,
    )
    kernels = behind.kernels()
    alive = behind.alive(kernels, behind.memories.values(), behind.lasting)
    alive = [nbytes + count_workspace(node) for node, nbytes in zip(kernels, alive, strict=True)]
    gradients = sum(one.nbytes for one in behind.lasting if one.maker.op == "call_function")
    standing = gradients if plan.graph.clears else 0
    most = [nbytes + standing for nbytes in peaks]
    most += [held + nbytes for nbytes in alive]
    between = sum(one.nbytes for one in ahead.lasting)
    return max(most, default=0) - (0 if plan.graph.accumulates else gradients), between


def _mark(joint: GraphModule, step: JointStep, schedule: Schedule) -> None:
    """Writes to the nodes of a joint graph what torch's partitioner is to keep and to recompute."""
    graph = schedule.graph
    read_again = {
        value for op, planned in zip(graph.ops, schedule.ops, strict=True) if planned.segment >= 0 for value in op.reads
    }
    for node in joint.graph.nodes:
        node.meta.pop("recompute", None)
        node.meta.pop(_REGION, None)
    for node in step.fused:
        _write(node, CheckpointPolicy.MUST_RECOMPUTE)
    remade = {op.makes[0] for op in graph.ops if not schedule.recomputed.isdisjoint(op.makes)}
    for value, nodes in enumerate(step.nodes):
        # An operator with several results is repeated for all of them.
        recomputed = graph.ops[graph.values[value].producer].makes[0] in remade
        if not recomputed and graph.values[value].saved < 0 and value not in read_again:
            continue
        kept, views = _split(nodes)
        for node in kept:
            _write(node, CheckpointPolicy.MUST_RECOMPUTE if recomputed else CheckpointPolicy.MUST_SAVE)
        for node in views:
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
