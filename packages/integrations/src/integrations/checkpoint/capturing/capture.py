"""``capture``: one training step of a model as a ``Graph``, without taking it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from integrations.checkpoint.capturing.recorder import Recorder
from integrations.checkpoint.capturing.recording import Recording
from integrations.checkpoint.capturing.stand_ins import StandIns, untouched
from integrations.checkpoint.costs.modelled import modelled
from integrations.checkpoint.costs.workspaces import measured
from integrations.checkpoint.dispatch.casts import fresh_casts
from integrations.checkpoint.dispatch.indices import is_index
from integrations.checkpoint.dispatch.memory import is_plain
from integrations.checkpoint.graphs.fingerprint import fingerprint
from integrations.checkpoint.graphs.graph import Graph
from integrations.checkpoint.graphs.sharding import class_of, units_of, whole_parameters, within_units, without_hooks
from integrations.checkpoint.graphs.signature import Signature
from integrations.saved.modules import ModulePaths
from integrations.saved.tensors import tensors_in

Hooks = Callable[[Recorder], AbstractContextManager[Callable[[Tensor], Any]]]
"""A block around a forward that is recorded, and the pack hook for it, which hands on to the recorder's."""


def capture(
    model: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    real: bool = False,
    hooks: Hooks | None = None,
    measure: bool = False,
) -> Graph:
    """The operators of a forward and its backward, with the bytes and the times of each.

    The model's own forward runs, on fake tensors, which have no elements: nothing is computed but what depends on
    integers and truth values alone, no generator moves, and parameters, gradients and buffers are never touched. Where
    it needs elements, as ``.item()`` does, it runs on real tensors instead, on aliases of the parameters and copies of
    the buffers, and ``Graph.note`` says why.

    Args:
        model: in the mode in which it is trained.
        args: positional inputs, a tuple; or one input.
        kwargs: inputs by name.
        real: run on real tensors at once, in the time and memory of a plain step. Needed for a forward that takes
            another way where its inputs have no elements, as those of transformers do that look whether a mask masks.
        hooks: for who wants to see what the recorder sees, or runs the forward in surroundings of its own.
        measure: find out on this machine what operators take in time and in memory of their own, see ``measured``.

    Raises:
        ValueError: no output requires a gradient; or the model's parameters are cut, and it needs real tensors.
        Exception: what the model raises with these inputs.
    """
    args = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    kwargs = dict(kwargs or {})
    with _capturing():
        found, note = _recorded(model, args, kwargs, real, hooks or _own_hooks)
    return _graph(model, args, kwargs, found, note, measure)


class _Here(threading.local):
    capturing = False


_here = _Here()


def is_capturing() -> bool:
    """Whether this thread runs a forward only to look at it."""
    return _here.capturing


@contextmanager
def _capturing() -> Iterator[None]:
    before, _here.capturing = _here.capturing, True
    try:
        yield
    finally:
        _here.capturing = before


@contextmanager
def _own_hooks(recorder: Recorder) -> Iterator[Callable[[Tensor], Any]]:
    yield recorder.pack


def _graph(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], found: _Recorded, note: str, measure: bool
) -> Graph:
    graph = Graph(
        *found.recording.parts(measured if measure else modelled),
        outputs=found.outputs,
        gradients=found.gradients,
        fingerprint=fingerprint(model),
        inputs=Signature.of(args, kwargs),
        note=note,
        measured=measure,
    )
    return within_units(graph, units_of(model))


def _recorded(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], real: bool, hooks: Hooks
) -> tuple[_Recorded, str]:
    """A training step, and why it is one on real tensors."""
    note = "captured on real tensors: as asked"
    if not real:
        try:
            return _captured(model, args, kwargs, hooks, fake=True), ""
        except NoGradient:
            raise
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            note = f"captured on real tensors: on fake ones it raised {type(error).__name__}: {lines[0]:.200}"
    if whole_parameters(model):
        raise ValueError(
            "a model that fully_shard has cut has no whole parameters for a capture on real tensors, which is needed "
            f"here ({note.removeprefix('captured on real tensors: ')}): plan before fully_shard, and apply the plan "
            "afterwards"
        )
    return _captured(model, args, kwargs, hooks, fake=False), note


class _Recorded(NamedTuple):
    recording: Recording
    outputs: tuple[int, ...]  # the values that the model returned
    gradients: int  # bytes


class NoGradient(ValueError):
    """No output requires a gradient."""


class _Loss(Function):
    """Some number of the outputs, whose gradients are made when backward starts and let go as others are."""

    @staticmethod
    def forward(ctx: Any, *outputs: Tensor) -> Tensor:
        ctx.like = [(output.shape, output.dtype, output.device) for output in outputs]
        return torch.zeros((), device=outputs[0].device)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return tuple(torch.ones(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.like)


class _Step(nn.Module):
    """A training step as one forward: what backward computes again meets the model's stand-ins, too, as the segments of
    ``torch.utils.checkpoint`` have to.
    """

    def __init__(self, model: nn.Module, step: Callable[[], Any]) -> None:
        super().__init__()
        self.model = model
        self._step = step

    def forward(self) -> Any:
        return self._step()


def _captured(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], hooks: Hooks, fake: bool) -> _Recorded:
    mode = FakeTensorMode(allow_non_fake_inputs=True) if fake else None
    whole = whole_parameters(model)

    def stand_in(tensor: Tensor) -> Tensor:
        if mode is None:
            return _alias_or_copy(tensor)
        if id(tensor) not in whole:
            return _fake_or_copy(mode, tensor)
        dtype, device = whole[id(tensor)]
        with mode:
            return torch.empty(tensor.shape, dtype=dtype, device=device)

    stand_ins = StandIns(stand_in)
    state = stand_ins.of_model(model)
    given_args, given_kwargs = stand_ins.of_all((args, kwargs))
    recorder = Recorder(ModulePaths(model), fake)
    devices = list({tensor.device for tensor in state.values()})

    def step() -> set[int | None]:
        with fresh_casts(), hooks(recorder) as pack, saved_tensors_hooks(pack, recorder.unpack):
            outputs = model(*given_args, **given_kwargs)
        found = [tensor for tensor in tensors_in(outputs) if tensor.requires_grad]
        if not found:
            raise NoGradient(
                f"model must return a tensor that requires a gradient, and {class_of(model).__name__} returned none: "
                "there is no backward to plan for; check requires_grad of its parameters, and that no_grad is not in "
                "its forward"
            )
        recorder.start_backward()
        _Loss.apply(*found).backward()
        return {recorder.value_of(tensor) for tensor in tensors_in(outputs)}

    named = {f"model.{name}": tensor for name, tensor in state.items()}

    with (
        untouched(model, devices),
        torch.enable_grad(),
        mode or nullcontext(),
        recorder,
        without_hooks(model, recorder),
    ):
        returned = functional_call(_Step(model, step), named, ())
        recording = recorder.finish()
    gradients = [tensor.grad for tensor in set(state.values()) if isinstance(tensor, nn.Parameter)]
    return _Recorded(
        recording,
        outputs=tuple(sorted(value for value in returned if value is not None)),
        gradients=sum(gradient.numel() * gradient.element_size() for gradient in gradients if gradient is not None),
    )


def _fake_or_copy(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    if is_plain(tensor) and not isinstance(tensor, FakeTensor) and is_index(tensor):
        return tensor.detach().clone()
    return mode.from_tensor(tensor)


def _alias_or_copy(tensor: Tensor) -> Tensor:
    """Parameters are only read; buffers and inputs may be written."""
    return tensor.detach() if isinstance(tensor, nn.Parameter) else tensor.detach().clone()
