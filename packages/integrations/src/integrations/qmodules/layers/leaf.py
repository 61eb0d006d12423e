"""``leaf``: a layer's forward that ``torch.fx`` does not look into."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.fx import Proxy

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
                "torch.fx must trace Q-layers without forward hooks, which would run in the trace and in its graph, "
                f"got {path} with {len(hooks)}; register them on the traced module's layers"
            )
        return tracer.create_proxy("call_module", path, args, kwargs)

    return call


def _takes_inputs(hook: object) -> bool:
    """Whether a hook may change a layer's inputs; torch's own (spectral_norm, pruning) compute its weight."""
    return not type(hook).__module__.startswith("torch.nn.utils")
