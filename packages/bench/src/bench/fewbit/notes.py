"""What stands below the tables of ``python -m bench fewbit``: what the numbers are, and what was asked of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean
from types import MappingProxyType

from rich.text import Text

from bench.fewbit import grid, published
from bench.fewbit.measure import SEEDS
from bench.fewbit.results import FewBitResults, GridCell, Times
from bench.fewbit.roberta import ATTENTION, DROPOUT, RATIO, WAYS, Shape
from bench.fewbit.step_time import ELEMENTS, FEATURES
from bench.fewbit.training import BITS, COMPRESSED, CONTROL, FEW_BITS, STRIDE

SAVINGS: Mapping[str, float] = MappingProxyType(
    {name: published.ROWS[way.bits, way.ratio].saving for name, way in WAYS.items()}
)
"""What FewBit's table has, of the peak."""

LOSS = 0.01  # relative, at most
NATS = 1.0  # that the exact run learns at least
TIME = 1.0  # over torch's, of GELU

JUDGED = "gelu"


def judged_memory(results: FewBitResults) -> bool:
    """Whether the network is the one that something was asked of."""
    return str(Shape()) in results.network


def least_of(cell: GridCell) -> float | None:
    """The saving that is asked of a cell of the grid: what FewBit's table has; ``None``: nothing is."""
    row = published.ROWS.get((cell.bits, cell.ratio))
    return row.saving if row is not None and row.saving and cell.network == grid.network(Shape()) else None


def judged_training(results: FewBitResults, kind: str) -> bool:
    """Whether there are as many runs as were asked for, of a kind that something was asked of; the control is judged
    with one, and must miss it."""
    return results.held_out(kind).seeds >= (1 if kind == CONTROL and results.held_out().seeds >= SEEDS else SEEDS)


def learned(results: FewBitResults) -> float:
    """By how many nats the exact loss of the words held out is below their entropy, the mean over seeds."""
    return results.entropy - fmean(results.held_out().exact)


def judged_time(results: FewBitResults, times: Times) -> bool:
    """Whether something was asked of it."""
    return results.device == "cpu" and times.name == JUDGED and times.elements >= ELEMENTS


def notes(results: FewBitResults) -> Text:
    """A paragraph a part that was run, and what was asked of it."""
    lines = list(_lines(results))
    if targets := "; ".join(_targets(results)):
        lines.append(f"✓ reached, ✗ not: {targets}.")
    return Text("\n".join(lines), style="dim")


def _lines(results: FewBitResults) -> Iterator[str]:
    for reason in results.skipped:
        yield f"Left out: {reason}."
    if results.peaks:
        yield (
            f"memory: {results.network}; batch {results.batch}, sequences of different lengths padded to one. "
            f"randomized linear: every linear layer of the encoder keeps a sketch of {RATIO:.0%} of its input's rows. "
            "kept: bytes that live after the forward and did not before. activation peak: the most during forward and "
            "backward, less what was there before and the gradients. with gradients: the same, gradients left in. raw: "
            f"the most in all, {'the process and' if results.device == 'cpu' else 'with'} the weights."
        )
        yield from sorted({f"Not measured: {one.not_measured}." for one in results.peaks if one.not_measured})
    if results.grid:
        yield (
            f"grid: RoBERTa, {'; '.join(dict.fromkeys(cell.network for cell in results.grid))}; {ATTENTION} attention, "
            f"dropout {DROPOUT:g}, float32; measured as in the part memory. saving: of the activation peak, and of all "
            "that is in memory, of the exact network's with the same batch."
        )
        yield from (
            f"{cell.name}, batch {cell.batch}: failed: {cell.failure}." for cell in results.grid if cell.failure
        )
    if results.peaks or results.grid:
        yield f"published: {published.SOURCE}; of all that is in memory."
    if results.runs:
        yield f"Data: {results.data}."
        yield f"Recipe: {', '.join(f'{name} {value:g}' for name, value in results.recipe.items())}."
        yield (
            "training: runs of a seed share initial weights, order, masks and dropout. Losses in nats a word that was "
            f"to be guessed; training loss: the mean of the last {STRIDE} steps. The words held out have an entropy of "
            f"{results.entropy:.3f} nats, the least loss of whoever knows their frequencies alone; exact training is "
            f"{learned(results):.2f} nats below it. {COMPRESSED}: compress_model(model, 'L1', activations={BITS}). "
            f"{CONTROL}: all gradients set to zero, which shows that the comparison can fail."
        )
    if results.times:
        first = results.times[0]
        yield (
            f"time: forward and backward over torch's own, in turn; median over median of {len(first.seconds)} rounds. "
            + " ".join(_sizes(results))
        )


def _sizes(results: FewBitResults) -> Iterator[str]:
    elements = {times.what: times.elements for times in results.times}
    if "activation" in elements:
        yield f"Activations of {elements['activation']:,} float32 elements."
    if "linear" in elements:
        features, outputs = FEATURES
        rows = elements["linear"] // features
        yield f"Linear layers of {rows:,} x {features} -> {outputs:,}, {RATIO:.0%} of the rows kept."


def _targets(results: FewBitResults) -> Iterator[str]:
    if (results.peaks and judged_memory(results)) or any(map(least_of, results.grid)):
        savings = ", ".join(f"{100 * part:.1f} %" for part in SAVINGS.values() if part)
        yield f"activation peak smaller by at least {savings}"
    if results.runs and judged_training(results, FEW_BITS):
        yield f"mean loss within {LOSS:.0%} of the exact one's, which is at least {NATS:g} nat below the entropy"
    if any(judged_time(results, times) for times in results.times):
        yield f"{JUDGED} at most {TIME:.1f} times torch's"
