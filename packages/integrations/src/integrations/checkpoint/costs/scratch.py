"""``scratch_of``: bytes that a kernel has beside its arguments and results, where arithmetic tells them.

oneDNN's convolutions on a CPU, which do most of what is worth telling. They read weights in blocks of their own, and
images, too, unless channels come last; a product over the channels alone takes its arguments as they lie. What they
were measured to take, with AVX-512, is this within some per cent; ``workspaces`` measures it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

_BLOCK = 16  # channels in a block
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def scratch_of(function: OpOverload, args: tuple[Any, ...], results: tuple[Any, ...]) -> int:
    """Bytes that a call takes while it runs, as far as they are modelled; else 0."""
    packet = function.overloadpacket
    backward = packet is torch.ops.aten.convolution_backward
    if not backward and packet is not torch.ops.aten.convolution:
        return 0
    image, weight = args[1:3] if backward else args[:2]
    if image.device.type != "cpu" or image.dtype not in _DTYPES or not torch._C._get_mkldnn_enabled():
        return 0
    if not torch.backends.mkldnn.is_available():
        return 0
    stride, padding = args[4:6] if backward else args[3:5]
    product = all(size == 1 for size in (*weight.shape[2:], *stride)) and not any(padding)
    if product:
        return _nbytes(image) // max(1, image.shape[0]) if backward else 0
    if _last(image) or _last(weight):
        return (2 if backward else 1) * _nbytes(weight)
    inside, outside = _blocked(image), _blocked(args[0] if backward else results[0])
    if backward:
        return max(inside + outside + _nbytes(weight), 2 * inside)
    return max(inside, outside) + _nbytes(weight)


def _last(tensor: Tensor) -> bool:
    """Whether channels come last, which torch does not ask of a line or of a single channel."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return (
        tensor.dim() in formats
        and tensor.is_contiguous(memory_format=formats[tensor.dim()])
        and not tensor.is_contiguous()
    )


def _blocked(tensor: Tensor) -> int:
    """Bytes of an image whose channels come in blocks; few of them, as of a photograph, are read as they lie."""
    channels = max(1, tensor.shape[1])
    if channels < 4:
        return 0
    return _nbytes(tensor) // channels * -(-channels // _BLOCK) * _BLOCK


def _nbytes(tensor: Tensor) -> int:
    return int(tensor.numel()) * tensor.element_size()
