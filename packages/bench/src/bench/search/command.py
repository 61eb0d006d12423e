"""``python -m bench search``: its arguments, and what it does with them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import torch

from bench.arguments import add_chart, add_deadline, add_shared, size
from bench.deadline import Deadline
from bench.errors import BenchError
from bench.finish import finish, require_writable
from bench.search import measure
from bench.search.dimensions import DEFAULT, FAMILIES, MEMORY_LIMITS, NAMES, QUICK, QUICK_LIMITS, dimensions
from bench.systems.ways import WAYS
from bench.units import size_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds those of this command."""
    parser.set_defaults(command=run_search)
    parser.add_argument(
        "--family", action="append", choices=FAMILIES, help="all searches of these models, repeatable; default: all"
    )
    parser.add_argument(
        "--search",
        action="append",
        choices=NAMES,
        metavar="NAME",
        help=f"what to search, repeatable: {', '.join(NAMES)}; default: all on CUDA, on the CPU {', '.join(DEFAULT)}",
    )
    parser.add_argument(
        "--way",
        action="append",
        choices=WAYS,
        metavar="WAY",
        help=f"to train, repeatable; default: {'; '.join(measure.COMPRESSED)}; plain is always searched",
    )
    parser.add_argument(
        "--memory-limit",
        type=size,
        help="that training may take: weights, gradients, the optimizer's state and activations; enforced by CUDA's "
        f"allocator, and on the CPU by the kernel; default: {'; '.join(map(_in_words, MEMORY_LIMITS))}",
    )
    parser.add_argument(
        "--precise",
        action="store_true",
        help=f"to the last number; otherwise the largest is found to {100 * measure.RESOLUTION:g} %%",
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs; default: %(default)s")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{', '.join(QUICK)}, {len(measure.QUICK_WAYS)} ways, in less memory, to "
        f"{100 * measure.QUICK_RESOLUTION:g} %%: shows that it works",
    )
    parser.add_argument(
        "--gpu",
        action="store_true",
        help=f"{', '.join(measure.GPU_NAMES)} in the ways {'; '.join(measure.GPU_WAYS)}, what is worth most first",
    )
    add_deadline(parser, "trial")
    add_shared(parser, threads=torch.get_num_threads(), place=", trial by trial; what the file has is not tried again")
    add_chart(parser)


def run_search(options: argparse.Namespace) -> None:
    """The file is written from the first trial on, and taken up if it is there."""
    deadline = Deadline(options.deadline)
    require_writable(options.json, options.chart)
    resolution = 0.0 if options.precise else measure.QUICK_RESOLUTION if options.quick else measure.RESOLUTION
    limits = (QUICK_LIMITS if options.quick else MEMORY_LIMITS)[options.device]
    results = measure.run(
        measure.Options(
            names=_names(options),
            ways=options.way or (measure.QUICK_WAYS if options.quick else None),
            memory_limits=dict.fromkeys(limits, options.memory_limit) if options.memory_limit else limits,
            resolution=resolution,
            device=torch.device(options.device),
            threads=options.threads,
            seed=options.seed,
            json=options.json,
            by_default=measure.GPU_WAYS if options.gpu else measure.COMPRESSED,
            deadline=deadline,
        )
    )
    finish(results, options.json, options.chart)


def _in_words(device: str) -> str:
    limits = MEMORY_LIMITS[device]
    found = dict.fromkeys(limits.values())
    return f"{', '.join(f'{size_name(one)} ({_of(limits, one)})' for one in found)} on {device}"


def _of(limits: Mapping[str, int], limit: int) -> str:
    return ", ".join(family for family, one in limits.items() if one == limit)


def _names(options: argparse.Namespace) -> list[str]:
    """What is searched: what was named, and otherwise all of the families that were."""
    known = dimensions(options.device)
    if options.search:
        chosen = list(dict.fromkeys(options.search))
    elif options.gpu:
        chosen = list(measure.GPU_NAMES)
    elif options.quick:
        chosen = list(QUICK)
    elif options.family or options.device == "cuda":
        chosen = list(NAMES)
    else:
        chosen = list(DEFAULT)
    names = [name for name in chosen if known[name].family in (options.family or FAMILIES)]
    if not names:
        raise BenchError(
            f"--family {', '.join(options.family)} has none of --search {', '.join(chosen)}; leave one of them out"
        )
    return names
