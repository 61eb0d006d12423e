"""What stands below the tables of ``python -m bench fewbit``, and what was asked of the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType

from bench.fewbit import published
from bench.fewbit.measure import SEEDS
from bench.fewbit.memory import grid_network
from bench.fewbit.results import COMPRESSED, CONTROL, FEW_BITS, BertRun, GridCell, Peak, Times, held_out
from bench.fewbit.roberta import ATTENTION, BITS, DROPOUT, RATIO, WAYS, Shape
from bench.fewbit.step_time import ELEMENTS, FEATURES
from bench.fewbit.training import STRIDE
from bench.results.record import Record

SAVINGS: Mapping[str, float] = MappingProxyType(
    {name: published.ROWS[way.bits, way.ratio].saving for name, way in WAYS.items()}
)
"""What FewBit's table has, of the peak."""

LOSS = 0.01  # relative, at most
NATS = 1.0  # that the exact run learns at least
TIME = 1.0  # over torch's, of GELU

JUDGED = "gelu"


def judged_memory(peak: Peak) -> bool:
    """Whether the network is the one that something was asked of."""
    return str(Shape()) in peak.network


def least_of(cell: GridCell) -> float | None:
    """The saving that is asked of a cell of the grid: what FewBit's table has; ``None``: nothing is."""
    row = published.ROWS.get((cell.bits, cell.ratio))
    return row.saving if row is not None and row.saving and cell.network == grid_network(Shape()) else None


def judged_training(record: Record, kind: str) -> bool:
    """Whether there are as many runs as were asked for, of a kind that something was asked of; the control is judged
    with one, and must miss it."""
    return held_out(record, kind).seeds >= (1 if kind == CONTROL and held_out(record).seeds >= SEEDS else SEEDS)


def learned(record: Record) -> float:
    """By how many nats the exact loss of the words held out is below their entropy, the mean over seeds."""
    return float(record.settings["entropy"]) - fmean(held_out(record).exact)


def judged_time(record: Record, times: Times) -> bool:
    """Whether something was asked of it."""
    return record.settings["device"] == "cpu" and times.name == JUDGED and times.elements >= ELEMENTS


def notes(record: Record) -> Iterator[str]:
    """A paragraph a part that was run."""
    settings = record.settings
    if peaks := record.of(Peak):
        networks = "; ".join(dict.fromkeys(f"{one.network}; batch {one.batch}" for one in peaks))
        yield (
            f"memory: {networks}, sequences of different lengths padded to one. "
            f"randomized linear: every linear layer of the encoder keeps a sketch of {RATIO:.0%} of its input's rows. "
            "kept: bytes that live after the forward and did not before. activation peak: the most during forward and "
            "backward, less what was there before and the gradients. with gradients: the same, gradients left in. raw: "
            f"the most in all, {'the process and' if settings['device'] == 'cpu' else 'with'} the weights."
        )
        yield from sorted({f"Not measured: {one.not_measured}." for one in peaks if one.not_measured})
    if grid := record.of(GridCell):
        yield (
            f"grid: RoBERTa, {'; '.join(dict.fromkeys(cell.network for cell in grid))}; {ATTENTION} attention, "
            f"dropout {DROPOUT:g}, float32; measured as in the part memory. saving: of the activation peak, and of all "
            "that is in memory, of the exact network's with the same batch."
        )
        yield from (f"{cell.name}, batch {cell.batch}: {cell.reason}." for cell in grid if cell.reason)
    if peaks or grid:
        yield f"published: {published.SOURCE}; of all that is in memory."
    if record.of(BertRun):
        yield f"Data: {settings['data']}."
        yield f"Recipe: {', '.join(f'{name} {value:g}' for name, value in settings['recipe'].items())}."
        yield (
            "training: runs of a seed share initial weights, order, masks and dropout. Losses in nats a word that was "
            f"to be guessed; training loss: the mean of the last {STRIDE} steps. The words held out have an entropy of "
            f"{settings['entropy']:.3f} nats, the least loss of whoever knows their frequencies; exact training is "
            f"{learned(record):.2f} nats below it. {COMPRESSED}: compress_model(model, 'L1', activations={BITS}). "
            f"{CONTROL}: all gradients set to zero, which shows that the comparison can fail."
        )
    if times := [one for one in record.of(Times) if one.seconds]:
        first = times[0]
        yield (
            f"time: forward and backward over torch's own, in turn; median over median of {len(first.seconds)} rounds. "
            + " ".join(_sizes(times))
        )


def _sizes(found: Sequence[Times]) -> Iterator[str]:
    elements = {times.what: times.elements for times in found}
    if "activation" in elements:
        yield f"Activations of {elements['activation']:,} float32 elements."
    if "linear" in elements:
        features, outputs = FEATURES
        rows = elements["linear"] // features
        yield f"Linear layers of {rows:,} x {features} -> {outputs:,}, {RATIO:.0%} of the rows kept."


def targets(record: Record) -> Iterator[str]:
    """What was asked of the parts that were run."""
    if any(map(judged_memory, record.of(Peak))) or any(map(least_of, record.of(GridCell))):
        savings = ", ".join(f"{100 * part:.1f} %" for part in SAVINGS.values() if part)
        yield f"activation peak smaller by at least {savings}"
    if record.of(BertRun) and judged_training(record, FEW_BITS):
        yield f"mean loss within {LOSS:.0%} of the exact one's, which is at least {NATS:g} nat below the entropy"
    if any(judged_time(record, times) for times in record.of(Times)):
        yield f"{JUDGED} at most {TIME:.1f} times torch's"
