"""The command ``fit``: whether a training fits into memory, and what makes it fit."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from integrations._utils.command_line import count
from integrations._utils.whole_files import write_text
from integrations.estimate.fit.answer import Fit
from integrations.estimate.fit.run import fit
from integrations.estimate.fit.ways import WAYS
from integrations.estimate.forecast import timm
from integrations.estimate.forecast.dtypes import NAMES, read_precision
from integrations.estimate.forecast.loss import differentiable
from integrations.planner.budget import budget_in
from integrations.planner.optimizers import OPTIMIZERS


def add_to(commands: Any) -> None:
    """Adds the command to a parser's commands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "fit",
        help="does a training fit into memory, and what makes it fit?",
        description="Print the memory of a training step: weights, gradients, optimizer states, activations, the "
        "loss and temporary tensors; whether it fits; and the line of code for the cheapest change that "
        "makes it fit. Nothing is trained, and no memory is allocated.",
    )
    parser.set_defaults(command=run)
    subject = parser.add_argument_group("the model, one of").add_mutually_exclusive_group(required=True)
    subject.add_argument("--hf", metavar="CONFIG", help="a model type of transformers, or a config.json: llama")
    subject.add_argument("--timm", metavar="NAME", help="a model of timm, with a cross-entropy as its loss: resnet50")
    parser.add_argument("--memory", required=True, help="memory of the device: 24GiB, 90%%, auto, or least")
    parser.add_argument("--batch", type=count, default=1, help="sequences or images of a forward; default: 1")
    parser.add_argument("--tokens", type=count, help="length of a sequence; default: 512")
    parser.add_argument("--image-size", type=count, metavar="PIXELS", help="height and width; default: the model's own")
    parser.add_argument("--optimizer", default="adamw", help=f"one of {', '.join(OPTIMIZERS)}; default: adamw")
    parser.add_argument("--dtype", help=f"one of {', '.join(NAMES)}; default: the configuration's")
    parser.add_argument(
        "--lora", nargs="+", metavar="NAME=VALUE", help="train only LoRA adapters: r=16 targets=all-linear"
    )
    parser.add_argument(
        "--fsdp", "--ranks", type=count, default=1, metavar="N", help="ranks that shard with FSDP2; default: 1"
    )
    parser.add_argument("--tp", type=count, default=1, metavar="N", help="ranks that share each layer; default: 1")
    parser.add_argument("--pp", type=count, default=1, metavar="N", help="stages of a 1F1B pipeline; default: 1")
    parser.add_argument("--micro-batches", type=count, metavar="N", help="of a step in the pipeline; default: --pp")
    parser.add_argument("--accumulate", action="store_true", help="steps accumulate gradients")
    parser.add_argument(
        "--reserve",
        type=float,
        default=0.05,
        help="fraction of the memory reserved for memory that is not counted; default: 0.05",
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="changes to try; default: all, the cheapest first")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="device of the step; default: cuda")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results")


def run(options: argparse.Namespace) -> None:
    """Runs the command. Raises if its options are wrong."""
    if options.json and not options.json.absolute().parent.is_dir():
        raise ValueError(f"{options.json} cannot be written: there is no folder {options.json.parent}")
    if options.timm:
        found = _fit_timm(options)
    elif options.image_size is not None:
        raise ValueError(f"--image-size must be left out with --hf, got {options.image_size}; it is for --timm")
    else:
        found = _fit(options, options.hf, batch=options.batch, tokens=512 if options.tokens is None else options.tokens)
    print(found)
    if options.json:
        write_text(options.json, found.to_json())


def _fit_timm(options: argparse.Namespace) -> Fit:
    if options.tokens is not None:
        raise ValueError(f"--tokens must be left out with --timm, got {options.tokens}; it is for --hf")
    subject = timm.subject(options.timm, options.batch, options.image_size).cast(read_precision(options.dtype).weights)
    return _fit(options, subject.model, subject.args, criterion=differentiable)


def _fit(options: argparse.Namespace, *model_and_inputs: Any, **sizes: Any) -> Fit:
    return fit(
        *model_and_inputs,
        **sizes,
        memory=budget_in(options.memory),
        optimizer=options.optimizer,
        dtype=options.dtype,
        lora=" ".join(options.lora) if options.lora else None,
        fsdp=options.fsdp,
        tp=options.tp,
        pp=options.pp,
        micro_batches=options.micro_batches,
        accumulate=options.accumulate,
        reserve=options.reserve,
        ways=options.ways,
        device=options.device,
    )
