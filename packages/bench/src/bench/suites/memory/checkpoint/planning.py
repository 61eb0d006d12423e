"""Plans of an architecture, and the sizes at which it is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from bench.errors import reason
from bench.models.architectures import Architecture
from bench.suites.memory.checkpoint.entries import Planned
from bench.suites.memory.checkpoint.step import LONG, Setup, build, make_inputs
from bench.ways.checkpoints import CheckpointWay, exchanged
from integrations import checkpoint
from integrations.checkpoint import Plan, paper_segments


class Planner:
    """A model's plans, each made when it is first asked for.

    Args:
        architecture: the model.
        setup: how it and its inputs are made.
    """

    def __init__(self, architecture: Architecture, setup: Setup) -> None:
        self._architecture = architecture
        self._setup = setup
        self._made: dict[tuple[int, int, bool, bool], Plan | Exception] = {}

    def at(self, batch: int, size: int) -> Plan:
        """The plan with the least peak, for inputs of that size.

        Raises:
            Exception: as planning does, every time.
        """
        return self._found(batch, size, measure=False)

    def with_workspaces(self, batch: int, size: int, masks: bool = False) -> Plan:
        """The same, with what kernels take beside their tensors measured, where a step does not take long.

        Args:
            batch, size: of the inputs.
            masks: as a ``CheckpointWay`` has it.

        Raises:
            Exception: as planning does, every time.
        """
        return self._found(batch, size, self.at(batch, size).plain_seconds <= LONG, masks)

    def _found(self, batch: int, size: int, measure: bool, masks: bool = False) -> Plan:
        asked = batch, size, measure, masks
        if asked not in self._made:
            self._made[asked] = self._plan(*asked)
        found = self._made[asked]
        if isinstance(found, Exception):
            raise found
        return found

    def numbers(self, batch: int, size: int) -> Planned:
        """What to record of it; why there is none, if there is none."""
        blank = Planned(self._architecture.name, batch, size)
        try:
            return plan_numbers(self.at(batch, size), blank)
        except Exception as error:  # whatever planning fails with, other models are to be planned for
            return replace(blank, failure=reason(error))

    def of(self, way: CheckpointWay, batch: int, size: int) -> Plan | None:
        """The plan that a way follows; ``None`` if it follows none.

        Raises:
            Exception: as planning does, every time.
            ValueError: there is no plan with so low a peak.
        """
        if way.kind != "planned":
            return None
        least = self.with_workspaces(batch, size, way.masks)
        return least if way.part is None else least.within(way.part)

    def _plan(self, batch: int, size: int, measure: bool, masks: bool) -> Plan | Exception:
        try:
            model = exchanged(CheckpointWay("planned", masks=masks), build(self._architecture, self._setup))
            inputs = make_inputs(self._architecture, batch, size, self._setup)
            return checkpoint.plan(model, inputs, measure=measure)
        except Exception as error:  # kept: planning again would fail again
            return error


def plan_numbers(plan: Plan, blank: Planned) -> Planned:
    """What to record of a plan."""
    seconds = plan.plain_seconds
    return replace(
        blank,
        plain_bytes=plan.plain_peak,
        peaks=[choice.peak for choice in plan.front],
        overheads=[choice.seconds / seconds for choice in plan.front],
        bound_bytes=plan.peak_bound,
        segments=len(plan.segments),
        gradient_bytes=plan.graph.gradients,
        plain_seconds=seconds,
        capture_seconds=plan.capture_seconds,
        search_seconds=plan.search_seconds,
        paper_cut=paper_segments(plan.graph).cut,
        note=plan.graph.note,
    )


SMALL_BATCH, SMALL_SIZE = 4, 96
_SMALL: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        # With fewer words the gradients, which are in no activation peak, are more than all activations together.
        "bert": (4, 256),
        "gpt2": (4, 256),
        "llama": (4, 256),
        "swin": (2, 224),  # takes no other size
        "unet": (1, 188),  # the least that its unpadded convolutions leave something of
    }
)


def small(architecture: Architecture) -> tuple[int, int]:
    """Batch and size at which a step takes seconds at most."""
    return _SMALL.get(architecture.name, (SMALL_BATCH, min(architecture.size, SMALL_SIZE)))


def fitting(planner: Planner, batch: int, size: int, limit: int) -> int:
    """The batch itself, or the largest power of two below whose plain step fits.

    Args:
        planner: of the model.
        batch, size: of the inputs.
        limit: bytes for the activation peak, the parameters and their gradients.

    Raises:
        Exception: as planning does.
    """
    while batch > 1:
        plan = planner.at(batch, size)
        if plan.plain_peak + 2 * plan.graph.gradients <= limit:
            break
        batch = 1 << (batch - 1).bit_length() - 1
    return batch
