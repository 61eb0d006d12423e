"""``Segment`` and ``Handle``: what backward repeats is counted and freed as it is read, and no Python runs for each."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import integrations
from actcore import Kept
from actcore.replay import Handle
from integrations import checkpoint
from integrations.capture.dispatch.memory import Geometry
from integrations.runtime import replay
from integrations.runtime.repeating.calls import HeldTensor, Outer, Reference, RepeatedCall
from integrations.runtime.repeating.segments import Segment

from .decoder import Decoder, shifted
from .nets import normal

OURS = str(Path(integrations.__file__).parent) + os.sep


def made_by(function: Any, *args: Any, value: int, takes: tuple[int, ...] = ()) -> RepeatedCall:
    return RepeatedCall(function, args, {}, ((value, 0),), (), takes, None, False)


@pytest.fixture
def doubled() -> tuple[Segment, Tensor, Tensor]:
    """A segment of two calls, ``y = x + x`` with number 0 and ``z = y * y`` with number 1; and ``y`` and ``z``."""
    x, segment = normal(3), Segment()
    y = x + x
    z = y * y
    segment.append(made_by(torch.ops.aten.add.Tensor, Outer(0), Outer(0), value=0, takes=(0,)), [held(x)])
    own = Reference(0, Geometry.of(y))
    segment.append(made_by(torch.ops.aten.mul.Tensor, own, own, value=1), [])
    return segment, y, z


def held(tensor: Tensor) -> HeldTensor:
    return HeldTensor(Kept.of(tensor))


def test_a_value_lives_until_the_last_handle_of_it_is_gone(doubled):
    segment, y, z = doubled
    one, other, last = Handle(segment, 0, y), Handle(segment, 0, y[1:]), Handle(segment, 1, z)
    assert segment.handles == {0: 2, 1: 1}
    assert torch.equal(one.get(), y)  # outside of a backward, all can be read once more
    assert set(segment.made) == {0, 1}
    assert torch.equal(other.get(), y[1:])
    assert set(segment.made) == {1}  # both have been read
    del one
    assert segment.handles == {0: 1, 1: 1}
    del other
    assert segment.handles == {1: 1}
    assert torch.equal(last.unpack(), z)
    assert not segment.made


def test_what_is_freed_during_a_repetition_is_counted_at_its_end(doubled):
    segment, y, z = doubled
    handles = [Handle(segment, 0, y), Handle(segment, 1, z)]
    counted = []

    def called(tensor: Tensor) -> Tensor:
        handles.pop(0)
        counted.append(dict(segment.handles))
        return tensor

    segment.calls[0] = made_by(torch.ops.aten.add.Tensor, Outer(0, called), Outer(0), value=0, takes=(0,))
    assert torch.equal(handles[-1].get(), z)
    assert counted == [{0: 1, 1: 1}]
    assert segment.handles == {1: 1}
    assert 0 not in segment.made


def test_a_changed_tensor_is_told_of(doubled):
    segment, y, _ = doubled
    handle = Handle(segment, 0, y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        handle.unpack()
    assert torch.equal(handle.get(), y - 1)  # as the operator made it


def test_an_error_leaves_the_segment_as_it_was(doubled):
    segment, y, _ = doubled
    handle = Handle(segment, 0, y)
    given, segment.given = segment.given, [None]
    with pytest.raises(RuntimeError, match="must be given a tensor, got None"):
        handle.get()
    assert torch.is_grad_enabled()
    segment.given = given
    assert torch.equal(handle.get(), y)


@pytest.mark.parametrize("given", [(1, 0), (None, 0), ("segment", 0)])
def test_a_handle_must_have_a_segment(given):
    with pytest.raises(TypeError, match="segment must be a Segment, got"):
        Handle(*given, torch.ones(1))


def test_a_segment_must_be_given_a_number():
    with pytest.raises(TypeError):
        Segment(None, None, False, (), "1")
    with pytest.raises(TypeError, match="advance takes"):
        Segment().advance()


class Attending(Decoder):
    """With attention without dropout, which repeats and draws nothing."""

    def __init__(self) -> None:
        super().__init__(shifted)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        heads = [part.unflatten(-1, (2, -1)).transpose(1, 2) for part in (self.layer(x), x.sin(), x.cos())]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        return self.loss(self.head(torch.tanh(mixed)), ids)


def called_in(work: Any) -> set[str]:
    """The functions of integrations that Python calls."""
    found = set()

    def note(frame: Any, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            found.add(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("make", [lambda: Decoder(shifted).train(), lambda: Attending().train()])
def test_a_repeated_forward_and_its_backward_run_no_python_for_a_tensor(make, monkeypatch):
    monkeypatch.setattr(replay, "FORCED_OFF", False)
    model, tokens = make(), torch.randint(600, (2, 80))
    forward = checkpoint.apply(model, checkpoint.plan(model, (tokens,)))
    for _ in range(4):
        forward(tokens).backward()
    assert checkpoint.plan_of(model).schedule.recomputed
    named = called_in(lambda: forward(tokens).backward())
    left = {"call_follower._is_same", "call_follower.begin", "segments._program", "segments._store", "packing.store"}
    left |= {"calls.repeat", "call_follower._acquire", "thread_state.generator_at"}
    assert not named & (left | {"following.handle", "calls.needed_for", "tape.__torch_dispatch__"})
