"""Plans that are made by hand: each value of a model's graph waits for backward as a test says."""

import random
from contextlib import contextmanager
from dataclasses import replace

import integrations
from integrations.capture.capture import capture
from integrations.checkpoint import Plan
from integrations.planner.bounds import Bounds
from integrations.planner.choice import Choice, make_mask
from integrations.planner.storage_candidates import StorageCandidates
from integrations.policies.stores import Store
from integrations.tracing.tracker import CallTracker


@contextmanager
def _own_attention(recorder):
    tracker = CallTracker()

    def pack(tensor):
        return recorder.pack(tensor)

    tracker.pack = pack
    with tracker:
        yield pack


def graph_of(model, args, kwargs=None, rounded=False):
    """The model's graph; where ``rounded``, of the forward in which what backward reads may be rounded."""
    found = capture(model, args, kwargs, hooks=_own_attention if rounded else None)
    return found.as_rounded if rounded else found


def plan_of(model, graph, kept, stores=None, held=None):
    """The plan that keeps these values, and has these stores."""
    stores = tuple(sorted((stores or {}).items()))
    held = None if held is None else make_mask(held)
    choice = Choice(make_mask(kept), 0, 0.0, 0.0, held, stores, rounded=graph.rounded)
    plan = Plan(
        type(model).__name__, graph, choice, (choice,), 0, False, candidates=StorageCandidates.none(len(graph.values))
    )
    if not graph.rounded:
        return plan
    return replace(
        plan, rounded=graph, rounded_candidates=plan.candidates, bounds=Bounds(error=0.1, stores=plan.stores)
    )


def follow(model, graph, kept, stores=None, held=None, level="L0"):
    """The model, which follows that plan from now on."""
    options = {"checkpoint": plan_of(model, graph, kept, stores, held), "min_bytes": 0}
    return integrations.compress_model(model, level, **options)


def drawn(graph, seed, stores):
    """Values that are kept, and in which stores they and others wait, at random."""
    draw = random.Random(seed)
    values = range(len(graph.values))
    kept = {value for value in values if draw.random() < 0.5}
    chosen = {value: draw.choice(stores) for value in values if draw.random() < 0.7}
    return kept, {value: store for value, store in chosen.items() if store is not None}


EXACT = (None, Store())
ROUNDED = (None, Store(), Store(8), Store(6))
