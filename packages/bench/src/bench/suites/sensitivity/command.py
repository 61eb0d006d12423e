"""``python -m bench sensitivity``: its options, and what is run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

import integrations
from bench.models.networks import bert, gcn, resnet18, vit_tiny
from bench.models.subject import Case
from bench.results.record import Record
from bench.runner.clock import THREADS
from bench.runner.command import Bench, Options
from bench.runner.gradients import backward, gradient, relative_error
from bench.runner.run import begun
from bench.suites.sensitivity.entries import KIND, Sensitivities
from bench.suites.sensitivity.report import REPORT
from integrations import LEVELS
from integrations.api.handle.two_seed import two_seed_errors

PAIRS, PASSES, STEPS = 40, 5, 10
QUICK_PAIRS, QUICK_STEPS, QUICK_MODELS = 4, 3, ("bert", "gcn")
MODELS: Mapping[str, Callable[[], Case]] = MappingProxyType(
    {"resnet18": partial(resnet18, 4), "vit_tiny": partial(vit_tiny, 2), "bert": partial(bert, 4, 0.0), "gcn": gcn}
)
"""By the name that the command line knows: a convolutional network, two transformers and a graph network."""
REFERENCED = ("resnet18", "bert", "gcn")
"""Those whose two-seed reference is measured: it takes a pass a tensor, and a ViT has more than a hundred."""


def run(asked: argparse.Namespace) -> Record:
    """Measures each model.

    Raises:
        BenchError: a model's library is not installed; the file holds other results.
    """
    bits = LEVELS[asked.level].bits
    assert bits is not None
    going = begun(KIND, asked, bits=bits)
    going.measure([Sensitivities(name) for name in asked.models], lambda blank: _measured(blank, asked, bits))
    return going.record


def _measured(blank: Sensitivities, asked: argparse.Namespace, bits: int) -> Sensitivities:
    name = blank.model
    torch.manual_seed(0)
    case = MODELS[name]()
    generator = torch.get_rng_state()
    closure = partial(backward, case, generator)
    exact = gradient(case, generator)

    handle = _compress(case, asked.level, equal_bits(bits))
    fresh = handle.state_dict()
    plans = []
    for number in range(PASSES):
        handle.load_state_dict({**fresh, "step": number})  # without a plan, and with other noise
        plans.append(handle.adapt(closure, passes=1))
    copies = [entry.identities for entry in plans[0].allotments]
    handle.load_state_dict({**fresh, "options": {**fresh["options"], "adaptive": False}, "adaptive": None})
    count = asked.pairs if name in REFERENCED else 0
    pairs = track(range(count), f"{name}: pairs of seeds", console=Console(stderr=True))
    errors = [two_seed_errors(handle, closure, copies, pair) for pair in pairs]
    plain_errors, plain_bytes = _errors(case, handle, generator, exact, asked.steps)
    integrations.restore_model(case.model)

    handle = _compress(case, asked.level, {})
    plan = handle.adapt(closure, passes=PASSES)
    planned_errors, planned_bytes = _errors(case, handle, generator, exact, asked.steps)
    return replace(
        blank,
        what=case.what,
        tensors=[", ".join(map(str, names)) for names in copies],
        estimates=[[entry.sensitivity for entry in found.allotments] for found in plans],
        references=[[(2**bits - 1) ** 2 * error for error in row] for row in errors],
        plain_errors=plain_errors,
        planned_errors=planned_errors,
        plain_bytes=plain_bytes,
        planned_bytes=planned_bytes,
        predicted=plan.relative_error,
    )


def equal_bits(bits: int) -> dict[str, int]:
    """The options by which everything that is rounded gets the same bits, whichever operator saved it."""
    return {field.name: bits for field in fields(integrations.Level) if field.name.endswith("bits")}


def _compress(case: Case, level: str, options: dict[str, Any]) -> integrations.Compression:
    return integrations.compression(integrations.compress_model(case.model, level, **options))


def _errors(
    case: Case, handle: integrations.Compression, generator: torch.Tensor, exact: list[torch.Tensor], steps: int
) -> tuple[list[float], int]:
    """The relative error of the gradient in each of some steps, and the bytes of what is quantised."""
    errors = [relative_error(gradient(case, generator), exact) for _ in range(steps)]
    rows = handle.report().rows
    return errors, sum(row.stored_bytes for row in rows if row.codec.startswith("GroupAffine"))


def options(add: Options) -> None:
    """Those of the command."""
    add.many("--model", MODELS, "model, repeatable; default: all", default=list(MODELS), quick=QUICK_MODELS)
    adaptive = [name for name, level in LEVELS.items() if level.adaptive and not level.offload]
    add.add("--level", default="L2", choices=adaptive, help="adaptive level; default: %(default)s")
    add.number("--pairs", "number of pairs of seeds in the reference", default=PAIRS, quick=QUICK_PAIRS)
    add.number("--steps", "number of steps that measure the gradient's error", default=STEPS, quick=QUICK_STEPS)
    add.quick(f"{', '.join(QUICK_MODELS)}; {QUICK_PAIRS} pairs, {QUICK_STEPS} steps")
    add.files(threads=THREADS, device=False)


BENCH = Bench(KIND, "how well adaptive levels know which tensors matter", options, run, REPORT)
