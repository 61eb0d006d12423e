"""What ``torch.compile`` and autograd need to know about each operator of ``torch.ops.actcore``.

The schemas stand in ``csrc/ops/schema.cpp``, the kernels beside it. Here each operator gets its fake kernel: the
shapes, dtypes and devices of its outputs. All of them produce stored forms, or undo them: none is differentiable, and
backward through one raises rather than returning a gradient that is missing a term.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor

from actcore import _library as _library  # registers the operators

Key: TypeAlias = int | Tensor
"""A seed or a stream: the number, or under the overload ``tensor`` an int64 tensor of one element."""


def below_autograd(operator: Any, tensor: Tensor, *arguments: Any) -> Any:
    """Calls an operator on a tensor, whose history it does not see, without the kernel that refuses gradients.

    That kernel is written in Python and takes longer than quantising a small tensor. Under ``torch.compile`` and
    ``torch.func``, which dispatch in ways of their own, this is the plain call.
    """
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return operator(tensor.detach() if tensor.requires_grad else tensor, *arguments)
    with torch._C._AutoDispatchBelowAutograd():
        return operator(tensor, *arguments)


def packed_bytes(numel: int, bits: int) -> int:
    """Bytes that ``numel`` codes of ``bits`` bits take."""
    return (numel * bits + 7) // 8


def group_count(numel: int, group_size: int) -> int:
    """Groups of ``group_size`` elements that cover ``numel``; the last may be partial."""
    return (numel + group_size - 1) // group_size


def payload_bytes(numel: int, dtype: torch.dtype, bits: int, group_size: int) -> int:
    """Bytes of codes and bounds in one tensor, where the bounds begin at a multiple of a pair of them."""
    pair = 2 * dtype.itemsize
    return (packed_bytes(numel, bits) + pair - 1) // pair * pair + group_count(numel, group_size) * pair


def overload(operator: Any, key: tuple[Key, Key]) -> Any:
    """The overload of ``operator`` for this seed and stream, two ints or two tensors.

    Named, because torch would rather read a tensor of one element as an int than take the overload for tensors.
    """
    return operator.tensor if isinstance(key[0], Tensor) else operator.default


@torch.library.register_fake("actcore::group_affine_compress")
@torch.library.register_fake("actcore::group_affine_compress.tensor")
def _(input: Tensor, bits: int, group_size: int, stochastic: bool, seed: Key, stream: Key) -> tuple[Tensor, Tensor]:
    codes = input.new_empty(packed_bytes(input.numel(), bits), dtype=torch.uint8)
    return codes, input.new_empty((group_count(input.numel(), group_size), 2))


@torch.library.register_fake("actcore::group_affine_compress.graph")
def _(input: Tensor, bits: int, group_size: int, stochastic: bool, seed: int, stream: Tensor) -> Tensor:
    return input.new_empty(payload_bytes(input.numel(), input.dtype, bits, group_size), dtype=torch.uint8)


@torch.library.register_fake("actcore::group_affine_clamped_compress")
def _(
    input: Tensor, bits: int, group_size: int, stochastic: bool, seed: int, stream: int, least: float, most: float
) -> tuple[Tensor, Tensor]:
    codes = input.new_empty(packed_bytes(input.numel(), bits), dtype=torch.uint8)
    return codes, input.new_empty((group_count(input.numel(), group_size), 2))


@torch.library.register_fake("actcore::group_affine_standardized_compress")
def _(
    input: Tensor, bits: int, group_size: int, stochastic: bool, seed: int, stream: int, statistics: int, inner: int,
    channels: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    codes = input.new_empty(packed_bytes(input.numel(), bits), dtype=torch.uint8)
    wide = torch.promote_types(input.dtype, torch.float32)
    found = input.new_empty((2, statistics if input.numel() else 0), dtype=wide)
    return codes, input.new_empty((group_count(input.numel(), group_size), 2)), found


@torch.library.register_fake("actcore::group_affine_standardized_decompress")
def _(
    codes: Tensor, bounds: Tensor, statistics: Tensor, numel: int, inner: int, channels: int, bits: int,
    group_size: int,
) -> Tensor:  # fmt: skip
    return bounds.new_empty(numel)


@torch.library.register_fake("actcore::group_affine_standardized_compress.given")
def _(
    input: Tensor, bits: int, group_size: int, stochastic: bool, seed: int, stream: int, means: Tensor,
    factors: Tensor, inner: int, channels: int, codes: Tensor, bounds: Tensor, statistics: Tensor,
) -> None:  # fmt: skip
    """Writes, and returns nothing."""


@torch.library.register_fake("actcore::group_affine_standardized_activation")
def _(
    codes: Tensor, bounds: Tensor, scales: Tensor, shifts: Tensor, added: Tensor | None, numel: int, inner: int,
    channels: int, bits: int, group_size: int, function: str,
) -> Tensor:  # fmt: skip
    return bounds.new_empty(numel)


@torch.library.register_fake("actcore::has_wide_group")
def _(input: Tensor, group_size: int) -> Tensor:
    return input.new_empty(1, dtype=torch.int32)


@torch.library.register_fake("actcore::group_affine_decompress")
def _(codes: Tensor, bounds: Tensor, numel: int, bits: int, group_size: int) -> Tensor:
    return bounds.new_empty(numel)


@torch.library.register_fake("actcore::group_affine_decompress.graph")
def _(payload: Tensor, numel: int, dtype: torch.dtype, bits: int, group_size: int) -> Tensor:
    return payload.new_empty(numel, dtype=dtype)


@torch.library.register_fake("actcore::group_affine_rows_compress")
@torch.library.register_fake("actcore::group_affine_rows_compress.tensor")
def _(
    input: Tensor, bits: Tensor, nbytes: int, group_size: int, stochastic: bool, seed: Key, stream: Key
) -> tuple[Tensor, Tensor, Tensor]:
    rows = bits.numel()
    groups = rows * group_count(input.numel() // max(rows, 1), group_size)
    codes = input.new_empty(nbytes, dtype=torch.uint8)
    return codes, input.new_empty((groups, 2)), input.new_empty(1, dtype=torch.int32)


@torch.library.register_fake("actcore::group_affine_rows_decompress")
def _(codes: Tensor, bounds: Tensor, bits: Tensor, numel: int, group_size: int) -> tuple[Tensor, Tensor]:
    return bounds.new_empty(numel), bounds.new_empty(1, dtype=torch.int32)


@torch.library.register_fake("actcore::float8_compress")
@torch.library.register_fake("actcore::float8_compress.tensor")
def _(
    input: Tensor, format: torch.dtype, group_size: int, stochastic: bool, seed: Key, stream: Key
) -> tuple[Tensor, Tensor]:
    codes = input.new_empty(input.numel(), dtype=torch.uint8)
    return codes, input.new_empty(group_count(input.numel(), group_size))


@torch.library.register_fake("actcore::float8_decompress")
def _(codes: Tensor, bounds: Tensor, format: torch.dtype, group_size: int) -> Tensor:
    return bounds.new_empty(codes.numel())


@torch.library.register_fake("actcore::narrow_compress")
def _(input: Tensor, low: int, high: int) -> tuple[Tensor, Tensor]:
    packed = input.new_empty(packed_bytes(input.numel(), (high - low).bit_length()), dtype=torch.uint8)
    return packed, input.new_empty(1, dtype=torch.int32)


@torch.library.register_fake("actcore::narrow_decompress")
def _(packed: Tensor, numel: int, dtype: torch.dtype, low: int, high: int) -> Tensor:
    return packed.new_empty(numel, dtype=dtype)


@torch.library.register_fake("actcore::pack_bits")
def _(codes: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    return codes.new_empty(packed_bytes(codes.numel(), bits)), codes.new_empty(1, dtype=torch.int32)


@torch.library.register_fake("actcore::unpack_bits")
def _(packed: Tensor, bits: int, numel: int) -> Tensor:
    return packed.new_empty(numel)


@torch.library.register_fake("actcore::bit_mask_compress")
def _(input: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    mask = input.new_empty(packed_bytes(input.numel(), 1), dtype=torch.uint8)
    return mask, input.new_empty(1, dtype=torch.int32)


@torch.library.register_fake("actcore::bit_mask_decompress")
@torch.library.register_fake("actcore::bit_mask_decompress.graph")
def _(mask: Tensor, numel: int, dtype: torch.dtype, low: float, high: float) -> Tensor:
    return mask.new_empty(numel, dtype=dtype)


@torch.library.register_fake("actcore::bit_mask_compress.graph")
def _(input: Tensor, low: float, high: float) -> Tensor:
    return input.new_empty(packed_bytes(input.numel(), 1), dtype=torch.uint8)


@torch.library.register_fake("actcore::positive_mask")
@torch.library.register_fake("actcore::positive_mask.graph")
def _(input: Tensor) -> Tensor:
    return input.new_empty(packed_bytes(input.numel(), 1), dtype=torch.uint8)


_TAGGED = torch.library.Library("actcore", "FRAGMENT")
_TAGGED.define(
    "region_stream(Tensor like, int region, SymInt[] sizes) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,)
)  # the tag: two calls are never one


@torch.library.register_fake("actcore::region_stream")
def _(like: Tensor, region: int, sizes: list[int]) -> Tensor:
    """The stream of a compiled region's noise: ``Int64[Tensor, "1"]`` on the device of ``like``, which is not read."""
    return like.new_empty(1, dtype=torch.int64)


CPU_OPERATORS = ("has_wide_group",)
"""Those that have no kernels for CUDA."""

OPERATORS = (
    *CPU_OPERATORS,
    "group_affine_compress",
    "group_affine_compress.tensor",
    "group_affine_decompress",
    "group_affine_clamped_compress",
    "group_affine_standardized_compress",
    "group_affine_standardized_decompress",
    "group_affine_standardized_activation",
    "group_affine_rows_compress",
    "group_affine_rows_compress.tensor",
    "group_affine_rows_decompress",
    "float8_compress",
    "float8_compress.tensor",
    "float8_decompress",
    "narrow_compress",
    "narrow_decompress",
    "pack_bits",
    "unpack_bits",
    "bit_mask_compress",
    "bit_mask_decompress",
    "positive_mask",
)

GRAPH_OPERATORS = (
    "group_affine_compress.graph",
    "group_affine_decompress.graph",
    "bit_mask_compress.graph",
    "bit_mask_decompress.graph",
    "positive_mask.graph",
)
"""Those for graphs that run below autograd. Refusing gradients takes a kernel in Python, which would run each time."""

WRITING_OPERATORS = ("group_affine_standardized_compress.given",)
"""Those that write into tensors that they are given, and return nothing. They are called below autograd."""


def _refuse_gradient(name: str) -> None:
    def backward(ctx: Any, *gradients: Tensor) -> NoReturn:
        raise RuntimeError(
            f"actcore::{name} stores a tensor and has no gradient, but backward reached it; "
            "give it tensor.detach(), or save tensors through torch.autograd.graph.saved_tensors_hooks"
        )

    torch.library.register_autograd(f"actcore::{name}", backward)


def _call_each_sample(name: str) -> None:
    operator, _, kind = name.partition(".")
    call = getattr(getattr(torch.ops.actcore, operator), kind or "default")

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        samples = [
            call(
                *(
                    argument if dim is None else argument.select(dim, sample).contiguous()
                    for argument, dim in zip(arguments, in_dims, strict=True)
                )
            )
            for sample in range(info.batch_size)
        ]
        if isinstance(samples[0], Tensor):
            return torch.stack(samples), 0
        return tuple(map(torch.stack, zip(*samples, strict=True))), (0,) * len(samples[0])

    torch.library.register_vmap(f"actcore::{name}", rule)


for _name in OPERATORS:
    _refuse_gradient(_name)
for _name in (*OPERATORS, *GRAPH_OPERATORS):
    _call_each_sample(_name)
