"""The end of every command: results are written, printed and drawn; and what is checked for that before any work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import RenderableType

from bench import records
from bench.benches import BENCHES
from bench.errors import BenchError
from bench.gpu import report as gpu_report
from bench.gpu.results import StageResults
from bench.kernels import chart as kernel_chart
from bench.kernels import estimate_report
from bench.kernels import report as kernel_report
from bench.kernels.estimate import EstimateResults
from bench.kernels.results import KernelResults
from bench.layout import console
from bench.record.record import Record
from bench.style import require_drawable

FOLDER = Path("bench-results")  # of the current folder, for what is given no other place

_Shown = tuple[Callable[[Any], RenderableType], Callable[[Any, Path], None]]

_SHOWN: Mapping[type[records.AnyResults], _Shown] = MappingProxyType(
    {
        KernelResults: (kernel_report.render, kernel_chart.save_chart),
        EstimateResults: (estimate_report.render, estimate_report.no_chart),
        StageResults: (gpu_report.render, gpu_report.no_chart),
    }
)


def finish(results: records.AnyResults, json: Path | None, picture: Path | None) -> None:
    """Writes, prints and draws what was asked for.

    Raises:
        BenchError: a file cannot be written, or there is nothing to draw.
    """
    if json is not None:
        records.save(results, json)
    console().print(shown(results))
    if picture is not None:
        draw(results, picture)


def draw(results: records.AnyResults, picture: Path) -> None:
    """Draws the chart of results into a file of the type that its name says, such as PNG or SVG.

    Raises:
        BenchError: it cannot be written, or there is nothing to draw.
    """
    if isinstance(results, Record):
        BENCHES[results.kind].report.save_chart(results, picture)
        return
    _, drawn = _SHOWN[type(results)]
    drawn(results, picture)


def shown(results: records.AnyResults) -> RenderableType:
    """What is printed of results: header, tables and notes."""
    if isinstance(results, Record):
        return BENCHES[results.kind].report.render(results)
    render, _ = _SHOWN[type(results)]
    return render(results)


def default(name: str) -> Path:
    """Where a file goes that was given no place.

    Raises:
        BenchError: the folder cannot be made.
    """
    try:
        FOLDER.mkdir(exist_ok=True)
    except OSError as error:
        raise BenchError(f"{FOLDER} cannot be made ({error.strerror}); use --json and --chart") from error
    return FOLDER / name


def require_writable(json: Path | None, picture: Path | None) -> None:
    """Before minutes of work, that their results can be written and drawn.

    Raises:
        BenchError: they cannot.
    """
    for file in (json, picture):
        if file is not None and not file.parent.is_dir():
            raise BenchError(f"{file} cannot be written: there is no folder {file.parent}")
        if file is not None and file.is_dir():
            raise BenchError(f"{file} cannot be written: it is a folder; name a file in it")
    if picture is not None:
        require_drawable(picture)
