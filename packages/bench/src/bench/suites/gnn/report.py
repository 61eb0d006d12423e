"""What is printed of ``python -m bench gnn``: a table of accuracy and one of memory, and the kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bench.models.data import generated_graph as generated
from bench.models.graph_networks import NAMES
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import Column, bounded, commands, dim, interval, labelled, marked, number, table
from bench.runner.memory import AGREEMENT, Memory
from bench.suites.gnn.chart import draw
from bench.suites.gnn.results import REFERENCE, Curve
from bench.suites.gnn.summary import EPOCHS, LOSS_MARGIN, SEEDS, Row, rows
from bench.suites.kernels import TARGET, KernelTime
from bench.units import MIB
from integrations import LEVELS

TITLE = "Training with compressed activations"


def head(record: Record) -> Text:
    """The header: data, recipe, machine and command."""
    recipe = ", ".join(f"{name} {_value(value)}" for name, value in record.settings["recipe"].items())
    seeds = len(record.values(Curve, "seed"))
    trained = f"; {seeds} {'seed' if seeds == 1 else 'seeds, paired'}" if seeds else ""
    took = f"; training took {record.seconds / 60:.1f} minutes" if seeds else ""
    return labelled(
        TITLE,
        data=record.settings["data"],
        recipe=f"{recipe}{trained}",
        machine=str(record.machine),
        command=f"{commands(record.machine)}{took}",
    )


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


def notes(record: Record) -> Iterator[str]:
    """What the numbers are, and what was asked of them."""
    dataset, measure = record.settings["dataset"], record.settings["measure"]
    if dataset == generated.NAME:
        yield "The graph is generated: its sizes are ogbn-arxiv's, its accuracies say nothing about ogbn-arxiv."
    final = _value(record.settings["recipe"]["final loss over epochs"])
    if record.of(Curve):
        yield (
            "fp32: full precision, untouched. ✓ reached, ✗ not, ? undecided: fp32 GCN 80 % on Cora; the interval of "
            "the difference lies within ±1.0 point (L1.2: ±2.0), undecided if only a part of it does; final loss "
            f"within {LOSS_MARGIN:.0%} (both judged from {SEEDS} seeds and {EPOCHS} epochs on)."
        )
        yield (
            f"{measure}: at the best validation epoch; mean and standard deviation over seeds. "
            f"final loss: training loss, mean of the last {final} epoch{'' if final == '1' else 's'}."
        )
    if record.of(Memory):
        yield (
            "activations: what autograd alone keeps after the forward, by the report; on Cora, those of GCN and "
            "GraphSAGE should be 5 times smaller at L1, 8 at L1.2. measured / reported: live bytes of the process "
            f"after the forward, over what the report says is stored, within {AGREEMENT:.0%}."
        )
        yield (
            "peak: the most memory during forward and backward, less what was there before and the gradients, "
            "measured; it includes what message passing holds for a moment, which compression does not touch."
        )
    levels = {*record.values(Curve, "level"), *record.values(Memory, "level")}
    moved = [level for level in LEVELS if level in levels and LEVELS[level].offload]
    if moved and record.settings["device"] == "cpu":
        yield f"{', '.join(moved)}: only tensors on a GPU go to host memory; on a CPU, L3 stores what L2 does."
    memories = record.of(Memory)
    for reason in sorted({memory.reason for memory in memories if memory.reason}):
        cells = [f"{found.model} {found.level}" for found in memories if found.reason == reason]
        which = "" if len(cells) == len(memories) else f" of {', '.join(cells)}"
        yield f"memory{which} not measured: {reason}"


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


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _mib(count: int) -> str:
    return f"{count / MIB:,.1f}" if count >= MIB else f"{count / MIB:.2f}"


REPORT = Report(TITLE, tables, notes, head=head, draw=draw)
