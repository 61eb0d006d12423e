"""What operators and codecs take, by the rates of a device: constants, or this machine's."""

import math
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from actcore import GroupAffine, Narrow, Offload, Positive, Raw
from integrations.capture.costs import calibrating
from integrations.capture.costs.calibrating import calibrated
from integrations.capture.costs.calls import DistinctCalls
from integrations.capture.costs.codecs import restore_seconds, store_seconds
from integrations.capture.costs.operator_costs import by, estimate_work, modelled
from integrations.capture.costs.rates import BYTES, FLOPS, LARGE, LAUNCH, MAPPED, SMALL, LinearTime, Rates, constant
from integrations.checkpoint import capture
from integrations.policies.operators import Kernel

from .machine_rates import measure, recorded
from .nets import mlp, normal

aten = torch.ops.aten
EACH = replace(
    constant("cpu", torch.float32), measured=True, product=1.0, convolution=2.0, convolution_backward=3.0, grouped=4.0
)


def work(function, *args, **kwargs):
    out = function(*args, **kwargs)
    return estimate_work(function, args, kwargs, out if isinstance(out, tuple) else (out,))


@pytest.fixture
def of_this_machine(monkeypatch):
    """Rates are measured anew, and not those by which other tests plan."""
    measure.cache_clear()
    monkeypatch.setattr(calibrating, "_measured", measure)


@pytest.fixture
def rates(of_this_machine):
    return calibrated("cpu", torch.float32)


IMAGE, WEIGHT = normal(2, 8, 5, 5), normal(8, 8, 3, 3)
ONE, NONE = [1, 1], [0, 0]


@pytest.mark.parametrize(
    ("function", "args", "kind"),
    [
        (aten.mm.default, (normal(2, 3), normal(3, 4)), Kernel.PRODUCT),
        (aten.convolution.default, (IMAGE, WEIGHT, None, ONE, ONE, ONE, False, NONE, 1), Kernel.CONVOLUTION),
        (aten.convolution.default, (IMAGE, WEIGHT[:, :1], None, ONE, ONE, ONE, False, NONE, 8), Kernel.GROUPED),
        (aten.gelu.default, (IMAGE,), Kernel.FUNCTION),
        (aten.exp_.default, (IMAGE.clone(),), Kernel.FUNCTION),
        (aten.bernoulli.p, (IMAGE, 0.5), Kernel.DRAW),
        (aten.add.Tensor, (IMAGE, IMAGE), Kernel.TRAFFIC),
        (aten.empty_like.default, (IMAGE,), Kernel.NOTHING),
    ],
)
def test_kinds(function, args, kind):
    assert work(function, *args).kind is kind


def test_a_sum_in_a_wider_dtype_has_the_rates_of_what_it_reads():
    """Else the loss in chunks would have the rates of float64 measured, for one number."""
    assert work(aten.sum.default, IMAGE, dtype=torch.float64).dtype is torch.float32
    assert work(aten.exp.default, IMAGE.double()).dtype is torch.float64
    assert work(aten._to_copy.default, IMAGE, dtype=torch.bfloat16).dtype is torch.bfloat16


def test_constant_seconds_are_of_arithmetic_or_of_traffic():
    product = work(aten.mm.default, normal(64, 64), normal(64, 64))
    assert product.seconds(constant("cpu", torch.float32)) == LAUNCH + max(2 * 64**3 / FLOPS, 3 * 4 * 64**2 / BYTES)
    total = work(aten.add.Tensor, normal(64, 64), normal(64, 64))
    assert total.seconds(constant("cpu", torch.float32)) == LAUNCH + 3 * 4 * 64**2 / BYTES


def test_a_table_is_read_where_it_is_looked_up():
    """A word embedding took as long as its whole table."""
    found = work(aten.embedding.default, normal(1000, 8), torch.tensor([1, 2]))
    assert found.moved == 2 * 8 * 4 + 2 * 8 * 4 + 2 * 8


def test_what_is_filled_is_not_read():
    assert work(aten.new_zeros.default, normal(1000), [2]).moved == 2 * 4


def test_backward_of_a_grouped_convolution_has_the_arithmetic_of_its_groups():
    """torch's formula takes the weight's gradient for one without groups: 16 times a depthwise MobileNet's time."""

    def flops(groups):
        weight = WEIGHT[:, : 8 // groups]
        args = (IMAGE, IMAGE, weight, None, ONE, ONE, ONE, False, NONE, groups, [True, True, False])
        found = work(aten.convolution_backward.default, *args)
        assert found.kind is (Kernel.CONVOLUTION_BACKWARD if groups == 1 else Kernel.GROUPED)
        return found.flops

    assert flops(1) == 8 * flops(8) == 2 * 2 * IMAGE.numel() * 8 * 9


def test_new_memory_in_blocks_of_their_own():
    """The kernel clears each of their pages, which takes longer than what is done with them."""
    large = torch.empty(MAPPED + 1, dtype=torch.uint8, device="meta")
    assert work(aten.clone.default, large).mapped == MAPPED + 1
    assert work(aten.clone.default, large[1:]).mapped == 0
    assert work(aten.neg_.default, large).mapped == 0  # nothing new


def test_traffic_takes_longer_where_caches_end():
    rates = replace(EACH, cached=1.0, far=4.0)
    assert rates.traffic(SMALL) == SMALL
    assert rates.traffic(2 * LARGE) == pytest.approx(4 * 2 * LARGE)
    middle = math.sqrt(SMALL * LARGE)
    assert rates.traffic(middle) == pytest.approx(2 * middle)


LINES = {"groups": LinearTime(1.0, 0.5), "4 bits": LinearTime(2.0, 0.25), "mask": LinearTime(3.0, 0.125)}
KNOWN = replace(
    EACH,
    store=LINES,
    restore={kind: LinearTime(2 * line.fixed, line.each) for kind, line in LINES.items()},
    to_host=LinearTime(0.0, 2.0),
    from_host=LinearTime(0.0, 1.0),
)


@pytest.mark.parametrize(
    ("codec", "store", "restore"),
    [
        (None, 0, 0),
        (Raw(), 0, 0),
        (GroupAffine(4), 2 + 64, 4 + 64),
        (GroupAffine(3), 1 + 128, 2 + 128),  # not measured: as others with groups
        (Narrow(0, 7), 1 + 128, 2 + 128),
        (Positive(), 3 + 32, 6 + 32),
        (Offload(Raw()), 2 * 1024, 1024),
        (Offload(GroupAffine(4)), 2 + 64 + 2 * (128 + 8), 4 + 64 + 128 + 8),
    ],
)
def test_seconds_of_a_codec(codec, store, restore):
    assert store_seconds(KNOWN, codec, 256) == pytest.approx(KNOWN.host.store + store)
    assert restore_seconds(KNOWN, codec, 256) == pytest.approx(KNOWN.host.restore + restore)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_other_tests_plan_by_recorded_rates(asked, dtype):
    """A record that cannot be read would leave them with constants, and say nothing."""
    if asked("rates") == "measured":
        pytest.skip("tests plan by measured rates")
    found = calibrated("cpu", dtype)
    assert found.measured
    assert found is recorded("cpu", 0, dtype, torch.get_num_threads())


def test_rates_of_this_machine(rates):
    assert rates.measured
    assert rates is calibrated("cpu", torch.int64)  # measured once; integers move as floats do
    numbers = [number for number in vars(rates).values() if isinstance(number, float)]
    lines = [number for line in (*rates.store.values(), *rates.restore.values()) for number in vars(line).values()]
    for seconds in (*numbers, *lines, *vars(rates.host).values()):
        assert 0 <= seconds < 1
    assert min(rates.product, rates.convolution, rates.cached, rates.far, rates.host.store) > 0


def test_rates_come_in_coarse_steps(rates):
    assert rates.rounded == rates
    steps = 4 * math.log2(rates.product)
    assert steps == pytest.approx(round(steps), abs=1e-9)
    other = replace(rates, product=rates.product * 1.05)  # less than half a step, which is a factor of 2 ** (1 / 8)
    assert other.rounded == rates


def test_measuring_touches_nothing_and_is_touched_by_nothing(of_this_machine):
    before = torch.get_rng_state()
    with FakeTensorMode(), torch.device("meta"), torch.autocast("cpu"), torch.inference_mode():
        assert calibrated("cpu", torch.float32).measured
    assert torch.equal(torch.get_rng_state(), before)


def test_memory_of_the_host_is_asked_for_on_the_host(monkeypatch):
    """Where tensors are made on a GPU by default, pinned ones were, too, which torch refuses."""
    asked, real = [], torch.empty

    def empty(*size, pin_memory=False, **named):
        if pin_memory:
            asked.append(str(torch.device(named["device"])))
        return real(*size, **named)

    monkeypatch.setattr(torch, "empty", empty)
    calibrating._Bench(torch.device("cpu"), torch.float32)._crossing(True)
    assert asked == ["cpu", "cpu"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure")
def test_rates_of_a_device_that_is_not_there_are_constants(of_this_machine):
    assert calibrated("cuda", torch.float32) == constant("cuda", torch.float32)
    assert not calibrated("cuda", torch.float32).measured
    assert calibrated("xpu", torch.float32) == constant("xpu", torch.float32)


def test_a_graph_has_the_seconds_of_the_rates_that_it_is_captured_with():
    asked = set()

    def rating(device: str, dtype: torch.dtype) -> Rates:
        asked.add((device, dtype))
        return EACH

    model, x = mlp(), normal(8, 64)
    slow, plain = (capture(model, (x,), costs=costs) for costs in (by(rating), modelled))
    assert asked == {("cpu", torch.float32)}
    products = [op for op in slow.ops if "addmm" in op.name]
    assert products
    assert all(op.seconds > 1 for op in products)
    assert all(op.seconds < 1 for op in plain.ops)
    assert [op.makes for op in slow.ops] == [op.makes for op in plain.ops]


def test_calls_of_no_device_are_as_a_cpus():
    calls = DistinctCalls()
    calls.note(aten.mul.Tensor, (normal(4).to_sparse(), normal(4)), {}, (normal(4).to_sparse(),))
    assert modelled(calls.distinct)[0].seconds >= LAUNCH


def convolved(image, weight, *, stride=1, padding=1, groups=1, transposed=False):
    """Calls of a convolution and of its backward."""
    calls = DistinctCalls()
    places = [stride] * 2, [padding] * 2, ONE, transposed, NONE, groups
    out = aten.convolution.default(image, weight, None, *places)
    calls.note(aten.convolution.default, (image, weight, None, *places), {}, (out,))
    given = (out.clone(), image, weight, None, *places, [True, True, False])
    calls.note(aten.convolution_backward.default, given, {}, aten.convolution_backward.default(*given))
    return calls.distinct


LAST = torch.channels_last
CONVOLUTIONS = {
    "channels last": lambda: convolved(
        normal(8, 64, 28, 28).to(memory_format=LAST), normal(512, 64, 3, 3).to(memory_format=LAST)
    ),
    "channels first": lambda: convolved(normal(8, 64, 28, 28), normal(64, 64, 3, 3)),
    "other channels": lambda: convolved(normal(8, 32, 28, 28), normal(128, 32, 3, 3)),
    "a product": lambda: convolved(normal(8, 512, 28, 28), normal(64, 512, 1, 1), padding=0),
    "a product in another order": lambda: convolved(
        normal(8, 512, 28, 28), normal(64, 512, 1, 1).to(memory_format=LAST), padding=0
    ),
    "a part, channels last": lambda: convolved(
        normal(8, 192, 28, 28).to(memory_format=LAST)[:, 64:], normal(64, 128, 3, 3).to(memory_format=LAST)
    ),
    "a product of a part": lambda: convolved(
        normal(8, 768, 28, 28).to(memory_format=LAST)[:, 256:], normal(64, 512, 1, 1).to(memory_format=LAST), padding=0
    ),
    "a group each": lambda: convolved(normal(8, 256, 28, 28), normal(256, 1, 3, 3), groups=256),
    "a group each, channels last": lambda: convolved(
        normal(8, 256, 14, 14).to(memory_format=LAST), normal(256, 1, 5, 5), padding=2, groups=256
    ),
    "three columns, channels last": lambda: convolved(
        normal(8, 256, 14, 14).to(memory_format=LAST), normal(256, 1, 3, 3), groups=256
    ),
    "groups of two to one": lambda: convolved(
        normal(8, 256, 14, 14).to(memory_format=LAST), normal(512, 1, 3, 3), groups=256
    ),
    "wide groups": lambda: convolved(
        normal(4, 512, 8, 8).to(memory_format=LAST), normal(512, 256, 3, 3).to(memory_format=LAST), groups=2
    ),
    "a product of many": lambda: convolved(normal(32, 24, 32, 32), normal(56, 24, 1, 1), padding=0),
    "a product with a stride": lambda: convolved(normal(32, 32, 32, 32), normal(24, 32, 1, 1), padding=0, stride=2),
    "a product of few channels": lambda: convolved(normal(32, 3, 64, 64), normal(32, 3, 1, 1), padding=0),
    "a stride": lambda: convolved(normal(32, 32, 32, 32), normal(24, 32, 3, 3), stride=2),
    "large weights": lambda: convolved(normal(8, 1024, 14, 14), normal(256, 1024, 3, 3)),
    "groups of eight": lambda: convolved(normal(32, 152, 16, 16), normal(152, 8, 3, 3), groups=19),
    "halves": lambda: convolved(normal(32, 64, 32, 32).bfloat16(), normal(128, 64, 3, 3).bfloat16()),
    "a kernel of the image's size": lambda: convolved(normal(8, 128, 7, 7), normal(256, 128, 7, 7), padding=0),
    "a kernel of the image's size, channels last": lambda: convolved(
        normal(8, 128, 7, 7).to(memory_format=LAST), normal(256, 128, 7, 7).to(memory_format=LAST), padding=0
    ),
    "images channels last, weights first": lambda: convolved(
        normal(8, 128, 14, 14).to(memory_format=LAST), normal(512, 128, 3, 3)
    ),
    "transposed": lambda: convolved(normal(32, 32, 32, 32), normal(32, 24, 2, 2), padding=0, stride=2, transposed=True),
}


#: KiB that became resident during each of those convolutions and during its backward, beyond the results: a run of
#: `workspaces.measured` with torch 2.14 or 2.15, one thread and AVX-512. They are recorded, not measured here: oneDNN
#: chooses its kernels by the processor and by the threads, and which pages are resident is the system's to say.
TAKEN = {
    "channels last": (1084, 2236),
    "channels first": (1724, 2920),
    "other channels": (3112, 3692),
    "a product": (0, 1320),
    "a product in another order": (12360, 13796),
    "a part, channels last": (3340, 3728),
    "a product of a part": (12424, 13992),
    "a group each": (6184, 12559),
    "a group each, channels last": (32, 6427),
    "three columns, channels last": (16, 15),
    "groups of two to one": (2304, 2326),
    "wide groups": (4616, 9128),
    "a product of many": (8156, 12302),
    "a product with a stride": (4300, 8161),
    "a product of few channels": (16344, 24579),
    "a stride": (4212, 8109),
    "large weights": (15288, 9092),
    "groups of eight": (4864, 9725),
    "halves": (16308, 12944),
    "a kernel of the image's size": (6540, 12388),
    "a kernel of the image's size, channels last": (60, 12456),
    "images channels last, weights first": (4484, 6932),
    "transposed": (24484, 20364),
}


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_scratch_of_a_convolution_is_foretold(name):
    """Plans of ResNet-50 in channels last took a third more than was planned: copies of weights and their gradients."""
    with FakeTensorMode():  # the work depends on shapes and strides alone
        calls = CONVOLUTIONS[name]()
    for call, taken in zip(calls, TAKEN[name], strict=True):
        # 512 KiB: of pages that each CPU counts by itself, before and after; 5 %: what kernels have besides the copies.
        assert abs(call.work.scratch - taken * 1024) <= 512 * 1024 + 0.05 * taken * 1024


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")
def test_threads_decide_who_multiplies_a_few_images(monkeypatch):
    """On one thread torch multiplies the channels of fewer than 16 images itself, without copies."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    for call, taken in zip(CONVOLUTIONS["a product"](), (12568, 14248), strict=True):  # recorded on two threads
        assert abs(call.work.scratch - taken * 1024) <= 512 * 1024 + 0.05 * taken * 1024


@pytest.mark.parametrize(("columns", "taken"), [(15, 6), (16, 6020), (32, 6004)])
def test_the_scratch_of_sums_by_an_index_is_foretold(columns, taken):
    """A GCN took a tenth more than was planned: torch sorts 200,000 edges."""
    calls, into, rows = DistinctCalls(), torch.zeros(16000, columns), normal(200000, columns)
    index = torch.arange(len(rows)) % len(into)
    spread = index[:, None].expand(-1, columns)
    calls.note(aten.index_add.default, (into, 0, index, rows), {}, (into.clone(),))
    for whole in (spread, spread.contiguous()):
        calls.note(aten.scatter_add.default, (into, 0, whole, rows), {}, (into.clone(),))
    *sorted_ones, element_wise = [call.work.scratch for call in calls.distinct]
    assert element_wise == 0
    for scratch in sorted_ones:  # `taken` in KiB, recorded as those of convolutions
        assert abs(scratch - taken * 1024) <= 512 * 1024


def test_scratch_is_of_plans_that_ask_for_it():
    calls = convolved(normal(4, 64, 28, 28), normal(64, 64, 3, 3))
    assert [cost.scratch for cost in modelled(calls)] == [0, 0]
    assert [cost.scratch for cost in by(constant)(calls)] == [call.work.scratch for call in calls]
