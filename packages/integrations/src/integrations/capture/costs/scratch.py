"""``count_scratch``: the bytes that a kernel takes beside its arguments and results, where arithmetic tells them.

These are the loss in chunks, and oneDNN's convolutions on a CPU, which make up most of it. Convolutions read weights in
blocks of their own, and images, too, unless channels come last; a product over the channels alone takes its arguments
as they lie. A tensor that lies in another order than the others, or with gaps, as a part of a concatenation does, is
copied first. The model is within some per cent of what was measured with AVX-512; ``workspaces`` measures it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from integrations._utils.torch_internals import OpOverload, get_mkldnn_enabled
from integrations.capture.costs.chunked import is_chunked_loss, scratch_of_chunks
from integrations.capture.costs.cuda_scratch import kernel_scratch_bytes
from integrations.capture.dispatch.memory import count_bytes

_BLOCK = 16  # channels in a block
_SLIDING = 3  # columns of a kernel that slides over one channel
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of dimensions
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def count_scratch(function: OpOverload, args: tuple[Any, ...], results: tuple[Any, ...]) -> int:
    """Bytes that a call takes while it runs, as far as they are modelled; otherwise 0."""
    if is_chunked_loss(function):
        return scratch_of_chunks(args)
    if args and isinstance(args[0], Tensor) and args[0].device.type == "cuda":
        return kernel_scratch_bytes(function, args, results)
    packet = function.overloadpacket
    backward = packet is torch.ops.aten.convolution_backward
    if not backward and packet is not torch.ops.aten.convolution:
        return 0
    image, weight = args[1:3] if backward else args[:2]
    if image.device.type != "cpu" or image.dtype not in _DTYPES or not get_mkldnn_enabled():
        return 0
    if not torch.backends.mkldnn.is_available():
        return 0
    stride, padding = args[4:6] if backward else args[3:5]
    product = all(size == 1 for size in (*weight.shape[2:], *stride)) and not any(padding)
    last = _last(image) or _last(weight)
    copied = sum(_copied(tensor, last) for tensor in ((image, args[0]) if backward else (image,)))
    if product:
        return copied + (count_bytes(image) // max(1, image.shape[0]) if backward else 0)
    if last:
        groups, dilation = (args[9], args[6]) if backward else (args[8], args[5])
        if groups > 1:
            return copied + _in_groups(weight, groups, any(step != 1 for step in dilation), backward)
        return copied + (2 if backward else 1) * count_bytes(weight)
    inside, outside = _blocked(image), _blocked(args[0] if backward else results[0])
    if backward:
        return copied + max(inside + outside + count_bytes(weight), 2 * inside)
    return copied + max(inside, outside) + count_bytes(weight)


def _in_groups(weight: Tensor, groups: int, dilated: bool, backward: bool) -> int:
    """Bytes for copies of the weights of a convolution with groups, where channels come last. Each group is padded to
    whole blocks of channels, so that one kernel of 5 x 5 for each channel takes 256 times its size.

    In a forward, groups of few channels have kernels that read weights as they lie. For groups of one channel, so does
    the kernel of their gradient, up to three columns.
    """
    made, read = weight.shape[0] // groups, weight.shape[1]
    few = made == read < _BLOCK
    if few and not backward:
        return 0
    if backward and made == read == 1 and weight.shape[-1] <= _SLIDING and not dilated:
        return 0
    elements = groups * math.prod(-(-channels // _BLOCK) * _BLOCK for channels in (made, read))
    elements *= math.prod(weight.shape[2:])
    size = weight.element_size()
    if not backward:
        return elements * size
    summed = 4 if size < 4 else 0  # halves are summed in float
    return elements * (size + summed) * (1 if min(made, read) < _BLOCK else 2)


def _last(tensor: Tensor) -> bool:
    """Whether channels come last. Torch does not tell for a line or a single channel. Kernels of 1 x 1 and parts of
    images are told by their strides."""
    if tensor.dim() not in _LAST or tensor.shape[1] == 1:
        return False
    return tensor.stride(1) == 1 and tensor.stride(-1) >= tensor.shape[1]


def _copied(tensor: Tensor, last: bool) -> int:
    """Bytes of a copy in the order in which a kernel reads the tensor; 0 if it lies so."""
    order = _LAST.get(tensor.dim(), torch.contiguous_format) if last else torch.contiguous_format
    return 0 if tensor.is_contiguous(memory_format=order) else count_bytes(tensor)


def _blocked(tensor: Tensor) -> int:
    """Bytes of an image whose channels come in blocks. An image of few channels, such as a photograph, is read as it
    lies."""
    channels = max(1, tensor.shape[1])
    if channels < 4:
        return 0
    return count_bytes(tensor) // channels * -(-channels // _BLOCK) * _BLOCK
