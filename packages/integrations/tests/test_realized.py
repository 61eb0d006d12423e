"""Which values inductor stores, though it could compute them in the kernels that read them."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from integrations.runtime.compiled.realized import find_realized, find_sums

aten = torch.ops.aten


def trace(function, *shapes):
    made = make_fx(function, tracing_mode="fake")(*map(torch.empty, shapes))
    return list(made.graph.nodes)


def find_names(nodes):
    """The names of those that are stored, besides what the graph returns."""
    found = find_realized(nodes, lambda node: True)
    returned = set(nodes[-1].all_input_nodes)
    assert returned <= found
    return {node.name for node in found - returned}


@pytest.mark.parametrize(("heavy", "names"), [(torch.sigmoid, {"sigmoid"}), (torch.relu, set())])
def test_what_a_cpu_takes_long_for_is_stored_for_two_readers(heavy, names):
    def function(x):
        y = heavy(x)
        return (y + 1) * (y + 2)

    assert find_names(trace(function, (4, 4))) == names


def test_nothing_is_stored_for_one_reader():
    assert not find_names(trace(lambda x: torch.sigmoid(x) + 1, (4, 4)))


@pytest.mark.parametrize(("count", "stored"), [(4, False), (5, True)])
def test_what_is_computed_from_many_tensors_is_stored_for_two_readers(count, stored):
    def function(*given):
        total = sum(given[1:], given[0])
        return total.relu() * total.neg()

    nodes = trace(function, *[(4, 4)] * count)
    assert (nodes[-5].name in find_names(nodes)) == stored, nodes


@pytest.mark.parametrize(("count", "stored"), [(10, False), (60, True)])
def test_what_many_operators_compute_is_stored_for_two_readers(count, stored):
    def function(x):
        for _ in range(count):
            x = x * 2
        return x + 1, x + 2

    assert bool(find_names(trace(function, (4, 4)))) == stored


def test_what_a_product_reads_is_stored():
    assert find_names(trace(lambda x: ((x + 1) @ x).sum(), (4, 4))) == {"add"}


@pytest.mark.parametrize("reads_twice", [False, True])
def test_zeros_that_are_written_into_are_not_stored(reads_twice):
    """The zeros to which an embedding's gradient is added are made in the copy that inductor writes into."""

    def function(x, index):
        zeros = torch.zeros_like(x)
        made = aten.index_put.default(zeros, [index], x[:2], True)
        return made, (zeros @ x if reads_twice else x.sum())

    nodes = list(make_fx(function, tracing_mode="fake")(torch.empty(4, 4), torch.tensor([0, 1])).graph.nodes)
    assert ("zeros_like" in find_names(nodes)) == reads_twice


X, PLACES = torch.empty(4, 4), torch.tensor([0, 1, 0])


def passed(x, places):
    """A message for each edge: read at one end, and added at the other."""
    return aten.index_put.default(torch.zeros_like(x), [places], aten.index.Tensor(x + 1, [places]) * 2, True)


def passed_by_scatter(x, places):
    index = places[:, None].expand(3, 4)
    return torch.zeros_like(x).scatter_add(0, index, torch.gather(x + 1, 0, index) * 2)


@pytest.mark.parametrize("function", [passed, passed_by_scatter])
def test_what_is_read_and_written_at_indices_is_not_stored(function):
    assert not find_names(list(make_fx(function, tracing_mode="fake")(X, PLACES).graph.nodes))


def written_at_a_mask(x, places):
    return aten.index_put.default(x + 1, [x > 0], aten.neg(x.reshape(-1)), True)


def scattered_with_most(x, places):
    return (x + 1).scatter_reduce(0, places[:, None].expand(3, 4), aten.neg(x[:3]), "amax")


def written_in_halves(x, places):
    return aten.index_put.default((x + 1).half(), [places], aten.neg(x[:3].half()), True)


@pytest.mark.parametrize("function", [written_at_a_mask, scattered_with_most, written_in_halves])
def test_what_torchs_own_kernel_writes_is_stored(function):
    found = find_names(list(make_fx(function, tracing_mode="fake")(X, PLACES).graph.nodes))
    assert "neg" in found
    assert "add" not in found  # which inductor computes in the copy


def test_what_is_written_is_stored_for_sums_that_are_to_be_reproducible():
    nodes = list(make_fx(passed, tracing_mode="fake")(X, PLACES).graph.nodes)
    torch.use_deterministic_algorithms(True)
    try:
        found = find_names(nodes)
    finally:
        torch.use_deterministic_algorithms(False)
    assert found == {"mul"}


def test_what_several_threads_of_a_cpu_add_is_stored(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert find_names(list(make_fx(passed_by_scatter, tracing_mode="fake")(X, PLACES).graph.nodes)) == {"mul"}


def test_what_is_concatenated_is_computed_there_unless_it_is_a_sum():
    def function(x):
        return torch.cat([x + 1, x.sum(0, keepdim=True)])

    assert find_names(trace(function, (4, 4))) == {"sum_1"}


def test_a_view_is_stored_with_what_it_is_a_view_of():
    def function(x):
        y = torch.sigmoid(x).view(16)
        return (y + 1) * (y + 2)

    assert find_names(trace(function, (4, 4))) == {"sigmoid"}


def test_a_product_is_computed_with_the_sum_that_reads_it():
    nodes = trace(lambda x, y, z: (x @ y) + z, (4, 4), (4, 4), (4, 4))
    assert {one.name: other.name for one, other in find_sums(nodes).items()} == {"mm": "add"}


def test_a_product_with_other_readers_is_not():
    def function(x, y, z):
        product = x @ y
        return product + z, product * 2

    assert not find_sums(trace(function, (4, 4), (4, 4), (4, 4)))


def test_two_products_make_one_sum():
    nodes = trace(lambda x, y: (x @ y) + (y @ x), (4, 4), (4, 4))
    assert len(find_sums(nodes)) == 1
