"""What is printed of ``python -m bench gnn``: a table of accuracy and one of memory, and the kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bench.gnn import generated
from bench.gnn.chart import draw
from bench.gnn.models import NAMES
from bench.gnn.results import REFERENCE, Curve
from bench.gnn.summary import EPOCHS, LOSS_MARGIN, SEEDS, Row, rows
from bench.kernels import TARGET, KernelTime
from bench.results.record import Record
from bench.results.report import Report
from bench.results.tables import columns, commands, interval, marked
from bench.runner.memory import AGREEMENT, Memory
from bench.units import MIB
from integrations import LEVELS

TITLE = "Training with compressed activations"


def head(record: Record) -> Text:
    """What was trained on what, where."""
    recipe = ", ".join(f"{name} {_value(value)}" for name, value in record.settings["recipe"].items())
    seeds = len(record.values(Curve, "seed"))
    trained = f"; {seeds} {'seed' if seeds == 1 else 'seeds, paired'}" if seeds else ""
    took = f"; training took {record.seconds / 60:.1f} minutes" if seeds else ""
    return Text.assemble(
        (f"{TITLE}\n", "bold"),
        ("data     ", "dim"),
        f"{record.settings['data']}\n",
        ("recipe   ", "dim"),
        f"{recipe}{trained}\n",
        ("machine  ", "dim"),
        f"{record.machine}\n",
        ("command  ", "dim"),
        f"{commands(record.machine)}{took}\n",
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
    measure = f"test\n{record.settings['measure']}, %"
    found = [row for row in rows(record) if row.trained]
    failures = [""] if any(row.failures for row in found) else []
    headings = (measure, "difference\n95 % interval", "final loss\nrelative", "epoch\nrelative", *failures)
    table = columns(f"accuracy on\n{record.settings['dataset']}", *headings)
    for row in _by_model(table, found):
        table.add_row(*_accuracy_cells(row)[: len(table.columns)])
    return table


def _accuracy_cells(row: Row) -> list[RenderableType]:
    failed = Text("; ".join(f"failed: {failure}" for failure in row.failures), style="dim")
    if row.accuracy is None:
        return [_level(row), "", "", "", "", failed]
    accuracy = f"{row.accuracy:.1f}{'' if row.accuracy_spread is None else f' ± {row.accuracy_spread:.1f}'}"
    if row.level == REFERENCE:
        seconds = "" if row.epoch_seconds is None else f"{1000 * row.epoch_seconds:.0f} ms"
        return [_level(row), marked(accuracy, row.accuracy_reached), "", "", seconds, failed]
    return [
        _level(row),
        marked(accuracy, None),
        marked(_difference(row), row.accuracy_reached),
        marked(_number(row.loss_ratio, ".3f"), row.loss_reached),
        _number(row.time_ratio, ".2f"),
        failed,
    ]


def _memory(record: Record) -> Table:
    headings = ("activations\nMiB", "times\nsmaller", "measured /\nreported", "peak\nMiB", "times\nsmaller")
    table = columns(f"memory on\n{record.settings['dataset']}", *headings)
    for row in _by_model(table, [row for row in rows(record) if row.memory is not None]):
        table.add_row(*_memory_cells(row))
    return table


def _memory_cells(row: Row) -> list[RenderableType]:
    memory = row.memory
    assert memory is not None
    peak = "not measured" if memory.peak_bytes is None else _mib(memory.peak_bytes)
    if memory.original_bytes is None:
        return [_level(row), "", "", "", peak, ""]
    if memory.stored_bytes is None:
        return [_level(row), _mib(memory.original_bytes), "", "", peak, ""]
    return [
        _level(row),
        f"{_mib(memory.original_bytes)} → {_mib(memory.stored_bytes)}",
        marked(_number(row.ratio, ".1f"), row.ratio_reached),
        marked(_number(row.agreement, ".3f"), row.agreement_reached),
        peak,
        _number(row.peak_ratio, ".2f"),
    ]


def _by_model(table: Table, found: Sequence[Row]) -> Iterator[Row]:
    """The rows, with a heading before each model's."""
    model = ""
    for row in found:
        if row.model != model:
            if model:
                table.add_section()
            table.add_row(Text(NAMES.get(row.model, row.model), style="bold"))
            model = row.model
        yield row


def _level(row: Row) -> str:
    return "fp32" if row.level == REFERENCE else row.level


def _difference(row: Row) -> str:
    return interval(row.difference, 2) or "-"


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
    table = Table(
        title=f"Kernels: {first.mebibytes} MiB of float32, {first.threads} threads, {len(first.copy)} rounds in turn; "
        f"4 bits should take at most {TARGET:.1f} times a copy",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for heading in ("bits", "compress\n/ copy_", "best", "decompress\n/ clone", "best"):
        table.add_column(heading, justify="right")
    for heading in ("compress\nGiB/s", "decompress\nGiB/s"):
        table.add_column(heading, justify="right")
    for time in times:
        judged = time.bits == 4
        table.add_row(
            str(time.bits),
            marked(f"{time.compress_ratio:.2f}", time.compress_ratio <= TARGET if judged else None),
            f"{time.best_compress_ratio:.2f}",
            marked(f"{time.decompress_ratio:.2f}", time.decompress_ratio <= TARGET if judged else None),
            f"{time.best_decompress_ratio:.2f}",
            f"{time.mebibytes / 1024 / min(time.compress):.1f}",
            f"{time.mebibytes / 1024 / min(time.decompress):.1f}",
        )
    return table


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _mib(count: int) -> str:
    return f"{count / MIB:,.1f}" if count >= MIB else f"{count / MIB:.2f}"


REPORT = Report(TITLE, tables, notes, head=head, draw=draw)
