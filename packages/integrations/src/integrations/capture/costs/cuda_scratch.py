"""``kernel_scratch_bytes``: compute the bytes that CUDA's kernels allocate in addition to their arguments and results.

torch counts these bytes in ``max_memory_allocated``. Three kinds are large. A sum over rows, such as the gradient of a
bias or of a norm's scale, is split over all multiprocessors, with a partial sum for each thread: 139 MB on an H100, for
any tensor. Attention's backward adds up the query's gradient in ``float32``, and makes gradients of keys and values
for each query head. An embedding's backward has a row in ``float32`` for each index.

The formulas of sums, embeddings, and flash and memory-efficient attention follow torch's sources. The allocations of
cuDNN's attention are not published: its formula is that of flash attention without padding. One figure each for sums
and for cuDNN's attention was recorded on an H100 (``packages/bench/results/systems-cuda.json``). The formulas give
these figures to the byte. The other formulas were not measured. Workspaces of cuDNN's convolutions depend on the
kernel that it chooses; where there is a GPU, ``workspaces`` measures them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from integrations._utils.torch_internals import OpOverload
from integrations.capture.dispatch.memory import allocated, count_bytes, is_plain

_HALF = (torch.float16, torch.bfloat16)


class _Processors(NamedTuple):
    """A GPU's multiprocessors, and the threads that one of them holds."""

    number: int
    threads: int


_HOPPER = _Processors(132, 2048)  # H100 and H200, for plans without a GPU


@cache
def _processors(index: int) -> _Processors:
    if not torch.cuda.is_available() or torch.version.hip or index >= torch.cuda.device_count():
        return _HOPPER
    found = torch.cuda.get_device_properties(index)
    return _Processors(found.multi_processor_count, found.max_threads_per_multi_processor)


def kernel_scratch_bytes(function: OpOverload, args: tuple[Any, ...], results: tuple[Any, ...]) -> int:
    """Return the bytes that a call on CUDA allocates while it runs, in blocks of the caching allocator; 0 if they are
    not modelled.

    Args:
        function: the operator.
        args: its positional arguments; the first is a tensor on CUDA.
        results: its results.
    """
    model = _MODELS.get(function._schema.name)
    if model is None or not is_plain(args[0]) or not args[0].numel():
        return 0
    return sum(allocated(nbytes, args[0].device) for nbytes in model(args, results))


# ---- reductions ----


def _of_reduction(args: tuple[Any, ...], results: tuple[Any, ...], item: int = 0) -> list[int]:
    given, result = args[0], results[0]
    if any(isinstance(other, Tensor) for other in args[1:]):  # the larger of two tensors reduces nothing
        return []
    dims = args[1] if len(args) > 1 and not isinstance(args[1], (bool, torch.dtype)) else None
    # torch sums halves into float32 as they are read; other dtypes are cast first.
    cast = given.dtype is not result.dtype and given.dtype not in _HALF and not item
    copied = [given.numel() * result.element_size()] if cast else []
    source = result if cast else given
    return [*copied, *_partial_sums(given, dims, source.element_size(), item or _sum_itemsize(source.dtype))]


def _of_norm(args: tuple[Any, ...], results: tuple[Any, ...]) -> list[int]:
    return _of_reduction((args[0], *args[2:3]), results)


def _of_values(args: tuple[Any, ...], results: tuple[Any, ...]) -> list[int]:
    """Return the bytes for the largest or the smallest elements, whose partial results have the tensor's dtype."""
    return _of_reduction(args[:2], results, args[0].element_size())


def _of_largest(args: tuple[Any, ...], results: tuple[Any, ...]) -> list[int]:
    """Return the bytes for ``max`` or ``min``, which have a second result with the places if they reduce along a
    dimension."""
    return (_of_pairs if len(results) > 1 else _of_values)(args, results)


def _of_pairs(args: tuple[Any, ...], results: tuple[Any, ...]) -> list[int]:
    return _of_reduction(args[:2], results, 16)  # an element and its index


def _of_moments(args: tuple[Any, ...], results: tuple[Any, ...]) -> list[int]:
    return _of_reduction(args[:2], results, 32 if args[0].dtype is torch.float64 else 16)


def _sum_itemsize(dtype: torch.dtype) -> int:
    if dtype in _HALF:
        return 4
    return dtype.itemsize if dtype.is_floating_point or dtype.is_complex else 8


def _partial_sums(given: Tensor, dims: Any, item: int, summed: int) -> list[int]:
    reduced, kept = _merged_dims(given, dims)
    return _split_sums(reduced, kept, item, summed, given.device.index or 0)


_Dims = list[tuple[int, int]]
"""Sizes and strides, the innermost first."""


def _split_sums(reduced: _Dims, kept: _Dims, item: int, summed: int, device: int) -> list[int]:
    """Return the bytes for the partial results of thread blocks in a reduction, and for the counters of these blocks.
    ``setReduceConfig`` in torch's ``Reduce.cuh`` chooses them.

    Args:
        reduced, kept: the reduced dimensions, and the others.
        item: bytes of an element when it is read.
        summed: bytes of a partial result.
        device: the index of the GPU.
    """
    count = math.prod(size for size, _ in reduced)
    outputs = math.prod(size for size, _ in kept)
    along = not kept or (reduced[0][1] < kept[0][1] if reduced else False)
    vector = 1
    width, height = (count, outputs) if along else (outputs, count)
    if along and reduced and reduced[0][1] == 1 and width >= 128 and len(reduced) == 1:
        width //= 4
    elif not along and kept[0][1] == 1:
        vector = math.gcd(4, kept[0][0], *(stride for _, stride in (*reduced, *kept[1:])))
        width //= vector
    most = (256 if item == 16 else 512) // vector
    wide, high = min(_power_below(width), most), min(_power_below(height), most)
    block_width = min(wide, 32)
    block_height = min(high, most // block_width)
    block_width = min(wide, most // block_height)
    step_in, step_out = (block_width, 1) if along else (1, block_width)
    if -(-count // step_in) < min(block_height * 16, 256):
        return []  # one block computes a whole output
    step_in *= block_height
    processors = _processors(device)
    target = processors.number * (processors.threads // (block_width * block_height))
    grid, values = -(-(outputs // vector) // step_out), -(-count // step_in)
    if values < 256 or grid > target:
        return []
    least, parts = -(-values // 256), -(-values // 16)
    blocks = max(least, min(-(-target // grid), parts))
    if blocks <= 1:
        return []
    each = 1 if along else block_width * vector
    return [summed * outputs * blocks * each, 4 * grid]


def _merged_dims(given: Tensor, dims: Any) -> tuple[_Dims, _Dims]:
    """Return sizes and strides of the reduced and of the kept dimensions, each with the innermost first. Like torch's
    iterator, merge dimensions that can be traversed as one."""
    named = [dims] if isinstance(dims, int) else list(dims or range(given.dim()))
    chosen = {dim % max(1, given.dim()) for dim in named}

    def merged(places: Collection[int]) -> _Dims:
        rows = sorted((given.stride(place), given.shape[place]) for place in places if given.shape[place] != 1)
        found: _Dims = []
        for stride, size in rows:
            if found and found[-1][0] * found[-1][1] == stride:
                found[-1] = found[-1][0] * size, found[-1][1]
            else:
                found.append((size, stride))
        return found

    return merged(chosen), merged(set(range(given.dim())) - chosen)


def _power_below(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)


# ---- attention ----


def _of_flash(args: tuple[Any, ...], results: tuple[Any, ...]) -> list[int]:
    """Return the bytes for flash attention. Rows are padded to 128, heads to 32 elements, or to 64 above 128."""
    gradient, query, key, out = args[0], args[1], args[2], args[4]
    batch, heads, rows, width = query.shape
    padded_rows, padded_width = _up(rows, 128), _up(width, 32 if width <= 128 else 64)
    copies = [count_bytes(one) for one in (gradient, out) if not one.transpose(1, 2).is_contiguous()]
    splits = 1
    if torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled():
        splits = -(-_processors(query.device.index or 0).number // (batch * heads))
    sums = 4 * batch * heads * padded_rows
    return [*copies, sums, splits * sums * padded_width, *_expanded_gradients(query, key, key)]


def _of_cudnn(args: tuple[Any, ...], results: tuple[Any, ...]) -> list[int]:
    gradient, query, key, value, out = args[:5]
    copies = [count_bytes(gradient)] if gradient.stride() != out.stride() else []
    rows = query.numel() // query.shape[-1]
    workspace = 4 * query.numel() + 4 * rows + sum(_expanded_gradients(query, key, value)) + 512
    return [*copies, workspace]


def _expanded_gradients(query: Tensor, key: Tensor, value: Tensor) -> list[int]:
    """Return the bytes for gradients of keys and values for each query head, before they are summed over groups."""
    heads, own = query.shape[1], key.shape[1]
    return [] if own in (heads, 0) else [count_bytes(one) // own * heads for one in (key, value)]


def _of_efficient(args: tuple[Any, ...], results: tuple[Any, ...]) -> list[int]:
    """Return the bytes for memory-efficient attention: the query's gradient in float32 in tiles, and a sum for each
    row. Half tensors with heads above 128 elements add the gradients of keys and values. Float32 tensors have a product
    as large as the result before that."""
    gradient, query, key, value, _, out = args[:6]
    batch, heads, rows, width = query.shape
    half = query.dtype in _HALF
    copies = [count_bytes(gradient)] if not gradient.transpose(1, 2).is_contiguous() else []
    sums = 4 * batch * heads * rows
    tile = 128 if half or width > 64 else 64
    workspace = 4 * batch * heads * _up(rows, 128 if half else 64) * _up(width, tile if width > 64 else 64)
    workspace += workspace // 512  # a lock and a counter for each tile
    if half and max(width, value.shape[-1]) > 128:
        splits = max(1, min(-(-key.shape[2] // 64), 200 // max(1, batch * heads)))
        workspace += 4 * batch * heads * splits * 128 * (_up(width, 128) + _up(value.shape[-1], 128))
    product = 0 if half else 4 * out.numel()
    return [*copies, sums, max(workspace, product)]


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


# ---- others ----

_NORM_ROWS, _NORM_BLOCKS = 1 << 16, 1 << 15


def _of_norm_backward(args: tuple[Any, ...], results: tuple[Any, ...]) -> list[int]:
    """Return the bytes for a layer norm's scale and shift above 65,536 rows: partial gradients for 32 rows or more
    each, and the sum of one of them."""
    width = math.prod(args[2])
    rows, columns = args[1].numel() // max(1, width), -(-width // 32)
    if rows <= _NORM_ROWS or columns >= _processors(args[0].device.index or 0).number // 2:
        return []
    made = [result for result in results[1:] if isinstance(result, Tensor) and result.numel()]
    if not made:
        return []
    parts, size = min(_NORM_BLOCKS // columns, -(-rows // 32)), made[0].element_size()
    summed = _sum_itemsize(made[0].dtype)
    index = args[0].device.index or 0
    return [parts * width * size] * len(made) + _split_sums([(parts, width)], [(width, 1)], size, summed, index)


def _of_embedding(args: tuple[Any, ...], results: tuple[Any, ...]) -> list[int]:
    """Return the bytes for an embedding. Above 3,072 indices, torch sorts them and sums gradients in float32 rows."""
    gradient, indices, padding, by_frequency = args[0], args[1], args[3], args[4]
    count = indices.numel()
    if count <= 3072 and padding < 0 and not by_frequency:
        return []
    width = gradient.shape[-1]
    wide = 4 if gradient.dtype in _HALF else gradient.element_size()
    copies = [] if gradient.is_contiguous() else [count_bytes(gradient)]
    return [*copies, *[count * indices.element_size()] * 6, count * width * wide]


def _of_convolution(args: tuple[Any, ...], results: tuple[Any, ...]) -> list[int]:
    """Return the bytes for the gradient of a bias, which is a sum. Those of cuDNN are not known here."""
    gradient, wanted = args[0], args[10]
    if not wanted[2]:
        return []
    dims = [place for place in range(gradient.dim()) if place != 1]
    return _partial_sums(gradient, dims, gradient.element_size(), _sum_itemsize(gradient.dtype))


_Model = Callable[[tuple[Any, ...], tuple[Any, ...]], list[int]]

_BY_NAME: dict[str, _Model] = {
    **dict.fromkeys(("sum", "mean", "prod"), _of_reduction),
    **dict.fromkeys(("amax", "amin"), _of_values),
    **dict.fromkeys(("max", "min"), _of_largest),
    **dict.fromkeys(("linalg_vector_norm", "norm"), _of_norm),
    **dict.fromkeys(("argmax", "argmin"), _of_pairs),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), _of_moments),
    **dict.fromkeys(("native_layer_norm_backward", "_fused_rms_norm_backward"), _of_norm_backward),
    "_scaled_dot_product_flash_attention_backward": _of_flash,
    "_scaled_dot_product_cudnn_attention_backward": _of_cudnn,
    "_scaled_dot_product_efficient_attention_backward": _of_efficient,
    "embedding_dense_backward": _of_embedding,
    "convolution_backward": _of_convolution,
}

_MODELS = {f"aten::{name}": model for name, model in _BY_NAME.items()}
"""By operator name: a function that returns the bytes of each allocation."""
