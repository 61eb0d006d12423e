"""``split_tensors``: the model of one tensor-parallel rank: local weights, and the tensors that collectives make.

The layout is that of ``parallelize_module`` with the model's own ``tp_plan``: ``ColwiseParallel`` and
``RowwiseParallel`` without sequence parallelism. Collectives make new tensors, as torch's functional ones do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

_COLUMNS, _GATHERED, _ROWS, _WORDS = "colwise", "colwise_gather_output", "rowwise", "embedding_rowwise"
_OLDER = {"colwise_rep": _GATHERED}
_WHOLE = ("replicate", "replicated_with_grad_allreduce")
_KNOWN = (_COLUMNS, _GATHERED, _ROWS, _WORDS, *_WHOLE)
_HEADS = ("num_attention_heads", "num_key_value_heads")
_MOST = 64  # ranks that an error names
_LAYER = re.compile(r"(?<=\.)\d+(?=\.|$)")

Parts = dict[int, tuple[nn.Parameter, nn.Parameter]]
"""By id, each weight and the part of it that a rank has."""


def split_tensors(model: nn.Module, tp: int) -> nn.Module:
    """Give each module the weights of one of ``tp`` ranks, in place, and return the model.

    Args:
        model: a model of transformers on ``meta``.
        tp: how many ranks share each layer.

    Raises:
        ValueError: the model has no ``tp_plan``, the plan has a style that is not supported, the model has adapters,
            or a size is not divisible by ``tp``.
    """
    if tp == 1:
        return model
    plan = getattr(model, "tp_plan", None)
    if not isinstance(plan, Mapping) or not plan:
        raise ValueError(
            f"tp must be 1 for this {type(model).__name__}, got {tp}: it has no tp_plan, as causal language models of "
            "transformers have; use fsdp= alone"
        )
    config: Any = model.config
    for name in _HEADS:
        _require_divisible(name, getattr(config, name, None), tp)
    split: Parts = {}
    for path, named in (*model.named_modules(), *model.named_parameters()):
        style: str | None = plan.get(path) or plan.get(_LAYER.sub("*", path))
        if style is not None and style not in _WHOLE:
            _split(named, path, _OLDER.get(style, style), tp, split)
    if not split:
        raise ValueError(
            f"tp must be 1 for this {type(model).__name__}, got {tp}: its tp_plan shards none of its modules; use "
            "fsdp= alone"
        )
    return model


def _split(module: nn.Module | nn.Parameter, path: str, style: str, tp: int, split: Parts) -> None:
    if hasattr(module, "base_layer"):
        raise ValueError(f"tp must be 1 with adapters, got {tp}: {path} has one; leave lora out, or use fsdp= alone")
    if style not in _KNOWN or not isinstance(module, nn.Embedding if style == _WORDS else nn.Linear):
        raise ValueError(
            f"tp must be 1 for this model, got {tp}: its tp_plan shards {path}, a {type(module).__name__}, as "
            f"{style!r}, which is not supported; supported are linear layers that are {_COLUMNS}, {_GATHERED} or "
            f"{_ROWS}, and embeddings that are {_WORDS}; use fsdp= alone"
        )
    rows = style != _ROWS
    _require_divisible(f"the weight of {path} in dimension {1 - rows}", module.weight.shape[1 - rows], tp)
    module.weight = _part(module.weight, 1 - rows, tp, split)
    if isinstance(module, nn.Embedding):
        module.__class__ = SharedEmbedding
        module.words = module.num_embeddings
        module.num_embeddings //= tp
        module.padding_idx = None
        return
    if style == _ROWS:
        module.in_features //= tp
        module.register_forward_hook(_reduced)
        return
    if module.bias is not None:
        module.bias = _part(module.bias, 0, tp, split)
    module.out_features //= tp
    module.register_forward_pre_hook(_reducing_gradients)
    if style == _GATHERED:
        module.register_forward_hook(partial(_gathered, tp))


def _part(weight: nn.Parameter, dim: int, tp: int, split: Parts) -> nn.Parameter:
    """Return a rank's part of a parameter, the same one for parameters that are tied."""
    if id(weight) not in split:
        shape = list(weight.shape)
        shape[dim] //= tp
        part = nn.Parameter(torch.empty(shape, dtype=weight.dtype, device=weight.device), weight.requires_grad)
        split[id(weight)] = weight, part
    return split[id(weight)][1]


def _require_divisible(name: str, size: int | None, tp: int) -> None:
    if size is not None and size % tp:
        fitting = [count for count in range(1, min(size, _MOST) + 1) if size % count == 0]
        raise ValueError(f"tp must divide {name}, {size}, got {tp}; use one of {', '.join(map(str, fitting))}")


class SharedEmbedding(nn.Embedding):
    """An embedding whose words are shared among the ranks, and whose output comes from an all-reduce.

    DTensors make the gradient of all words on each rank. A rank's part is a view of it.
    """

    words: int

    def forward(self, input: Tensor) -> Tensor:
        """Return the embeddings of tokens."""
        found: Tensor = _LookedUp.apply(input, self.weight, self.words)
        return found

    @property
    def others(self) -> int:
        """Bytes of the gradient of other ranks' words."""
        return (self.words - self.num_embeddings) * self.embedding_dim * self.weight.itemsize


def count_other_gradients(model: nn.Module) -> int:
    """Return the bytes of gradients of other ranks' parameters that a rank holds until they are freed or reduced."""
    found = [module for module in model.modules() if isinstance(module, SharedEmbedding)]
    return sum(module.others for module in found if module.weight.requires_grad)


def _reduced(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    reduced: Tensor = _Reduced.apply(output)
    return reduced


def _reducing_gradients(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (_GradientReduced.apply(args[0]), *args[1:])


def _gathered(tp: int, module: nn.Module, args: Any, output: Tensor) -> Tensor:
    gathered: Tensor = _Gathered.apply(output, tp)
    return gathered


class _LookedUp(Function):
    """The embeddings of tokens."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor, words: int) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.words, ctx.own = words, len(weight)
        return torch.embedding(weight, tokens).clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (tokens,) = ctx.saved_tensors
        whole = torch.ops.aten.embedding_dense_backward(gradient, tokens, ctx.words, -1, False)
        return None, whole[: ctx.own], None


class _Reduced(Function):
    """The output of an all-reduce. Its gradient is that of each rank's part."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        return part.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient


class _GradientReduced(Function):
    """An input that all ranks have. Its gradient is summed up by an all-reduce."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor) -> Tensor:
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient.clone()


class _Gathered(Function):
    """The output of an all-gather, which comes rank by rank and is put in order."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, tp: int) -> Tensor:
        ctx.size = part.shape[-1]
        return torch.cat(torch.cat([part] * tp).chunk(tp), -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient.narrow(-1, 0, ctx.size).clone(memory_format=torch.contiguous_format), None
