"""``CompressedForward``: what stands in the place of a compressed model's ``forward``."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from integrations.compression import Compression, handle_of
from integrations.saved.modules import called_module


class CompressedForward:
    """Stands in a model's ``forward``: the original, under compression.

    An attribute of the instance, so that a ``with`` block closes the hooks whatever ends the forward; forward hooks are
    not called for a ``KeyboardInterrupt``. Signature, copies and pickles are those of the original.
    """

    def __init__(self, handle: Compression, forward: Callable[..., Any], replaced: bool) -> None:
        functools.update_wrapper(self, forward, updated=())
        self.handle = handle
        self.forward = forward
        self.replaced = replaced  # whether the instance had a forward of its own before

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            if self.handle.active:
                _tell_compiled(self.handle.key)
            return self.forward(*args, **kwargs)
        if torch._C._get_tracing_state() is not None:
            return self.forward(*args, **kwargs)
        module = called_module()
        if module is not None and module is not self.handle.model and not self.replaced and _is_copy(module, self):
            return self._run_copy(module, args, kwargs)
        return self.handle.run(self.forward, args, kwargs)

    def _run_copy(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """For a shallow copy, such as ``nn.DataParallel``'s replicas: it has this object in its dictionary, too, but
        its own parameters, which the handle does not know."""
        warnings.warn(
            f"a shallow copy of the compressed {type(module).__name__} (copy.copy, nn.DataParallel) runs uncompressed; "
            "use copy.deepcopy, or DistributedDataParallel",
            stacklevel=3,
        )
        return type(module).forward(module, *args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.forward)


def _is_copy(module: nn.Module, forward: CompressedForward) -> bool:
    """Whether the module carries this very forward: not so for one that wraps the model and calls its forward."""
    return module.__dict__.get("forward") is forward


@torch.compiler.assume_constant_result
def _tell_compiled(key: str) -> bool:
    """Warns that a compiled model runs uncompressed. torch.compile calls this while it traces, as what it is: a
    constant of the compiled code, which holds no call of it and is not broken by one."""
    handle = handle_of(key)
    if handle is not None:
        handle.warn_once(
            "compiled",
            f"{type(handle.model).__name__} runs uncompressed under torch.compile: compile its submodules instead "
            "(module.compile()), which leaves what lies around them compressed",
        )
    return True
