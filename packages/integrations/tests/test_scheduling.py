"""How inductor schedules graphs that have a budget."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from integrations.runtime.compiled import partition, scheduling
from integrations.runtime.compiled.scheduling import order_by_last_member

from .joint_nets import Attention, Block, planned
from .nets import normal, profiled_bytes


class SchedulerNode:
    """As much of inductor's as the order is decided by."""

    def __init__(self, name, first, last, *reads, made_by=()):
        self.name, self.min_order, self.max_order = name, first, last
        self.unmet_dependencies = [SimpleNamespace(name=read) for read in reads]
        self.read_writes = SimpleNamespace(reads=self.unmet_dependencies)
        self.node = SimpleNamespace(origins=made_by)

    def get_buffer_names(self):
        return [self.name]

    def get_nodes(self):
        return [self]


def order(*nodes, places=()):
    return [node.name for node in order_by_last_member(list(nodes), dict(places))]


def test_a_fused_kernel_comes_where_its_last_member_was():
    """Inductor gives the order by first members, with all that the fused one needs before it."""
    late, product, fused = (
        SchedulerNode("late", 2, 2),
        SchedulerNode("product", 1, 1),
        SchedulerNode("sums", 0, 3, "late"),
    )
    assert order(late, fused, product) == ["product", "late", "sums"]


def test_what_reads_a_fused_kernel_comes_after_it():
    fused = SchedulerNode("sums", 0, 3, "late")
    reader, late = SchedulerNode("reader", 1, 1, "sums", "given"), SchedulerNode("late", 2, 2)
    assert order(late, fused, reader, SchedulerNode("end", 4, 4)) == ["late", "sums", "reader", "end"]


def test_unfused_nodes_keep_their_order():
    nodes = [SchedulerNode(str(place), place, place, str(place - 2)) for place in range(6)]
    assert order(*nodes) == list("012345")


def test_nothing_is_lost_where_two_wait_for_each_other():
    nodes = [SchedulerNode("one", 0, 0, "other"), SchedulerNode("other", 1, 1, "one"), SchedulerNode("free", 2, 2)]
    assert order(*nodes) == ["one", "other", "free"]


def test_an_operator_has_its_own_place_wherever_its_buffer_is_made():
    """The buffer of "scaled" is made where the product needs it, behind what another layer computes again."""
    places = {"square": 0, "scale": 1, "again": 2, "product": 3}
    nodes = [
        SchedulerNode("again", 1, 1, "given", made_by=["again"]),
        SchedulerNode("scaled", 0, 2, "given", made_by=["square", "scale"]),
        SchedulerNode("copy", 3, 3, "scaled"),  # of no operator
        SchedulerNode("product", 4, 4, "again", "copy", made_by=["scale", "again", "product"]),
    ]
    assert order(*nodes) == ["again", "scaled", "copy", "product"]
    assert order(*nodes, places=places.items()) == ["scaled", "copy", "again", "product"]


def test_zeros_are_made_where_they_are_written_into():
    """At the operator's own place, they were alive through the backward of a TransformerConv's three layers."""
    places = {"zeros": 0, "product": 1, "put": 2}
    nodes = [
        SchedulerNode("product", 0, 0, "given", made_by=["product"]),
        SchedulerNode("zeros", 1, 1, made_by=["zeros"]),
        SchedulerNode("put", 2, 2, "product", "zeros", made_by=["zeros", "put"]),
    ]
    assert order(*nodes, places=places.items()) == ["product", "zeros", "put"]


def test_a_function_ends_where_something_is_read_for_the_last_time(monkeypatch):
    monkeypatch.setattr(scheduling, "find_lasting", lambda: frozenset(["primals_1", "result"]))
    backend = SimpleNamespace(ready_to_flush=lambda: False)
    scheduler = SimpleNamespace(get_backend=lambda device: backend)
    node = SimpleNamespace(get_device=lambda: torch.device("cpu"), scheduler=scheduler)
    nothing, other = SimpleNamespace(get_device=lambda: None), SimpleNamespace(get_device=lambda: torch.device("cuda"))
    scheduling._free_between_kernels([nothing, other])
    assert not backend.ready_to_flush()
    scheduling._free_between_kernels([nothing, other, node])
    scheduler.current_node = SimpleNamespace(last_usage={"primals_1", "result"})
    assert not backend.ready_to_flush()
    scheduler.current_node.last_usage = {"primals_1", "saved"}
    assert backend.ready_to_flush()


@pytest.mark.usefixtures("fresh_compiler", "nothing_expected", "quick_kernels", "empty_kernels")
def test_a_step_takes_less_where_buffers_are_freed_between_kernels(monkeypatch):
    import torch._inductor.config

    def measure():
        torch.manual_seed(0)
        torch.compiler.reset()
        model, x = Attention(), normal(16, 64, 32)
        function = planned(model)

        def step():
            model.zero_grad()
            function(x).square().mean().backward()

        step()
        peak, gradients = profiled_bytes(step)
        return peak - gradients

    with torch._inductor.config.patch(fx_graph_cache=False):
        ours = measure()
        monkeypatch.setattr(scheduling, "_free_between_kernels", lambda nodes: None)
        assert ours < measure()


def as_function(called):
    def passed(nodes):
        called.append("user's")
        return nodes

    return passed


def as_class(called):
    base = pytest.importorskip("torch._inductor.custom_graph_pass")

    class Passed(getattr(base, "CustomSchedulerPass", object)):
        def __call__(self, nodes):
            called.append("user's")
            return nodes

        def uuid(self):
            return "passed"

    return Passed()


@pytest.mark.usefixtures("empty_kernels")
@pytest.mark.usefixtures("fresh_compiler", "nothing_expected")
@pytest.mark.parametrize("make", [None, as_function, as_class])
def test_a_pass_of_the_users_runs_first_and_stays(monkeypatch, make):
    import torch._inductor.config

    called = []
    passed = None if make is None else make(called)

    def ordered(nodes, places):
        called.append("ours")
        return order_by_last_member(nodes, places)

    monkeypatch.setattr(scheduling, "order_by_last_member", ordered)
    with torch._inductor.config.patch(_post_fusion_custom_pass=passed, fx_graph_cache=False):
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        planned(model)(normal(16, 8)).square().mean().backward()
        assert torch._inductor.config._post_fusion_custom_pass is passed
    assert called == 2 * (["ours"] if make is None else ["user's", "ours"])


@pytest.mark.usefixtures("fresh_compiler", "nothing_expected")
def test_settings_are_put_back_where_the_pass_cannot_be_made(monkeypatch):
    def fails(users):
        raise TypeError("no such class")

    monkeypatch.setattr(scheduling, "_make_pass", fails)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    with pytest.raises(Exception, match="no such class"):
        planned(model)(normal(16, 8))


class Patches(nn.Module):
    """The first layer of a ViT."""

    def __init__(self):
        super().__init__()
        self.convolution, self.first = nn.Conv2d(128, 32, 1), nn.Parameter(torch.zeros(1, 1, 32))

    def forward(self, image):
        return torch.cat([self.first.expand(len(image), -1, -1), self.convolution(image).flatten(2).mT], 1)


@pytest.mark.usefixtures("fresh_compiler", "nothing_expected", "quick_kernels", "empty_kernels")
def test_a_copy_of_an_image_is_alive_until_its_weights_gradient_is_made(monkeypatch):
    """Backward computes the convolution again, of the copy that the forward has made."""
    counted, count = [], partition.count_peak

    def noted(*arguments):
        counted.append(count(*arguments))
        return counted[-1]

    monkeypatch.setattr(partition, "count_peak", noted)
    torch.manual_seed(0)
    model, image = nn.Sequential(Patches(), Block()), normal(32, 128, 8, 8)
    function = planned(model)

    def step():
        model.zero_grad()
        function(image).square().mean().backward()

    step()
    peak, gradients = profiled_bytes(step)
    assert counted[-1].held >= image.nbytes
    assert peak - gradients <= 1.05 * counted[-1].peak
