"""Why a forward at an adaptive level cannot be measured. There is no plan then, and a warning says so."""

from __future__ import annotations

from collections.abc import Sequence

from integrations.api.handle.handle_state import HandleState
from integrations.planner.sensitivity.probe import Probe
from integrations.policies.rules import CHECKPOINT
from integrations.runtime.compiled import regions as compiled_regions
from integrations.tracing.history import MOST_NODES
from integrations.tracing.storage.records import Record

_TOO_LARGE = (
    f"the forward makes more than {MOST_NODES} nodes of autograd's graph, and torch cannot free one of which so many "
    "are looked at, so that all has the level's fixed bits; torch.compile and checkpoints make fewer"
)
_ROUNDED = "GroupAffine"  # the beginning of such a codec's name


def judge_measurement(handle: HandleState, probe: Probe, records: Sequence[Record]) -> None:
    """When a forward that was to be measured is over, notes why no plan can be made of it, and warns of it once.

    Where another thread's forward has begun meanwhile, it is that which is measured, or one that comes after it.
    """
    if probe.dropped and not probe.too_large:
        return
    handle.obstacle = "" if probe.sees else _TOO_LARGE if probe.too_large else _why_not(records)
    rounded = any(map(_is_rounded, records))
    if handle.obstacle and rounded and handle.bit_plan is None and not handle.in_trial:
        handle.warn_once("plan", f"{handle.name} makes no plan: {handle.obstacle}")


def _why_not(records: Sequence[Record]) -> str:
    places = [_get_place(record) for record in records if _is_rounded(record)]
    if not places:
        return "nothing is quantised, so there are no bits to plan"
    listed = " and ".join(sorted(set(places)))
    return f"all that is quantised is {listed}, where nothing can be measured, and has the level's fixed bits"


def _is_rounded(record: Record) -> bool:
    """Whether the session has rounded the tensor, rather than a layer that stores for itself."""
    return record.codec.startswith(_ROUNDED) and record.parts is None


def _get_place(record: Record) -> str:
    if record.saved.role == compiled_regions.ROLE:
        return "in compiled code"
    if record.saved.operator == CHECKPOINT:
        return "an input of a checkpoint"
    return "where no node of autograd's graph is seen, as under torch.vmap"
