"""One model in one way, measured in processes of its own: its bytes as part ``compression`` counts them, and its
gradient's error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bench.errors import reason
from bench.models.dense import DENSE
from bench.models.subject import Case
from bench.runner.gradients import relative_error
from bench.suites.vision.compression.cell import FEW, WARM_UP, Counted, Settings, measure_made
from bench.suites.vision.compression.results import Cell
from bench.suites.vision.dense.results import DenseCell
from bench.ways.conversions import PLAIN, WAYS

SAME = 1e-5
"""By how much of themselves losses may differ whose gradients are compared. The order of float32 sums makes 1e-6; one
other anchor in a sample of 256, or one other box, makes 1e-3."""


def measure_here(cell: DenseCell, *, settings: Mapping[str, Any], counted: Counted) -> DenseCell:
    """Measures what ``counted`` says in this process, and adds it to the cell."""
    common = Settings.of(settings)
    found = measure_made(cell, common, counted, build, batch_of)
    if found.failure or counted == "peak" or cell.way == PLAIN:
        return found
    try:
        return _with_error(found, common)
    except Exception as error:  # the bytes are known all the same
        return replace(found, failure=f"the gradient's error: {reason(error)}")


def build(cell: Cell, settings: Settings) -> nn.Module:
    """The model of a cell with random weights, untouched."""
    torch.manual_seed(settings.seed)
    return DENSE[cell.model].build(cell.size, settings.device).to(settings.device)


def batch_of(model: nn.Module, cell: Cell, settings: Settings, batch: int) -> Case:
    """A model with generated images and targets, the same at each call."""
    return DENSE[cell.model].case(model, batch, cell.size, torch.device(settings.device), settings.seed)


def _with_error(cell: DenseCell, settings: Settings) -> DenseCell:
    exact_loss, exact = _gradient(cell, settings, PLAIN)
    loss, found = _gradient(cell, settings, cell.way)
    same = abs(loss - exact_loss) <= SAME * abs(exact_loss)
    return replace(cell, losses=[exact_loss, loss], gradient_error=relative_error(found, exact) if same else None)


def _gradient(cell: DenseCell, settings: Settings, way: str) -> tuple[float, list[Tensor]]:
    """A step's loss and gradient, after the steps that warm up: MoCo's queue then holds the same in every way."""
    model = build(cell, settings)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # Q-layers draw other zeros than torch does
    WAYS[way].convert(model, settings.seed)
    for _ in range(WARM_UP):
        batch = cell.batch if WAYS[cell.way].recomputed else min(FEW, cell.batch)
        batch_of(model, cell, settings, batch).loss().backward()
    case = batch_of(model, cell, settings, cell.batch)
    model.zero_grad()
    loss = case.loss()
    loss.backward()
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return loss.item(), [torch.zeros_like(one) if one.grad is None else one.grad for one in weights]
