"""The command line: ``python -m bench COMMAND``, with a command for each benchmark, and ``show``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import torch

from bench import commands, gnn
from bench.activations import measure as activations
from bench.activations.cases import MODELS as ANY_MODELS
from bench.arguments import add_chart, add_shared, positive, size
from bench.checkpoint import measure as checkpointing
from bench.checkpoint.architectures import ARCHITECTURES, QUICK
from bench.data import DATASETS
from bench.errors import BenchError
from bench.fewbit import command as fewbit
from bench.finish import FOLDER
from bench.kernels import measure
from bench.kernels.cases import FLOATS
from bench.models import MODELS
from bench.sensitivity import measure as sensitivity
from bench.sweep import command as sweep
from bench.systems import measure as systems
from bench.systems.subjects import QUICK as QUICK_SUBJECTS
from bench.systems.subjects import SUBJECTS
from bench.systems.ways import WAYS
from bench.units import size_name
from bench.vision import command as vision
from integrations import LEVELS


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
    parsers = parser.add_subparsers(required=True, metavar="COMMAND")

    train = parsers.add_parser("gnn", help="train GNNs at full precision and compressed; accuracy, memory and time")
    train.set_defaults(command=commands.run_gnn)
    train.add_argument("--model", action="append", choices=MODELS, help="repeatable; default: all")
    train.add_argument(
        "--level",
        action="append",
        choices=LEVELS,
        help=f"repeatable; default: {', '.join(commands.LEVELS)}; full precision, L0, is always run",
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
    train.add_argument("--seeds", type=positive, help=f"paired runs; default: {commands.SEEDS}")
    train.add_argument("--epochs", type=positive, help=f"of each run; default: {commands.EPOCHS}")
    train.add_argument(
        "--quick",
        action="store_true",
        help=f"{commands.QUICK_SEEDS} seed, {commands.QUICK_EPOCHS} epochs, no kernels: shows that it works, not how "
        "accurate it is",
    )
    add_shared(train, threads=torch.get_num_threads(), place=f"; default: {FOLDER}/gnn-DEVICE.json")
    add_chart(train, place=f"; default: {FOLDER}/gnn-DEVICE.png")

    time = parsers.add_parser("kernels", help="time codecs and operators beside copies, plain PyTorch and others")
    time.set_defaults(command=commands.run_kernels)
    time.add_argument("--case", action="append", metavar="TEXT", help="part of a case's name, repeatable; default: all")
    time.add_argument("--bits", action="append", type=int, choices=range(1, 9), help="repeatable; default: all")
    names = [str(dtype).removeprefix("torch.") for dtype in FLOATS]
    time.add_argument("--dtype", action="append", choices=names, help="repeatable; default: all that a case takes")
    time.add_argument(
        "--size",
        action="append",
        type=size,
        help="of the tensor, such as 4KiB or 256MiB, repeatable; default: "
        + "; ".join(f"{device}: {', '.join(map(size_name, sizes))}" for device, sizes in measure.SIZES.items()),
    )
    time.add_argument("--rounds", type=positive, help=f"that count, of each case; default: {measure.ROUNDS}")
    time.add_argument(
        "--alone", action="store_true", help="without plain PyTorch and other libraries: only copies beside"
    )
    time.add_argument(
        "--quick",
        action="store_true",
        help=f"{' and '.join(map(size_name, measure.QUICK_SIZES))}, {measure.QUICK_ROUNDS} rounds: shows that it works",
    )
    add_shared(time, threads=gnn.KERNEL_THREADS)
    add_chart(time)

    know = parsers.add_parser("sensitivity", help="how well adaptive levels know which tensors matter")
    know.set_defaults(command=commands.run_sensitivity)
    know.add_argument("--model", action="append", choices=sensitivity.MODELS, help="repeatable; default: all")
    adaptive = [name for name, level in LEVELS.items() if level.adaptive and not level.offload]
    know.add_argument("--level", default="L2", choices=adaptive, help="default: %(default)s")
    know.add_argument("--pairs", type=positive, help=f"of seeds in the reference; default: {sensitivity.PAIRS}")
    know.add_argument("--steps", type=positive, help=f"of the gradient's error; default: {sensitivity.STEPS}")
    know.add_argument("--threads", type=positive, default=gnn.KERNEL_THREADS, help="default: %(default)s")
    know.add_argument(
        "--quick",
        action="store_true",
        help=f"{sensitivity.QUICK_PAIRS} pairs, {sensitivity.QUICK_STEPS} steps: shows that it works",
    )
    know.add_argument("--json", type=Path, metavar="FILE", help="write all raw values, machine and versions")
    add_chart(know)

    any_model = parsers.add_parser("activations", help="bytes, gradients and time of models of any kind")
    any_model.set_defaults(command=commands.run_activations)
    any_model.add_argument(
        "--part", action="append", choices=activations.PARTS, help="of the measurements, repeatable; default: all"
    )
    any_model.add_argument(
        "--model",
        action="append",
        choices=ANY_MODELS,
        help="repeatable; default: all; those whose library is not installed are left out",
    )
    compressing = [name for name, level in LEVELS.items() if level.bits is not None and not level.offload]
    any_model.add_argument(
        "--level", action="append", choices=compressing, help=f"repeatable; default: {', '.join(activations.LEVELS)}"
    )
    any_model.add_argument("--steps", type=positive, help=f"of the gradient's error; default: {activations.STEPS}")
    any_model.add_argument("--rounds", type=positive, help=f"of timed steps; default: {activations.ROUNDS}")
    any_model.add_argument("--threads", type=positive, default=gnn.KERNEL_THREADS, help="default: %(default)s")
    any_model.add_argument(
        "--quick",
        action="store_true",
        help=f"{activations.QUICK_STEPS} steps, {activations.QUICK_ROUNDS} rounds: shows that it works",
    )
    any_model.add_argument("--json", type=Path, metavar="FILE", help="write all raw values, machine and versions")
    add_chart(any_model)

    vision.add_arguments(parsers.add_parser("vision", help="image models: bytes, peaks, accuracy, variance, time"))

    fewbit.add_arguments(parsers.add_parser("fewbit", help="few-bit activations and randomized linear layers"))

    _add_checkpoint(parsers.add_parser("checkpoint", help="planned recomputation: peaks, time and gradients"))
    _add_systems(parsers.add_parser("systems", help="every way to train with less memory: peaks against time"))

    sweep.add_arguments(parsers.add_parser("sweep", help="one compressed training step of many models and layers"))

    show = parsers.add_parser("show", help="print, and draw, results that were recorded with --json")
    show.set_defaults(command=commands.show)
    show.add_argument("results", type=Path, metavar="FILE")
    add_chart(show)

    report = parsers.add_parser("report", help="make the tables of pages anew, from recorded results")
    report.set_defaults(command=commands.report)
    report.add_argument("page", type=Path, nargs="+", help="Markdown with marks such as <!-- table FILE: HEADING -->")
    report.add_argument(
        "--results",
        type=Path,
        default=Path("packages/bench/results"),
        metavar="DIR",
        help="folder of the files that marks name; default: %(default)s",
    )
    report.add_argument("--check", action="store_true", help="change nothing; fail where a table is another one")
    return parser


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=commands.run_checkpoint)
    parser.add_argument(
        "--part",
        action="append",
        choices=checkpointing.PARTS,
        help="of the measurements, repeatable; default: all; plan and memory are at the size of a model's table, the "
        "others at one at which a step takes seconds at most",
    )
    parser.add_argument(
        "--model",
        action="append",
        choices=ARCHITECTURES,
        help="repeatable; default: all; those whose library is not installed are left out",
    )
    parser.add_argument("--batch", type=positive, help="of the parts plan and memory; default: by model")
    parser.add_argument("--size", type=positive, help="of the parts plan and memory; default: by model")
    parser.add_argument(
        "--memory-limit",
        type=size,
        default=checkpointing.MEMORY_LIMIT,
        help="that a step may take; batches that need more are halved; default: "
        f"{size_name(checkpointing.MEMORY_LIMIT).replace(' ', '')}",
    )
    parser.add_argument(
        "--compile",
        action="append",
        choices=ARCHITECTURES,
        metavar="MODEL",
        help=f"of the part compile, which takes minutes, repeatable; default: {', '.join(checkpointing.COMPILED)}",
    )
    parser.add_argument("--rounds", type=positive, help=f"of timed steps; default: {checkpointing.ROUNDS}")
    parser.add_argument("--seed", type=int, default=0, help="of weights, inputs and gradients; default: %(default)s")
    parser.add_argument(
        "--channels-last", action="store_true", help="images in that order, in which CPU convolutions copy nothing"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{', '.join(QUICK)}, {checkpointing.QUICK_ROUNDS} rounds, all parts at small sizes, none compiled: shows "
        "that it works",
    )
    add_shared(parser, threads=torch.get_num_threads(), place=", one by one; what the file has is not measured again")
    add_chart(parser)


def _add_systems(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=commands.run_systems)
    parser.add_argument(
        "--model",
        action="append",
        choices=SUBJECTS,
        help="repeatable; default: all; those whose library is not installed are left out",
    )
    parser.add_argument("--way", action="append", choices=WAYS, help="repeatable; default: all that need no compiler")
    parser.add_argument("--compile", action="store_true", help="with torch.compile, which takes minutes a model")
    parser.add_argument("--no-time", action="store_true", help="peaks and gradients alone, for a machine that is busy")
    parser.add_argument("--rounds", type=positive, help=f"of timed steps; default: {systems.ROUNDS}")
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs; default: %(default)s")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{', '.join(QUICK_SUBJECTS)}, {systems.QUICK_ROUNDS} rounds: shows that it works, in 2 minutes",
    )
    add_shared(parser, threads=torch.get_num_threads(), place=", cell by cell; what the file has is not measured again")
    add_chart(parser)
