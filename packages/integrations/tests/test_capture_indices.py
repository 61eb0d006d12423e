"""What a forward may look at is known in a capture, or the capture is on real tensors; it is never wrong."""

import warnings

import pytest
import torch
from torch import nn

from integrations import checkpoint

from .nets import normal


class Looking(nn.Linear):
    """Takes another way by what a function of its input says, whose elements are known or not."""

    def __init__(self, looks):
        super().__init__(8, 8)
        self.looks = looks

    def forward(self, x):
        x = super().forward(x)
        return torch.tanh(x) if self.looks(x) else torch.sigmoid(x)


def ones_are_a_mask(x):
    return bool((torch.ones(len(x)) > 0).all())


def logarithms_are_a_bucket(x):
    distance = torch.arange(len(x)).float() + 1
    return int((distance.log() * 2).long().max()) == 2


def a_view_is_written(x):
    base = torch.zeros(4, 4)
    base[1].fill_(3.0)
    base.view(-1)[5:7] += 1
    return int(base.sum()) == 14


def a_twin_is_written_through_a_view(x):
    base = torch.zeros(4)
    view = base[1:]
    view.copy_(x[0, :3].detach())  # unknown from here on, in the base, too
    return bool((base != 0).any())


def a_result_is_written_into_indices(x):
    found = torch.zeros(4, dtype=torch.long)
    found[1] = x[0, :3].argmax() + 1
    return int(found.sum()) > 0


def a_result_is_given_away(x):
    best = x[0].argmax()
    torch.zeros(8, dtype=torch.long).scatter_(0, best, 1)
    return len(x) == 4


def an_out_argument(x):
    found = torch.empty(4)
    torch.add(torch.ones(4), torch.ones(4), out=found)
    return float(found.sum()) == 8.0


def a_size_that_changes(x):
    found = torch.ones(2)
    found.resize_(4).fill_(2.0)
    return float(found.sum()) == 8.0


FOLLOWED = [ones_are_a_mask, logarithms_are_a_bucket, a_view_is_written]
LOOKED_AT = [a_twin_is_written_through_a_view, a_result_is_written_into_indices, a_result_is_given_away]
EITHER = [an_out_argument, a_size_that_changes]


@pytest.mark.parametrize("looks", FOLLOWED + LOOKED_AT + EITHER)
def test_a_plan_is_followed_at_once(looks):
    model, x = Looking(looks).train(), normal(4, 8)
    plan = checkpoint.plan(model, x)
    assert looks in EITHER or bool(plan.graph.note) == (looks in LOOKED_AT)
    assert plan.graph.ops[-1].name == f"aten.{'tanh' if looks(model(x)) else 'sigmoid'}.default"
    checkpoint.apply(model, plan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(x).sum().backward()
