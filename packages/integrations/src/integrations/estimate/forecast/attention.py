"""Attention on fake CUDA tensors where there is no GPU: the kernel that torch would choose if one were there.

Torch asks the GPU. Without one it takes plain operators, which keep the whole softmax.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from integrations._utils.torch_internals import (
    FakeTensor,
    scaled_dot_product_efficient_attention,
    scaled_dot_product_flash_attention,
)

_HALF = (torch.float16, torch.bfloat16)
# In flash attention: the most elements of a head, and the number of which they must be a multiple.
_MOST_OF_A_HEAD, _OF_A_HEAD = 256, 8


class FusedAttention(TorchFunctionMode):
    """Computes attention of fake CUDA tensors by torch's own order of preference: flash attention for 16 bits without a
    mask, memory-efficient attention otherwise. cuDNN's kernel, which some GPUs prefer, saves as much: query, key,
    value, the result, and 4 bytes a row."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention and not torch.cuda.is_available():
            return _attention(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attention(
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if not isinstance(query, FakeTensor) or not query.is_cuda or not query.dim() == key.dim() == value.dim() == 4:
        options = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        output: Tensor = func(query, key, value, attn_mask, **options)
        return output
    if attn_mask is None and query.dtype in _HALF and query.shape[-1] <= _MOST_OF_A_HEAD:
        # torch pads heads for flash attention, and saves what is padded
        head, more = query.shape[-1], -query.shape[-1] % _OF_A_HEAD
        query, key, value = (F.pad(part, (0, more)) if more else part for part in (query, key, value))
        scale = head**-0.5 if scale is None else scale
        output = scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
        return output[..., :head] if more else output
    if enable_gqa:
        repeats = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(repeats, 1) for part in (key, value))
    bias = None
    if attn_mask is not None:
        shape = (*query.shape[:3], key.shape[2])
        if attn_mask.dtype is torch.bool:
            attn_mask = torch.zeros(attn_mask.shape, dtype=query.dtype, device=query.device)
        bias = attn_mask.expand(shape)
    is_needed = any(tensor.requires_grad for tensor in (query, key, value))
    output = scaled_dot_product_efficient_attention(
        query, key, value, bias, is_needed, dropout_p, is_causal, scale=scale
    )[0]
    return output
