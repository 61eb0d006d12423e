"""Which layer gets how many bits: ``ModelPrecision``, shared by the layers of one model. ``QScheme``: ActNN's names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import actcore
from integrations.qmodules.batch import Batch
from integrations.qmodules.device_rows import code_bytes
from integrations.qmodules.levels import QLevel
from integrations.qmodules.per_sample import costs_of_totals

if TYPE_CHECKING:
    from integrations.qmodules.precision import LayerPrecision


class _Scheme(type):
    """Class attributes that check what they are set to."""

    _num_samples: int | None = None
    _batch: Batch | None = None

    @property
    def num_samples(cls) -> int | None:
        """The size of the training set, for layers whose level names none."""
        return _Scheme._num_samples

    @num_samples.setter
    def num_samples(cls, value: int | None) -> None:
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"num_samples must be an int, got {value!r}")
            if value < 1:
                raise ValueError(f"num_samples must be the number of samples in the training set, got {value}")
        _Scheme._num_samples = value

    @property
    def batch(cls) -> Tensor | None:
        """The places in the training set of the samples of the batch that comes next."""
        return None if _Scheme._batch is None else _Scheme._batch.indices

    @batch.setter
    def batch(cls, indices: object) -> None:
        _Scheme._batch = None if indices is None else Batch(indices)

    @property
    def indices(cls) -> Batch | None:
        """``batch``, as layers take it."""
        return _Scheme._batch


class QScheme(metaclass=_Scheme):
    """ActNN's name for what per-sample gradients need to know, in every model of the process.

    ::

        QScheme.num_samples = len(train_set)      # before the first forward
        for indices, (images, labels) in loader:
            QScheme.batch = indices               # before each forward

    With two data sets in one process, give each model its own: ``config.num_samples`` (or ``QModule``'s option) and
    ``ModelPrecision.batch``.
    """


class QBNScheme(QScheme):
    """ActNN's name for the same of normalisation layers; it shares both attributes with ``QScheme``."""


@dataclass(frozen=True)
class Observation:
    """What one backward of one layer told.

    Attributes:
        layer: whose it is.
        sensitivities: ``Float64[Tensor, "rows"]``: the variance of the layer's gradient is their sum, each times the
            profile at its width.
        profile: ``Float64[Tensor, "8"]``: see ``rounding_profile``.
        size: elements of a row.
    """

    layer: LayerPrecision
    sensitivities: Tensor
    profile: Tensor
    size: int


@dataclass(frozen=True)
class _Pending:
    """Costs on their way to the host: of the layers in turn, as many as each has budgets."""

    costs: Tensor
    layers: tuple[tuple[LayerPrecision, range, int, int], ...]  # layer, sums of widths, rows, elements of a row
    arrived: Any  # torch.cuda.Event; None where the costs are on the host


class ModelPrecision:
    """How the layers of one model share the average of bits: by what rounding each of them does to the gradient.

    Every backward leaves with each layer that ran the variance that its rounding makes at each budget, per-sample bits
    being the best within it. From these ``actcore.allocate`` finds the layers' averages with the least variance
    in all, within the bytes that the level's average would take, group by group (``QLevel.bits``). Layers that did not
    run keep their average and hold up nobody.

    On CUDA the costs travel to the host beside the computation, and the first forward that finds them arrived
    uses them: nothing is waited for. What a rank decides is its own and changes only its rounding, which stays unbiased,
    and no bytes; ranks need not agree and do not talk.

    Args:
        level: of all layers.
    """

    def __init__(self, level: QLevel) -> None:
        self.level = level
        self.indices: Batch | None = None
        self._observed: list[Observation] = []
        self._pending: _Pending | None = None

    @property
    def batch(self) -> Tensor | None:
        """The places in the data set of the batch that comes next; ``None`` leaves it to ``QScheme.batch``."""
        return None if self.indices is None else self.indices.indices

    @batch.setter
    def batch(self, indices: object) -> None:
        self.indices = None if indices is None else Batch(indices)

    def observe(self, observation: Observation) -> None:
        """Takes note of a layer, inside of a backward; when that ends, bits are allocated."""
        if not self._observed:
            # autograd has no public hook for the end of a backward; DistributedDataParallel uses this one.
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self._observed.append(observation)

    def settle(self) -> None:
        """Uses the costs of the last backward, if they are on the host by now."""
        pending = self._pending
        if pending is None or (pending.arrived is not None and not pending.arrived.query()):
            return
        self._pending = None
        _allocate(pending)

    def _finish(self) -> None:
        observed, self._observed = self._observed, []
        most = self.level.initial_bits
        costs, layers = [], []
        for seen in observed:
            totals, variances = _choices(seen, most)
            costs.append(variances)
            layers.append((seen.layer, totals, seen.sensitivities.numel(), seen.size))
        if len({cost.device for cost in costs}) > 1:  # a model on several devices
            costs = [cost.to(costs[0].device, non_blocking=True) for cost in costs]
        joined, arrived = _to_host(torch.cat(costs))
        self._pending = _Pending(joined, tuple(layers), arrived)
        if arrived is None:
            self.settle()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_observed": [], "_pending": None}


def _choices(seen: Observation, most: int) -> tuple[range, Tensor]:
    """The sums of widths that a layer may get, and the variance at each."""
    if seen.sensitivities.numel() > 1:
        return costs_of_totals(seen.sensitivities, seen.profile, most)
    return range(1, most + 1), seen.sensitivities.sum() * seen.profile[:most]


def _to_host(costs: Tensor) -> tuple[Tensor, Any]:
    if costs.device.type != "cuda":
        return costs, None
    host = torch.empty(costs.shape, dtype=costs.dtype, pin_memory=True)
    host.copy_(costs, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(costs.device))
    return host, event


def _allocate(pending: _Pending) -> None:
    values = pending.costs.tolist()
    if not all(math.isfinite(value) for value in values):
        return  # an overflow, as GradScaler makes them, or NaN: the step tells nothing about rounding
    rows = []
    for layer, totals, count, size in pending.layers:
        rows.append((layer, totals, count, size, values[: len(totals)]))
        values = values[len(totals) :]
    for group in sorted({layer.group for layer, *_ in pending.layers}):
        _allocate_group([row for row in rows if row[0].group == group])


def _allocate_group(rows: Sequence[tuple[LayerPrecision, range, int, int, list[float]]]) -> None:
    costs, sizes, budget = [], [], 0
    for layer, totals, count, size, variances in rows:
        costs.append(variances)
        sizes.append([code_bytes(total, count, size) for total in totals])
        average = layer.level.bits[layer.group]
        budget += code_bytes(max(count, int(count * average)), count, size)
    solved = actcore.allocate(costs, sizes, max(budget, sum(min(size) for size in sizes)))
    given: dict[LayerPrecision, list[int]] = {}
    for (layer, totals, count, size, _), choice in zip(rows, solved.choices, strict=True):
        bits, elements = given.get(layer, [0, 0])
        given[layer] = [bits + totals[choice] * size, elements + count * size]
    for layer, (bits, elements) in given.items():
        layer.bits = bits / elements  # of a layer that ran more than once, the mean
