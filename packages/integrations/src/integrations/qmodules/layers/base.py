"""``QLayer``: what all Q-layers have in common. ``leaf``: their forward, which ``torch.fx`` does not look into."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.fx import Proxy

import actcore
from integrations._utils.layer_replacement import StandIn
from integrations._utils.plain_tensor_types import PLAIN
from integrations._utils.torch_internals import (
    DisableTorchFunction,
    get_tracing_state,
    in_forward_mode,
    peek_interpreter_stack,
)
from integrations.qmodules.config import config
from integrations.qmodules.layers.saving import Saving
from integrations.qmodules.levels import QLevel
from integrations.qmodules.precision import LayerPrecision
from integrations.qmodules.scheme import ModelPrecision
from integrations.tracing.tensors import is_dtensor, make_dtensor_error

Forward = Callable[..., Any]


def leaf(forward: Forward) -> Forward:
    """A forward that ``torch.fx`` records as one call of the module, as it does with the layers of torch.

    It would look into ours, because its tracer knows leaves by the module that their class is defined in: the graph
    would have the operators of torch's layer, and forget the Q-layer.
    """

    @functools.wraps(forward)
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        given = next((value for value in (*args, *kwargs.values()) if isinstance(value, Proxy)), None)
        if given is None or "forward" in self.__dict__:  # one that was replaced is not this layer's
            return forward(self, *args, **kwargs)
        tracer: Any = given.tracer  # of a module, the only one that calls modules
        path = tracer.path_of_module(self)
        if hooks := [*self._forward_hooks.values(), *filter(_takes_inputs, self._forward_pre_hooks.values())]:
            raise RuntimeError(
                f"Q-layers must have no forward hooks when torch.fx traces them, got {path} with {len(hooks)}: the "
                "hooks would run in the trace and again in its graph; register them on the traced module's layers"
            )
        return tracer.create_proxy("call_module", path, args, kwargs)

    return call


def _takes_inputs(hook: object) -> bool:
    """Whether a hook may change a layer's inputs; torch's own (spectral_norm, pruning) compute its weight."""
    return not type(hook).__module__.startswith("torch.nn.utils")


class QLayer(StandIn):
    """A layer of torch that stores its saved tensors in fewer bits.

    It is a subclass of its counterpart in ``torch.nn``, with the same arguments, parameters, buffers and keys in
    ``state_dict``. Its forward computes the same values. In training, if a gradient is needed, it stores its saved
    tensors as its level says. Otherwise it behaves exactly as its counterpart: in ``eval()``, without gradients and at
    level L0. The same holds for inputs that only the counterpart supports: tensor subclasses, sparse and complex
    tensors, tensors inside ``torch.func``, forward-mode differentiation and ``torch.jit.trace``, and inference tensors,
    which torch rejects. A ``DTensor`` raises a ``TypeError``. ``torch.fx`` records the layer as one call.

    Attributes:
        precision: the bits in which the layer stores its input. It is copied and pickled with the layer.
    """

    norm: ClassVar[bool] = False
    """Whether it is one of the layers that a level may leave exact (``QLevel.norms``)."""
    precision: LayerPrecision
    _rounds: ClassVar[bool] = True
    _own: ClassVar[tuple[str, ...]] = ("precision",)
    _package: ClassVar[str] = "qmodules"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "forward" in cls.__dict__:  # the outermost one decides, of a subclass of a Q-layer as well
            cls.forward = leaf(cls.__dict__["forward"])

    @classmethod
    def from_module(cls, module: nn.Module, level: QLevel | None = None, group: int = 0) -> Self:
        """Return the Q-layer of a layer of torch. Both share the same parameters, buffers and hooks.

        Args:
            module: a layer of exactly the class ``cls.counterpart``.
            level: by default the level that is set (``set_optimization_level``).
            group: index into the level's ``bits`` of the layer's average.

        Raises:
            TypeError: the layer is of another class.
        """
        cls._require_counterpart(module)
        layer = cls._in_place_of(module)
        layer._begin(level, group)
        return layer

    def to_module(self) -> nn.Module:
        """Return the layer of torch: the inverse of ``from_module``."""
        return self._to_counterpart()

    def join(self, path: str, model: ModelPrecision) -> None:
        """Make the layer part of a model that shares its average bits among layers; ``path`` is its path in the
        model."""
        self.precision.name, self.precision.model = path, model

    def leave(self) -> None:
        """Undo ``join``: the layer uses the bits of its level alone again, with its own noise."""
        self._begin(self.precision.level, self.precision.group)

    @property
    def rounds(self) -> bool:
        """Whether the layer stores tensors in forms that change gradients, at its level."""
        level = self.precision.level
        return self._rounds and level.compress and (level.norms or not self.norm)

    def _begin(self, level: QLevel | None, group: int) -> None:
        self.precision = self._new_precision(config.level() if level is None else level, group)

    def _new_precision(self, level: QLevel, group: int) -> LayerPrecision:
        return LayerPrecision(level, "other", group)

    def _stores(self, x: Tensor, *parameters: Tensor | None) -> bool:
        """Whether this forward stores ``x`` in its own way; if not, torch's own is the right one.

        Raises:
            TypeError: ``x`` is a ``DTensor``.
        """
        if not self.training or not torch.is_grad_enabled() or self.precision.level.off:
            return False
        if is_dtensor(x) and _any_requires_grad(x, *parameters):
            raise make_dtensor_error(x, 'Q-layers (layers="q")')
        return (
            type(x) in PLAIN
            and x.layout is torch.strided
            and not x.is_nested
            and not x.is_complex()
            and _any_requires_grad(x, *parameters)
            and (torch.compiler.is_compiling() or not (_transformed() or x.is_inference()))
        )

    def _saving(self, x: Tensor, weight: Tensor | None = None) -> Saving | None:
        """How this forward stores ``x``; ``None`` keeps it exactly: torch's own forward.

        Args:
            x: the layer's input.
            weight: the one whose gradient alone asks for ``x``. A frozen one has none: nothing is stored, and the
                layer takes no part in the allocation of bits.
        """
        if weight is not None and not weight.requires_grad:
            return Saving(actcore.Raw(), self.precision, layer=type(self).__name__)
        if torch.compiler.is_compiling():  # a token and a stream would be constants of the first run
            codec = self.precision.codec(x)
            return None if codec is None else Saving(codec, self.precision)
        with DisableTorchFunction():
            codec = self.precision.codec(x)
        if codec is None:
            return None
        precision, name = self.precision, type(self).__name__
        return Saving(codec, precision, precision.token(), precision.stream(), name)


def _any_requires_grad(*tensors: Tensor | None) -> bool:
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _transformed() -> bool:
    """Whether ``torch.func``, forward-mode differentiation or ``torch.jit.trace`` is on: our Functions have no rules
    for these."""
    return peek_interpreter_stack() is not None or in_forward_mode() or get_tracing_state() is not None
