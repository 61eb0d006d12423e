"""Views, copies, indexing, pooling and new tensors: operators that move elements, or only ask where they are."""

from __future__ import annotations

from integrations.policies.needs import Need, Rule
from integrations.policies.operators.operator import Aten, Effect, Gain, Kernel, Operator, aten

_POOL = Rule(input=Need.SHAPE, why="indices are exact")
_INDEX = Rule(why="indices are exact")

_VIEWS_AND_COPIES = (
    Operator(
        "view reshape permute transpose t squeeze unsqueeze expand select detach unbind split split_with_sizes",
        aten=(
            *aten("view reshape permute transpose t squeeze unsqueeze expand select detach unbind split"),
            *aten("split_with_sizes slice alias lift_fresh_copy _conj view_as_real view_as_complex"),
            Aten("_unsafe_view", Kernel.NOTHING),
        ),
        nodes="Alias Expand Permute Select Slice Split SplitWithSizes Squeeze T Transpose Unbind Unsqueeze UnsafeView "
        "View",
        effect=Effect.SAME,
    ),
    Operator("contiguous", aten=aten("contiguous"), effect=Effect.SAME, gain=Gain.ONE),
    Operator("clone", aten=aten("clone"), nodes="Clone", effect=Effect.SAME, gain=Gain.ONE),
    Operator(
        "to type type_as float double half bfloat16",
        aten=aten("_to_copy convert_element_type"),
        nodes="ToCopy",
        effect=Effect.SAME,
        gain=Gain.ONE,
    ),
    Operator(
        "as_strided copy diagonal flip repeat roll unfold",
        nodes="AsStrided Copy Diagonal Flip Repeat ReshapeAlias Roll Unfold",
        effect=Effect.MOVES,
    ),
    Operator("cat stack", nodes="Cat Stack", effect=Effect.JOINS, gain=Gain.ONE),
    Operator("where masked_fill", nodes="Where MaskedFill", effect=Effect.PUTS, gain=Gain.ONE),
    Operator(
        "as_strided_scatter constant_pad_nd diagonal_scatter masked_scatter select_scatter slice_scatter",
        nodes="AsStridedScatter ConstantPadNd DiagonalScatter MaskedScatter SelectScatter SliceScatter",
        effect=Effect.PUTS,
    ),
)

INDEXING = (
    Operator("getitem", _INDEX, aten("index", Kernel.GATHER), nodes="Index", effect=Effect.MOVES),
    Operator("index_select", _INDEX, aten("index_select", Kernel.GATHER), nodes="IndexSelect", effect=Effect.MOVES),
    Operator("gather", _INDEX, aten("gather", Kernel.GATHER), nodes="Gather", effect=Effect.MOVES),
    Operator("embedding", _INDEX, aten("embedding", Kernel.GATHER)),
    Operator("take take_along_dim index_add scatter_add embedding_bag", _INDEX),
    Operator(
        "scatter index_copy index_fill index_put setitem",
        _INDEX,
        nodes="Scatter IndexCopy IndexFill IndexPut CopySlices",
        effect=Effect.PUTS,
    ),
    Operator("topk sort mode kthvalue cummax cummin", _INDEX),
    Operator("median", _INDEX, searches=True),
    Operator("max min", _INDEX, searches=True, compares=True),
)

POOLING = (
    Operator("max_pool2d", _POOL, backward=(Aten("max_pool2d_with_indices_backward", saved=1),)),
    Operator("max_pool3d", _POOL, backward=(Aten("max_pool3d_with_indices_backward", saved=1),)),
    Operator("avg_pool2d", _POOL, backward=(Aten("avg_pool2d_backward", saved=1),)),
    Operator("avg_pool3d", _POOL, backward=(Aten("avg_pool3d_backward", saved=1),)),
    Operator("adaptive_avg_pool2d", _POOL, backward=(Aten("_adaptive_avg_pool2d_backward", saved=1),)),
    Operator("adaptive_avg_pool3d", _POOL, backward=(Aten("_adaptive_avg_pool3d_backward", saved=1),)),
    Operator("avg_pool1d adaptive_avg_pool1d max_pool1d", _POOL),
    Operator("max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices", _POOL),
    Operator("adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d", _POOL),
    Operator("adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices", _POOL),
    Operator("adaptive_max_pool3d_with_indices", _POOL),
)

_NEW = (
    Operator("empty empty_strided", aten=aten("empty empty_strided", Kernel.NOTHING)),
    Operator(
        "empty_like new_empty new_empty_strided",
        aten=aten("empty_like new_empty new_empty_strided", Kernel.NOTHING),
        reads_shape=True,
    ),
    Operator(
        "zeros_like ones_like full_like new_zeros new_ones new_full",
        aten=aten("zeros_like ones_like full_like new_zeros new_ones new_full", Kernel.FILL),
        reads_shape=True,
    ),
    Operator("rand_like randn_like randint_like new_tensor", reads_shape=True),
    Operator("fill", aten=aten("fill", Kernel.FILL), nodes="Fill", effect=Effect.PUTS),
    Operator("zero", aten=aten("zero", Kernel.FILL)),
)

MEMORY = (*_VIEWS_AND_COPIES, *INDEXING, *POOLING, *_NEW)
