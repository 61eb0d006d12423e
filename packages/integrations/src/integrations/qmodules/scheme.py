"""Which layer gets how many bits: ``ModelPrecision``, shared by the layers of one model. ``QScheme``: ActNN's names."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import actcore
from actcore.double_backward import BY_ROUNDED
from integrations._utils.torch_internals import current_graph_task_id, queue_callback
from integrations._utils.warn import warn
from integrations.planner.sensitivity.surroundings import undo_after_trial
from integrations.qmodules.batch import Batch
from integrations.qmodules.device_rows import code_bytes
from integrations.qmodules.levels import QLevel
from integrations.qmodules.per_sample import costs_of_totals
from integrations.tracing.double_backward import DoubleBackward

if TYPE_CHECKING:
    from integrations.qmodules.precision import LayerPrecision

_NESTED = 8  # backwards inside of backwards, as reentrant checkpoints run them


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
        before = _Scheme._batch
        _Scheme._batch = _following(before, indices, partial(setattr, _Scheme, "_batch", before))

    @property
    def indices(cls) -> Batch | None:
        """``batch``, as layers take it."""
        return _Scheme._batch


class QScheme(metaclass=_Scheme):
    """ActNN's name for the data that per-sample gradients need, for all models of the process.

    ::

        QScheme.num_samples = len(train_set)      # before the first forward
        for indices, (images, labels) in loader:
            QScheme.batch = indices               # before each forward

    With two data sets in one process, give each model its own: ``config.num_samples`` (or the option of ``QModule``)
    and ``model_precision(model).batch``.
    """


class QBNScheme(QScheme):
    """ActNN's name for the same data of normalization layers; it shares both attributes with ``QScheme``."""


@dataclass(frozen=True)
class Observation:
    """What one backward of one layer told.

    Attributes:
        layer: whose it is.
        sensitivities: ``Float64[Tensor, "rows"]``: the variance of the layer's gradient is their sum, each times the
            profile at its width.
        profile: ``Float64[Tensor, "8"]``: see ``rounding_profile``.
        size: elements of a row.
        source: what was stored; layers that store one tensor have the same, and share its bits.
        ready: on CUDA, the event (torch.cuda.Event) after which the sensitivities are there.
    """

    layer: LayerPrecision
    sensitivities: Tensor
    profile: Tensor
    size: int
    source: object
    ready: Any = None

    def hand_over(self) -> None:
        """Lets the current stream use the sensitivities, which a layer on another one may have computed."""
        if self.ready is not None:
            current = torch.cuda.current_stream(self.sensitivities.device)
            current.wait_event(self.ready)
            self.sensitivities.record_stream(current)


# Norms from which on a network counts as deep. The error of a norm's input goes on into all gradients below and grows
# from norm to norm, and no factor on the norm's own gradient says what that is worth: at 2 bits on average, norms near
# the top of an untrained ResNet-50 (53 of them; 16 images of 96 x 96) got 1 bit, and the whole gradient an error of 27
# times itself. With the average at least they have 0.43, and 0.87 where every layer has 2 bits. In a ResNet-20, of some
# 20 norms, the allocation gains by taking bits from norms, too.
_DEEP = 32


@dataclass(frozen=True)
class _Input:
    """What a forward stored for some layers, and what bits for it cost.

    Attributes:
        layers: whose input it is, all of one group.
        totals: the sums of widths that it may have.
        rows, size: how many there are, and the elements of one.
        costs: the variance at each of the totals.
    """

    layers: tuple[LayerPrecision, ...]
    totals: range
    rows: int
    size: int
    costs: Tensor

    @property
    def group(self) -> int:
        return self.layers[0].group

    @property
    def budget(self) -> int:
        """Bytes of codes at the level's average."""
        average = self.layers[0].level.bits[self.group]
        return code_bytes(max(self.rows, int(self.rows * average)), self.rows, self.size)


@dataclass(frozen=True)
class _Pending:
    """Costs on their way to the host: those of the inputs one after another."""

    costs: Tensor
    inputs: tuple[_Input, ...]
    arrived: Any  # torch.cuda.Event; None where the costs are on the host


class ModelPrecision:
    """Shares the average bits among the layers of one model, according to the effect of their rounding on the gradient.

    Every backward records for each layer that ran the variance of its rounding at each budget, with the best per-sample
    bits within that budget. From these ``actcore.allocate`` finds the averages of the layers with the least total
    variance, within the bytes of the level's average, group by group (``QLevel.bits``). Layers that did not run keep
    their average and do not delay the others.

    On CUDA the costs are copied to the host concurrently with the computation, and the first forward after their
    arrival uses them, without a synchronization. Each rank decides for itself. That changes only its rounding, which
    stays unbiased and takes the same bytes; ranks need not agree and do not communicate.

    Args:
        level: the level of all layers.

    Attributes:
        double: records whether a backward with ``create_graph=True`` reads rounded inputs of the layers.
    """

    def __init__(self, level: QLevel) -> None:
        self.level = level
        self.double = new_double_backward()
        self.indices: Batch | None = None
        self._observed: dict[int, list[Observation]] = {}  # by backward: one may run inside of another
        self._pending: _Pending | None = None

    @property
    def batch(self) -> Tensor | None:
        """The places in the data set of the batch that comes next; ``None`` leaves it to ``QScheme.batch``."""
        return None if self.indices is None else self.indices.indices

    @batch.setter
    def batch(self, indices: object) -> None:
        before = self.indices
        self.indices = _following(before, indices, partial(setattr, self, "indices", before))

    def observe(self, observation: Observation) -> None:
        """Record a layer during a backward; at the end of that backward, bits are allocated."""
        if observation.sensitivities.is_meta:
            return
        if observation.sensitivities.is_cuda:
            if actcore.in_cuda_graph():
                return  # what Python does now, no replay does again
            stream = torch.cuda.current_stream(observation.sensitivities.device)
            observation = replace(observation, ready=stream.record_event())
        backward = current_graph_task_id()
        if backward not in self._observed:
            if len(self._observed) == _NESTED:  # what raised has left its observations here
                del self._observed[min(self._observed)]
            self._observed[backward] = []
            # autograd has no public hook for the end of a backward; DistributedDataParallel uses this one.
            queue_callback(partial(self._finish, backward))
        self._observed[backward].append(observation)

    def settle(self) -> None:
        """Use the costs of the last backward, if they have arrived on the host."""
        pending = self._pending
        if pending is None:
            return
        if pending.arrived is not None and (actcore.in_cuda_graph() or not pending.arrived.query()):
            return
        self._pending = None
        _allocate(pending)

    def _finish(self, backward: int) -> None:
        observed = self._observed.pop(backward, [])
        if not observed:
            return
        for seen in observed:
            seen.hand_over()
        shared: dict[tuple[object, ...], list[Observation]] = {}
        for seen in observed:
            key = (seen.source, seen.layer.group, seen.sensitivities.shape, seen.size)
            shared.setdefault(key, []).append(seen)
        inputs = tuple(_input(seen, self.level.initial_bits) for seen in shared.values())
        device = inputs[0].costs.device  # a model may be spread over several
        costs = torch.cat([found.costs.to(device, non_blocking=True) for found in inputs])
        self._pending = _Pending(*_to_host(costs, inputs))
        self.settle()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_observed": {}, "_pending": None}


def new_double_backward() -> DoubleBackward:
    """Return a new ``DoubleBackward`` that warns, with the ways out for Q-layers."""
    return DoubleBackward(_tell_of_double_backward)


def _tell_of_double_backward(rounded: bool) -> None:
    warn(
        f"Q-layers: {BY_ROUNDED}. Second derivatives have more error than first ones, and a bias. Use torch's layers "
        "(QModule on other parts of the model, qmodules.restore_model(model), compress_model without layers=) or more "
        "bits (bits=8)"
    )


def model_precision(model: nn.Module) -> ModelPrecision:
    """Return the shared precision of a converted model; ``model_precision(model).batch = indices`` affects only this
    model.

    Raises:
        ValueError: the model was not converted, so no layer shares its precision.
    """
    for module in model.modules():
        shared = getattr(getattr(module, "precision", None), "model", None)
        if isinstance(shared, ModelPrecision):
            return shared
    raise ValueError(f"{type(model).__name__} is not converted; call qmodules.QModule(model) first")


def _following(before: Batch | None, indices: object, put_back: Callable[[], object]) -> Batch | None:
    """The batch of these indices, after another one, which ``put_back`` sets again at the end of a trial run."""
    if not undo_after_trial(put_back) and before is not None:
        before.retire()
    return None if indices is None else Batch(indices, before)


def _input(observed: Sequence[Observation], most: int) -> _Input:
    """The costs of what all these observations are of."""
    first = observed[0]
    sensitivities = sum((seen.sensitivities for seen in observed[1:]), first.sensitivities)
    rows = sensitivities.numel()
    if rows > 1:
        totals, costs = costs_of_totals(sensitivities, first.profile, most)
    else:
        totals, costs = range(1, most + 1), sensitivities.sum() * first.profile[:most]
    layers = dict.fromkeys(seen.layer for seen in observed)
    return _Input(tuple(layers), totals, rows, first.size, costs)


def _to_host(costs: Tensor, inputs: tuple[_Input, ...]) -> tuple[Tensor, tuple[_Input, ...], Any]:
    if costs.device.type != "cuda":
        return costs, inputs, None
    host = torch.empty(costs.shape, dtype=costs.dtype, pin_memory=True)
    host.copy_(costs, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(costs.device))
    return host, inputs, event


def _allocate(pending: _Pending) -> None:
    values = pending.costs.tolist()
    if not all(math.isfinite(value) for value in values):
        return  # an overflow, as GradScaler makes them, or NaN: the step tells nothing about rounding
    position = iter(values)
    costs = [[next(position) for _ in found.totals] for found in pending.inputs]
    for group in sorted({found.group for found in pending.inputs}):
        chosen = [place for place, found in enumerate(pending.inputs) if found.group == group]
        _allocate_group([pending.inputs[place] for place in chosen], [costs[place] for place in chosen])


def _of_norm(found: _Input) -> bool:
    return any(layer.kind == "norm" for layer in found.layers)


def _from_the_average(found: _Input, costs: Sequence[float]) -> tuple[_Input, Sequence[float]]:
    """What a norm stores, without the choices below the whole bits of its average; anything else as it is."""
    if not _of_norm(found):
        return found, costs
    average = min(math.floor(layer.level.bits[layer.group]) for layer in found.layers)
    start = next((place for place, total in enumerate(found.totals) if total >= average * found.rows), 0)
    return replace(found, totals=found.totals[start:]), costs[start:]


def _allocate_group(inputs: Sequence[_Input], costs: Sequence[Sequence[float]]) -> None:
    if sum(map(_of_norm, inputs)) > _DEEP:
        chosen = [_from_the_average(found, row) for found, row in zip(inputs, costs, strict=True)]
        inputs, costs = [found for found, _ in chosen], [row for _, row in chosen]
    sizes = [[code_bytes(total, found.rows, found.size) for total in found.totals] for found in inputs]
    budget = sum(min(max(found.budget, min(row)), max(row)) for found, row in zip(inputs, sizes, strict=True))
    solved = actcore.allocate(costs, sizes, budget)
    given: dict[LayerPrecision, tuple[int, int]] = {}
    for found, choice in zip(inputs, solved.choices, strict=True):
        for layer in found.layers:
            bits, elements = given.get(layer, (0, 0))
            given[layer] = bits + found.totals[choice] * found.size, elements + found.rows * found.size
    for layer, (bits, elements) in given.items():
        layer.bits = bits / elements  # of a layer that ran more than once, the mean
