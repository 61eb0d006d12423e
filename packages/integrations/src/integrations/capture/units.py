"""Units of ``fully_shard`` in a capture: the parameters that they gather, and the gradients that they reduce.

Other ranks take no part in a capture, so nothing is gathered and nothing is reduced. Stand-ins of gathered parameters
have the shapes that this rank computes with. When a unit's backward is over, the bytes of its gradients are replaced by
those of this rank's shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from integrations._utils.torch_internals import current_graph_task_id, tree_leaves, tree_map
from integrations.capture.dispatch.memory import allocated
from integrations.capture.graphs.sharding import find_groups, get_policy, hooks_replaced, is_unit
from integrations.capture.recorder import Recorder


class UnitParameter:
    """A parameter of a unit.

    Args:
        known: what ``fully_shard`` keeps for the parameter.

    Attributes:
        parameter: as the model has it now: this rank's shard, or gathered.
    """

    def __init__(self, known: Any) -> None:
        owner = known._module_info
        self.parameter: nn.Parameter = getattr(owner.module, owner.param_name, known.sharded_param)
        self._known = known

    @property
    def is_shard(self) -> bool:
        """Whether the model has this rank's shard now."""
        return self.parameter is not getattr(self._known, "_unsharded_param", None)

    @property
    def shard_nbytes(self) -> int:
        """Bytes that this rank's shard of the gradient takes on the device."""
        known = self._known
        if known.offload_to_cpu:
            return 0
        return allocated(known.sharded_size.numel() * known.sharded_param.element_size(), known.device)

    def make_gathered(self) -> Tensor:
        """Return a tensor like the gathered parameter, not initialized. In tensor parallel it is a ``DTensor``, of
        which this rank has a part."""
        known, dtype = self._known, self._known.mp_policy.param_dtype
        if dtype is None or not self.parameter.is_floating_point():
            dtype = self.parameter.dtype
        part = torch.empty(known._orig_size, dtype=dtype, device=known.device)
        # Earlier versions of torch have another name for it.
        spec = getattr(known, "_unsharded_dtensor_spec", None) or getattr(known, "_tp_spec", None)
        if spec is None or getattr(known, "is_spmd_types", False):
            return part
        from torch.distributed.tensor import DTensor  # takes 0.1 s to import, and a model with units has imported it

        return DTensor.from_local(
            part, spec.mesh, spec.placements, run_check=False, shape=spec.shape, stride=spec.stride
        )


def find_parameters(model: nn.Module) -> list[UnitParameter]:
    """Return the parameters of a model's units. Those of a group of units come once for each of them."""
    return [one for unit in filter(is_unit, model.modules()) for one in _find_own(unit)]


def is_sharded(model: nn.Module) -> bool:
    """Return whether a model has shards of parameters now."""
    return any(one.is_shard for one in find_parameters(model))


def _find_own(unit: nn.Module) -> Iterator[UnitParameter]:
    """The parameters of a unit, without those of units inside of it."""
    return (UnitParameter(known) for group in find_groups(unit) for known in group.fsdp_params)


@contextmanager
def hooks_simulated(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """A block in which units neither gather nor reduce. Their hooks cast inputs and outputs, unseen, and have the
    recorder count shards of gradients from the end of a unit's backward on."""
    calls: dict[int, int] = {}  # by unit: of its modules

    def simulated(module: nn.Module, hook: Callable[..., Any], before: bool) -> Callable[..., Any]:
        policy = get_policy(module)
        dtype = policy.output_dtype
        if before:
            dtype = policy.param_dtype if policy.cast_forward_inputs else None

        def cast(given: Any) -> Any:
            return given.to(dtype) if isinstance(given, Tensor) and given.is_floating_point() else given

        def call(module: nn.Module, *args: Any) -> Any:
            with recorder.pausing():
                given = args if before else args[1]
                given = given if dtype is None else tree_map(cast, given)
                return _note_inputs(module, given, recorder, calls) if before else given

        return call

    with hooks_replaced(model, simulated):
        yield


def reduce_gradients(parameters: Iterable[UnitParameter], recorder: Recorder) -> None:
    """Have the recorder count shards of the gradients that parameters have now."""
    for one in parameters:
        if one.parameter.grad is not None:
            recorder.reduced(one.parameter, one.shard_nbytes)


def _note_inputs(unit: nn.Module, given: Any, recorder: Recorder, calls: dict[int, int]) -> Any:
    """Return the inputs of a unit's forward, so that the unit's gradients are reduced once theirs are made."""
    groups = find_groups(unit)
    if not groups or not torch.is_grad_enabled() or current_graph_task_id() != -1:
        return given
    count = calls[id(groups[0])] = calls.get(id(groups[0]), 0) + 1
    inputs = [one for one in tree_leaves(given) if isinstance(one, Tensor) and one.requires_grad]
    if not inputs or (count - 1) % len(groups[0].modules):  # of a group, the module that is called first
        return given
    noted = iter(_InputsOfUnit.apply(lambda: reduce_gradients(_find_own(unit), recorder), *inputs))
    return tree_map(lambda one: next(noted) if isinstance(one, Tensor) and one.requires_grad else one, given)


class _InputsOfUnit(Function):
    """The inputs of a unit's forward. Their gradients are the last of its backward."""

    @staticmethod
    def forward(ctx: Any, over: Callable[[], None], *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.over = over
        return inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.over()
        return None, *gradients
