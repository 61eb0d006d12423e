"""The command line: ``python -m bench COMMAND``, with a command for each benchmark, and ``show``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import torch

from bench import commands, sentences
from bench.activations import command as activations
from bench.arguments import add_chart, add_shared, positive, two
from bench.checkpoint import command as checkpointing
from bench.errors import BenchError
from bench.fewbit import measure as fewbit
from bench.fewbit import memory, step_time
from bench.gnn import command as gnn
from bench.kernels import command as kernels
from bench.search import command as search
from bench.sensitivity import command as sensitivity
from bench.sweep import command as sweep
from bench.systems import command as systems
from bench.text import command as text
from bench.vision import images
from bench.vision import measure as vision


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
        print("python -m bench: interrupted; nothing was written but what goes to --json one by one", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m bench", description="What compressed activations save and cost, measured.")
    parsers = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, arguments: Callable[[argparse.ArgumentParser], None], what: str) -> None:
        arguments(parsers.add_parser(name, help=what))

    add("gnn", gnn.add_arguments, "train GNNs at full precision and compressed; accuracy, memory and time")
    add("kernels", kernels.add_arguments, "time codecs and operators beside copies, plain PyTorch and others")
    add("sensitivity", sensitivity.add_arguments, "how well adaptive levels know which tensors matter")
    add("activations", activations.add_arguments, "bytes, gradients and time of models of any kind")
    add("vision", _add_vision, "Q-layers: bytes, accuracy, the gradient's variance and time")
    add("fewbit", _add_fewbit, "few-bit activations and randomized linear layers")
    add("checkpoint", checkpointing.add_arguments, "planned recomputation: peaks, time and gradients")
    add("systems", systems.add_arguments, "every way to train with less memory: peaks against time")
    add("search", search.add_arguments, "the largest models and batches that train within a given memory")
    add("sweep", sweep.add_arguments, "one compressed training step of many models and layers")
    add("text", text.add_arguments, "BERT on GLUE's tasks: accuracy, memory and time of every way")

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


def _add_vision(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=commands.run_vision)
    parser.add_argument(
        "--part", action="append", choices=vision.PARTS, help="of the measurements, repeatable; default: all"
    )
    parser.add_argument(
        "--dataset", default="auto", choices=images.DATASETS, help="auto: CIFAR-10's subset at hand, otherwise digits"
    )
    parser.add_argument(
        "--data-root", type=Path, metavar="DIR", help=f"folder with {images.FILE}; default: ACTCORE_DATA"
    )
    parser.add_argument("--seeds", type=positive, help=f"of training, paired; default: {vision.SEEDS}")
    parser.add_argument("--epochs", type=positive, help=f"of each training run; default: {vision.EPOCHS}")
    parser.add_argument("--repeats", type=two, help=f"of a measured variance; default: {vision.REPEATS}")
    parser.add_argument("--rounds", type=positive, help=f"of timed steps; default: {vision.ROUNDS}")
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads(), help="default: %(default)s")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{vision.QUICK_SEEDS} seeds, {vision.QUICK_EPOCHS} epoch, {vision.QUICK_REPEATS} repeats, "
        f"{vision.QUICK_ROUNDS} rounds: shows that it works",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all raw values, machine and versions")
    add_chart(parser)


def _add_fewbit(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=commands.run_fewbit)
    parser.add_argument(
        "--part",
        action="append",
        choices=fewbit.PARTS,
        help="of the measurements, repeatable; default: all; those that lack a library or data are left out",
    )
    parser.add_argument(
        "--data-root", type=Path, metavar="DIR", help=f"folder with {sentences.FOLDER}/ in it; default: ACTCORE_DATA"
    )
    batches = ", ".join(f"{batch} on {device}" for device, batch in memory.BATCHES.items())
    parser.add_argument("--batch", type=positive, help=f"of the part memory; default: {batches}")
    parser.add_argument("--seeds", type=positive, help=f"of training, paired; default: {fewbit.SEEDS}")
    parser.add_argument("--rounds", type=positive, help=f"that count, of what is timed; default: {step_time.ROUNDS}")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"small networks, {fewbit.QUICK_SEEDS} seed, {fewbit.QUICK_STEPS} steps, {step_time.QUICK_ROUNDS} rounds: "
        "shows that it works",
    )
    add_shared(parser, threads=torch.get_num_threads(), place="; finished runs of training are kept beside it")
    add_chart(parser)
