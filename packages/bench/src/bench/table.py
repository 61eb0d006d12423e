"""Results as text: the one table, with a header that says what was measured where."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.kernels import TARGET, KernelTime
from bench.marks import marked
from bench.memory import AGREEMENT
from bench.results import Results
from bench.summary import EPOCHS, LOSS_MARGIN, REFERENCE, SEEDS, Row, rows

_WIDTH = 132  # what the tables take


def console() -> Console:
    """A console wide enough for the tables. A narrower terminal breaks its lines, but no number is cut short."""
    return Console(width=max(_WIDTH, Console().width))


def render(results: Results) -> RenderableType:
    """Header, table, notes and, where they were timed, the kernels."""
    parts: list[RenderableType] = [header(results), _table(results), _notes(results)]
    if results.kernels:
        parts += [Text(""), kernel_table(results.kernels)]
    return Group(*parts)


def header(results: Results) -> Text:
    """What was trained on what, where."""
    recipe = ", ".join(f"{name} {value:g}" for name, value in results.recipe.items())
    seeds = len({curve.seed for curve in results.curves})
    return Text.assemble(
        ("Training with compressed activations\n", "bold"),
        ("data     ", "dim"),
        f"{results.data}\n",
        ("recipe   ", "dim"),
        f"{recipe}; {seeds} {'seed' if seeds == 1 else 'seeds, paired'}\n",
        ("machine  ", "dim"),
        f"{results.machine}\n",
        ("command  ", "dim"),
        f"{results.machine.command}; training took {results.seconds / 60:.1f} minutes\n",
    )


def _table(results: Results) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("model\nlevel", no_wrap=True)
    for heading in (
        "test\naccuracy, %",
        "difference\n95 % interval",
        "final loss\nrelative",
        "activations\nMiB",
        "times\nsmaller",
        "measured /\nreported",
        "peak\nMiB",
        "times\nsmaller",
        "epoch\nrelative",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    model = ""
    for row in rows(results):
        if row.model != model:
            if model:
                table.add_section()
            table.add_row(Text(row.model.upper() if row.model != "sage" else "GraphSAGE", style="bold"))
            model = row.model
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> list[RenderableType]:
    spread = f" ± {row.accuracy_spread:.1f}" if row.accuracy_spread is not None else ""
    accuracy = f"{row.accuracy:.1f}{spread}"
    peak = "not measured" if row.memory.peak_bytes is None else _mib(row.memory.peak_bytes)
    if row.level == REFERENCE:
        reached = marked(accuracy, row.accuracy_reached)
        return ["fp32", reached, "", "", "", "", "", peak, "", f"{1000 * row.epoch_seconds:.0f} ms"]
    memory = row.memory
    assert memory.original_bytes is not None
    assert memory.stored_bytes is not None
    return [
        row.level,
        marked(accuracy, None),
        marked(_difference(row), row.accuracy_reached),
        marked(f"{row.loss_ratio:.3f}", row.loss_reached),
        f"{_mib(memory.original_bytes)} → {_mib(memory.stored_bytes)}",
        marked(_number(row.ratio, ".1f"), row.ratio_reached),
        marked(_number(row.agreement, ".3f"), row.agreement_reached),
        peak,
        _number(row.peak_ratio, ".2f"),
        f"{row.time_ratio:.2f}",
    ]


def _difference(row: Row) -> str:
    difference = row.difference
    if difference.low is None:
        return f"{difference.mean:+.2f}"
    return f"{difference.mean:+.2f} [{difference.low:+.2f}, {difference.high:+.2f}]"


def _notes(results: Results) -> Text:
    final = f"{results.recipe['final loss over epochs']:g}"
    lines = [
        "fp32: full precision, untouched. ✓ reached, ✗ not: fp32 GCN 80 % on Cora; the interval of the difference "
        f"overlaps ±1.0 point (L1.2: ±2.0); final loss within {LOSS_MARGIN:.0%} (both judged from {SEEDS} seeds and "
        f"{EPOCHS} epochs on); activations of GCN and GraphSAGE on Cora 5 times smaller at L1, 8 at L1.2; measured and "
        f"reported bytes within {AGREEMENT:.0%}.",
        "accuracy: at the best validation epoch; mean and standard deviation over seeds. "
        f"final loss: training loss, mean of the last {final} epoch{'' if final == '1' else 's'}.",
        "activations: what autograd alone keeps after the forward, by the report; "
        "measured / reported: live bytes of the process after the forward, over what the report says is stored.",
        "peak: the most memory during forward and backward, less what was there before and the gradients, measured; "
        "it includes what message passing holds for a moment, which compression does not touch.",
    ]
    reasons = {memory.not_measured for memory in results.memories if memory.not_measured}
    lines += [f"memory not measured: {reason}" for reason in sorted(reasons)]
    return Text("\n".join(lines), style="dim")


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


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f}" if count >= 2**20 else f"{count / 2**20:.2f}"
