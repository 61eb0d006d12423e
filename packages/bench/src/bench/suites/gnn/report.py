"""The tables and the chart of ``python -m bench gnn``."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bench.models.data import graphs
from bench.models.graph_networks import NAMES
from bench.results.charts import Bar, Panel
from bench.results.record import Record, match_seeds, paired
from bench.results.report import Report
from bench.results.statistics import Difference, Reached, spread
from bench.results.tables import Column, bounded, dim, interval, marked, number, table
from bench.runner.memory import AGREEMENT, Memory
from bench.suites.gnn.entries import REFERENCE, Curve
from bench.suites.gnn.kernel_time import TARGET, KernelTime
from bench.units import MIB
from integrations import LEVELS

MARGINS = MappingProxyType({"L1": 1.0, "L1.1": 1.0, "L1.2": 2.0})
"""Points of accuracy either side of full precision between which the interval should lie."""

LOSS_MARGIN = 0.03
"""By how much of itself the final training loss may differ."""

RATIOS = MappingProxyType(
    {(model, level): ratio for model in ("gcn", "sage") for level, ratio in (("L1", 5), ("L1.2", 8))}
)
"""How many times smaller the saved activations should be, on Cora."""

SEEDS, EPOCHS = 2, 60
"""A shorter run is not judged by accuracy and loss: neither has settled."""

FULL_PRECISION_ACCURACY = MappingProxyType({("Cora", "gcn"): 80.0})
"""Test accuracy in percent that the untouched model should reach."""


@dataclass(frozen=True)
class Row:
    """One model at one level, over all seeds. What was not measured is ``None``, or empty.

    Attributes:
        model, level: which.
        accuracies: test accuracies or micro-F1 in percent, in the order of the seeds.
        difference: of them against full precision, in points.
        loss_ratio: mean over seeds of final training loss over full precision's.
        time_ratio: median over rounds of seconds per epoch over full precision's in the same round.
        epoch_seconds: median seconds per epoch.
        memory: what was measured of this level.
        plain_memory: what was measured of the untouched model.
        judged: whether the runs were many and long enough for accuracy and loss to be judged.
        dataset: name of the graph.
        failures: of seeds that did not train to the end, why.
    """

    model: str
    level: str
    accuracies: list[float]
    difference: Difference | None
    loss_ratio: float | None
    time_ratio: float | None
    epoch_seconds: float | None
    memory: Memory | None
    plain_memory: Memory | None
    judged: bool
    dataset: str
    failures: tuple[str, ...] = ()

    @property
    def trained(self) -> bool:
        """Whether there are runs, be it ones that failed."""
        return bool(self.accuracies or self.failures)

    @property
    def accuracy(self) -> float | None:
        """Mean test accuracy in percent."""
        return statistics.fmean(self.accuracies) if self.accuracies else None

    @property
    def accuracy_spread(self) -> float | None:
        """Standard deviation of the accuracies over seeds; ``None`` for one seed."""
        return spread(self.accuracies)

    @property
    def ratio(self) -> float | None:
        """Reported bytes of saved activations, before over after; ``None`` for the untouched model."""
        if self.memory is None or self.memory.original_bytes is None or not self.memory.stored_bytes:
            return None
        return self.memory.original_bytes / self.memory.stored_bytes

    @property
    def agreement(self) -> float | None:
        """Live bytes of the saved tensors, measured, over what the report says is stored; ``None`` where unknown."""
        return None if self.memory is None or self.plain_memory is None else self.memory.agreement(self.plain_memory)

    @property
    def peak_ratio(self) -> float | None:
        """Measured activation peak of the untouched model over this one's; ``None`` where not measured."""
        peaks = [memory and memory.peak_bytes for memory in (self.plain_memory, self.memory)]
        return peaks[0] / peaks[1] if peaks[0] and peaks[1] else None

    # ---- verdicts: see ``Reached`` ----

    @property
    def accuracy_reached(self) -> Reached:
        """Full precision's own accuracy, or the interval of the difference from it."""
        if not self.judged or self.accuracy is None:
            return None
        if self.level == REFERENCE:
            target = FULL_PRECISION_ACCURACY.get((self.dataset, self.model))
            return None if target is None else self.accuracy >= target
        margin = MARGINS.get(self.level)
        return None if margin is None or self.difference is None else self.difference.meets(margin)

    @property
    def loss_reached(self) -> bool | None:
        """The final training loss is full precision's, within ``LOSS_MARGIN``."""
        if self.level == REFERENCE or not self.judged or self.loss_ratio is None:
            return None
        return abs(self.loss_ratio - 1) <= LOSS_MARGIN

    @property
    def ratio_reached(self) -> bool | None:
        """Saved activations are as many times smaller as they should be."""
        target = RATIOS.get((self.model, self.level)) if self.dataset == "Cora" else None
        return None if target is None or self.ratio is None else self.ratio >= target

    @property
    def agreement_reached(self) -> bool | None:
        """The measured bytes are the reported ones, within ``AGREEMENT``."""
        return None if self.agreement is None else abs(self.agreement - 1) <= AGREEMENT


def rows(record: Record) -> Iterator[Row]:
    """One row for each model and level of which there is anything, in the order they ran, a model's together."""
    memories = {(memory.model, memory.level): memory for memory in record.of(Memory)}
    runs: dict[tuple[str, str], list[Curve]] = {}
    for curve in record.of(Curve):
        runs.setdefault((curve.model, curve.level), []).append(curve)
    found = dict.fromkeys([*runs, *memories])
    models = list(dict.fromkeys(model for model, _ in found))
    for model, level in sorted(found, key=lambda one: models.index(one[0])):
        curves = [curve for curve in runs.get((model, level), ()) if not curve.failure]
        plain = {curve.seed: curve for curve in runs.get((model, REFERENCE), ()) if not curve.failure}
        pairs = match_seeds(curves, plain.values())
        epochs = [seconds for curve in curves for seconds in curve.epoch_seconds]
        yield Row(
            model=model,
            level=level,
            accuracies=[curve.test_accuracy for curve in curves],
            difference=paired(curves, plain.values(), lambda curve: curve.test_accuracy),
            loss_ratio=statistics.fmean(curve.final_loss / other.final_loss for curve, other in pairs)
            if pairs
            else None,
            time_ratio=_time_ratio(pairs),
            epoch_seconds=statistics.median(epochs) if epochs else None,
            memory=memories.get((model, level)),
            plain_memory=memories.get((model, REFERENCE)),
            judged=len(curves) >= SEEDS and float(record.settings["recipe"]["epochs"]) >= EPOCHS,
            dataset=record.settings["dataset"],
            failures=tuple(dict.fromkeys(curve.failure for curve in runs.get((model, level), ()) if curve.failure)),
        )


def _time_ratio(pairs: Sequence[tuple[Curve, Curve]]) -> float | None:
    """Of files of before runs were taken up, full precision's times are those of its own curve.

    A run beside which full precision failed, and was made later, has no times to be compared with.
    """
    together = [
        (curve.block_seconds, curve.plain_seconds or plain.block_seconds)
        for curve, plain in pairs
        if curve.plain_seconds or not curve.commit
    ]
    ratios = [seconds / plain for pair in together for seconds, plain in zip(*pair, strict=True)]
    return statistics.median(ratios) if ratios else None


TITLE = "Training with compressed activations"


def tables(record: Record) -> Iterator[Table]:
    """One for each part that was run."""
    if record.of(Curve):
        yield _accuracy(record)
    if record.of(Memory):
        yield _memory(record)
    if kernels := record.of(KernelTime):
        yield kernel_table(kernels)


def _accuracy(record: Record) -> Table:
    found = [row for row in rows(record) if row.trained]
    failed: list[Column[Row]] = [("", _failures)] if any(row.failures for row in found) else []
    return table(
        found,
        (f"accuracy on\n{record.settings['dataset']}", _level),
        (f"test\n{record.settings['measure']}, %", _test),
        ("difference\n95 % interval", _compared(lambda row: interval(row.difference, 2), "accuracy_reached")),
        ("final loss\nrelative", _compared(lambda row: number(row.loss_ratio, ".3f"), "loss_reached")),
        ("epoch\nrelative", _epoch),
        *failed,
        above=_model,
        sections=True,
        instead=lambda row: [*[""] * 4, _failures(row)] if row.accuracy is None else None,
    )


def _test(row: Row) -> RenderableType:
    spread = "" if row.accuracy_spread is None else f" ± {row.accuracy_spread:.1f}"
    return marked(f"{row.accuracy:.1f}{spread}", row.accuracy_reached if row.level == REFERENCE else None)


def _compared(text: Callable[[Row], str], reached: str) -> Callable[[Row], RenderableType]:
    """A cell that compares a level with full precision, whose own is empty."""
    return lambda row: "" if row.level == REFERENCE else marked(text(row) or "-", getattr(row, reached))


def _epoch(row: Row) -> str:
    if row.level == REFERENCE:
        return "" if row.epoch_seconds is None else f"{1000 * row.epoch_seconds:.0f} ms"
    return number(row.time_ratio, ".2f") or "-"


def _failures(row: Row) -> Text:
    return dim("; ".join(f"failed: {failure}" for failure in row.failures))


def _memory(record: Record) -> Table:
    def stored(text: Callable[[Row], RenderableType]) -> Callable[[Row], RenderableType]:
        """A cell of what the report says is stored, which is empty where it says nothing."""
        return lambda row: "" if row.memory is None or row.memory.stored_bytes is None else text(row)

    def peak(row: Row) -> str:
        nbytes = None if row.memory is None else row.memory.peak_bytes
        return "not measured" if nbytes is None else _mib(nbytes)

    return table(
        [row for row in rows(record) if row.memory is not None],
        (f"memory on\n{record.settings['dataset']}", _level),
        ("activations\nMiB", lambda row: _activations(row.memory)),
        ("times\nsmaller", stored(lambda row: marked(number(row.ratio, ".1f") or "-", row.ratio_reached))),
        (
            "measured /\nreported",
            stored(lambda row: marked(number(row.agreement, ".3f") or "-", row.agreement_reached)),
        ),
        ("peak\nMiB", peak),
        ("times\nsmaller", stored(lambda row: number(row.peak_ratio, ".2f") or "-")),
        above=_model,
        sections=True,
    )


def _activations(memory: Memory | None) -> str:
    if memory is None or memory.original_bytes is None:
        return ""
    after = "" if memory.stored_bytes is None else f" → {_mib(memory.stored_bytes)}"
    return f"{_mib(memory.original_bytes)}{after}"


def _model(row: Row) -> str:
    return NAMES.get(row.model, row.model)


def _level(row: Row) -> str:
    return "fp32" if row.level == REFERENCE else row.level


def kernel_table(times: Sequence[KernelTime]) -> Table:
    """The codec's times as multiples of a copy's."""
    first = times[0]

    def most(time: KernelTime) -> float | None:
        return TARGET if time.bits == 4 else None

    return table(
        times,
        ("bits", lambda time: str(time.bits)),
        ("compress\n/ copy_", lambda time: bounded(time.compress_ratio, ".2f", most=most(time))),
        ("best", lambda time: f"{time.best_compress_ratio:.2f}"),
        ("decompress\n/ clone", lambda time: bounded(time.decompress_ratio, ".2f", most=most(time))),
        ("best", lambda time: f"{time.best_decompress_ratio:.2f}"),
        ("compress\nGiB/s", lambda time: f"{time.mebibytes / 1024 / min(time.compress):.1f}"),
        ("decompress\nGiB/s", lambda time: f"{time.mebibytes / 1024 / min(time.decompress):.1f}"),
        labels=0,
        title=f"Kernels: {first.mebibytes} MiB of float32, {first.threads} threads, {len(first.copy)} rounds in turn; "
        f"4 bits should take at most {TARGET:.1f} times a copy",
    )


def _mib(count: int) -> str:
    return f"{count / MIB:,.1f}" if count >= MIB else f"{count / MIB:.2f}"


def notes(record: Record) -> Iterator[str]:
    """What the graph's accuracies say, and what a level that moves tensors does on a CPU."""
    if record.settings["dataset"] == graphs.NAME:
        yield "The graph is generated: its sizes are ogbn-arxiv's, its accuracies say nothing about ogbn-arxiv."
    levels = {*record.values(Curve, "level"), *record.values(Memory, "level")}
    moved = [level for level in LEVELS if level in levels and LEVELS[level].offload]
    if moved and record.settings["device"] == "cpu":
        yield f"{', '.join(moved)}: only tensors on a GPU go to host memory; on a CPU, L3 stores what L2 does."


def panels(record: Record) -> list[Panel]:
    """Saved activations, and beside them accuracy where networks were trained; red lines are targets."""
    sizes, points = [], []
    for row in rows(record):
        name = f"{_model(row)}, {row.level}"
        if row.memory is not None and row.ratio is not None:
            before, after = (row.memory.original_bytes or 0) / MIB, (row.memory.stored_bytes or 0) / MIB
            sizes.append(Bar(name, after, whole=before, words=f"{row.ratio:.1f}×"))
        if row.difference is not None and row.level != REFERENCE:
            low, high = row.difference.low, row.difference.high
            ends = None if low is None or high is None else (low, high)
            least = -MARGINS[row.level] if row.level in MARGINS else None
            points.append(Bar(name, row.difference.mean, interval=ends, mark=least))
    found = []
    if sizes:
        found.append(Panel("Saved activations, before (grey) and after", "MiB kept for backward", bars=sizes))
    if points:
        found.append(Panel("Accuracy against full precision, paired seeds", "points", bars=points, line=0))
    return found


def _caption(record: Record) -> str:
    seeds = len(record.values(Curve, "seed"))
    return f"{record.settings['dataset']}, {seeds} {'seed' if seeds == 1 else 'paired seeds'}. Red lines: targets."


REPORT = Report("Training with compressed activations", tables, notes, panels=panels, caption=_caption)
