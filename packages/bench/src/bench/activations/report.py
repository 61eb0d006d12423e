"""Results of ``python -m bench activations`` as text."""

from __future__ import annotations

from statistics import median

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.activations.results import ActivationResults, Overhead
from bench.marks import marked
from bench.units import MIB

# At least, by level; a graph network's saved tensors differ too much with its layers to promise a number.
RATIOS = {"L1": 5.0, "L2": 7.0, "L2.2": 12.0}
_NO_RATIO = ("gcn",)
ERRORS = {"L1": 0.15, "L1.1": 0.05}  # at most
TIMES = {("resnet18", "L1"): 1.25, ("bert", "L1"): 1.25}  # at most
MICROSECONDS = 25.0  # at most, a packed tensor


def render(results: ActivationResults) -> RenderableType:
    """Header, tables and notes."""
    header = Text.assemble(
        ("Models under compression: bytes, gradients, time\n", "bold"),
        ("machine  ", "dim"),
        f"{results.machine}\n",
        ("command  ", "dim"),
        f"{results.machine.command}; {results.seconds / 60:.1f} minutes\n",
    )
    return Group(header, _models(results), _overheads(results.overheads), _notes(results))


def _table(first: str, second: str, *numbers: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column(first, no_wrap=True)
    table.add_column(second, no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _models(results: ActivationResults) -> Table:
    table = _table("model", "level", "saved\nMiB", "stored\nMiB", "times\nsmaller", "gradient's\nerror", "step time")
    for model in results.models:
        table.add_row(model.model, "plain", "", "", "", "", f"{1e3 * median(model.plain_seconds):,.0f} ms  ")
        for level in model.levels:
            least = None if model.model in _NO_RATIO else RATIOS.get(level.level)
            error, time = ERRORS.get(level.level), TIMES.get((model.model, level.level))
            slower = model.time_ratio(level)
            table.add_row(
                "",
                level.level,
                f"{level.original_bytes / MIB:,.2f}",
                f"{level.stored_bytes / MIB:,.2f}",
                marked(f"{level.ratio:.1f}", None if least is None else level.ratio >= least),
                marked(f"{level.error:.3f}", None if error is None else level.error <= error),
                marked(f"{slower:.2f}", None if time is None else slower <= time),
            )
    return table


def _overheads(overheads: list[Overhead]) -> Table:
    table = _table(
        "overhead at L1",
        "bytes",
        "saved\ntensors",
        "packed",
        "plain step\nµs",
        "more\nµs",
        "µs a\npacked",
        "µs a\nsaved",
        "codec\nalone",
    )
    for entry in overheads:
        reached = entry.packed_microseconds <= MICROSECONDS
        table.add_row(
            entry.chain,
            str(entry.nbytes),
            str(entry.saved),
            str(entry.packed),
            f"{1e6 * median(entry.plain_seconds):,.0f}",
            f"{entry.step_microseconds:,.0f}",
            marked(f"{entry.packed_microseconds:.1f}", reached),
            f"{entry.saved_microseconds:.1f}",
            f"{entry.codec_microseconds:.1f}",
        )
    return table


def _notes(results: ActivationResults) -> Text:
    lines = [f"{model.model}: {model.what}." for model in results.models]
    lines += [f"Left out: {reason}." for reason in results.skipped]
    level = results.models[0].levels[0]  # as many steps and rounds as all others
    steps, rounds = len(level.errors), len(level.seconds)
    lines += [
        "saved: what autograd alone keeps of the model's forward. gradient's error: of the whole gradient at "
        f"initialisation, relative to full precision with the same dropout; mean of {steps} steps, each with other "
        "noise. step time: forward and backward, no optimizer, over plain, in turn; median of the ratios of "
        f"{rounds} rounds. Adaptive levels after two steps, with their plan.",
        "overhead: all that compression adds to forward and backward of tiny layers, the kernels and a step's fixed "
        "part included, over the saved tensors that are packed, or over all, weights included; codec alone: µs to "
        "compress and decompress one such tensor in 4 bits.",
        f"✓ reached, ✗ not: {_targets()}.",
    ]
    return Text("\n".join(lines), style="dim")


def _targets() -> str:
    ratios = ", ".join(f"{level} {least:g}" for level, least in RATIOS.items())
    errors = ", ".join(f"{level} {most:g}" for level, most in ERRORS.items())
    times = ", ".join(f"{model} at {level} {most:g}" for (model, level), most in TIMES.items())
    return (
        f"times smaller at least {ratios} (not {', '.join(_NO_RATIO)}); error at most {errors}; "
        f"step time at most {times}; {MICROSECONDS:g} µs a packed tensor"
    )
