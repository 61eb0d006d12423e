"""Candidates: which stores the values of a graph have, and what these hold."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations
from actcore import GroupAffine, SavedTensor
from integrations.capture.capture import capture
from integrations.capture.costs.rates import constant
from integrations.planner.candidates import WIDTHS, storage_candidates, usual
from integrations.planner.savers import Seen
from integrations.policies.levels import LEVELS, Level
from integrations.policies.policy import make_policy
from integrations.policies.stores import Store

from .nets import Net, gradients, normal

BASE = LEVELS["L0"]
SIZE = 64 * 64


def candidates(model, *args, base=BASE, rounded=True):
    """The graph of a model, and its candidates."""
    seen = Seen(recomputes=rounded)
    graph = capture(model.train(), args, hooks=seen.hooks)
    return graph, storage_candidates(graph, seen, base, constant, usual, lambda store: True)


def row_of(forward, place, **options):
    """The stores of what one operator of a function of a 64 x 64 input makes."""
    graph, found = candidates(Net(forward, weight=normal(64, 64)), normal(64, 64), **options)
    value, *_ = [op.makes[0] for op in graph.ops if op.name.startswith(f"aten.{place}.")]
    return {(option.store, option.serves): option for option in found.options[value]}


def test_a_sign_is_exact_and_serves_no_repetition():
    """And repetitions may read the value in bits beside it."""
    row = row_of(lambda net, x: (x @ net.weight).relu() + 1, "relu")
    sign = row[Store(), False]
    assert (sign.held, sign.noise) == (SIZE // 8, 0)
    assert (Store(), True) not in row
    for bits in WIDTHS:
        served = row[Store(bits), True]
        assert served.held == SIZE // 8 + GroupAffine(bits, 64).stored_bytes(SIZE, torch.float32)  # a row is a group
        assert served.noise > 0


@pytest.mark.parametrize(("width", "group"), [(96, 96), (512, 256), (1376, 1376), (2752, 1376), (32 * 67, 32)])
def test_a_group_is_of_one_row_and_not_of_a_few_elements(width, group):
    """1376 is 43 times 32: a group of 32 takes seven times as long as one of the row. None is larger than 2048."""
    saved = SavedTensor.of(torch.empty(4, width), operator="mul", role="input")
    assert make_policy(Store(4), BASE).decide(saved).codec.group_size == group


def test_what_is_read_by_two_has_one_store_for_both():
    row = row_of(lambda net, x: (x @ net.weight).relu() @ net.weight, "relu")
    assert not [store for store, _ in row if store == Store()]  # the product needs the elements
    assert {store for store, serves in row if serves} == set(map(Store, WIDTHS))


def test_a_mask_is_exact_for_everybody():
    row = row_of(lambda net, x: torch.where((x @ net.weight) > 0, x @ net.weight, 0.5), "gt")
    assert list(row) == [(Store(), True)]
    assert row[Store(), True].held == SIZE // 8


def test_a_shape_takes_nothing():
    row = row_of(lambda net, x: F.avg_pool1d(x @ net.weight + net.weight, 2), "add")
    assert row[Store(), False].held == row[Store(), False].restored == 0


def test_what_nobody_saves_has_widths_for_repetitions():
    """As the sums of a residual stream."""
    row = row_of(lambda net, x: ((x @ net.weight) + (net.weight @ x)).sum(0), "add")
    assert {serves for _, serves in row} == {True}
    assert {store for store, _ in row} == set(map(Store, WIDTHS))


@pytest.mark.parametrize(
    "forward",
    [
        lambda net, x: (x @ net.weight)[:4, :4].contiguous().exp() @ net.weight[:4],  # small
        lambda net, x: (x @ net.weight).exp(),  # which the caller holds
        lambda net, x: (x @ net.weight).exp_() @ net.weight.log(),  # whose memory is taken over
    ],
)
def test_what_is_kept_anyway_has_no_stores(forward):
    graph, found = candidates(Net(forward, weight=normal(64, 64).abs()), normal(64, 64).abs())
    fixed = {value.reuses for value in graph.values}
    for number, value in enumerate(graph.values):
        if value.nbytes < 1024 or number in fixed or value.until == len(graph.other) - 1:
            assert found.options[number] == ()


def test_what_is_saved_before_its_memory_is_written_is_stored_as_it_was():
    """And not as what the memory holds in the end, which is made later."""

    def forward(net, x):
        h = x.detach().clone()
        y = h @ net.weight
        h.data.add_(1)  # of which autograd does not hear
        return (y * (h @ net.weight)).sum()

    graph, found = candidates(Net(forward, weight=normal(64, 64)), normal(64, 64))
    written = [value for value, one in enumerate(graph.values) if one.reuses >= 0]
    assert written
    for value, operator in enumerate(found.stored_at):
        assert operator == -1 or operator >= graph.values[value].producer
    model = Net(forward, weight=normal(64, 64)).train()
    plain = gradients(copy.deepcopy(model), normal(64, 64), loss=lambda output: output)
    integrations.apply(model, integrations.plan(model, (normal(64, 64),), error=0.0))
    assert all(map(torch.equal, gradients(model, normal(64, 64), loss=lambda output: output).values(), plain.values()))


def test_what_decides_is_not_rounded():
    """Nor what has to go with it: its widths are not there, and repetitions find it as it was."""

    def forward(net, x):
        y = x @ net.weight
        return torch.where(y > 0.5, y.exp(), y) @ net.weight

    graph, found = candidates(Net(forward, weight=normal(64, 64)), normal(64, 64))
    exact = [number for number, value in enumerate(graph.values) if value.exact]
    assert exact
    assert not [option for number in exact for option in found.options[number] if option.noise and option.serves]


def test_nothing_is_aside_where_nothing_is_rounded():
    def forward(net, x):
        return (x @ net.weight).relu() @ net.weight

    model = Net(forward, weight=normal(64, 64))
    seen = Seen(recomputes=False)
    graph = capture(model.train(), (normal(64, 64),), hooks=seen.hooks)
    asides = [
        storage_candidates(one, seen, BASE, constant, usual, lambda store: True).aside
        for one in (graph, graph.as_rounded)
    ]
    assert [sum(aside) for aside in asides] == [0, SIZE // 8]


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_candidates_hold_what_a_session_stores(bits):
    """Byte for byte, of a net whose every saved value is stored, in groups that are rows."""
    model = nn.Sequential(
        *(part for _ in range(3) for part in (nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64))), nn.Linear(64, 1)
    )
    x = normal(128, 64)
    graph, found = candidates(copy.deepcopy(model), x, base=replace(BASE, group_size=64))
    saved = [number for number, value in enumerate(graph.values) if value.saved >= 0 and value.nbytes >= BASE.min_bytes]
    stored = [found.option(number, Store(bits)).held for number in saved]
    widths = dict.fromkeys(("bits", "product_bits", "norm_bits", "pointwise_bits", "attention_bits"), bits)
    integrations.compress_model(model, "L1", group_size=64, **widths)
    gradients(model, x)
    report = integrations.compression(model).report()
    rows = [row for row in report.rows if not row.owner and row.codec != "kept"]
    assert sum(stored) == sum(row.stored_bytes for row in rows)
    assert len(stored) == 6


def test_a_level_has_one_store_and_another_for_what_repetitions_read():
    level = Level(bits=4)
    row = row_of(lambda net, x: (x @ net.weight) @ net.weight, "mm", base=level)
    assert {store for store, _ in row} == {None}
    assert row[None, False].held == GroupAffine(4, 128).stored_bytes(SIZE, torch.float32)
    assert row[None, True].held == GroupAffine(8, 64).stored_bytes(SIZE, torch.float32)
