"""``forecast``: the report of a forward that is not computed."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from integrations._utils.older_names import accepts_older_names
from integrations._utils.torch_internals import (
    DataDependentOutputException,
    DisableTorchFunction,
    DynamicOutputShapeException,
    FakeTensorMode,
    TorchDispatchMode,
    tree_map_only,
)
from integrations.api.compress import compress_model, compression
from integrations.capture.dispatch import indices
from integrations.capture.dispatch.fakes import Fakes
from integrations.capture.dispatch.operators import get_traits
from integrations.capture.loss import Loss, require_loss
from integrations.capture.reachable_state import ReachableState
from integrations.estimate.forecast.attention import FusedAttention
from integrations.estimate.forecast.device import OnDevice, forecast_device, needs_gpu
from integrations.estimate.forecast.loss import CROSS_ENTROPY, make_part
from integrations.policies.levels import Level, resolve_level
from integrations.report import Report
from integrations.report.peak import estimated_peaks, gradient_bytes_by_module
from integrations.report.words import ESTIMATED
from integrations.tracing.storage.storage import Storages
from integrations.tracing.tensors import tensors_in

# Torch raises these if an operator's result, or its shape, depends on elements.
_LOOKS = (DataDependentOutputException, DynamicOutputShapeException)

NOTE = "A forecast: the forward ran on tensors without data, as on {}; nothing was computed or trained."

MEAN = (
    "The level is adaptive: each tensor is shown with the average bits; in training, a plan distributes the same "
    "total over the tensors."
)


@accepts_older_names(criterion="loss")
def forecast(
    model: nn.Module,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    level: str = "L1",
    activations: str | int | Mapping[str, Any] | None = None,
    linear: str | float | Mapping[str, Any] | None = None,
    layers: str | Mapping[str, Any] | None = None,
    criterion: Loss | str | None = None,
    device: str | torch.device = "cpu",
    **options: Any,
) -> Report:
    """Return the report that a compressed model would give of its next forward, without running it.

    The model's own forward runs on fake tensors, which have shapes but no data, in a copy that has no data either: it
    takes no memory, and only the time of Python. Rows and bytes are those of the real forward on the CPU, or with
    CUDA's operators, which needs no GPU. Small integer and bool tensors are computed, since masks and indices choose
    the path of a forward.

    ::

        report = integrations.forecast(model, torch.empty(64, 3, 224, 224, device="meta"), level="L2")
        print(report.table(depth=1))

    Args:
        model: any module that is not compressed, on any device, also ``meta``; it stays unchanged.
        args: positional inputs, a tuple; or one input. Floating-point tensors may be on ``meta``, which has no memory.
        kwargs: inputs by name.
        level: as for ``compress_model``. At an adaptive level, every tensor has the bits that a plan gives on average.
        activations, linear, layers: as for ``compress_model``; the copy's layers are replaced.
        criterion: the loss of the training: a function of the model's output, or ``"cross_entropy"`` of its logits.
            The tensors that it saves have their own rows, uncompressed, because the hooks of a model do not see them.
            For a model that returns its loss, leave it out. ``loss`` is an older name.
        device: the device of the operators: ``"cpu"`` or ``"cuda"``, or a ``torch.device`` of these. Some operators of
            CUDA save other tensors.
        **options: as for ``compress_model``.

    Raises:
        TypeError: ``model`` is not a module, ``device`` is no device, or an option has the wrong type.
        ValueError: the level or an option is unknown, a value is out of range, the model is compressed, or the device
            is another one.
        RuntimeError: the forward reads tensor values, as ``.item()`` does; the error names the call. Or it uses the GPU
            directly, as cuDNN's LSTM does, and none is available.
        Exception: what else the model raises with these inputs.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    require_loss(criterion, CROSS_ENTROPY)
    where = forecast_device(device)
    mode = Fakes()
    wanted = resolve_level(level, options)
    given = {**options, **mean_bits(wanted)}
    fake = _without_elements(model, mode, where)
    compress_model(fake, level, activations=activations, linear=linear, layers=layers, **given).train()
    inputs = (tuple(args) if isinstance(args, (tuple, list)) else (args,), dict(kwargs or {}))
    given, named = tree_map_only(Tensor, lambda tensor: _fake_input(tensor, mode, where), inputs)
    reach = ReachableState(fake)  # what is not copied with the model: classes, globals, closures
    surroundings = mode, _Indices(mode, where), FusedAttention(), torch.enable_grad(), _told(model, where)
    with torch.random.fork_rng([]), ExitStack() as stack:
        for block in surroundings:
            stack.enter_context(block)
        try:
            report = make_report(fake, given, named, criterion)
        finally:
            reach.restore()
    note = NOTE.format("the CPU" if where.type == "cpu" else "CUDA")
    return replace(report, level=wanted.title(level), note=note, plan=MEAN if wanted.adaptive else "")


def make_report(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], loss: Loss | str | None) -> Report:
    """The report of a compressed model's forward, and of the loss after it."""
    handle = compression(model)
    running = handle.session_of_forward(args, kwargs)
    if running is None:
        output, storages = model(*args, **kwargs), Storages()
    else:
        with running as session:
            session.owners.add_inputs(tensors_in((args, kwargs)))
            output, storages = model(*args, **kwargs), session.storages
    part = make_part(output, loss, storages)  # called while the output holds what the forward has saved
    report = handle.report()
    rows = [*report.rows, *part.rows]
    plain, peak = estimated_peaks(rows, gradient_bytes_by_module(model), part.gradient_bytes)
    return replace(
        report,
        rows=rows,
        loss=part.words,
        gradient_bytes=part.gradient_bytes,
        original_peak_bytes=plain,
        peak_bytes=peak,
        peak_source=ESTIMATED if rows else "",
    )


def mean_bits(level: Level) -> dict[str, int]:
    """Options that give each tensor of an adaptive level the average bits."""
    if not level.adaptive or level.bits is None:
        return {}
    return dict.fromkeys(("product_bits", "norm_bits", "pointwise_bits", "attention_bits"), level.bits)


class LooksAtElements(RuntimeError):
    """The forward cannot run on tensors without elements."""


@contextmanager
def _told(model: nn.Module, device: torch.device) -> Iterator[None]:
    """A block whose errors say what a forecast cannot do."""
    try:
        yield
    except _LOOKS as error:
        raise LooksAtElements(
            f"the forward of {type(model).__name__} reads tensor values, which a forecast does not have ({error}): "
            "compress the model, call it once on a small batch, and call integrations.compression(model).report()"
        ) from error
    except RuntimeError as error:
        if device.type == "cpu" or not needs_gpu(error):
            raise
        raise RuntimeError(
            f"the forward of {type(model).__name__} uses the GPU directly, but none is available: forecast with "
            f"device='cpu', whose operators may save other tensors ({str(error).splitlines()[0]:.120})"
        ) from error


class _Indices(TorchDispatchMode):
    """Computes operators on integers and truth values below fake tensors, on the CPU whatever the device."""

    def __init__(self, mode: FakeTensorMode, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mode, self._device = mode, device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call: Any = func if self._device.type == "cpu" else OnDevice(func, self._mode, self._device)
        with DisableTorchFunction():  # inside of a custom autograd function, the forward's tracker sees torch's calls
            try:
                return indices.call(call, get_traits(func), args, kwargs or {})
            except indices.MixedIndices:  # nothing compares this forward with another, and the bytes are right anyway
                return call(*args, **(kwargs or {}))


def _without_elements(model: nn.Module, mode: FakeTensorMode, device: torch.device) -> nn.Module:
    """A copy of the model whose parameters and buffers are fake, tied where the model's are."""
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        fake = _fake_input(tensor.detach(), mode, device)
        memo[id(tensor)] = nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake
    return copy.deepcopy(model, memo)


def _fake_input(tensor: Tensor, mode: FakeTensorMode, device: torch.device) -> Tensor:
    if indices.keeps_elements(tensor) and tensor.device.type != "meta":
        return tensor.detach().to("cpu", copy=True)
    if tensor.layout is not torch.strided:
        return mode.from_tensor(tensor)
    with mode:
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return fake.requires_grad_(tensor.requires_grad) if tensor.is_leaf else fake
