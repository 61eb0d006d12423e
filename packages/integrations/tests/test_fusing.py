"""Which operators inductor runs in one kernel in graphs that have a budget."""

import copy
import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from integrations.runtime.compiled import fusing
from integrations.runtime.compiled.fusing import is_ours, lengthens, make_choices

from .joint_nets import WIDTH, Block, planned
from .nets import normal


class SchedulerNode:
    """As much of inductor's as the lives of buffers follow from."""

    def __init__(self, name, place, *reads, writes=()):
        self.name, self.max_order = name, place
        self.read_writes = SimpleNamespace(
            reads=[SimpleNamespace(name=read) for read in reads],
            writes=[SimpleNamespace(name=write) for write in writes],
        )

    def get_name(self):
        return self.name


class Scheduler:
    """Inductor's, before it has joined any nodes."""

    def __init__(self, *nodes):
        self.nodes, self.name_to_fused_node = list(nodes), {node.name: node for node in nodes}


def test_what_the_earlier_one_alone_reads_would_be_alive_until_the_later_one():
    early, late = SchedulerNode("early", 0, "both", "own"), SchedulerNode("late", 3, "both")
    assert lengthens(Scheduler(early, late), early, late)
    assert lengthens(Scheduler(early, late), late, early)


def test_what_the_later_one_alone_reads_is_alive_there_anyway():
    early, late = SchedulerNode("early", 0, "both"), SchedulerNode("late", 3, "both", "own")
    assert not lengthens(Scheduler(early, late), early, late)


def test_what_is_read_behind_the_later_one_is_alive_there_anyway():
    early, late = SchedulerNode("early", 0, "both", "own"), SchedulerNode("late", 3, "both")
    behind = SchedulerNode("behind", 4, "own")
    assert not lengthens(Scheduler(early, late, behind), early, late)


def test_a_result_that_is_read_between_would_be_made_behind_its_reader():
    early, late = SchedulerNode("early", 0, "both", writes=("result",)), SchedulerNode("late", 3, "both")
    between, behind = SchedulerNode("between", 1, "result"), SchedulerNode("behind", 4, "result")
    assert lengthens(Scheduler(early, between, late), early, late)
    assert not lengthens(Scheduler(early, late, behind), early, late)


def test_a_reader_that_was_joined_with_a_later_node_reads_there():
    early, late = SchedulerNode("early", 0, "both", "own"), SchedulerNode("late", 3, "both")
    between = SchedulerNode("between", 1, "own")
    scheduler = Scheduler(early, between, late)
    assert lengthens(scheduler, early, late)
    scheduler.name_to_fused_node["between"] = SchedulerNode("between_end", 5)
    assert not lengthens(scheduler, early, late)


def test_a_scheduler_is_freed():
    early, late = SchedulerNode("early", 0, "both", "own"), SchedulerNode("late", 3, "both")
    scheduler = Scheduler(early, late)
    early.scheduler = late.scheduler = scheduler  # as inductor's nodes have it
    lengthens(scheduler, early, late)
    found = weakref.ref(scheduler)
    del scheduler, early, late
    gc.collect()
    assert found() is None


def test_parameters_and_results_are_not_freed():
    early, late = SchedulerNode("early", 0, "both", "own"), SchedulerNode("late", 3, "both")
    assert not lengthens(Scheduler(early, late), early, late, frozenset(["own"]))


@pytest.mark.parametrize(
    ("operator", "more", "expected"),
    [
        (torch.ops.aten.cat.default, (), False),
        (torch.ops.aten.index_put.default, (), False),
        (torch.ops.aten.cat.default, ("own",), True),
        (torch.ops.aten.mul.Tensor, (), True),
    ],
)
def test_a_result_is_concatenated_or_added_in_its_kernel_where_nothing_is_alive_for_longer(
    monkeypatch, operator, more, expected
):
    """Joined, the sums of an SD3's modulation ran where backward concatenates them: its step took 1.12 times its count.
    A TransformerConv, which adds up its edges' values at indices, kept them alive in the same way."""
    from torch._inductor.choices import InductorChoices

    monkeypatch.setattr(fusing, "find_lasting", frozenset)
    made = SchedulerNode("sum", 0, "own", writes=("total",))
    copied = SchedulerNode("copy", 5, "total", *more)
    copied.node = SimpleNamespace(origins=[SimpleNamespace(target=operator)])
    copied.get_nodes = lambda: [copied]
    choices = make_choices(InductorChoices())
    assert choices.can_fuse_vertical(Scheduler(made, copied), made, copied, 0) == expected


@pytest.mark.usefixtures("fresh_compiler", "nothing_expected", "quick_kernels", "empty_kernels")
def test_inductor_asks_in_graphs_with_a_budget_alone(monkeypatch):
    asked = []
    monkeypatch.setattr(fusing, "lengthens", lambda *_: bool(asked.append(None)) or True)
    model = nn.Sequential(Block(), Block())
    with torch._inductor.config.patch(fx_graph_cache=False):
        torch.compile(copy.deepcopy(model))(normal(16, WIDTH)).square().mean().backward()
        assert not asked
        planned(model)(normal(16, WIDTH)).square().mean().backward()
    assert asked


@pytest.mark.usefixtures("fresh_compiler", "nothing_expected", "quick_kernels", "empty_kernels")
def test_the_users_choices_still_decide_and_are_put_back():
    from torch._inductor.choices import InductorChoices
    from torch._inductor.virtualized import V

    asked = []

    class Users(InductorChoices):
        def can_fuse(self, scheduler, *nodes):
            asked.append(is_ours(V.choices))
            return InductorChoices.can_fuse(scheduler, *nodes)

    users = Users()
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    with V.set_choices_handler(users), torch._inductor.config.patch(fx_graph_cache=False):
        planned(model)(normal(16, 8)).square().mean().backward()
        assert V.choices is users
    assert asked
    assert all(asked)
