"""The arithmetic of attention that is recomputed on a CPU: torch's own operations, without a graph around them.

``F.scaled_dot_product_attention`` may take several ways. Two of them are here: a fused kernel; and products with a
softmax and dropout between them, whose mask is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from integrations._utils.plain_tensor_types import has_elements
from integrations._utils.torch_internals import (
    disable_current_modes,
    fused_sdp_choice,
    safe_softmax,
    scaled_dot_product_attention_math,
    scaled_dot_product_flash_attention_for_cpu,
    scaled_dot_product_flash_attention_for_cpu_backward,
    softmax_backward_data,
)

Options = dict[str, Any]
"""The arguments that are no tensors, by name, with ``dropout_p`` among them."""
Gradients = tuple[Tensor, Tensor, Tensor]
"""The gradients of query, key and value."""

_FUSED = scaled_dot_product_flash_attention_for_cpu
_FUSED_BACKWARD = scaled_dot_product_flash_attention_for_cpu_backward
_MATH = scaled_dot_product_attention_math
# A dropout mask is kept only if it takes at most one byte for so many of query, key and value.
_MASK_SHARE = 16


# ---- the fused kernel ----


def is_fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Options) -> bool:
    """Whether torch would call the fused kernel for these."""
    if options["dropout_p"] or not _alike(query, key, value, mask, options):
        return False
    # Torch gives tensors of fewer dimensions the kernel's four.
    four = query.dim() == key.dim() == value.dim() == 4 and (mask is None or mask.dim() in (2, 4))
    if not four or (mask is not None and mask.requires_grad):
        return False
    return _choice(query, key, value, mask, options) == int(SDPBackend.FLASH_ATTENTION.value)


def fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Options) -> tuple[Tensor, Tensor]:
    """Attention, and the logarithms of the softmax's sums."""
    mask, causal, scale = _added(mask, query.dtype), options.get("is_causal", False), options.get("scale")
    output, sums = _FUSED(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)
    return output, sums


def of_fused(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    output: Tensor,
    sums: Tensor,
    options: Options,
) -> Gradients:
    """The gradients for ``gradient``, that of the output, from what ``fused`` made of the same tensors."""
    mask, causal, scale = _added(mask, query.dtype), options.get("is_causal", False), options.get("scale")
    found: Gradients = _FUSED_BACKWARD(
        gradient, query, key, value, output, sums, 0.0, causal, attn_mask=mask, scale=scale
    )
    return found


# ---- dropout whose mask is kept ----


def masks_dropout(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Options) -> bool:
    """Whether dropout's mask is kept, rather than drawn a second time: if torch computes attention step by step, in the
    dtype that it is given."""
    if not 0 < options["dropout_p"] < 1 or query.dtype not in (torch.float32, torch.float64):
        return False
    if not _alike(query, key, value, mask, options) or min(query.dim(), key.dim(), value.dim()) < 2:
        return False
    elements = query.shape[:-1].numel() * key.shape[-2]
    if elements // 8 * _MASK_SHARE > query.nbytes + key.nbytes + value.nbytes:
        return False
    return _choice(query, key, value, mask, options) == int(SDPBackend.MATH.value)


def drawn(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Options) -> tuple[Tensor, Tensor]:
    """Attention with dropout that is drawn now, and a mask of what dropout has left."""
    output, probabilities = _MATH(query, key, value, _added(mask, query.dtype), **options)
    # Zero where dropped. Elsewhere a zero does no harm: the softmax has no slope there.
    return output, probabilities != 0


def dropped(left: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Options) -> Tensor:
    """Attention with dropout that was drawn before, by torch's operations in their order."""
    # Values are multiplied after dropout, so one column of them suffices here.
    undrawn = {**options, "dropout_p": 0.0}
    _, probabilities = _MATH(query, key, value[..., :1], _added(mask, query.dtype), **undrawn)
    output: Tensor = (probabilities * _noise(left, query, options)) @ value
    return output


def is_plain(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Options) -> bool:
    """Whether ``of_dropped`` computes the gradients: no tensor is broadcast, the mask requires no gradient, and the
    scale has a square root."""
    alike = query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    scale = options.get("scale")
    rooted = query.shape[-1] > 0 if scale is None else scale >= 0
    return alike and rooted and (mask is None or not mask.requires_grad)


def of_dropped(
    gradient: Tensor,
    left: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    options: Options,
) -> Gradients:
    """The gradients of ``dropped`` for ``gradient``, that of its output, by the operations of torch's backward."""
    given = options.get("scale")
    scale = math.sqrt(query.shape[-1] ** -0.5 if given is None else given)
    queries, keys = query * scale, key * scale
    logits = queries @ keys.transpose(-2, -1)
    if options.get("is_causal"):
        logits += logits.new_full(logits.shape[-2:], -torch.inf).triu_(1)
    added = _added(mask, query.dtype)
    if added is not None:
        logits = logits + added
    probabilities = safe_softmax(logits, -1)
    noise = _noise(left, query, options)
    of_value = (probabilities * noise).transpose(-2, -1) @ gradient
    of_probabilities = (gradient @ value.transpose(-2, -1)).mul_(noise)
    of_logits = softmax_backward_data(of_probabilities, probabilities, -1, query.dtype)
    of_key = (queries.transpose(-2, -1) @ of_logits).transpose(-2, -1)
    return (of_logits @ keys).mul_(scale), of_key.mul_(scale), of_value


def _alike(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Options) -> bool:
    """Whether the tensors are such that torch computes their attention on a CPU as they are. Torch has to refuse itself
    what it refuses, and autocast casts for its function, but not for the operators that it calls."""
    dtype = query.dtype
    if query.device.type != "cpu" or options.get("enable_gqa") or torch.is_autocast_enabled("cpu"):
        return False
    return key.dtype == value.dtype == dtype and (mask is None or mask.dtype in (torch.bool, dtype))


def _noise(left: Tensor, query: Tensor, options: Options) -> Tensor:
    """What dropout multiplies by."""
    return left.to(query.dtype).div_(1 - options["dropout_p"])


def _added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The mask as it is added to the logits: torch's function converts a boolean one, its operators do not."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), -torch.inf)


def _choice(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Options) -> int:
    """Torch's choice of a kernel, which also depends on whether gradients are enabled."""
    if not has_elements(query):
        with disable_current_modes(), _unfilled():
            return _choice(_real(query), _real(key), _real(value), None if mask is None else _real(mask), options)
    with torch.enable_grad():
        choice: int = fused_sdp_choice(query, key, value, mask, **options)
    return choice


@contextmanager
def _unfilled() -> Iterator[None]:
    """A block in which torch does not fill new memory, as it does where its operators are to be deterministic."""
    settings: Any = torch.utils.deterministic
    before, settings.fill_uninitialized_memory = settings.fill_uninitialized_memory, False
    try:
        yield
    finally:
        settings.fill_uninitialized_memory = before


def _real(tensor: Tensor) -> Tensor:
    """A real tensor for which torch chooses a kernel as for a fake one, since it makes no choice for fake ones. Nothing
    is written to its memory, so that the system gives it none."""
    size, stride = tensor.shape, tensor.stride()
    return torch.empty_strided(size, stride, dtype=tensor.dtype, requires_grad=tensor.requires_grad)
