"""The command ``report``: where a model's memory would go, and what a level would save."""

from __future__ import annotations

import argparse
import ast
import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console

from integrations._utils.autocast import autocast_as_on
from integrations._utils.command_line import count
from integrations._utils.whole_files import write_text
from integrations.api import plan as planning
from integrations.estimate.forecast import hf, pyg, timm
from integrations.estimate.forecast.checkpoints import checkpoint
from integrations.estimate.forecast.dtypes import NAMES, read_precision
from integrations.estimate.forecast.loss import CROSS_ENTROPY, differentiable
from integrations.estimate.forecast.measured import unmeasured
from integrations.estimate.forecast.run import LooksAtElements, forecast
from integrations.estimate.forecast.scaled import scaled
from integrations.estimate.forecast.subject import Subject
from integrations.planner.budget import budget_in
from integrations.planner.plan import Plan
from integrations.policies.levels import LEVELS
from integrations.report import Report

_WIDTH = 160  # of the tables, where there is no terminal


def add_to(commands: Any) -> None:
    """Adds the command to a parser's commands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "report",
        help="where would a model's memory go, and what would a level save?",
        description="Print the tensors that autograd would save in one forward, by module, and their size at a "
        "level. The forward runs on tensors without data, which take no memory; a forward that reads "
        "tensor values runs on two small batches. Nothing is trained.",
    )
    parser.set_defaults(command=run)
    subject = parser.add_argument_group("the model, one of").add_mutually_exclusive_group(required=True)
    subject.add_argument("--timm", metavar="NAME", help="a model of timm: resnet50")
    subject.add_argument("--hf", metavar="CONFIG", help="a model type of transformers, or a config.json: bert")
    subject.add_argument("--pyg", metavar="CLASS", help="a model or layer of PyTorch Geometric: GAT")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="NAME=VALUE", help="arguments of the model, or fields of its config"
    )

    inputs = parser.add_argument_group("its inputs")
    inputs.add_argument("--batch", type=count, default=8, help="number of images or sequences; default: 8")
    inputs.add_argument("--image-size", type=count, metavar="PIXELS", help="height and width; default: the model's own")
    inputs.add_argument(
        "--length", type=count, default=128, help="number of tokens or samples of a sequence; default: 128"
    )
    graph = {"--nodes": 2708, "--edges": 10556, "--features": 1433, "--hidden": 64, "--classes": 7, "--layers": 2}
    for name, default in graph.items():
        inputs.add_argument(name, type=count, default=default, help=f"for --pyg; default: {default}")

    parser.add_argument("--dtype", help=f"of weights and inputs, one of {', '.join(NAMES)}; default: the model's own")
    parser.add_argument(
        "--checkpoint",
        action="store_true",
        help="enable the model's own gradient checkpointing (timm and transformers)",
    )
    inputs.add_argument(
        "--criterion",
        "--loss",
        choices=("cross_entropy", "none"),
        default="cross_entropy",
        help="loss of the model's output if the model does not return a loss; default: cross_entropy",
    )

    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="device of the operators; cuda needs no GPU; default: cpu",
    )
    parser.add_argument("--level", help=f"one of {', '.join(LEVELS)}; default: L1")
    parser.add_argument(
        "--option", nargs="+", default=[], metavar="NAME=VALUE", help="options of the level: bits=3 min_bytes=4096"
    )
    plan = parser.add_argument_group("a plan instead of a level, as in compress_model")
    plan.add_argument("--memory", metavar="BYTES", help="memory budget of forward and backward: 8GiB, 40%%, least")
    plan.add_argument("--error", type=float, help="bound on the gradient's relative error; default: 0, exact")
    exchanged = parser.add_argument_group("layers to convert to ones that keep less, as in compress_model")
    exchanged.add_argument(
        "--activations", type=_word_or_number, metavar="BITS", help="few-bit activations: fewbit (3 bits) or 1 to 8"
    )
    exchanged.add_argument(
        "--linear", type=_word_or_number, metavar="RATIO", help="linear layers that keep a sketch: randomized, or 0.2"
    )
    exchanged.add_argument("--q-layers", metavar="LEVEL", help="Q-layers: q, or one of their levels such as ActNN-L3")
    output = parser.add_argument_group("what to print and write")
    output.add_argument("--depth", type=int, default=1, help="print modules down to this depth; default: 1")
    output.add_argument("--all", action="store_true", help="print every tensor")
    for name, what in (("--json", "all results"), ("--plot", "a chart: .png, .svg or .pdf"), ("--html", "a page")):
        output.add_argument(name, type=Path, metavar="FILE", help=f"write {what}")


def run(options: argparse.Namespace) -> None:
    """Runs the command. Raises if its options are wrong."""
    for path in filter(None, (options.json, options.plot, options.html)):
        if not path.absolute().parent.is_dir():
            raise ValueError(f"{path} cannot be written: there is no folder {path.parent}")
    _require_one_way(options)
    subject, chosen = _subject(options, options.batch), _pairs(options.option, "--option")
    narrow = read_precision(options.dtype).autocast
    surroundings = nullcontext() if narrow is None else autocast_as_on(options.device, narrow)
    if options.memory is not None:
        with surroundings:
            plan = _planned_for(subject, options.memory, options.error, options.criterion != "none")
        print(f"{subject.name}\n{plan}")
        _write(options, plan.to_json, plan.plot, plan.page)
        return
    report = _forecast(options, subject, chosen, surroundings)
    _print(report.model, report.table(None if options.all else options.depth))
    if line := unmeasured(options.device):
        print(line)
    _write(options, report.to_json, report.plot, report.html)


def _require_one_way(options: argparse.Namespace) -> None:
    """Checks that a plan is asked for, or a level, and not both.

    Raises:
        ValueError: they are.
    """
    if options.memory is None:
        if options.error is not None:
            raise ValueError("--error must be left out without --memory: a level has no bound on the error")
        return
    exchanged = options.activations, options.linear, options.q_layers
    if options.level is not None or options.option or any(one is not None for one in exchanged):
        raise ValueError(
            "--memory cannot be combined with a level, its options or layers to convert, because a plan chooses how "
            "each tensor is stored: leave them out, or leave --memory out"
        )
    if options.device != "cpu":
        raise ValueError(
            f"--device must be cpu with --memory, because plans are made for the CPU's operators; got {options.device}"
        )


def _forecast(
    options: argparse.Namespace, subject: Subject, chosen: dict[str, Any], surroundings: AbstractContextManager[Any]
) -> Report:
    level = options.level or "L1"
    asked = {"activations": options.activations, "linear": options.linear, "layers": options.q_layers}
    loss = None if options.criterion == "none" else CROSS_ENTROPY
    try:
        with surroundings:
            report = forecast(
                subject.model,
                subject.args,
                subject.kwargs,
                level=level,
                criterion=loss,
                device=options.device,
                **asked,
                **chosen,
            )
    except LooksAtElements as error:
        if options.device != "cpu":
            raise LooksAtElements(f"{error}; or leave --device out to run small batches on the CPU") from error
        batch = 1 if options.pyg else options.batch  # a graph is one
        report = scaled(lambda size: _subject(options, size, elements=True), batch, level, asked, loss, **chosen)
    return dataclasses.replace(report, model=subject.name)


def _write(
    options: argparse.Namespace, text: Callable[[], str], plot: Callable[[Path], None], page: Callable[[Path], None]
) -> None:
    """Writes the files that were asked for."""
    if options.json:
        write_text(options.json, text())
    if options.plot:
        plot(options.plot)
    if options.html:
        page(options.html)


def _subject(options: argparse.Namespace, batch: int, elements: bool = False) -> Subject:
    found = _plain_subject(options, batch, elements)
    read_precision(options.dtype).of(found.model)
    if options.checkpoint:
        checkpoint(found.model)
    return found.cast(read_precision(options.dtype).weights)


def _plain_subject(options: argparse.Namespace, batch: int, elements: bool) -> Subject:
    chosen = _pairs(options.set, "--set")
    if options.timm:
        return timm.subject(options.timm, batch, options.image_size, elements, **chosen)
    if options.hf:
        return hf.subject(options.hf, batch, options.length, options.image_size, elements, **chosen)
    sizes = {name: getattr(options, name) for name in ("nodes", "edges", "features", "hidden", "classes", "layers")}
    return pyg.subject(options.pyg, **sizes, elements=elements, **chosen)


def _print(title: str, content: Any) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    console.print(f"[bold]{title}[/bold]", highlight=False)
    console.print(content)


def _word_or_number(text: str) -> str | int | float:
    """``"3"`` as 3, ``"0.2"`` as 0.2, a name as it is."""
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _pairs(texts: list[str], option: str) -> dict[str, Any]:
    """``["bits=3"]`` as ``{"bits": 3}``; what is no literal of Python is a string."""
    found: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.isidentifier():
            raise ValueError(f"{option} must be NAME=VALUE, got {text!r}")
        try:
            found[name] = ast.literal_eval(value)
        except (MemoryError, RecursionError, SyntaxError, ValueError):  # the first two of brackets in brackets
            found[name] = value
    return found


_LABELS = "labels"  # with which models of transformers return their loss


def _planned_for(subject: Subject, memory: str, error: float | None, loss: bool) -> Plan:
    """The plan of a training forward within a memory, whose error is estimated by the operators.

    Args:
        subject: the model and its inputs.
        memory: as ``compress_model`` takes it; a fraction of the plain step's as text, such as ``"0.3"``.
        error: the bound on the gradient's error; ``None`` for exact gradients.
        loss: whether the loop computes a cross-entropy of what the model returns, where that has no loss.

    Raises:
        ValueError: the memory or the error is out of range, or no plan keeps to them.
    """
    starts = differentiable if loss and _LABELS not in subject.kwargs else None
    return planning.plan(
        subject.model.train(),
        subject.args,
        subject.kwargs,
        memory=budget_in(memory),
        error=error,
        criterion=starts,
        measure=False,
    )
