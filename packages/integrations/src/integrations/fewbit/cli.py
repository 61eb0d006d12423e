"""The command line: ``python -m integrations.fewbit``, with the commands that ``help`` lists."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from torch import Tensor

from integrations._utils.command_line import Parser, run
from integrations._version import __version__
from integrations.fewbit import files, plot
from integrations.policies.codebooks import shipped
from integrations.policies.codebooks.catalogue import FUNCTIONS
from integrations.policies.codebooks.fitting import DOMAIN, approximate, checked_bits, estimate_error
from integrations.policies.codebooks.objective import WEIGHTS
from integrations.policies.codebooks.slopes import ScalarFunction
from integrations.policies.codebooks.steps import StepTable
from integrations.policies.codebooks.tables import table


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Returns 0; 1 after one line on stderr that says what is wrong; 130 when interrupted."""
    return run(_parser(), arguments)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m integrations.fewbit",
        description="Fit, draw and write the step functions that replace derivatives.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    fit = commands.add_parser("fit", help="fit a function of the catalogue, or module:function; print, draw, write")
    fit.set_defaults(command=_fit)
    fit.add_argument("function", help=f"{', '.join(FUNCTIONS)}, or module:function of a torch function")
    fit.add_argument("--bits", type=int, default=3, help="1 to 8; default: 3")
    fit.add_argument("--domain", type=float, nargs=2, default=DOMAIN, metavar=("LOW", "HIGH"), help="default: -10 10")
    fit.add_argument("--weight", choices=WEIGHTS, default="uniform", help="how much each x counts; default: uniform")
    fit.add_argument(
        "--parity", choices=("even", "none"), help="steps over |x| (even) or over x (none); default: the catalogue's"
    )
    fit.add_argument(
        "--parameters",
        type=float,
        nargs="+",
        default=(),
        metavar="P",
        help="parameters of the function, in torch's order",
    )
    fit.add_argument("--plot", type=Path, metavar="FILE", help="draw derivative, steps and error: .png, .svg or .pdf")
    fit.add_argument("--output", "-o", type=Path, metavar="FILE", help="write the table: .npz (FewBit's) or .json")

    quantize = commands.add_parser("quantize", help="FewBit's command: fit module:function into an .npz file")
    quantize.set_defaults(command=_quantize)
    quantize.add_argument("bits", type=int, metavar="NBITS", help="1 to 8")
    quantize.add_argument("function", metavar="FUNC", help="module:function, or a name of the catalogue")
    quantize.add_argument("--output", "-o", type=Path, metavar="FILE", help="default: print the table")
    for short, name in (("-M", "--max-iters"), ("-b", "--border-error"), ("-l", "--level-error"), ("-s", "--seed")):
        quantize.add_argument(short, name, help="no effect: the optimum is computed, not searched for")

    draw = commands.add_parser("draw", help="draw the steps of all smooth functions into one figure")
    draw.set_defaults(command=_draw)
    draw.add_argument("path", type=Path, metavar="FILE", help=".png, .svg or .pdf")
    draw.add_argument("--bits", type=int, default=3, help="1 to 8; default: 3")

    regenerate = commands.add_parser("regenerate", help="fit the tables in the package again and write its data files")
    regenerate.set_defaults(command=_regenerate)
    regenerate.add_argument("functions", nargs="*", metavar="FUNCTION", help="default: all that are smooth")
    regenerate.add_argument("--folder", type=Path, metavar="DIR", help="default: the package's own")

    told = commands.add_parser("version", help="print the version")
    told.set_defaults(command=lambda options: print(__version__))
    asked = commands.add_parser("help", help="print this help")
    asked.set_defaults(command=lambda options: parser.print_help())
    return parser


def _fit(options: argparse.Namespace) -> None:
    function, name = _function(options.function)
    if options.output:
        files.require_type(options.output)
    for path in filter(None, (options.output, options.plot)):
        files.require_folder(path)
    start = perf_counter()
    low, high = options.domain
    found = approximate(
        function,
        options.bits,
        domain=(low, high),
        weight=options.weight,
        parity=options.parity,
        parameters=options.parameters,
    )
    seconds = perf_counter() - start
    error = estimate_error(function, found, domain=(low, high), weight=options.weight, parameters=options.parameters)
    print(_listed(found))
    print(f"squared error {error:.6g} over {low:g} to {high:g}, weight {options.weight}; fitted in {seconds:.2f} s")
    if options.output:
        files.save(found, name, options.bits, options.output)
    if options.plot:
        plot.plot_table(function, found, options.plot, domain=(low, high), error=error, parameters=options.parameters)


def _quantize(options: argparse.Namespace) -> None:
    function, name = _function(options.function)
    if options.output:
        files.require_type(options.output)
        files.require_folder(options.output)
    found = approximate(function, options.bits, parity="none")
    if not options.output:
        print(_listed(found))
        return
    files.save(found, name, options.bits, options.output)
    print(f"{name}{options.bits:02d} written to {options.output}")


def _draw(options: argparse.Namespace) -> None:
    bits = checked_bits(options.bits)
    files.require_folder(options.path)
    plot.plot_functions({name: table(name, bits) for name in shipped.SMOOTH}, options.path)


def _regenerate(options: argparse.Namespace) -> None:
    names = options.functions or shipped.SMOOTH
    if unknown := [name for name in names if name not in shipped.SMOOTH]:
        raise ValueError(f"functions must be some of {', '.join(shipped.SMOOTH)}, got {', '.join(unknown)}")
    for path in shipped.regenerate(names, options.folder):
        print(path, flush=True)


def _function(text: str) -> tuple[ScalarFunction, str]:
    """A function, and the name that its table gets."""
    module, colon, name = text.rpartition(":")
    if not colon:
        if text not in FUNCTIONS:
            raise ValueError(f"function must be one of {', '.join(FUNCTIONS)}, or module:function, got {text!r}")
        return text, text
    found: object = importlib.import_module(module)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{module} has no {name!r}; name a function as in torch.nn.functional:gelu")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{text} must be a function, got {found!r}")
    function: Callable[[Tensor], Tensor] = found
    return function, name.rpartition(".")[2]


def _listed(found: StepTable) -> str:
    ends = ["0" if found.even else "-inf", *(f"{boundary:.6g}" for boundary in found.boundaries), "inf"]
    x = "|x|" if found.even else "x"
    return "\n".join(
        f"{low:>10} <= {x} < {high:<10} {level:+.6f}"
        for low, high, level in zip(ends[:-1], ends[1:], found.levels, strict=True)
    )
