"""``CallFollower``: forwards that are followed by the functions that they call give what a tape gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from actcore import GroupAffine
from integrations.capture.capture import capture
from integrations.runtime.plan_executor import PlanExecutor

from .followed_forwards import Log, chosen, log_forwards, outcome, same
from .long_form import some_of
from .recompute_nets import NETS, net, random_net
from .recompute_run import run


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Log:
    return log_forwards(monkeypatch)


@pytest.mark.parametrize("share", [0.0, 0.5, -1.0])
@pytest.mark.parametrize("name", [*NETS, *range(6)])
def test_gradients_peaks_and_records_are_the_tapes(name: str | int, share: float, followed: Log) -> None:
    model, args, *named = random_net(name) if isinstance(name, int) else net(name)
    kwargs = named[0] if named else {}
    graph = capture(model, args, kwargs)
    kept, held = chosen(graph, share)
    plain, _ = outcome(model, model, args, kwargs)
    forward = run(model, graph, kept, held=held)
    steps = [outcome(forward, model, args, kwargs) for _ in range(4)]
    assert followed[0] == "tape"
    for found, peak in steps:
        assert same(found, plain)
        assert peak <= steps[0][1]
    for one in followed.records:
        assert one == followed.records[0]
    assert set(followed[1:]) == ({"tape"} if (name, share) in TAPED else {"calls"})


@pytest.mark.parametrize(("name", "share"), some_of(["resnet", "densenet", "nested", *range(6)], [0.0, 0.5, -1.0]))
def test_the_same_under_autocast(name: str | int, share: float, followed: Log) -> None:
    """Whose casts no function returns; those of weights belong to autocast unless the plan recomputes them."""
    model, args, *named = random_net(name) if isinstance(name, int) else net(name)
    kwargs = named[0] if named else {}

    def cast(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run_cast(*given: Any, **named: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                return forward(*given, **named)

        return run_cast

    with torch.autocast("cpu", torch.bfloat16):
        graph = capture(model, args, kwargs)
    kept, held = chosen(graph, share)
    plain, _ = outcome(cast(model), model, args, kwargs)
    forward = cast(run(model, graph, kept, held=held))
    steps = [outcome(forward, model, args, kwargs) for _ in range(4)]
    for found, peak in steps:
        assert same(found, plain)
        assert peak <= steps[0][1]
    for one in followed.records:
        assert one == followed.records[0]
    assert set(followed[1:]) == ({"tape"} if (name, share) in CAST_UNSEEN else {"calls"})


CAST_UNSEEN = {
    *(("densenet", share) for share in (0.5, -1.0)),  # a cast that ``cat`` makes for itself, which nobody saves
    *((0, share) for share in (0.0, 0.5, -1.0)),  # a cast of a weight that an earlier function has made
    (4, 0.0),
}


@pytest.mark.parametrize(("name", "share"), some_of(["resnet", "densenet", "nested", *range(6)], [0.0, 0.5, -1.0]))
def test_what_is_rounded_is_rounded_as_with_a_tape(
    name: str | int, share: float, followed: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, args, *named = random_net(name) if isinstance(name, int) else net(name)
    kwargs = named[0] if named else {}
    twin = copy.deepcopy(model)
    graph = capture(model, args, kwargs)
    kept, held = chosen(graph, share)
    codec = GroupAffine(bits=4, group_size=32)
    ours = [
        outcome(forward, model, args, kwargs) for forward in [run(model, graph, kept, codec, held)] for _ in range(4)
    ]
    assert followed == ["tape", "calls", "calls", "calls"]
    monkeypatch.setattr(PlanExecutor, "_begin_by_calls", lambda *_: False)
    taped = [
        outcome(forward, twin, args, kwargs) for forward in [run(twin, graph, kept, codec, held)] for _ in range(4)
    ]
    for (found, _), (expected, _) in zip(
        ours, taped, strict=True
    ):  # a tape hides what is stored from what counts bytes
        assert same(found, expected)
    assert followed.records[:4] == followed.records[4:]


TAPED = {
    *(("transformer", share) for share in (0.5, -1.0)),  # attention with dropout: several operators of one function
    *(("odd", share) for share in (0.0, 0.5, -1.0)),  # a GRU
    *(("recurrent", share) for share in (0.5, -1.0)),  # an LSTM
}
"""Functions that make tensors which they do not return. The plan's peak has no room for them, or a follower could not
tell them from those of a segment."""
