"""How much the rounding of Q-layers changes a model's gradient, layer by layer: predicted, and measured.

``get_var`` measures; ``ablation_levels`` are the steps of ActNN's ablation. The section Precision of
``docs/reference/q-layers.md`` has the formula of the prediction.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import actcore
from bench.models.data.images import Images
from bench.models.resnet20 import backward, draw_batch, loss, resnet20
from bench.suites.vision.entries import Ablated, GradientVariance, LayerVariance, Variance, noise_metrics
from integrations import qmodules
from integrations.qmodules.device_rows import DeviceRows, view_as_rows
from integrations.qmodules.levels import ONE_GROUP
from integrations.qmodules.per_sample import group_means, range_energies
from integrations.qmodules.precision import squared_norms


def ablation_levels(bits: float = 2) -> dict[str, qmodules.QLevel]:
    """Return the levels that ActNN's ablation compares (Chen et al., ICML 2021, section 6.2), by name.

    Args:
        bits: the average per element, from 1 to 8.
    """
    uniform = replace(qmodules.LEVELS["L3"], bits=(bits,), per_sample=False, norm_adaptive=False, per_layer=False)
    per_sample = replace(uniform, per_sample=True, norm_adaptive=True)
    return {
        "per tensor": replace(uniform, group_size=ONE_GROUP),
        "per group": uniform,
        "+ per sample": per_sample,
        "+ per layer": replace(per_sample, per_layer=True),
    }


def get_var(model: nn.Module, closure: Callable[[], Any], repeats: int = 10) -> GradientVariance:
    """Measure the variance and the bias that rounding gives the gradient, beside the predicted variance.

    The closure runs ``1 + repeats`` times: once exactly, with every layer measured by itself on the way, and then as in
    training, each time with other noise and the same random numbers of torch. The bits of the layers stay. The model is
    left with other gradients and running statistics: pass a copy of a model that is trained on.

    Args:
        model: converted by ``QModule``, in ``train()`` mode.
        closure: runs its forward and backward on the same batch each time, and takes no step of an optimizer.
        repeats: 2 or more. A variance of n has itself a relative standard deviation of about ``sqrt(2 / n)`` where few
            elements make it, and much less where many do.

    Raises:
        ValueError: ``repeats`` is below 2, or the model has no layer that rounds.
        RuntimeError: the closure ran no backward of such a layer.
    """
    if repeats < 2:
        raise ValueError(f"repeats must be 2 or more, got {repeats}: a variance takes two gradients")
    layers = {name: module for name, module in model.named_modules() if _rounds(module)}
    if not layers:
        raise ValueError(
            "model must have layers that round their input and have parameters, got none; convert it with "
            "qmodules.QModule(model) at a level other than L0"
        )
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    state = torch.get_rng_state()
    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, qmodules.QLayer):
                stack.enter_context(module.precision.unwatched())
        probes = {name: _Probe(layer, repeats) for name, layer in layers.items()}
        with _exact(model), _probing(probes):
            exact = _gradients(parameters, closure)
        if not any(probe.spread for probe in probes.values()) or all(gradient is None for gradient in exact):
            raise RuntimeError(
                "closure must run a forward of the model, in train() mode, and its backward; no layer saw a gradient"
            )
        spreads = [Spread() for _ in parameters]
        for _ in range(repeats):
            torch.set_rng_state(state)
            for gradient, expected, spread in zip(_gradients(parameters, closure), exact, spreads, strict=True):
                spread.add(gradient, expected)
    by_parameter = dict(zip(parameters, zip(exact, spreads, strict=True), strict=True))
    return GradientVariance(
        tuple(_result(name, probe, by_parameter) for name, probe in probes.items() if probe.spread),
        sum(map(_square, exact)),
        sum(spread.variance for spread in spreads),
        sum(spread.bias for spread in spreads),
        repeats,
    )


class Spread:
    """The variance and the mean of a gradient that is measured again and again, without keeping each measurement.

    It adds up distances from a reference in float64: sums of squares would lose small variances.
    """

    def __init__(self) -> None:
        self._count = 0
        self._squares = 0.0
        self._sum: Tensor | None = None
        self._reference: Tensor | None = None

    def add(self, gradient: Tensor | None, reference: Tensor | None) -> None:
        """Add a gradient by its distance from ``reference``; ``None`` stands for the first gradient."""
        if gradient is None:
            return
        if reference is None:
            if self._reference is None:
                self._reference = gradient.detach()
            reference = self._reference
        distance = gradient.detach().double() - reference
        self._count += 1
        self._squares += distance.square().sum().item()
        self._sum = distance if self._sum is None else self._sum.add_(distance)

    @property
    def variance(self) -> float:
        """The sample variance, summed over the elements."""
        if self._sum is None or self._count < 2:
            return 0.0
        return max(0.0, (self._squares - self._sum.square().sum().item() / self._count) / (self._count - 1))

    @property
    def bias(self) -> float:
        """The mean's squared distance from the reference, less the distance expected by chance; 0 at least."""
        if self._sum is None:
            return 0.0
        mean: Tensor = self._sum / self._count
        return max(0.0, float(mean.square().sum()) - self.variance / self._count)


# ---- one layer ----


def predicted_variance(layer: qmodules.QLayer, x: Tensor, gradient: Tensor, codec: actcore.Codec | None) -> float:
    """Return the variance of the gradient of the layer's weight that storing ``x`` by ``codec`` makes.

    Args:
        layer: a convolution, a linear layer or a norm.
        x: its input, ``Float[Tensor, "batch ..."]``.
        gradient: that of its output.
        codec: one that ``layer.precision.codec`` gives.

    Returns:
        The sum over the weight's elements; 0 where ``codec`` keeps ``x`` exactly.
    """
    if average_bits(codec) is None or not x.numel():
        return 0.0
    inner = codec.inner if isinstance(codec, actcore.Offload) else codec
    if x.dim() < 2:
        x, gradient = x[None], gradient[None]
    group_size = layer.precision.level.group_size
    own = isinstance(inner, DeviceRows) or x.numel() // len(x) >= group_size
    forward = layer.precision.describe(x, own)
    energies = forward.energies
    if layer.precision.kind == "other":
        rows, counted = (t if own else t[None] for t in (x, _inverse_variance(layer, x)))
        energies = range_energies(view_as_rows(rows), group_size, group_means(view_as_rows(counted), group_size))
    squares = squared_norms(gradient)
    if squares.numel() != energies.numel():
        squares = squares.mean()
    if isinstance(inner, DeviceRows) and inner.bits is not None:
        unit = forward.profile[inner.bits.long() - 1]
    else:
        assert isinstance(inner, actcore.GroupAffine)
        unit = forward.profile[inner.bits - 1]
    variance: Tensor = energies * squares * layer.precision.gain(forward, gradient) * unit
    return variance.sum().item()


def average_bits(codec: actcore.Codec | None) -> float | None:
    """Return the bits of an element of a row, on average; ``None`` where it is kept exactly."""
    inner = codec.inner if isinstance(codec, actcore.Offload) else codec
    if isinstance(inner, DeviceRows) and inner.bits is not None:
        return inner.total / inner.bits.numel()
    return float(inner.bits) if isinstance(inner, actcore.GroupAffine) else None


def _inverse_variance(layer: qmodules.QLayer, x: Tensor) -> Tensor:
    """Return the inverse of the variance that a norm of single samples divides by, expanded to the shape of ``x``."""
    x = x.float()
    if isinstance(layer, nn.GroupNorm):
        groups = x.reshape(x.shape[0], layer.num_groups, -1)
        counted = 1 / groups.var(2, correction=0, keepdim=True).add(layer.eps)
        return counted.expand(groups.shape).reshape(x.shape)
    if isinstance(layer, nn.LayerNorm):
        dims = tuple(range(-len(layer.normalized_shape), 0))
        return (1 / x.var(dims, correction=0, keepdim=True).add(layer.eps)).expand(x.shape)
    assert isinstance(layer, nn.RMSNorm)
    dims = tuple(range(-len(layer.normalized_shape), 0))
    eps = torch.finfo(x.dtype).eps if layer.eps is None else layer.eps
    return (1 / x.square().mean(dims, keepdim=True).add(eps)).expand(x.shape)


def _rounds(module: nn.Module) -> bool:
    """Return whether a layer quantizes its input and has a weight whose gradient that changes."""
    if not isinstance(module, qmodules.QLayer) or isinstance(module, qmodules.QEmbedding):
        return False
    weight = getattr(module, "weight", None)
    return module.precision.level.compress and weight is not None and weight.requires_grad


class _Probe:
    """Measures one layer in the backward of an exact step: with its input and the gradient of its output at hand, its
    own forward and backward run again, rounding."""

    def __init__(self, layer: qmodules.QLayer, repeats: int) -> None:
        self.layer = layer
        self.level = layer.precision.level
        self.repeats = repeats
        self.predicted = 0.0
        self.bits = 0.0
        self.spread: list[Spread] = []

    def watch(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Measure the layer in its backward: a forward hook."""
        x = args[0] if args else kwargs.get("input", kwargs.get("x"))
        if not (isinstance(x, Tensor) and isinstance(output, Tensor) and output.requires_grad and self.layer.training):
            return
        device = x.device.type
        enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

        def measure(gradient: Tensor) -> None:
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
                # An alias: the stored form of x itself would be shared, and its noise with it. A weight that a hook
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
    layers = [layer for layer in model.modules() if isinstance(layer, qmodules.QLayer)]
    levels = [(layer.precision, layer.precision.level) for layer in layers]
    try:
        for precision, level in levels:
            precision.level = replace(level, compress=False, offload=False)
        yield
    finally:
        for precision, level in levels:
            precision.level = level


def _gradients(parameters: list[nn.Parameter], closure: Callable[[], Any]) -> list[Tensor | None]:
    for parameter in parameters:
        parameter.grad = None
    closure()
    return [parameter.grad for parameter in parameters]


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


BATCH = 128
STEPS = 60  # at full precision before; a network as it is made has gradients like no trained one's
RATE, MOMENTUM = 0.05, 0.9
BITS = 2.0
WITH_GRADIENTS = "+ per layer, use_gradient"


def trained(images: Images, steps: int) -> nn.Module:
    """A ResNet-20 after some steps at full precision, the same at each call."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = resnet20(images.x.shape[1])
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM, nesterov=True)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        places = torch.randint(len(images.x), (BATCH,), generator=generator)
        optimizer.zero_grad()
        loss(model, images.x[places], images.y[places]).backward()
        optimizer.step()
    return model


def measure(model: nn.Module, level: str, images: Images, repeats: int) -> Variance:
    """Predicted and measured variance of each layer's gradient.

    Args:
        model: of ``trained``; it is copied and stays.
        level: of ``qmodules.LEVELS``.
        images: the batch is of these, the same for all levels.
        repeats: of the measurement.
    """
    _, x, y = draw_batch(images.x, images.y, BATCH)
    converted = qmodules.QModule(copy.deepcopy(model), level)
    return Variance(level, **_measured(converted, x, y, repeats))


def ablation() -> list[str]:
    """The steps of ActNN's ablation, and one with the gradient norm of each sample known."""
    return [*ablation_levels(BITS), WITH_GRADIENTS]


def ablate(model: nn.Module, step: str, images: Images, repeats: int) -> Ablated:
    """The variance at one of the steps."""
    places, x, y = draw_batch(images.x, images.y, BATCH)
    if step != WITH_GRADIENTS:
        converted = qmodules.QModule(copy.deepcopy(model), ablation_levels(BITS)[step])
        return Ablated(step, **_measured(converted, x, y, repeats))
    options = {"bits": (BITS,), "use_gradient": True, "num_samples": len(images.x)}
    converted = qmodules.QModule(copy.deepcopy(model), "L3", **options)
    qmodules.model_precision(converted).batch = places
    return Ablated(step, **_measured(converted, x, y, repeats))


def _measured(converted: nn.Module, x: Tensor, y: Tensor, repeats: int) -> dict[str, Any]:
    for _ in range(2):  # in which layers get their bits
        backward(converted, x, y)
    return noise_metrics(get_var(converted, lambda: loss(converted, x, y).backward(), repeats))
