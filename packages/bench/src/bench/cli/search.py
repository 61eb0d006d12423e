"""``python -m bench search``: its options, and what makes it a bench."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import torch

from bench.cli.arguments import size
from bench.cli.bench import Bench
from bench.cli.options import Options
from bench.errors import BenchError
from bench.runner.deadline import Deadline
from bench.suites.search import measure
from bench.suites.search.dimensions import DEFAULT, FAMILIES, MEMORY_LIMITS, NAMES, QUICK, QUICK_LIMITS, dimensions
from bench.suites.search.report import REPORT
from bench.suites.search.results import KIND
from bench.units import size_name
from bench.ways.decoders import ALL_WAYS, CONTEXT


def options(add: Options) -> None:
    """Those of the command."""
    add.add(
        "--family", action="append", choices=FAMILIES, help="all searches of these models, repeatable; default: all"
    )
    add.add(
        "--search",
        action="append",
        choices=NAMES,
        metavar="NAME",
        help=f"what to search, repeatable: {', '.join(NAMES)}; default: all on CUDA, on the CPU {', '.join(DEFAULT)}",
    )
    usual = f"{'; '.join(measure.COMPRESSED)}; of decoders {'; '.join(CONTEXT)}"
    words = f"to train, repeatable; default: {usual}; plain is always searched"
    add.many("--way", ALL_WAYS, words, quick=measure.QUICK_WAYS, metavar="WAY")
    add.add(
        "--memory-limit",
        type=size,
        help="that training may take: weights, gradients, the optimizer's state and activations; enforced by CUDA's "
        f"allocator, and on the CPU by the kernel; default: {'; '.join(map(_in_words, MEMORY_LIMITS))}",
    )
    words = f"to the last number; otherwise the largest is found to {100 * measure.RESOLUTION:g} %%"
    add.add("--precise", action="store_true", help=words)
    add.seed("of weights and inputs")
    add.quick(
        f"{', '.join(QUICK)}, {len(measure.QUICK_WAYS)} ways, in less memory, to {100 * measure.QUICK_RESOLUTION:g} %"
    )
    words = f"{', '.join(measure.GPU_NAMES)} in the ways {'; '.join(measure.GPU_WAYS)}, what is worth most first"
    add.add("--gpu", action="store_true", help=words)
    add.deadline("trial")
    add.device()
    add.threads(torch.get_num_threads())
    add.json(", trial by trial; what the file has is not tried again")
    add.chart()


def settle(asked: argparse.Namespace) -> None:
    """Finds what is searched, in which memory and how precisely, and begins to count the time.

    Raises:
        BenchError: what was named does not go together.
    """
    asked.within = Deadline(asked.deadline)
    asked.names = _names(asked)
    asked.resolution = 0.0 if asked.precise else measure.QUICK_RESOLUTION if asked.quick else measure.RESOLUTION
    limits = (QUICK_LIMITS if asked.quick else MEMORY_LIMITS)[asked.device]
    asked.memory_limits = dict.fromkeys(limits, asked.memory_limit) if asked.memory_limit else limits
    asked.by_default = measure.GPU_WAYS if asked.gpu else measure.COMPRESSED


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


WHAT = "the largest models and batches that train within a given memory"
BENCH = Bench(KIND, WHAT, options, measure.run, REPORT, settle)
