"""The command line: ``python -m bench gnn | kernels | sensitivity | activations | show``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import torch

from bench import chart, gnn, records
from bench.activations import measure as activations
from bench.activations import report as activation_report
from bench.activations.results import ActivationResults
from bench.data import DATASETS
from bench.errors import BenchError
from bench.kernels import chart as kernel_chart
from bench.kernels import measure, report
from bench.kernels.cases import FLOATS
from bench.kernels.results import KernelResults
from bench.models import MODELS
from bench.sensitivity import measure as sensitivity
from bench.sensitivity import report as sensitivity_report
from bench.sensitivity.results import SensitivityResults
from bench.style import require_drawable
from bench.summary import REFERENCE
from bench.table import console, render
from bench.units import GIB, KIB, MIB, size_name
from integrations import LEVELS

_FOLDER = Path("bench-results")  # of the current folder, for what is given no other place
_LEVELS = ("L1", "L1.1", "L1.2")
_SEEDS, _EPOCHS = 3, 100
_QUICK_SEEDS, _QUICK_EPOCHS = 1, 10


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage above it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help lists the options)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Returns 0; 1 after one line on stderr that says what is wrong; 130 when interrupted."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], None] = options.command
    try:
        command(options)
    except BenchError as error:
        print(f"python -m bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("python -m bench: interrupted; nothing was written", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m bench", description="What compressed activations save and cost, measured.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser("gnn", help="train GNNs at full precision and compressed; accuracy, memory and time")
    train.set_defaults(command=_gnn)
    train.add_argument("--model", action="append", choices=MODELS, help="repeatable; default: all")
    train.add_argument(
        "--level",
        action="append",
        choices=LEVELS,
        help=f"repeatable; default: {', '.join(_LEVELS)}; full precision, L0, is always run",
    )
    train.add_argument(
        "--dataset", default="auto", choices=DATASETS, help="auto: Cora at hand or downloaded, otherwise digits"
    )
    train.add_argument(
        "--data-root",
        type=Path,
        metavar="DIR",
        help="folder with planetoid/Cora/raw/...; default: ACTCORE_DATA, then torch-geometric's cache (PYG_HOME)",
    )
    train.add_argument("--seeds", type=_positive, help=f"paired runs; default: {_SEEDS}")
    train.add_argument("--epochs", type=_positive, help=f"of each run; default: {_EPOCHS}")
    train.add_argument(
        "--quick",
        action="store_true",
        help=f"{_QUICK_SEEDS} seed, {_QUICK_EPOCHS} epochs, no kernels: shows that it works, not how accurate it is",
    )
    _add_shared(train, threads=torch.get_num_threads(), place=f"; default: {_FOLDER}/gnn-DEVICE.json")
    _add_chart(train, place=f"; default: {_FOLDER}/gnn-DEVICE.png")

    time = commands.add_parser("kernels", help="time codecs and operators beside copies, plain PyTorch and others")
    time.set_defaults(command=_kernels)
    time.add_argument("--case", action="append", metavar="TEXT", help="part of a case's name, repeatable; default: all")
    time.add_argument("--bits", action="append", type=int, choices=range(1, 9), help="repeatable; default: all")
    names = [str(dtype).removeprefix("torch.") for dtype in FLOATS]
    time.add_argument("--dtype", action="append", choices=names, help="repeatable; default: all that a case takes")
    time.add_argument(
        "--size",
        action="append",
        type=_size,
        help="of the tensor, such as 4KiB or 256MiB, repeatable; default: "
        + "; ".join(f"{device}: {', '.join(map(size_name, sizes))}" for device, sizes in measure.SIZES.items()),
    )
    time.add_argument("--rounds", type=_positive, help=f"that count, of each case; default: {measure.ROUNDS}")
    time.add_argument(
        "--alone", action="store_true", help="without plain PyTorch and other libraries: only copies beside"
    )
    time.add_argument(
        "--quick",
        action="store_true",
        help=f"{' and '.join(map(size_name, measure.QUICK_SIZES))}, {measure.QUICK_ROUNDS} rounds: shows that it works",
    )
    _add_shared(time, threads=gnn.KERNEL_THREADS)
    _add_chart(time)

    know = commands.add_parser("sensitivity", help="how well adaptive levels know which tensors matter")
    know.set_defaults(command=_sensitivity)
    know.add_argument("--model", action="append", choices=sensitivity.MODELS, help="repeatable; default: all")
    adaptive = [name for name, level in LEVELS.items() if level.adaptive and not level.offload]
    know.add_argument("--level", default="L2", choices=adaptive, help="default: %(default)s")
    know.add_argument("--pairs", type=_positive, help=f"of seeds in the reference; default: {sensitivity.PAIRS}")
    know.add_argument("--steps", type=_positive, help=f"of the gradient's error; default: {sensitivity.STEPS}")
    know.add_argument("--threads", type=_positive, default=gnn.KERNEL_THREADS, help="default: %(default)s")
    know.add_argument(
        "--quick",
        action="store_true",
        help=f"{sensitivity.QUICK_PAIRS} pairs, {sensitivity.QUICK_STEPS} steps: shows that it works",
    )
    know.add_argument("--json", type=Path, metavar="FILE", help="write all raw values, machine and versions")

    any_model = commands.add_parser("activations", help="bytes, gradients and time of models of any kind")
    any_model.set_defaults(command=_activations)
    any_model.add_argument(
        "--model",
        action="append",
        choices=activations.MODELS,
        help="repeatable; default: all; those whose library is not installed are left out",
    )
    compressing = [name for name, level in LEVELS.items() if level.bits is not None and not level.offload]
    any_model.add_argument(
        "--level", action="append", choices=compressing, help=f"repeatable; default: {', '.join(activations.LEVELS)}"
    )
    any_model.add_argument("--steps", type=_positive, help=f"of the gradient's error; default: {activations.STEPS}")
    any_model.add_argument("--rounds", type=_positive, help=f"of timed steps; default: {activations.ROUNDS}")
    any_model.add_argument("--threads", type=_positive, default=gnn.KERNEL_THREADS, help="default: %(default)s")
    any_model.add_argument(
        "--quick",
        action="store_true",
        help=f"{activations.QUICK_STEPS} steps, {activations.QUICK_ROUNDS} rounds: shows that it works",
    )
    any_model.add_argument("--json", type=Path, metavar="FILE", help="write all raw values, machine and versions")

    show = commands.add_parser("show", help="print, and draw, results that were recorded with --json")
    show.set_defaults(command=_show)
    show.add_argument("results", type=Path, metavar="FILE")
    _add_chart(show)
    return parser


def _add_shared(parser: argparse.ArgumentParser, threads: int, place: str = "") -> None:
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="default: %(default)s")
    parser.add_argument("--threads", type=_positive, default=threads, help="of torch's operators; default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"write all raw values, machine and versions{place}")


def _add_chart(parser: argparse.ArgumentParser, place: str = "") -> None:
    parser.add_argument(
        "--chart", type=Path, metavar="FILE", help=f"draw a chart, as PNG, SVG or PDF by its name{place}"
    )


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return value


def _size(text: str) -> int:
    """Bytes of a tensor. A multiple of 4096 has whole groups in every dtype."""
    for unit, name in ((KIB, "KiB"), (MIB, "MiB"), (GIB, "GiB")):
        number = text.removesuffix(name)
        if number != text and number.isdecimal() and int(number) * unit > 0 and int(number) * unit % (4 * KIB) == 0:
            return int(number) * unit
    raise argparse.ArgumentTypeError(f"must be a multiple of 4KiB such as 4KiB, 16MiB or 1GiB, got {text!r}")


def _gnn(options: argparse.Namespace) -> None:
    levels = list(dict.fromkeys(options.level or _LEVELS))
    if options.chart is not None:
        require_drawable(options.chart)
        if levels == [REFERENCE]:
            raise BenchError("a chart compares levels with full precision; name another level, such as --level L1")
    json = options.json or _default(f"gnn-{options.device}.json")
    picture = options.chart or (None if levels == [REFERENCE] else _default(f"gnn-{options.device}.png"))
    _require_folder(json, picture)
    results = gnn.run(
        gnn.Options(
            models=list(dict.fromkeys(options.model or MODELS)),
            levels=levels,
            dataset=options.dataset,
            data_root=options.data_root,
            device=torch.device(options.device),
            seeds=options.seeds or (_QUICK_SEEDS if options.quick else _SEEDS),
            epochs=options.epochs or (_QUICK_EPOCHS if options.quick else _EPOCHS),
            threads=options.threads,
            with_kernels=not options.quick,
        )
    )
    records.save(results, json)
    console().print(render(results))
    if picture is not None:
        chart.save_chart(results, picture)
    print(f"written: {json}{f' and {picture}' if picture else ''}", file=sys.stderr)


def _kernels(options: argparse.Namespace) -> None:
    _require_folder(options.json, options.chart)
    if options.chart is not None:
        require_drawable(options.chart)
    sizes = options.size or (measure.QUICK_SIZES if options.quick else measure.SIZES[options.device])
    results = measure.run(
        measure.Options(
            device=torch.device(options.device),
            threads=options.threads,
            sizes=sorted(set(sizes)),
            rounds=options.rounds or (measure.QUICK_ROUNDS if options.quick else measure.ROUNDS),
            names=options.case or (),
            bits=options.bits or (),
            dtypes=options.dtype or (),
            with_others=not options.alone,
        )
    )
    if options.json is not None:
        records.save(results, options.json)
    console().print(report.render(results))
    if options.chart is not None:
        kernel_chart.save_chart(results, options.chart)


def _sensitivity(options: argparse.Namespace) -> None:
    _require_folder(options.json)
    results = sensitivity.run(
        sensitivity.Options(
            models=list(dict.fromkeys(options.model or sensitivity.MODELS)),
            level=options.level,
            pairs=options.pairs or (sensitivity.QUICK_PAIRS if options.quick else sensitivity.PAIRS),
            steps=options.steps or (sensitivity.QUICK_STEPS if options.quick else sensitivity.STEPS),
            threads=options.threads,
        )
    )
    if options.json is not None:
        records.save(results, options.json)
    console().print(sensitivity_report.render(results))


def _activations(options: argparse.Namespace) -> None:
    _require_folder(options.json)
    results = activations.run(
        activations.Options(
            models=list(dict.fromkeys(options.model or activations.MODELS)),
            levels=list(dict.fromkeys(options.level or activations.LEVELS)),
            steps=options.steps or (activations.QUICK_STEPS if options.quick else activations.STEPS),
            rounds=options.rounds or (activations.QUICK_ROUNDS if options.quick else activations.ROUNDS),
            threads=options.threads,
        )
    )
    if options.json is not None:
        records.save(results, options.json)
    console().print(activation_report.render(results))


def _show(options: argparse.Namespace) -> None:
    results = records.load(options.results)
    if options.chart is not None and isinstance(results, SensitivityResults | ActivationResults):
        raise BenchError("there is no chart of sensitivities or activations; leave --chart out")
    if isinstance(results, SensitivityResults):
        console().print(sensitivity_report.render(results))
    elif isinstance(results, ActivationResults):
        console().print(activation_report.render(results))
    elif isinstance(results, KernelResults):
        console().print(report.render(results))
        if options.chart is not None:
            kernel_chart.save_chart(results, options.chart)
    else:
        console().print(render(results))
        if options.chart is not None:
            chart.save_chart(results, options.chart)


def _default(name: str) -> Path:
    """Where a file goes that was given no place."""
    try:
        _FOLDER.mkdir(exist_ok=True)
    except OSError as error:
        raise BenchError(f"{_FOLDER} cannot be made ({error.strerror}); use --json and --chart") from error
    return _FOLDER / name


def _require_folder(*files: Path | None) -> None:
    """Before minutes of work, that their results can be written."""
    for file in files:
        if file is not None and not file.parent.is_dir():
            raise BenchError(f"{file} cannot be written: there is no folder {file.parent}")
