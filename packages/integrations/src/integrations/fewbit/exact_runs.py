"""``rounds`` and ``exactly``: whether a model's few-bit layers and calls round, and forwards in which they do not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from integrations._utils.torch_internals import tree_map_only
from integrations.fewbit.conversion import Calls, FewBitConversion
from integrations.fewbit.modules.approximated import Approximated
from integrations.fewbit.modules.base import Smooth
from integrations.fewbit.modules.gates import GLU, Gate
from integrations.fewbit.modules.linear import LinearCRS, RandomizedConv1D, RandomizedLinear
from integrations.fewbit.modules.user import Activation
from integrations.policies.codebooks.catalogue import FUNCTIONS

_LAYERS = (Activation, Approximated, GLU, Gate, LinearCRS, RandomizedConv1D, RandomizedLinear, Smooth)


def rounds(model: nn.Module) -> bool:
    """Return whether a few-bit layer or call of the model changes gradients. Before the first training forward, a
    model whose calls are converted counts as one that makes such calls."""
    return any(map(_layer_rounds, model.modules())) or any(map(_calls_round, _calls_in(model)))


@contextmanager
def exactly(model: nn.Module) -> Iterator[None]:
    """A block in which the model's few-bit layers and calls are torch's. They draw the same random numbers as
    otherwise, so that a dropout after them has the same mask."""
    with ExitStack() as undo:
        for calls in _calls_in(model):
            undo.callback(setattr, calls, "exact", calls.exact)
            calls.exact = True
        for layer in filter(_layer_rounds, model.modules()):
            if layer.training:
                undo.callback(setattr, layer, "training", True)
                layer.training = False
                if _draws(layer):
                    undo.callback(layer.register_forward_pre_hook(_draw, with_kwargs=True).remove)
        yield


def _layer_rounds(module: nn.Module) -> bool:
    return isinstance(module, _LAYERS) and getattr(module, "bits", 0) is not None


def _calls_in(model: nn.Module) -> Iterator[Calls]:
    for module in model.modules():
        found = FewBitConversion.find(module)
        if found is not None and found.calls is not None:
            yield found.calls


def _calls_round(calls: Calls) -> bool:
    seen = calls.by_path(kept=False).values()
    names = {name for names in seen for name in names} if calls.seen else calls.functions
    return any(not FUNCTIONS[name].piecewise for name in names)


def _draws(layer: nn.Module) -> bool:
    """Whether a layer in training draws from torch's generator."""
    own: Any = layer
    if isinstance(layer, LinearCRS | RandomizedConv1D | RandomizedLinear):
        return own.seed is None and own.generator is None
    return getattr(layer, "rounding", "nearest") == "stochastic"


def _draw(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Draw what the layer's own forward draws, as a forward pre-hook. The layer may work in place."""
    layer.training = True
    try:
        layer.forward(*tree_map_only(Tensor, Tensor.clone, args), **tree_map_only(Tensor, Tensor.clone, kwargs))
    finally:
        layer.training = False
