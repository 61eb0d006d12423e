"""The gradients and vmap rules again, registered on the raw operators."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from actcore.fused.batches import first, map_forward, require_shared
from actcore.fused.masked import Dropout, MaskBackward, Relu
from actcore.fused.pool import MaxPool, MaxPoolBackward
from actcore.fused.stepwise import StepwiseBackward

_ops = torch.ops.actcore


def _stepwise_without_levels(ctx: Any, *gradients: Any) -> Any:
    raise RuntimeError(
        "actcore::stepwise has no gradient, because it takes no levels, but backward reached it; call "
        "actcore.stepwise, or call torch.ops.actcore.stepwise_backward in your own backward"
    )


for _name, _function in (
    ("relu_mask", Relu),
    ("dropout_mask", Dropout),
    ("mask_backward", MaskBackward),
    ("stepwise_backward", StepwiseBackward),
    ("max_pool", MaxPool),
    ("max_pool_backward", MaxPoolBackward),
):
    torch.library.register_autograd(f"actcore::{_name}", _function.backward, setup_context=_function.setup_context)
    torch.library.register_vmap(f"actcore::{_name}", partial(_function.rule, getattr(_ops, _name)))
torch.library.register_autograd("actcore::stepwise", _stepwise_without_levels)


@torch.library.register_vmap("actcore::stepwise")
def _(
    info: Any,
    in_dims: Any,
    input: Tensor,
    function: str,
    parameters: Any,
    boundaries: Tensor,
    bits: int,
    even: bool = False,
    guard: str = "none",
) -> Any:
    require_shared("boundaries", in_dims[3])

    def apply(x: Tensor) -> Any:
        return _ops.stepwise(x, function, parameters, boundaries, bits, even, guard)

    x = first(input, in_dims[0], info.batch_size)
    return map_forward(apply, len(x), prod(x.shape[1:]), x, guard != "none")


@torch.library.register_vmap("actcore::stepwise_codes")
def _(
    info: Any, in_dims: Any, input: Tensor, boundaries: Tensor, bits: int, even: bool = False, guard: str = "none"
) -> Any:
    require_shared("boundaries", in_dims[1])
    samples = first(input, in_dims[0], info.batch_size).unbind(0)
    return torch.stack([_ops.stepwise_codes(sample, boundaries, bits, even, guard) for sample in samples]), 0


@torch.library.register_vmap("actcore::level_codes")
def _(
    info: Any,
    in_dims: Any,
    derivative: Tensor,
    input: Tensor,
    levels: Tensor,
    bits: int,
    seed: int,
    stream: int,
    draw: Tensor | None = None,
    guard: str = "none",
) -> Any:
    require_shared("levels", in_dims[2])
    size = info.batch_size
    batched = draw is not None and in_dims[6] is not None
    draws = first(draw, in_dims[6], size).unbind(0) if batched else [draw] * size  # type: ignore[arg-type]
    samples = zip(first(derivative, in_dims[0], size), first(input, in_dims[1], size), draws, strict=True)
    return torch.stack([_ops.level_codes(d, x, levels, bits, seed, stream, one, guard) for d, x, one in samples]), 0


@torch.library.register_vmap("actcore::window_index_pack")
def _(info: Any, in_dims: Any, indices: Tensor, *options: Any) -> Any:
    samples = first(indices, in_dims[0], info.batch_size).unbind(0)
    packs, misfits = zip(*(_ops.window_index_pack(sample, *options) for sample in samples), strict=True)
    return (torch.stack(packs), torch.stack(misfits)), (0, 0)


@torch.library.register_vmap("actcore::window_index_unpack")
def _(info: Any, in_dims: Any, packed: Tensor, *options: Any) -> Any:
    samples = first(packed, in_dims[0], info.batch_size).unbind(0)
    return torch.stack([_ops.window_index_unpack(sample, *options) for sample in samples]), 0
