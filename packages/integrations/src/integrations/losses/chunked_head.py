"""``ChunkedHead``: makes a language model's last layer return ``Logits``, so that the loss is computed without them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType, MethodType
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from integrations._utils.autocast import autocast_on, dtype_of_product
from integrations._utils.compiling import (
    compiles_callees,
    left_to_python,
    may_break_graph,
    not_inlined,
    skips_frames,
    without_dynamo,
)
from integrations._utils.forward_wrapper import ForwardWrapper
from integrations._utils.plain_tensor_types import PLAIN
from integrations._utils.torch_internals import constant_when_traced, in_forward_mode, peek_interpreter_stack
from integrations._utils.warn import warn
from integrations.capture.capture import is_capturing
from integrations.capture.graphs.sharding import (
    find_sharded_parameters,
    gathered,
    get_class,
    is_of_engine,
    is_partitioned,
    is_unit,
)
from integrations.losses._derived import Derived, Source
from integrations.losses._logits import Logits
from integrations.losses._shards import VocabularyShard, is_replicated, why_whole
from integrations.tracing.tensors import is_dtensor


class ChunkedHead(ForwardWrapper):
    """Replaces the ``forward`` of a linear layer. In training its outputs are ``Logits``.

    In ``eval()``, without gradients, under ``torch.func`` and in replicas of ``nn.DataParallel`` they are tensors as
    before. Dynamo breaks its graph at the layer's call, and what is done to ``Logits`` runs in Python.
    """

    what: ClassVar[str] = "chunked"
    undo: ClassVar[str] = "integrations.restore_model(model)"

    by_plan: bool = False
    """Whether plans say if the loss is computed without logits, and nobody asked for it."""
    chunks: bool = True
    """Whether forwards leave the logits to their loss."""
    planned_rows: int | None = None
    """Rows of a chunk by the plan that is followed; ``None`` for the default."""
    planned: object = None
    """The loss in chunks that the plan that is followed counts; ``None`` if it counts none."""
    requires_chunks: bool = False
    """Whether a loss that needs the logits themselves raises. The plan keeps to a memory without them, and the loss is
    computed outside of the model."""
    requires_one_loss: bool = False
    """Whether a second loss of the same logits raises. The plan counts one."""

    def __init__(self, model: nn.Module, forward: Callable[..., Any], replaced: bool) -> None:
        super().__init__(model, forward, replaced)
        self.rows: int | None = None
        """The most rows of a chunk for the last forward's loss; ``None`` if no loss was computed without logits."""
        self.made_for: str | None = None
        """The function for which the last forward's logits were computed, if they were."""
        self.told: set[object] = set()
        """The values of ``planned`` for which it was warned of logits that were made nevertheless."""
        self.ranks_share_rows = False
        """Whether all ranks must cut the last forward's rows alike, in chunks of the default size."""

    @classmethod
    def refuses(cls, model: nn.Module) -> str:
        """Why a layer cannot have this; empty if it can."""
        sizes = (getattr(model, name, None) for name in ("in_features", "out_features"))
        if all(isinstance(size, int) for size in sizes):
            return ""
        return f"{type(model).__name__} has no in_features and out_features, as linear layers have"

    @left_to_python
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            if self.chunks and self.model.training and torch.is_grad_enabled() and _breaks_graph():
                return _apart(self, args, kwargs)
            return self.forward(*args, **kwargs)
        if compiles_callees():
            return without_dynamo(_run)(self, sys._getframe(), args, kwargs)
        return _run(self, sys._getframe(), args, kwargs)

    def run(self, frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The layer's outputs.

        Args:
            frame: in which the layer was called.
            args, kwargs: its arguments.
        """
        module: Any = self.model
        if _COMPUTE in kwargs:
            return kwargs[_COMPUTE](*args)
        copy = self.shallow_copy(frame)
        if copy is not None:  # the copy has other parameters than this object
            return type(copy).forward(copy, *args, **kwargs)
        if not self.chunks or not self._defers(module, args, kwargs):
            self._require_weight(module, args)
            return self.forward(*args, **kwargs)
        self.rows = self.made_for = None
        (hidden,) = args
        source = self._source(module, hidden)
        self.ranks_share_rows = source.shard is not None
        placed = "" if source.shard is None else "sharded"
        return Logits.of(Derived(source, source.hidden, dtype_of_product(source.hidden), placed=placed))

    def _source(self, module: Any, hidden: Tensor) -> Source:
        """A call of the layer whose outputs wait."""
        noted: dict[str, Any] = {"made_whole": self._note_made, "in_chunks": self._note_rows, "rows": self.planned_rows}
        classes = module.out_features
        # Read once, since a parametrization may compute something each time.
        linear = self._linear(module, hidden)
        if linear is None:
            watched = partial(_parameters, module)
            return Source(hidden, classes, self.forward, watched(), watched, None, **noted)
        weight, bias = linear
        watched = partial(_there, linear)
        if is_unit(module):  # whose parameters are others, and may be changed, before the next forward
            watched = partial(find_sharded_parameters, module)
            noted["within"] = partial(_in_unit, module, weight)
        elif is_partitioned(weight):
            noted["within"] = partial(_in_forward, module)
        if is_dtensor(weight):
            noted["shard"] = shard = VocabularyShard.of(weight)
            watched = partial(_with, hidden, watched)
            hidden, weight, bias = shard.local(hidden, weight, bias)
        layer = partial(_outputs, weight=weight, bias=bias, shard=noted.get("shard"))
        return Source(hidden, classes, layer, _there((weight, bias)), watched, (weight, bias), **noted)

    def _defers(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the outputs of a call may wait."""
        if not module.training or not torch.is_grad_enabled():
            return False
        if len(args) != 1 or kwargs or peek_interpreter_stack() is not None or in_forward_mode():
            return False
        if self._why_whole(module, args):
            return False
        (hidden,) = args
        # A frozen parameter may be of any kind, such as a quantised weight: the layer knows how to use it.
        tensors = [hidden, *(one for one in module.parameters() if one.requires_grad)]
        alike = all(type(tensor) in PLAIN for tensor in tensors) or all(map(is_dtensor, tensors))
        if not alike or not all(tensor.device == hidden.device for tensor in tensors):
            return False
        known = hidden.dim() >= 2 and hidden.shape[-1] == module.in_features and hidden.is_floating_point()
        return known and any(tensor.requires_grad for tensor in tensors)

    def _linear(self, module: Any, hidden: Tensor) -> tuple[Tensor, Tensor | None] | None:
        """The weight and the bias of a layer that has nothing else, if they can be multiplied with the input as they
        are, or as autocast casts them."""
        if not isinstance(module, nn.Linear) or self.forward != MethodType(nn.Linear.forward, module):
            return None
        linear = module.weight, module.bias
        casts = autocast_on(hidden.device) is not None
        kept = all(x is None or casts or x.dtype == hidden.dtype for x in linear)
        known = all(x is None or type(x) in PLAIN or is_dtensor(x) for x in linear)
        return linear if kept and known else None

    def _why_whole(self, module: Any, args: tuple[Any, ...]) -> str:
        """Why a loss in chunks cannot use the layer, in words; empty if it can. Asked in the layer's forward."""
        parameters = list(module.parameters())
        parts = any(map(is_dtensor, parameters))
        if not parts and not is_unit(module) and not any(map(is_partitioned, parameters)):
            return ""
        if self.by_plan:  # ranks may follow different plans, and would wait for each other
            return "a plan must not change what ranks exchange"
        if len(args) != 1 or not isinstance(args[0], Tensor) or self._linear(module, args[0]) is None:
            return "it is sharded, and more than a weight and a bias that can be multiplied with its input"
        if any(map(is_partitioned, parameters)) and not all(map(is_of_engine, _hooks_of_forward(module))):
            return "it has forward hooks, which would run twice where ZeRO-3 partitions its weight: remove them"
        if not parts:
            return ""
        if why := why_whole(module.weight, module.bias):
            return why
        if not is_replicated(args[0], module.weight.device_mesh):
            how = getattr(args[0], "placements", "a plain tensor")
            return f"its input must be a DTensor placed as (Replicate(),) on the mesh of its weight, and is {how}"
        return ""

    @staticmethod
    def in_words(heads: Sequence[ChunkedHead]) -> str:
        """What became of the last forward's logits, for a report.

        Args:
            heads: the model's.
        """
        if not heads:
            return "no loss in chunks any more, since the layer that made the logits is gone"
        if made := next((head.made_for for head in heads if head.made_for is not None), None):
            return f"a loss in chunks, though the logits were made, for {made}()"
        if rows := next((head.rows for head in heads if head.rows is not None), None):
            return f"a loss in chunks of {rows} rows, without logits"
        if not any(head.model.training for head in heads):
            return "a loss in chunks, which takes a forward in train()"
        return "a loss in chunks, for which no forward asked yet"

    def _require_weight(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Raises where a loss in chunks was asked for, and cannot have the layer's weight after its forward."""
        if not self.chunks or self.by_plan or not module.training or not torch.is_grad_enabled() or is_capturing():
            return
        if why := self._why_whole(module, args):
            raise ValueError(
                f"loss must be 'full' for this model: a loss in chunks cannot use its last "
                f"{get_class(module).__name__}, because {why}"
            )

    def _note_made(self, function: str, answered: bool) -> None:
        """Note that the logits are made.

        Args:
            function: needs them.
            answered: whether a loss was computed without them before.

        Raises:
            ValueError: the plan that is followed keeps to a memory that does not include them.
        """
        # A session asks for the memory of a tensor before the function that writes to it runs.
        storage = Tensor.untyped_storage.__name__
        if self.made_for in (None, storage):
            self.made_for = function
        if self.planned is None or function == storage or is_capturing():
            return
        what = (
            f"the plan computes the loss in chunks, but {function}() needs all logits at once, and the plan's memory "
            "does not include them: pass loss='full' to compress_model, or leave the call out"
        )
        if self.requires_chunks and not answered:
            raise ValueError(what)
        if self.planned not in self.told:
            self.told.add(self.planned)
            warn(what)

    def _note_rows(self, rows: int, answered: bool) -> None:
        """Note that a loss is computed in chunks.

        Args:
            rows: of a chunk.
            answered: whether a loss of the same logits was computed before.

        Raises:
            ValueError: the plan that is followed counts one loss, and each has a gradient of the layer's weight.
        """
        weight = getattr(self.model, "weight", None)  # a layer with adapters may have none
        trained = self.model.parameters() if weight is None else (weight,)
        trains = torch.is_grad_enabled() and any(one.requires_grad for one in trained)
        if answered and trains and self.requires_one_loss and not is_capturing():
            raise ValueError(
                "the plan counts one cross-entropy in chunks, but this step computes more from the same logits, such "
                "as gather minus logsumexp, which takes another gradient of the last layer's weight: make the plan "
                "with integrations.plan(model, args, ..., loss='chunked', criterion=...), and follow it with "
                "compress_model(model, plan=...)"
            )
        self.rows = max(rows, self.rows or 0)


_COMPUTE = "compute_in_forward"
"""The argument of a layer's call that has a function called in place of the layer's forward."""


def _in_unit(unit: nn.Module, weight: Tensor, function: Callable[[Tensor], Any], hidden: Tensor) -> Any:
    """Call a function while a unit of ``fully_shard`` has its parameters whole."""
    with gathered(unit, weight):
        return function(hidden)


def _in_forward(module: nn.Module, function: Callable[[Tensor], Any], hidden: Tensor) -> Any:
    """Call a function in a call of a module, whose hooks gather its parameters for the forward and for backward."""
    return module(hidden, **{_COMPUTE: function})


def _hooks_of_forward(module: nn.Module) -> list[Callable[..., Any]]:
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]


def _outputs(hidden: Tensor, weight: Tensor, bias: Tensor | None, shard: VocabularyShard | None) -> Tensor:
    """The outputs of a linear layer; in tensor parallel, as a ``DTensor``."""
    outputs = F.linear(hidden, weight, bias)
    return outputs if shard is None else shard.join(outputs)


def _parameters(module: nn.Module) -> tuple[Tensor, ...]:
    """The parameters that can be watched for changes."""
    return tuple(one for one in module.parameters() if type(one) in PLAIN)


def _there(tensors: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor for tensor in tensors if tensor is not None)


def _with(hidden: Tensor, parameters: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return (hidden, *parameters())


def _run(head: ChunkedHead, frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return head.run(frame, args, kwargs)


@not_inlined
def _apart(head: ChunkedHead, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Breaks the graph where dynamo traces the model around the layer."""
    return head(*args, **kwargs)


@constant_when_traced
def _breaks_graph() -> bool:
    """Return whether dynamo is to break the graph that it is tracing.

    Raises:
        ValueError: it must not. Dynamo wraps this error into its own.
    """
    if torch.compiler.is_exporting() or not skips_frames():
        return False
    if may_break_graph():
        return True
    raise ValueError(
        "a loss in chunks breaks the graph of a compiled model at the layer that makes the logits, and fullgraph=True "
        "forbids that: compile without fullgraph=True, or pass loss='full' to compress_model"
    )
