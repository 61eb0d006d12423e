"""How inductor's code for a CPU calls the codecs: as functions in C, without torch's dispatcher.

A call through ``torch.ops`` takes longer than quantizing a small tensor. The functions are those of
``actcore.replay.KERNELS``, which torch 2.14 and later have. On other devices and versions, and with inductor's C++
wrapper, the code calls the operators.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from actcore.replay import KERNELS
from integrations._utils.torch_internals import INDUCTOR, custom_extern_kernel_codegen

_FUNCTIONS = {
    "torch.ops.actcore.group_affine_compress.graph": "group_affine_compress_graph",
    "torch.ops.actcore.group_affine_decompress.graph": "group_affine_decompress_graph",
    "torch.ops.actcore.bit_mask_compress.graph": "bit_mask_compress_graph",
    "torch.ops.actcore.bit_mask_decompress.graph": "bit_mask_decompress",
    "torch.ops.actcore.positive_mask.graph": "positive_mask",
}
"""By the operator as inductor names it: the name in ``KERNELS``."""


def direct_call(operator: Any, device: torch.device) -> Callable[..., Any]:
    """Return what inductor's code calls for an operator on a device: the function, or the operator itself.

    Args:
        operator: an overload, such as ``torch.ops.actcore.positive_mask.graph``.
        device: of its tensors.
    """
    function = KERNELS.get(_FUNCTIONS.get(f"torch.ops.{operator}", ""))
    found: Callable[..., Any] = operator if function is None or device.type != "cpu" else function
    return found


def call_directly() -> None:
    """Have the code that inductor generates from now on call the functions, where there are any."""
    if INDUCTOR not in sys.modules:
        return
    writers = custom_extern_kernel_codegen()
    if writers is None:
        return
    for operator, function in _FUNCTIONS.items():
        if function in KERNELS:
            writers.setdefault(operator, SimpleNamespace(python=_writer(function), cpp=None))


def _writer(function: str) -> Callable[[Any, Callable[[Any], None]], None]:
    """What writes the call of an operator into the code.

    Args:
        function: the name in ``KERNELS``.
    """
    name = f"actcore_{function}"

    def write(node: Any, writeline: Callable[[Any], None]) -> None:
        arguments = ", ".join([*node.codegen_args(), *node.codegen_kwargs()])
        called = node.python_kernel_name
        if node.get_device().type == "cpu":
            called = name
            wrapper = writeline.__self__  # type: ignore[attr-defined]
            wrapper.add_import_once(f"from actcore.replay import KERNELS; {name} = KERNELS[{function!r}]")
            # The checks of the result's shape, which the operator's fake kernel has said, take as long as the call.
            node.codegen_size_asserts = _check_nothing
        writeline(f"{node.get_name()} = {called}({arguments})")

    return write


def _check_nothing(wrapper: Any) -> None:
    """Writes no check."""
