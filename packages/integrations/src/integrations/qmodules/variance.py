"""``get_var``: how much rounding changes a model's gradient, layer by layer, predicted and measured."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from integrations._adaptive.guard import trial
from integrations._common.random_states import random_states
from integrations.qmodules.layers import QEmbedding, QLayer
from integrations.qmodules.spread import Spread
from integrations.qmodules.variance_model import average_bits, predicted_variance


@dataclass(frozen=True)
class LayerVariance:
    """One layer's gradient under rounding. Variances and norms are squared, and summed over the layer's parameters.

    Attributes:
        name: the layer's path in its model.
        kind: its class.
        bits: bits of an element of its input, on average.
        gradient: the squared norm of the exact gradient.
        predicted: the variance that the rounding of the layer's own input makes, by the model that bits are allocated
            with (docs/qmodules.md).
        measured: the same, measured: the layer alone rounds, everything else is exact.
        total: the measured variance where all layers round, as in training.
        bias: the squared distance between the mean gradient, where all layers round, and the exact one; what a mean of
            so few differs by on average is taken off, and what is left is at least 0.
    """

    name: str
    kind: str
    bits: float
    gradient: float
    predicted: float
    measured: float
    total: float
    bias: float


@dataclass(frozen=True)
class GradientVariance:
    """The gradient of a whole model under rounding. ``str`` of it is a table.

    Attributes:
        layers: those that round their input and have parameters, in the order of the model.
        gradient: the squared norm of the exact gradient of all parameters.
        variance: the measured variance of that gradient, summed over all parameters.
        bias: the squared distance of its mean from the exact gradient, as in ``LayerVariance``.
        repeats: how often each was measured.
    """

    layers: tuple[LayerVariance, ...]
    gradient: float
    variance: float
    bias: float
    repeats: int

    def table(self) -> Table:
        """The result as a rich table; variances in units of the layer's squared gradient."""
        table = Table(
            title=f"Variance of the gradient: {_ratio(self.variance, self.gradient)} of its squared norm, "
            f"bias {_ratio(self.bias, self.gradient)} ({self.repeats} repeats)"
        )
        table.add_column("layer", overflow="fold")
        table.add_column("kind", overflow="fold")
        for heading in ("bits", "predicted", "measured", "ratio", "all layers", "bias"):
            table.add_column(heading, justify="right")
        for layer in self.layers:
            shares = (layer.predicted, layer.measured)
            table.add_row(
                Text(layer.name or "(model)"),
                layer.kind,
                f"{layer.bits:.2f}",
                *(_ratio(share, layer.gradient) for share in shares),
                _ratio(layer.predicted, layer.measured),
                *(_ratio(share, layer.gradient) for share in (layer.total, layer.bias)),
            )
        return table

    def __str__(self) -> str:
        text = StringIO()
        Console(file=text, width=shutil.get_terminal_size((120, 50)).columns).print(self.table())
        return text.getvalue().rstrip()


def get_var(model: nn.Module, closure: Callable[[], Any], repeats: int = 10) -> GradientVariance:
    """Measures the variance and the bias that rounding gives the gradient, and what the model of it predicts.

    The closure runs ``1 + repeats`` times: once exactly, with every layer measured by itself on the way, and then as in
    training, each time with other noise and the same random numbers of torch. Gradients, buffers and random generators
    come back as they were, and training goes on as if nothing had happened: bits are those of now and stay.

    Args:
        model: converted by ``QModule`` or built of Q-layers, in ``train()`` mode.
        closure: runs its forward and backward on the same batch each time, and takes no step of an optimizer.
        repeats: 2 or more. A variance of n has itself a relative standard deviation of about ``sqrt(2 / n)`` where few
            elements make it, and much less where many do.

    Raises:
        TypeError: ``model`` is not a module, ``closure`` cannot be called, or ``repeats`` is not an int.
        ValueError: ``repeats`` is below 2, or the model has no layer that rounds.
        RuntimeError: the closure ran no backward of such a layer, or took an optimizer's step.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if not callable(closure):
        raise TypeError(f"closure must run the model's forward and backward when it is called, got {closure!r}")
    if isinstance(repeats, bool) or not isinstance(repeats, int):
        raise TypeError(f"repeats must be an int, got {repeats!r}")
    if repeats < 2:
        raise ValueError(f"repeats must be 2 or more, got {repeats}: a variance takes two gradients")
    layers = {name: module for name, module in model.named_modules() if _rounds(module)}
    if not layers:
        raise ValueError(
            "model must have layers that round their input and have parameters, got none; convert it with "
            "qmodules.QModule(model) at a level other than L0"
        )
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with trial(model), ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, QLayer):
                stack.enter_context(module.precision.unwatched())
        restore = random_states()
        probes = {name: _Probe(layer, repeats) for name, layer in layers.items()}
        with _exact(model), _probing(probes):
            closure()
        exact = [parameter.grad for parameter in parameters]
        if not any(probe.spread for probe in probes.values()) or all(grad is None for grad in exact):
            raise RuntimeError(
                "closure must run a forward of the model, in train() mode, and its backward; no layer saw a gradient"
            )
        spreads = [Spread() for _ in parameters]
        for _ in range(repeats):
            for parameter in parameters:
                parameter.grad = None
            restore()
            closure()
            for parameter, expected, spread in zip(parameters, exact, spreads, strict=True):
                spread.add(parameter.grad, expected)
    by_parameter = dict(zip(parameters, zip(exact, spreads, strict=True), strict=True))
    return GradientVariance(
        tuple(_result(name, probe, by_parameter) for name, probe in probes.items() if probe.spread),
        sum(_square(grad) for grad in exact),
        sum(spread.variance for spread in spreads),
        sum(spread.bias for spread in spreads),
        repeats,
    )


def _rounds(module: nn.Module) -> bool:
    """Whether a layer quantises its input and has a weight whose gradient that changes."""
    if not isinstance(module, QLayer) or isinstance(module, QEmbedding):
        return False
    weight = getattr(module, "weight", None)
    return module.precision.level.compress and weight is not None and weight.requires_grad


class _Probe:
    """Measures one layer in the backward of an exact step: with its input and the gradient of its output at hand, its
    own forward and backward run again, rounding."""

    def __init__(self, layer: QLayer, repeats: int) -> None:
        self.layer = layer
        self.level = layer.precision.level
        self.repeats = repeats
        self.predicted = 0.0
        self.bits = 0.0
        self.spread: list[Spread] = []

    def watch(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """A forward hook of the layer."""
        x = args[0] if args else kwargs.get("input", kwargs.get("x"))
        if not (isinstance(x, Tensor) and isinstance(output, Tensor) and output.requires_grad and self.layer.training):
            return
        device = x.device.type
        surroundings = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

        def measure(gradient: Tensor) -> None:
            enabled, dtype = surroundings
            with torch.enable_grad(), torch.autocast(device, dtype, enabled):
                self._measure(x.detach(), gradient.detach(), args[1:])

        output.register_hook(measure)

    def _measure(self, x: Tensor, gradient: Tensor, others: tuple[Any, ...]) -> None:
        precision = self.layer.precision
        with precision.unwatched():
            precision.level = self.level
            codec = precision.codec(x)
            bits = average_bits(codec)
            if bits is None:
                return
            self.bits = bits
            self.predicted += predicted_variance(self.layer, x, gradient, codec)
            parameters = [parameter for parameter in self.layer.parameters() if parameter.requires_grad]
            spreads = [Spread() for _ in parameters]
            for _ in range(self.repeats):
                # An alias: what is stored of x itself would be shared, and its noise with it. A weight that a hook
                # computed, such as weight_norm's, has a graph that the model's own backward has yet to go through.
                output = self.layer.forward(x.detach(), *others)
                found = torch.autograd.grad(output, parameters, gradient, retain_graph=True, allow_unused=True)
                for spread, own in zip(spreads, found, strict=True):
                    spread.add(own, None)
        self.spread += spreads


@contextmanager
def _probing(probes: dict[str, _Probe]) -> Iterator[None]:
    handles = [probe.layer.register_forward_hook(probe.watch, with_kwargs=True) for probe in probes.values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _exact(model: nn.Module) -> Iterator[None]:
    """A block in which every layer is torch's own."""
    levels = [(layer.precision, layer.precision.level) for layer in model.modules() if isinstance(layer, QLayer)]
    try:
        for precision, level in levels:
            precision.level = replace(level, compress=False, offload=False)
        yield
    finally:
        for precision, level in levels:
            precision.level = level


def _result(name: str, probe: _Probe, by_parameter: dict[nn.Parameter, tuple[Tensor | None, Spread]]) -> LayerVariance:
    own = [by_parameter[parameter] for parameter in probe.layer.parameters() if parameter in by_parameter]
    return LayerVariance(
        name=name,
        kind=type(probe.layer).__name__,
        bits=probe.bits,
        gradient=sum(_square(exact) for exact, _ in own),
        predicted=probe.predicted,
        measured=sum(spread.variance for spread in probe.spread),
        total=sum(spread.variance for _, spread in own),
        bias=sum(spread.bias for _, spread in own),
    )


def _square(tensor: Tensor | None) -> float:
    if tensor is None:
        return 0.0
    norm: Tensor = torch.linalg.vector_norm(tensor, dtype=torch.float64)
    return norm.square().item()


def _ratio(part: float, whole: float) -> str:
    return f"{part / whole:.2g}" if whole else "-"
