"""``convolution_scratch``: the bytes that a convolution on a CPU takes beside its arguments and results.

OneDNN reads weights in blocks of its own, and images, too, unless channels come last. A tensor that lies in another
order than the others, or with gaps, as a part of a concatenation does, is copied first. Of 80 convolutions of float and
bfloat16 with AVX-512, the model is never below what was measured by more than 6 % of their arguments and results;
``workspaces`` measures it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from integrations._utils.torch_internals import get_mkldnn_enabled
from integrations.capture.dispatch.memory import count_bytes

_BLOCK = 16  # channels in a block
_FEW_CHANNELS = 4  # an image of fewer is read as it lies
_SMALL_IMAGE = 20480  # elements; torch multiplies a single one by itself
_SLIDING = 3  # columns of a kernel that slides over one channel
_COVERING = (
    28  # elements of a kernel that is as large as the image: from so many on, the gradient comes in another order
)
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of dimensions
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def convolution_scratch(backward: bool, args: tuple[Any, ...], results: tuple[Any, ...]) -> int:
    """Return the bytes that a convolution takes while it runs; 0 where oneDNN does not compute it.

    Args:
        backward: whether it is ``aten.convolution_backward``, and not ``aten.convolution``.
        args, results: the call's.
    """
    image, weight = args[1:3] if backward else args[:2]
    if image.device.type != "cpu" or image.dtype not in _DTYPES or not get_mkldnn_enabled():
        return 0
    if not torch.backends.mkldnn.is_available():
        return 0
    stride, padding = args[4:6] if backward else args[3:5]
    strided = any(step > 1 for step in stride)
    product = all(size == 1 for size in weight.shape[2:]) and not strided and not any(padding)
    last = _last(image) or _last(weight)
    copied = sum(_copied(tensor, last) for tensor in ((image, weight, args[0]) if backward else (image, weight)))
    groups, dilation = (args[9], args[6]) if backward else (args[8], args[5])
    if product and (last or not _is_of_onednn(image, weight, groups)):
        return copied + (count_bytes(image) // max(1, image.shape[0]) if backward else 0)
    alike = weight.shape[2:] == image.shape[2:] and math.prod(weight.shape[2:]) >= _COVERING
    covers = alike and not any(padding) and groups == 1 and image.shape[0] > 1 and not args[7 if backward else 6]
    if last:
        if groups > 1:
            return copied + _in_groups(weight, groups, any(step != 1 for step in dilation), backward)
        return copied + (2 if backward else int(not covers)) * count_bytes(weight)
    result = args[0] if backward else results[0]
    # A kernel for groups of few channels has blocks of 8, and writes its result once.
    few = groups > 1 and weight.shape[1] < _BLOCK
    call = _Blocks(image, weight, result, groups, strided and not few, args[7] if backward else args[6])
    return copied + (call.backward(args[10], covers) if backward else call.forward())


def _is_of_onednn(image: Tensor, weight: Tensor, groups: int) -> bool:
    """Whether torch leaves a product over channels to oneDNN, as ``aten/src/ATen/native/Convolution.cpp`` decides."""
    if image.dtype != torch.float32:
        return True
    batch = image.shape[0]
    several = batch >= 16 or torch.get_num_threads() > 1
    return several and (groups > 1 or batch > 1 or image.numel() > _SMALL_IMAGE)


class _Blocks:
    """A convolution whose arguments and results lie in order, and are copied into blocks of channels and back.

    Args:
        image, weight, result: of the forward; ``result`` may be its gradient.
        groups: of channels.
        strided: whether what is larger by a stride is copied twice.
        transposed: whether that is the result.
    """

    def __init__(
        self, image: Tensor, weight: Tensor, result: Tensor, groups: int, strided: bool, transposed: bool
    ) -> None:
        self._image, self._result, self._weight = image, result, count_bytes(weight)
        self._half = weight.element_size() < 4
        pointwise = all(size == 1 for size in weight.shape[2:])
        block = 8 if groups > 1 and weight.shape[1] < _BLOCK and weight.shape[1] % 8 == 0 else _BLOCK
        self._inside, self._outside = (_blocked(one, block) for one in (image, result))
        # An image of few channels is read as it lies, but by a kernel of one element.
        self._read = _in_blocks(image, block) if pointwise else self._inside
        self._twice = (strided and not transposed) or self._half, (strided and transposed) or self._half

    def forward(self) -> int:
        """Bytes of the forward. Its result is copied out of its blocks when the arguments' blocks are free again."""
        plain = count_bytes(self._result)
        running = self._read + self._weight + self._outside - plain
        return max(running, self._outside, 2 * plain if self._twice[1] else 0)

    def backward(self, mask: Sequence[bool], covers: bool) -> int:
        """Bytes of the gradients that ``mask`` names: first the image's, then the weight's.

        If the kernel covers the whole image, the weight's gradient is copied twice: out of its blocks, and into the
        order of the weight.
        """
        of_image = of_weight = 0
        if mask[0]:
            plain = count_bytes(self._image)
            running = self._outside + self._weight + max(0, self._inside - plain)
            of_image = max(running, self._inside, 2 * plain if self._twice[0] else 0)
            of_image -= self._weight if mask[1] else 0  # its gradient is not there yet
        if mask[1]:
            summed = 2 * self._weight if self._half else 0  # halves are summed in float
            of_weight = max(self._read + self._outside + summed, (2 if covers else 1) * self._weight)
        return max(of_image, of_weight)


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


def _blocked(tensor: Tensor, block: int) -> int:
    """Bytes of an image whose channels come in blocks; 0 for few channels."""
    return 0 if tensor.shape[1] < _FEW_CHANNELS else _in_blocks(tensor, block)


def _in_blocks(tensor: Tensor, block: int) -> int:
    channels = max(1, tensor.shape[1])
    return count_bytes(tensor) // channels * -(-channels // block) * block
