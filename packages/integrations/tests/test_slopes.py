"""What activations save stored as their derivative of few bits: which calls, in which rows, with which gradient."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from actcore import SavedTensor
from integrations import fewbit
from integrations._utils.running_module import ModulePaths
from integrations.capture.capture import capture
from integrations.capture.costs.codecs import restore_seconds, store_seconds
from integrations.capture.costs.rates import constant
from integrations.planner.candidates import SLOPE_WIDTHS, make_part, storage_candidates, usual
from integrations.planner.savers import Saver, Seen
from integrations.policies.arguments import Arguments
from integrations.policies.levels import LEVELS, Level
from integrations.policies.policy import make_policy
from integrations.policies.slopes import find_activation
from integrations.policies.stores import Store
from integrations.runtime.session import Session
from integrations.runtime.specs import Specs
from integrations.tracing.call import Call
from integrations.tracing.storage.forms import SlopeForm
from integrations.tracing.storage.storage_policy import storage_policy
from integrations.tracing.storage.store import StoredLater
from integrations.tracing.tensors import Extent

from .nets import Net, normal


def stored_by(store, model, *inputs, level=LEVELS["L0"]):
    """The model's result, everything saved in that store, and the records."""
    policy = make_policy(store, level)
    session = Session(model, ModulePaths(model), Specs(policy), store.level(level), 0, 0)
    with session:
        output = model(*inputs)
    return output, session.records


def calling(call):
    """A model of one call, after something that makes its input."""
    return Net(lambda net, x: call(x + 0))


SERVED = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "silu in place": lambda x: F.silu(x, True),
    "mish": nn.Mish(),
    "hardswish": nn.Hardswish(inplace=True),
    "softplus": lambda x: F.softplus(x, 2.0),
    "elu": lambda x: F.elu(x, alpha=0.5),
    "elu in place": lambda x: F.elu(x, 1.0, inplace=True),
    "celu in place": lambda x: F.celu_(x, 1.0),
    "selu": torch.selu,
    "sigmoid": torch.Tensor.sigmoid,
    "tanh in place": lambda x: x.tanh_(),
}


@pytest.mark.parametrize("name", SERVED)
def test_calls_of_activations_are_stored_by_their_derivative(name):
    call, x = SERVED[name], normal(40, 64).requires_grad_()
    output, [record] = stored_by(Store(slope_bits=3), calling(call), x)
    assert record.codec == "3-bit derivative"
    assert record.stored_bytes == 40 * 64 * 3 // 8 + 3
    assert record.original_bytes == 40 * 64 * 4
    assert record.why == "backward needs only the derivative, stored as the nearest of a few levels"
    found = torch.autograd.grad(output.sum(), x)[0]
    exact = torch.autograd.grad(call(x + 0).sum(), x)[0]
    assert len(found.unique()) <= 8
    error = (found - exact).square().mean() / exact.square().mean()
    # Of N(0, 1) and the default parameters it is at most 0.026; of others of the same order.
    assert 0 < error < 0.05


@pytest.mark.parametrize(
    "call",
    [
        F.relu,
        F.logsigmoid,  # its backward reads two tensors
        F.tanhshrink,  # not of one operator
        torch.exp,
        lambda x: torch.ops.aten.elu(x, 1.0, 2.0, 1.0),  # of another signature than torch.nn.functional's
        lambda x: F.softplus(x, 1.0, 0.5),  # a jump of 0.4 at its threshold, with levels in it
    ],
)
def test_other_calls_are_stored_as_the_policy_says(call):
    x = normal(40, 64).requires_grad_()
    slopes, plain = (stored_by(store, calling(call), x)[1] for store in (Store(8, slope_bits=1), Store(8)))
    assert [(record.codec, record.why) for record in slopes] == [(record.codec, record.why) for record in plain]


def test_the_gradients_of_a_model_are_those_of_few_bit_layers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 96), nn.GELU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 8))
    few = copy.deepcopy(model)
    few[1], few[3] = fewbit.GELU(bits=3), fewbit.SiLU(bits=3)
    x = normal(64, 32)
    output, records = stored_by(Store(slope_bits=3), model, x)
    output.square().mean().backward()
    few(x).square().mean().backward()
    rows = {(record.saved.module, record.codec) for record in records if record.saved.operator in ("gelu", "silu")}
    assert rows == {("1", "3-bit derivative"), ("3", "3-bit derivative")}
    for found, expected in zip(model.parameters(), few.parameters(), strict=True):
        # Two slopes have some roundings of float32 in common units, and sums over 96 of them.
        torch.testing.assert_close(found.grad, expected.grad, rtol=0, atol=1e-5 * float(expected.grad.abs().max()))


def test_other_savers_of_the_value_have_its_elements():
    layer = nn.Linear(64, 64, bias=False)

    def both(x):
        return layer(x) + F.gelu(x)

    x = normal(64, 64).requires_grad_()
    _, exact = stored_by(Store(slope_bits=2), calling(both), x)
    assert {record.saved.operator: record.codec for record in exact if not record.owner} == {
        "linear": "kept",
        "gelu": "2-bit derivative",
    }
    _, rounded = stored_by(Store(8, slope_bits=2), calling(both), x)
    codecs = {record.saved.operator: record.codec for record in rounded if not record.owner}
    assert codecs["linear"].startswith("GroupAffine(bits=8")
    assert codecs["gelu"] == "2-bit derivative"


def test_what_is_small_or_to_be_kept_is_kept():
    x = normal(4, 4).requires_grad_()
    assert [record.codec for record in stored_by(Store(slope_bits=3), calling(F.gelu), x)[1]] == ["kept"]
    model = nn.Sequential(calling(F.gelu), calling(F.gelu))
    level = Level(None, keep=("1",))
    _, records = stored_by(Store(slope_bits=3), model, normal(64, 64).requires_grad_(), level=level)
    assert [record.codec for record in records] == ["3-bit derivative", "kept"]


def test_what_is_recomputed_is_stored_so_until_it_is_read():
    x, store = normal(64, 64), Store(slope_bits=3)
    saved = SavedTensor.of(x, operator="elu with another alpha", role="input")
    decision = make_policy(store, LEVELS["L0"]).decide(saved)
    call = Call(F.elu, (x,), {"alpha": 0.5})
    later = StoredLater(storage_policy(store, LEVELS["L0"]), decision, Extent.of(x), saved, 0, call)
    packed = later.store(x, {})
    assert isinstance(packed, SlopeForm)
    with torch.no_grad():
        assert torch.equal(packed.unpack(), fewbit.Codebook("elu", 3, (0.5,)).compress(x).decompress())


def test_a_graph_of_backward_is_refused():
    x = normal(64, 64).requires_grad_()
    output, _ = stored_by(Store(slope_bits=3), calling(F.gelu), x)
    with pytest.raises(RuntimeError, match="has no second derivative, and create_graph=True would return a wrong one"):
        torch.autograd.grad(output.sum(), x, create_graph=True)


def test_a_part_of_a_plan_has_its_bytes_and_its_noise():
    x = normal(64, 64)
    given = Arguments((x,), {"approximate": "tanh"})
    saved = Saver(
        0,
        stored_by(Store(), calling(F.gelu), x.requires_grad_())[1][0].saved,
        1.0,
        True,
        activation=find_activation("gelu", given, False),
    )
    part = make_part(make_policy(Store(slope_bits=4), LEVELS["L0"]).decide(saved.saved), saved, x.nbytes)
    assert part.codec == fewbit.Codebook("gelu_tanh", 4)
    assert part.alone
    assert part.nbytes >= part.codec.stored_bytes(64 * 64)
    assert part.noise == part.codec.noise == fewbit.slope_noise("gelu_tanh", 4, spread=0.5)


def test_candidates_have_the_derivative_of_what_activations_alone_save():
    weight = normal(64, 64)
    model = Net(
        lambda net, x: F.gelu(x @ net.weight) @ net.weight + (net.weight @ x).sigmoid() * (net.weight - x),
        weight=weight,
    )
    seen = Seen(recomputes=True)
    graph = capture(model.train(), (normal(64, 64),), hooks=seen.hooks)
    candidates = storage_candidates(graph, seen, LEVELS["L0"], constant, usual, lambda store: True)
    rows = {
        seen.savers[place].saved.operator: {
            option.store: option for option in candidates.options[seen.savers[place].value] if option.store.slope_bits
        }
        for place in range(len(seen.savers))
        if seen.savers[place].activation is not None
    }
    assert set(rows) == {"gelu", "sigmoid"}
    assert set(rows["gelu"]) == {Store(slope_bits=bits) for bits in SLOPE_WIDTHS}
    assert not rows["sigmoid"]  # the product has its result, too
    option = rows["gelu"][Store(slope_bits=2)]
    assert not option.serves
    assert option.held == fewbit.Codebook("gelu", 2).stored_bytes(64 * 64)
    assert option.noise == fewbit.Codebook("gelu", 2).noise


def test_more_bits_of_a_derivative_take_longer_to_store():
    rates = constant("cpu", torch.float32)
    few, many = (fewbit.Codebook("gelu", bits) for bits in (2, 8))
    assert store_seconds(rates, few, 1 << 20) < store_seconds(rates, many, 1 << 20)
    assert restore_seconds(rates, few, 1 << 20) == restore_seconds(rates, many, 1 << 20)
