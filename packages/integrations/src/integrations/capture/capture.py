"""``capture``: one training step of a model as a ``Graph``, without taking it."""

from __future__ import annotations

import contextvars
import gc
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from integrations._utils.autocast import fresh_casts
from integrations._utils.compiling import without_compiled_parts
from integrations._utils.plain_tensor_types import PLAIN
from integrations._utils.running_module import NOTHING_TRAINS, ModulePaths, all_modules, trains
from integrations._utils.torch_internals import FakeTensor, FakeTensorMode, tree_leaves
from integrations.capture.costs.operator_costs import Costs, modelled
from integrations.capture.costs.workspaces import measured
from integrations.capture.dispatch.fakes import Fakes, quiet
from integrations.capture.dispatch.indices import keeps_elements
from integrations.capture.dispatch.memory import is_plain
from integrations.capture.errors import NoGradient, NoPartCaptured, NotCaptured
from integrations.capture.graphs.fingerprint import fingerprint
from integrations.capture.graphs.graph import Graph
from integrations.capture.graphs.sharding import (
    find_units,
    get_class,
    is_of_unit,
    is_partitioned,
    within_units,
)
from integrations.capture.graphs.signature import Signature
from integrations.capture.loss import Differentiated, Loss, LossOfOutputs, differentiated, is_scalar_loss
from integrations.capture.reachable_state import ReachableState
from integrations.capture.recorder import Recorder
from integrations.capture.recording import Recording
from integrations.capture.stand_ins import StandIns, with_stand_ins
from integrations.capture.units import find_parameters, hooks_simulated, is_sharded, reduce_gradients
from integrations.capture.wrapper_memory import bytes_of_gradient
from integrations.tracing.tensors import find_local, tensors_in

_MOST_COPIED = 1 << 20  # elements of a tensor that is neither a parameter, a buffer nor an input of the model

_REAL = "captured on real tensors: "

Hooks = Callable[[Recorder], AbstractContextManager[Callable[[Tensor], Any]]]
"""A block around a forward that is recorded. It gives the pack hook for that forward, which hands on to the
recorder's."""


def capture(
    model: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    real: bool = False,
    hooks: Hooks | None = None,
    measure: bool = False,
    costs: Costs = modelled,
    loss: Loss | None = None,
    holds_outputs: bool | None = None,
) -> Graph:
    """The operators of a forward and its backward, with the bytes and the times of each.

    The model's own forward runs, on fake tensors, which have no elements: nothing is computed but what depends on
    integers and truth values alone, no generator moves, and parameters, gradients and buffers are never touched. Where
    it needs elements, as ``.item()`` does, it runs on real tensors instead, on aliases of the parameters and copies of
    the buffers, and ``Graph.note`` says why. What the forward and hooks change in modules, containers, classes and
    globals is put back. Hooks of the model itself, which come before and after its forward, do not run.

    Args:
        model: the model, in the mode in which it is trained. Tensors of it on the ``meta`` device are taken to be where
            the others are, or the inputs, or else on the CPU.
        args: positional inputs, a tuple; or one input. Those on ``meta`` are taken to be where the model is; what the
            forward looks at, such as a mask, needs elements.
        kwargs: inputs by name.
        real: run on real tensors at once, in the time and memory of a plain step. Needed for a forward that takes
            another way where its inputs have no elements, as those of transformers do that look whether a mask masks.
        hooks: a block for callers that look at what the recorder sees, or run the forward in surroundings of their own.
        measure: measure on this machine what operators take in time and scratch memory, see ``measured``.
        costs: otherwise, the costs of operators: by constants, or by ``modelled.by`` with rates of this machine.
        loss: from the model's output to what is differentiated, see ``differentiated``.
        holds_outputs: whether the step holds the output during backward. ``None``: unless the model returns its loss.

    Raises:
        TypeError: ``loss`` returned no tensors.
        NoGradient: no output requires a gradient.
        NotCaptured: the forward takes or makes nested tensors; or it needs real tensors, and the model's parameters
            are sharded or on the ``meta`` device; or autograd saves tensors for a backward, but no tensor in the output
            (in tuples, lists and mappings) requires a gradient.
        Exception: what the model raises with these inputs.
    """
    args = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    reach = find_reachable_state(model, args, kwargs)
    return capture_reaching(
        reach,
        model,
        args,
        dict(kwargs or {}),
        real=real,
        hooks=hooks,
        measure=measure,
        costs=costs,
        loss=loss,
        holds_outputs=holds_outputs,
    )


def capture_reaching(
    reach: ReachableState,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    real: bool = False,
    hooks: Hooks | None = None,
    measure: bool = False,
    costs: Costs = modelled,
    loss: Loss | None = None,
    holds_outputs: bool | None = None,
) -> Graph:
    """Capture as ``capture`` does, where it is known what the forward can get at. Finding that takes longer than the
    capture for models of large libraries.

    Args:
        reach: from ``find_reachable_state``, if nothing but captures has run since.
        model, args, kwargs, real, hooks, measure, costs, loss, holds_outputs: as in ``capture``.

    Raises:
        Exception: as for ``capture``.
    """
    if any(map(is_partitioned, model.parameters())):
        raise NoPartCaptured(
            "DeepSpeed's ZeRO-3 has partitioned the parameters and gathers them only for calls of modules, not for "
            "recomputation by a plan: use ZeRO-1 or 2, or fully_shard"
        )
    if nested := [tensor for tensor in tensors_in((args, kwargs)) if tensor.is_nested]:
        raise NotCaptured(
            f"an input is a nested tensor ({nested[0].layout}), whose memory a plan cannot count; pass plain tensors, "
            "such as a padded batch and a mask"
        )
    trial = _Trial(model, args, kwargs, hooks or _own_hooks, loss, holds_outputs, reach)
    with capturing():
        found, note = contextvars.copy_context().run(_recorded, trial, real)
    return _graph(trial, found, note, measured if measure else costs, measure)


def find_reachable_state(model: nn.Module, args: Any, kwargs: Any) -> ReachableState:
    """Return what a model's forward with these inputs can get at."""
    return ReachableState(model, [leaf for leaf in tree_leaves((args, kwargs)) if not isinstance(leaf, Tensor)])


class _Trial(NamedTuple):
    """The arguments of ``capture``."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    hooks: Hooks
    loss: Loss | None
    holds_outputs: bool | None
    reach: ReachableState


class _Here(threading.local):
    capturing = False


_here = _Here()


def is_capturing() -> bool:
    """Whether this thread runs a forward only to record it."""
    return _here.capturing


@contextmanager
def capturing() -> Iterator[None]:
    """A block whose forwards are only recorded. A compressed model's forward does not compress in it."""
    before, _here.capturing = _here.capturing, True
    try:
        yield
    finally:
        _here.capturing = before


@contextmanager
def _own_hooks(recorder: Recorder) -> Iterator[Callable[[Tensor], Any]]:
    yield recorder.pack


def _graph(trial: _Trial, found: _Recorded, note: str, costs: Costs, measure: bool) -> Graph:
    model, differentiated = trial.model, found.differentiated
    ops, values, steps, other, standing = found.recording.parts(costs)
    graph = Graph(
        ops=ops,
        values=values,
        steps=steps,
        other=other,
        standing=standing,
        outputs=found.outputs,
        gradients=found.gradients,
        fingerprint=fingerprint(model),
        inputs=Signature.of(trial.args, trial.kwargs),
        note=note,
        measured=measure,
        differentiated=differentiated.what,
        holds_outputs=differentiated.held,
        double_backward=found.double_backward,
        torch_version=str(torch.__version__),
    )
    return within_units(graph, find_units(model))


def _recorded(trial: _Trial, real: bool) -> tuple[_Recorded, str]:
    """The recording of a training step, and why it used real tensors; empty if it did not."""
    note = _REAL + "as asked"
    if not real:
        try:
            return _captured(trial, fake=True), ""
        except (NoGradient, NotCaptured):
            raise
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            note = f"{_REAL}on fake ones it raised {type(error).__name__}: {lines[0]:.200}"
    reason = note.removeprefix(_REAL)
    if is_sharded(trial.model):
        raise NotCaptured(
            "fully_shard has sharded the model's parameters, but a capture on real tensors, which is needed here "
            f"({reason}), needs whole parameters: make the plan before fully_shard, and apply it afterwards"
        )
    tensors = (*trial.model.parameters(), *trial.model.buffers(), *tensors_in((trial.args, trial.kwargs)))
    if any(map(_is_meta, tensors)):
        raise ValueError(
            f"model and inputs must have data for a capture on real tensors, which is needed here ({reason}), but "
            "are on the meta device, where fit and forecast put them: fix the error, pass inputs whose values the "
            "forward reads, such as indices and masks, on the CPU, or use a model that has data"
        )
    try:
        return _captured(trial, fake=False), note
    except Exception as error:
        if not real:
            error.add_note(f"This error was raised by a step {note}")
        raise


class _Recorded(NamedTuple):
    recording: Recording
    outputs: tuple[int, ...]  # the values that the model returned
    gradients: int  # in bytes
    differentiated: Differentiated
    double_backward: bool


def _captured(trial: _Trial, fake: bool) -> _Recorded:
    model, args, kwargs, hooks, loss, holds, reach = trial
    mode = Fakes() if fake else None
    device = _get_device(model, args, kwargs)
    shards = {id(one.parameter): one for one in find_parameters(model) if one.is_shard}
    written = set(map(id, (*model.buffers(), *tensors_in((args, kwargs)))))

    def stand_in(tensor: Tensor) -> Tensor:
        if mode is None:
            return tensor.detach() if is_only_read(tensor, written) else tensor.detach().clone()
        if (shard := shards.get(id(tensor))) is not None:
            with mode:
                return shard.make_gathered()
        return _fake_or_copy(mode, tensor, device)

    stand_ins = StandIns(stand_in)
    recorder = Recorder(ModulePaths(model), fake, stand_ins.storages)

    def step() -> tuple[set[int | None], Differentiated]:
        with fresh_casts(), hooks(recorder) as pack, saved_tensors_hooks(pack, recorder.saved.unpack):
            outputs = model(*given_args, **given_kwargs)
        returned = _returned(recorder, outputs, (given_args, given_kwargs))
        recorder.start_backward()  # the loss is no part of the model's forward
        found = differentiated(outputs, loss)
        if not found.tensors:
            saved = recorder.saved
            if saved.held and gc.collect() is not None and saved.held:  # garbage may hold saved tensors
                raise NotCaptured(
                    f"{get_class(model).__name__} returned no tensor that requires a gradient, but autograd holds "
                    f"{saved.held} bytes for a backward: return the loss tensor in a tuple, a list or a mapping; or "
                    "pass plan = integrations.plan(model, args, criterion=lambda output: output.loss) to "
                    "integrations.apply(model, plan)"
                )
            why = "check that its forward does not run under no_grad" if trains(model) else NOTHING_TRAINS
            raise NoGradient(
                f"model must return a tensor that requires a gradient, and {get_class(model).__name__} returned none; "
                f"there is no backward to plan for: {why}"
            )
        found = found if holds is None else found._replace(held=holds)
        if not found.held:
            del outputs
        total = found.tensors[0] if is_scalar_loss(found.tensors) else LossOfOutputs.apply(*found.tensors)
        found.tensors.clear()
        total.backward()
        reduce_gradients(find_parameters(model), recorder)
        return returned, found

    def recorded() -> _Recorded:
        with torch.enable_grad(), mode or nullcontext(), recorder, _forward_alone(model, recorder):
            of_units = {id(one.parameter) for one in find_parameters(model)}
            for parameter in stand_ins.parameters:
                if parameter.requires_grad:
                    noted = partial(recorder.accumulated, stays=id(parameter) not in of_units)
                    parameter.register_post_accumulate_grad_hook(noted)
            returned, found = step()
            recording = recorder.finish()
        gradients = [parameter.grad for parameter in stand_ins.parameters]
        return _Recorded(
            recording,
            outputs=tuple(sorted(value for value in returned if value is not None)),
            gradients=recorder.shards + sum(bytes_of_gradient(one) for one in gradients if one is not None),
            differentiated=found,
            double_backward=recorder.saved.double_backward,
        )

    given_args, given_kwargs = stand_ins.of_all((args, kwargs))
    try:
        with quiet(), without_compiled_parts(all_modules(model)[1:]):
            return with_stand_ins(model, stand_ins, reach, recorded)
    finally:
        for tensor, gradient in recorder.leaves.values():
            tensor.grad = gradient


@contextmanager
def _forward_alone(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """A block in which a call of the model is its forward alone, which is what follows a plan. The model's own hooks
    are left out: they would be applied a second time to what a forward in use was given. Hooks of sharded units are
    simulated."""
    kinds = model._forward_pre_hooks, model._forward_hooks, model._backward_pre_hooks, model._backward_hooks
    before = [dict(hooks) for hooks in kinds]
    try:
        for hooks in kinds:
            for key in [key for key, hook in hooks.items() if not is_of_unit(hook)]:
                del hooks[key]
        with hooks_simulated(model, recorder):
            yield
    finally:
        for hooks, own in zip(kinds, before, strict=True):
            hooks.clear()
            hooks.update(own)


def _returned(recorder: Recorder, outputs: Any, inputs: Any) -> set[int | None]:
    """The values that a model returned. Its caller may change these and the inputs in place, which is not seen of
    DTensors."""
    for tensor in tensors_in((outputs, inputs)):
        if (part := find_local(tensor)) is not None:
            recorder.written_unseen(part)
    parts = ((find_local(tensor), tensor) for tensor in tensors_in(outputs))
    return {recorder.value_of(tensor if part is None else part) for part, tensor in parts}


def _get_device(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """The device that tensors on ``meta`` are taken to be on: that of the model, or of its inputs, or the CPU."""
    for tensor in (*model.parameters(), *model.buffers(), *tensors_in((args, kwargs))):
        if not _is_meta(tensor):
            return tensor.device
    return torch.device("cpu")


def _is_meta(tensor: Tensor) -> bool:
    """Whether a tensor has a shape and no elements. What a mode or a subclass makes of a meta tensor has elements."""
    return type(tensor) in PLAIN and tensor.device.type == "meta"


def _fake_or_copy(mode: FakeTensorMode, tensor: Tensor, device: torch.device) -> Tensor:
    if _is_meta(tensor):
        with mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    if is_plain(tensor) and not isinstance(tensor, FakeTensor) and keeps_elements(tensor):
        return tensor.detach().clone()
    # An alias, since the mode keeps a weak reference to its argument until the garbage collector runs.
    return mode.from_tensor(tensor.detach())


def is_only_read(tensor: Tensor, written: Collection[int]) -> bool:
    """Whether the tensor need not be copied: parameters are not written, nor large tensors that are neither buffers nor
    inputs."""
    return isinstance(tensor, nn.Parameter) or (id(tensor) not in written and tensor.numel() > _MOST_COPIED)
