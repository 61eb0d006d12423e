"""Part ``grid``: RoBERTa's peak for every number of bits of GELU and every ratio of randomized linear layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from bench.errors import BenchError
from bench.fewbit import memory
from bench.fewbit.results import GridCell, Peak
from bench.fewbit.roberta import Shape, Way
from bench.memory import child_answer

BITS = (None, 1, 2, 3, 4)  # of GELU; None is the exact one
RATIOS = (None, 0.5, 0.2, 0.1)  # of the rows that linear layers keep; None is all, exactly
QUICK_BITS, QUICK_RATIOS = (None, 3), (None, 0.2)


def network(shape: Shape) -> str:
    """A shape in words that tell it from others."""
    return f"{shape}, {shape.vocabulary:,} words"


def cells(shape: Shape, batch: int, quick: bool) -> list[GridCell]:
    """Those of the grid, without numbers."""
    ratios = QUICK_RATIOS if quick else RATIOS
    return [
        GridCell(bits, ratio, network(shape), batch) for ratio in ratios for bits in (QUICK_BITS if quick else BITS)
    ]


def measure(
    shape: Shape,
    wanted: Sequence[GridCell],
    threads: int,
    device: torch.device,
    found: Sequence[GridCell],
    commit: str,
    keep: Callable[[list[GridCell], str], None],
) -> None:
    """Measures the cells that are not among those found, or failed there, each in a process of its own.

    Args:
        shape: of the network.
        wanted: without numbers.
        threads: of torch's operators.
        device: whose memory it is.
        found: earlier.
        commit: that a cell is measured with.
        keep: called for each of ``wanted``, with all cells that there are by then and with what is new.
    """
    known = {cell.identity: cell for cell in found}
    for cell in wanted:
        earlier = known.get(cell.identity)
        if earlier is None or earlier.failure:
            known[cell.identity] = replace(_measured(cell, shape, threads, device), commit=commit)
        keep(sorted(known.values(), key=_place), f"grid, {cell.name}")


def _place(cell: GridCell) -> tuple[str, int, int, int]:
    return cell.network, cell.batch, RATIOS.index(cell.ratio), BITS.index(cell.bits)


def _measured(cell: GridCell, shape: Shape, threads: int, device: torch.device) -> GridCell:
    way = Way(cell.bits, cell.ratio)
    request = memory.request(cell.name, way, shape, cell.batch, memory.STEPS, threads, device)
    try:
        peak = Peak(**child_answer(memory.MODULE, request))
    except BenchError as error:
        return replace(cell, failure=str(error))
    if peak.not_measured:
        return replace(cell, failure=peak.not_measured)
    return replace(cell, peak=peak)
