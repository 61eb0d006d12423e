"""What a forward may look at is known in a capture, or the capture is on real tensors; it is never wrong."""

import warnings

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

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


def other_data(x):
    found = torch.ones(4)
    found.data = torch.zeros(4)
    return bool((found == 0).all())


def the_data_of_a_result(x):
    found = torch.tensor(1.0)
    found.data = x.detach().sum() + 100.0
    return float(found) == 1.0


def other_memory(x):
    found, other = torch.ones(4), torch.zeros(4)
    found.set_(other)
    other.copy_(x[:, 0].detach())
    return bool((found == 0).all())


def another_tensor_in_its_memory(x):
    found = torch.ones(4)
    torch.empty(0).set_(found.untyped_storage()).fill_(7.0)
    return bool((found == 7).all())


def memory_of_a_known_one(x):
    found, other = torch.ones(4), torch.zeros(4)
    other.set_(found.untyped_storage())
    found.add_(1.0)
    return bool((other == 2).all())


def indices_as_fractions(x):
    found = torch.zeros(4, dtype=torch.int32)
    found.view(torch.float32).copy_(x[:, 0].detach())
    return int(found.sum()) == 0


def known_indices_as_fractions(x):
    found = torch.zeros(4, dtype=torch.int32)
    found.view(torch.float32).add_(1.0)
    found += 1  # once
    return found.tolist() == [0x3F800001] * 4


def fractions_as_indices(x):
    found = torch.zeros(4)
    bits = found.view(torch.int32)
    found.copy_(x[:, 0].detach())
    return int(bits.sum()) == 0


def random_indices(x):
    found = torch.zeros(4, dtype=torch.long)
    found.random_(1, 8)
    return int(found.sum()) == 0


def running_statistics(x):
    mean, variance = torch.zeros(8), torch.ones(8)
    functional.batch_norm(x, mean, variance, training=True)
    return bool((mean == 0).all())


ARRAY = numpy.ones(4, numpy.float32)


def part_of_an_array(x):
    part = torch.from_numpy(ARRAY)[1:].mul(2.0)
    return float(part.sum()) == 6.0


def selected_fractions(x):
    best, place = torch.linspace(0, 1, len(x)).topk(2)
    return int(place[0]) == 3 and float(best[0]) == 1.0


FOLLOWED = [
    ones_are_a_mask,
    logarithms_are_a_bucket,
    a_view_is_written,
    other_data,
    another_tensor_in_its_memory,
    part_of_an_array,
    selected_fractions,
]
LOOKED_AT = [
    a_twin_is_written_through_a_view,
    a_result_is_written_into_indices,
    a_result_is_given_away,
    the_data_of_a_result,
    other_memory,
    indices_as_fractions,
    known_indices_as_fractions,
    fractions_as_indices,
    random_indices,
    running_statistics,
]
EITHER = [an_out_argument, a_size_that_changes, memory_of_a_known_one]


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


def test_what_is_not_of_the_model_is_not_written():
    array = numpy.ones(4, numpy.float32)

    def writes(x):
        torch.from_numpy(array)[1:].fill_(2.0)
        return len(x) == 4

    assert not checkpoint.plan(Looking(writes), normal(4, 8)).graph.note
    assert (array == 1).all()


class Counting(TorchDispatchMode):
    """The most elements that each operator has computed on real tensors."""

    def __init__(self):
        super().__init__()
        self.most = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if type(result) is torch.Tensor and not result.is_meta and not func.is_view:
            self.most[str(func)] = max(result.numel(), self.most.get(str(func), 0))
        return result


SIDE = 1025  # a matrix has more than 2 ** 20 elements


class Packed(nn.Module):
    """Weights in integers, of which fractions are made in the forward."""

    def __init__(self, dtype):
        super().__init__()
        self.register_buffer("codes", torch.ones(SIDE, SIDE, dtype=dtype))
        self.scale = nn.Parameter(torch.ones(SIDE))

    def forward(self, x):
        return x @ ((self.codes >> 1).to(x.dtype) * self.scale)


class Growing(nn.Linear):
    """Large results of small indices."""

    def forward(self, x):
        rows = torch.arange(SIDE)
        pairs = rows[:, None] * rows.float()  # too many fractions, as an operator on elements tells at once
        unpacked = rows.int()[:, None] >> rows.int()  # as weights are
        repeated = rows.float().repeat(SIDE, 1)  # and one of another kind by a call on fake tensors
        many = torch.arange(1 << 25)  # too many even for indices
        found = torch.zeros(SIDE, dtype=torch.long)
        found.index_add_(0, rows, rows)  # written once
        if int(found.sum()) != SIDE * (SIDE - 1) // 2:
            return x
        return super().forward(x) + pairs.sum() + unpacked.sum() + repeated.sum() + many.view(-1, 8)[: len(x)]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32])
def test_packed_weights_are_not_computed_with(dtype):
    model, x = Packed(dtype), torch.empty(2, SIDE, device="meta")
    with Counting() as counting:
        graph = checkpoint.plan(model, x).graph
    assert not graph.note
    assert max(counting.most.values(), default=0) <= SIDE, counting.most


def test_large_results_are_not_computed():
    model, x = Growing(8, 8), normal(4, 8)
    with Counting() as counting:
        graph = checkpoint.plan(model, x).graph
    assert not graph.note
    assert max(counting.most.values()) <= 8 * SIDE, counting.most  # what is real is looked at as bytes, too
