"""``training_step``: a graph in the numbers that actcore's search works on."""

from __future__ import annotations

from actcore import TrainingStep
from integrations.checkpoint.graphs.graph import Graph


def training_step(graph: Graph) -> TrainingStep:
    """The graph's operators, values and steps; gradients are in its ``other``, those of the parameters included."""
    return TrainingStep(
        nbytes=[value.nbytes for value in graph.values],
        reads=[op.reads for op in graph.ops],
        makes=[op.makes for op in graph.ops],
        seconds=[op.seconds for op in graph.ops],
        backward=[step.reads for step in graph.steps],
        other=graph.other,
        repeatable=[op.repeatable for op in graph.ops],
        scratch=[op.scratch for op in graph.ops],
        reuses=[_or_none(value.reuses) for value in graph.values],
        until=[_or_none(value.until) for value in graph.values],
    )


def _or_none(number: int) -> int | None:
    return None if number < 0 else number
