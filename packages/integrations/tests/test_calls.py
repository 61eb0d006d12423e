"""``CallTracker``: what it knows of each call while that runs, and what stays when one fails."""

import pytest
import torch

from integrations.tracing.checkpoints import Checkpoints
from integrations.tracing.tracker import CallTracker


def watched(tracker):
    """The arguments and results of the calls that are over."""
    seen = []
    tracker.over = lambda call, outputs: seen.append((call.function, call.arguments, list(outputs)))
    return seen


def test_the_tensors_of_a_call_are_found_wherever_they_are():
    a, b, c = (torch.ones(2) for _ in range(3))
    tracker = CallTracker()
    seen = watched(tracker)
    with tracker:
        joined = torch.cat(tensors=[a, b], dim=0)
        parts = torch.split(joined, 2)
        torch.add(parts[0], 1, out=c)
    (cat, given, made), (_, split, halves), (_, added, _) = seen[0], seen[1], seen[2]
    assert cat is torch.cat
    assert [id(tensor) for tensor in given] == [id(a), id(b)]
    assert made[0] is joined
    assert split[0] is joined
    assert [id(tensor) for tensor in halves] == [id(part) for part in parts]
    assert added[0] is parts[0]
    assert added[-1] is c


@pytest.mark.parametrize("layout", ["strided", "sparse"])
def test_what_the_forward_made_is_told_from_what_was_there(layout):
    before = torch.eye(3) if layout == "strided" else torch.eye(3).to_sparse()
    tracker = CallTracker()
    with tracker:
        made = before * 2
        made + before
    dense = [tensor if layout == "strided" else tensor._values() for tensor in (before, made)]
    assert dense[0].untyped_storage() in tracker.foreign
    assert dense[1].untyped_storage() in tracker.born
    assert dense[1].untyped_storage() not in tracker.foreign


@pytest.mark.parametrize("fails", ["call", "over", "look", "watcher"])
def test_after_a_failure_no_call_is_running(fails):
    def failing(*_):
        raise KeyError("meant")

    tracker = CallTracker()
    if fails == "look":
        tracker.checkpoints = Checkpoints(None, None, tracker.born)
        tracker.checkpoints._waiting.append(failing)  # so that there is something to look at
    elif fails != "call":
        setattr(tracker, fails, failing)
    with pytest.raises(RuntimeError if fails == "call" else KeyError), tracker:
        torch.ones(2) @ torch.ones(3)
    assert tracker.call is None
