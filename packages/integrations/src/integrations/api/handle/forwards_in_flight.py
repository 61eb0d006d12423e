"""``ForwardsInFlight``: the forwards of a model that have not had their backward, whether the memory budget allows one
more, and whether the plan counts as many."""

from __future__ import annotations

import gc
import threading
from typing import Any
from weakref import WeakSet

import torch
from torch.autograd.graph import Node

from integrations._utils.locking import OwnLock
from integrations._utils.torch_internals import (
    current_autograd_node,
    get_current_graph_task_keep_graph,
    get_sequence_nr,
)
from integrations._utils.warn import warn
from integrations.planner.budget import allowed_bytes, read_fraction
from integrations.planner.errors import BudgetError
from integrations.planner.plan import Plan
from integrations.planner.plans import Plans
from integrations.report.words import format_bytes
from integrations.runtime.compiled.joint_plans import JOINT, JointPlan
from integrations.tracing.tensors import MOST_NODES, find_backward_node, tensors_in


class _InFlight:
    """A forward whose saved tensors are alive. The nodes of its graph hold it.

    Attributes:
        plan: the plan that it follows.
        thread: in which it runs.
        begin: the number of its first node.
        is_over: whether a backward has begun that frees its graph: no forward starts in this thread until it has ended.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.thread = plan, threading.get_ident()
        self.begin, self.is_over = get_sequence_nr(), False

    @property
    def held_and_peak(self) -> tuple[int, int]:
        """Bytes that it holds until its backward, and its peak if no other forward is in flight."""
        plan = self.plan
        joint: JointPlan | None = plan.others.get(JOINT)
        if joint is None:
            return plan.held, plan.peak_alone
        others = plan.graph.in_flight - 1
        beside_gradients = plan.peak_alone - (plan.peak - others * plan.held)
        return joint.held, joint.peak - others * joint.held + beside_gradients


class ForwardsInFlight:
    """Count the forwards in flight: those whose backward is not over, and whose graph somebody holds. Each thread that
    runs the model has a budget of its own.

    A backward that retains the graph frees nothing. Schedules that split backward retain it for the gradients of the
    weights, and drop the outputs.

    Attributes:
        unplanned: the most forwards that were in flight at once, if their plan counts fewer; otherwise 0.
    """

    def __init__(self) -> None:
        self.unplanned = 0
        self._lock = OwnLock()
        self._known: WeakSet[_InFlight] = WeakSet()
        self._started: dict[int, _InFlight] = {}  # by thread: a forward that has not returned

    def start(self, plans: Plans, plan: Plan) -> None:
        """Note that a forward starts in this thread.

        Args:
            plans: the model's plans.
            plan: the plan that it follows, for the state of its gradients.

        Raises:
            BudgetError: with those in flight it would exceed the memory budget.
        """
        self._started.pop(threading.get_ident(), None)
        new = _InFlight(plan)
        others = self._others()
        # A budget in bytes may allow more forwards than the plan counts. Without one, each of them is too many.
        bytes_promised = plans.asked.promises_bytes
        is_news = len(others) >= max(plan.graph.in_flight, self.unplanned)
        if is_news if not bytes_promised else len(others) >= plan.graph.in_flight and _excess(plans, [*others, new]):
            del others
            gc.collect()  # what holds a graph may be a cycle
            others = self._others()
            if bytes_promised and (why := _excess(plans, [*others, new])):
                raise BudgetError(why)
        if len(others) >= plan.graph.in_flight:
            if not self.unplanned and not bytes_promised:
                warn(
                    f"{_describe(plan, len(others))}, so a step may take more memory than planned. "
                    f"{_remedy(len(others))}"
                )
            self.unplanned = max(self.unplanned, len(others) + 1)
        with self._lock.held:
            self._known.add(new)
        self._started[threading.get_ident()] = new

    def after_forward(self, result: Any) -> None:
        """Note that this thread's forward has returned ``result``."""
        started = self._started.pop(threading.get_ident(), None)
        if started is not None:
            hook = _Backward(started)
            for node in {find_backward_node(tensor) for tensor in tensors_in(result)}:
                if node is not None:
                    node.register_prehook(hook)

    def _others(self) -> list[_InFlight]:
        """Return the forwards in flight of this thread."""
        thread = threading.get_ident()
        with self._lock.held:
            return [one for one in self._known if one.thread == thread and not one.is_over]

    def __reduce__(self) -> tuple[Any, ...]:
        return ForwardsInFlight, ()


class _Backward:
    """A hook that runs when a backward reaches an output of a forward. If the backward retains the graph, it also runs
    at the graph's first node, to which all others lead, and keeps the forward in flight as long as that node."""

    def __init__(self, forward: _InFlight) -> None:
        self._forward, self._is_at_first = forward, False

    def __call__(self, gradients: Any) -> None:
        # Dynamo, which does not know the function, traces hooks for compiled autograd, which frees graphs by itself.
        if torch.compiler.is_dynamo_compiling() or not get_current_graph_task_keep_graph():
            self._forward.is_over = True
        elif not self._is_at_first and (node := current_autograd_node()) is not None:
            self._is_at_first = True
            _first_node(node, self._forward.begin).register_prehook(self)


def _first_node(node: Node, begin: int) -> Node:
    """Return the node that was made first, on the way from a node to those that were made before a forward."""
    for _ in range(MOST_NODES):
        others = [one for one, _ in node.next_functions if one is not None and one._sequence_nr() >= begin]
        earlier = [one for one in others if one._sequence_nr() < node._sequence_nr()]
        if not earlier:
            break
        node = min(earlier, key=lambda one: one._sequence_nr())
    return node


def _excess(plans: Plans, forwards: list[_InFlight]) -> str:
    """Return why the last of some forwards must not start, in words; empty if it may.

    Args:
        plans: the model's plans.
        forwards: those that would be in flight.
    """
    plan = forwards[-1].plan
    count, known = len(forwards), plan.graph.in_flight
    if count <= known:
        return ""  # also where they follow different plans, each of which fits with so many forwards
    taken = [one.held_and_peak for one in forwards]
    total = sum(held for held, _ in taken) + max(peak - held for held, peak in taken)
    memory = plans.asked.memory
    whole = 0 if read_fraction(memory) is None else max(plan.whole, plan.plain_peak_with(count))
    allowed = allowed_bytes(memory, whole)
    if allowed is None or total <= allowed:
        return ""
    return (
        f"{_describe(plan, count - 1)}. With this one they would take {total} bytes ({format_bytes(total)}), and "
        f"memory={memory!r} allows {allowed}. {_remedy(count - 1)}; or pass fallback='least' to continue with more "
        "memory"
    )


def _describe(plan: Plan, others: int) -> str:
    """Return how many forwards are in flight before one more starts, as the beginning of a sentence."""
    forwards = "1 forward" if others == 1 else f"{others} forwards"
    return (
        f"{plan.model} has {forwards} in flight, whose backward is not over, when another one starts, but its plan "
        f"counts {plan.graph.in_flight} at once"
    )


def _remedy(others: int) -> str:
    """Return what to do if so many forwards are in flight before one more starts."""
    return (
        f"Pass in_flight={others + 1} with memory=, or the most that are ever in flight; or run backward earlier and "
        "without retain_graph=True; or delete outputs that have no backward, and their losses"
    )
