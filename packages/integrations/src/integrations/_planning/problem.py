"""``training_step``: a graph in the numbers that actcore's search works on."""

from __future__ import annotations

from dataclasses import replace

from actcore import TrainingStep
from integrations._planning.menus import Menus
from integrations._step.graphs.graph import Graph


def training_step(graph: Graph, menus: Menus | None = None) -> TrainingStep:
    """The graph's operators, values and steps; gradients are in its ``other``, those of the parameters included.

    Args:
        graph: of the model.
        menus: the stores that its values may wait in; ``None``: they are kept as they are or recomputed.
    """
    step = TrainingStep(
        nbytes=[value.nbytes for value in graph.values],
        reads=[op.reads for op in graph.ops],
        makes=[op.makes for op in graph.ops],
        seconds=[op.repeat_seconds for op in graph.ops],
        backward=[step.reads for step in graph.steps],
        other=graph.other,
        repeatable=[op.repeatable for op in graph.ops],
        scratch=[op.scratch for op in graph.ops],
        reuses=[_or_none(value.reuses) for value in graph.values],
        until=[_or_none(value.until) for value in graph.values],
    )
    if menus is None:
        return step
    return replace(
        step,
        seconds=[seconds + menus.repeating for seconds in step.seconds],
        forms=menus.options,
        weights=menus.weights,
        aside=menus.aside,
        stored_at=[_or_none(event) for event in menus.stored_at],
        formed=[any(option.store is None for option in row) for row in menus.options],
    )


def _or_none(number: int) -> int | None:
    return None if number < 0 else number
