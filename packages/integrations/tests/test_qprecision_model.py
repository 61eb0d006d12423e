"""Bits for each layer: the optimum of the whole model within its bytes, after each backward, and nobody else's."""

import copy
import itertools
import pickle
import threading

import pytest
import torch
from torch import nn

from integrations import qmodules
from integrations.qmodules.device_rows import DeviceRows
from integrations.qmodules.levels import LEVELS, resolve_level
from integrations.qmodules.precision import LayerPrecision
from integrations.qmodules.scheme import ModelPrecision, Observation

PROFILE = torch.tensor([1 / (2**bits - 1) ** 2 for bits in range(1, 9)], dtype=torch.float64)


def convolutions(*widths, seed=0):
    torch.manual_seed(seed)
    layers = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)


def batch(samples=8, channels=4, seed=0):
    return torch.randn(samples, channels, 16, 16, generator=torch.Generator().manual_seed(seed))


def step(model, x):
    model.zero_grad()
    model(x).square().mean().backward()


def bits(model):
    return {
        name: layer.precision.bits
        for name, layer in model.named_modules()
        if hasattr(layer, "precision") and layer.precision.kind != "other"
    }


class InBackward(torch.autograd.Function):
    """Calls something in its backward, as the layers do."""

    @staticmethod
    def forward(ctx, x, call):
        ctx.call = call
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.call()
        return gradient, None


def in_backward(call):
    InBackward.apply(torch.ones(1, requires_grad=True), call).sum().backward()


def parts(level, *groups):
    model = ModelPrecision(level)
    layers = []
    for group in groups:
        layers.append(LayerPrecision(level, "linear", group))
        layers[-1].model = model
    return model, layers


def tell(model, *observations):
    def call():
        for layer, sensitivities, size in observations:
            model.observe(Observation(layer, torch.tensor(sensitivities).double(), PROFILE, size, object()))

    in_backward(call)


def test_the_optimum_of_three_layers_by_brute_force():
    """Layers of one row each, of sizes 64, 128 and 256; all 512 choices are tried."""
    level = resolve_level("L3", {"bits": (3,)})
    model, layers = parts(level, 0, 0, 0)
    sizes, sensitivities = (64, 128, 256), (5.0, 1e3, 2e4)
    tell(model, *((layer, [c], size) for layer, c, size in zip(layers, sensitivities, sizes, strict=True)))

    def total(choice):
        return sum(c / (2**b - 1) ** 2 for c, b in zip(sensitivities, choice, strict=True))

    within = [
        choice
        for choice in itertools.product(range(1, 9), repeat=3)
        if sum(b * size for b, size in zip(choice, sizes, strict=True)) <= 3 * sum(sizes)
    ]
    assert [layer.bits for layer in layers] == list(min(within, key=total))


def test_samples_and_layers_together_are_nearly_the_optimum_of_all_pairs():
    """ActNN pools all pairs of a layer and a sample. Layers' averages in quarters of a bit cost little against that."""
    torch.manual_seed(0)
    level = resolve_level("L3")
    model, layers = parts(level, 0, 0, 0, 0)
    rows = [torch.rand(16) ** 3 * scale for scale in (1.0, 30.0, 1e3, 1e-2)]
    tell(model, *((layer, row.tolist(), 256) for layer, row in zip(layers, rows, strict=True)))
    from integrations.qmodules.per_sample import sample_bits

    def variance(sensitivities, widths):
        return (sensitivities.double() * PROFILE[widths.long() - 1]).sum().item()

    pooled = torch.cat(rows)
    best = variance(pooled, sample_bits(pooled, PROFILE, 128))
    reached = sum(
        variance(row, sample_bits(row, PROFILE, int(layer.bits * 16))) for row, layer in zip(rows, layers, strict=True)
    )
    equal = sum(variance(row, sample_bits(row, PROFILE, 32)) for row in rows)
    assert sum(layer.bits for layer in layers) <= 8
    # A quarter of a bit is a factor of 2**0.5 in one layer's variance; where the averages balance, half of that is lost
    # and half won again.
    assert best <= reached <= 1.1 * best
    assert reached < 0.5 * equal


def test_groups_have_budgets_of_their_own():
    """``level.bits[group]``: what layers of one group need, others do not pay."""
    model, layers = parts(resolve_level("L3", {"bits": (2, 6)}), 0, 0, 1, 1)
    tell(model, *((layer, [c], 64) for layer, c in zip(layers, (1.0, 1e5, 1.0, 1e-5), strict=True)))
    assert layers[0].bits + layers[1].bits == 4
    assert layers[1].bits == 3
    assert layers[2].bits + layers[3].bits == 12
    assert layers[2].bits == 8


def test_a_group_beyond_the_levels_bits_is_refused():
    with pytest.raises(ValueError, match=r"group must be a place in the level's bits .* from 0 to 2, got 3"):
        LayerPrecision(LEVELS["L3"], "linear", 3)


def test_a_backward_gives_each_layer_its_bits_within_the_bytes():
    model = qmodules.QModule(convolutions(4, 16, 8, 32), "L3")
    before = bits(model)
    assert set(before.values()) == {2.0}
    step(model, batch())
    after = bits(model)
    assert len(set(after.values())) > 1
    # Inputs of 4, 16 and 8 channels for the convolutions, of 16, 8 and 32 for the norms.
    sizes = dict(zip(after, (4, 16, 16, 8, 8, 32), strict=True))
    assert sum(after[name] * size for name, size in sizes.items()) <= 2 * sum(sizes.values())
    assert sum(after[name] * size for name, size in sizes.items()) > 1.8 * sum(sizes.values())


def test_bits_are_used_by_the_next_forward():
    model = qmodules.QModule(convolutions(4, 16, 8), "L3")
    step(model, batch())
    layer = model[3]
    layer.precision.bits = 3.25
    codec = layer.precision.codec(batch(channels=16))
    assert isinstance(codec, DeviceRows)
    assert codec.total == 26
    assert codec.bits.sum() == 26


@pytest.mark.parametrize("average", [1, 1.25, 2.7, 8])
def test_fractional_budgets(average):
    precision = LayerPrecision(resolve_level("L3", {"bits": (average,), "per_layer": False}), "linear")
    codec = precision.codec(batch(samples=10))
    assert codec.bits.sum() == codec.total == int(10 * average)


def test_initial_bits_are_the_most():
    model = qmodules.QModule(convolutions(4, 16, 8), "L3", bits=(3,), initial_bits=4)
    for _ in range(2):
        step(model, batch())
    assert max(bits(model).values()) <= 4
    assert model[0].precision.codec(batch() * torch.logspace(0, 4, 8).view(8, 1, 1, 1)).bits.max() == 4


def test_a_tensor_that_two_layers_store_has_one_width():
    """A residual block's input goes to two convolutions, and is stored once: it is one item of the budget."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide, self.narrow = nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(4, 16, 1)
            self.last = nn.Conv2d(16, 4, 3)

        def forward(self, x):
            return self.last((self.wide(x) + 10 * self.narrow(x)).relu())

    torch.manual_seed(0)
    model = qmodules.QModule(Block(), "L3")
    step(model, batch())
    found = bits(model)
    assert found["wide"] == found["narrow"]
    # 4 channels and 16: 40 elements of 2 bits a pixel, not 48.
    assert 4 * found["wide"] + 16 * found["last"] <= 40


def test_a_layer_that_runs_twice():
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 4, 3, padding=1)
    model = qmodules.QModule(nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Conv2d(4, 4, 1)), "L3")
    for _ in range(2):
        step(model, batch())
    found = bits(model)
    assert 2 * found["0"] + found["4"] <= 6


def test_gradients_stay_unbiased():
    """The mean of 60 gradients lies within its own scatter of the exact one, in every layer: per-sample and per-layer
    bits depend on the data and on earlier steps, never on this step's noise."""
    model = convolutions(4, 8, 8)
    exact = copy.deepcopy(model)
    step(exact, batch())
    model = qmodules.QModule(model, "L3")
    for _ in range(2):
        step(model, batch())
    found = [[] for _ in exact.parameters()]
    for _ in range(60):
        step(model, batch())
        for seen, parameter in zip(found, model.parameters(), strict=True):
            seen.append(parameter.grad.clone())
    for (name, parameter), seen in zip(exact.named_parameters(), found, strict=True):
        stack = torch.stack(seen).double()
        distance = (stack.mean(0) - parameter.grad).square().sum()
        scatter = stack.var(0).sum() / 60
        # The expected distance is the scatter; of sums of 8 and more elements, six times that is beyond any chance.
        # What rounding to float32 makes, 1e-6 of the norm, is all there is for biases.
        assert distance <= 6 * scatter + 1e-12 * parameter.grad.square().sum(), name


def test_two_models_and_copies_do_not_feel_each_other():
    model = qmodules.QModule(convolutions(4, 16, 8), "L3")
    step(model, batch())
    twin, loaded = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    before = bits(model)
    assert bits(twin) == bits(loaded) == before
    for other in (twin, loaded):
        precisions = {id(layer.precision.model) for layer in other.modules() if hasattr(layer, "precision")}
        assert len(precisions) == 1
        assert id(model[0].precision.model) not in precisions
        step(other, batch(seed=3) * torch.tensor([100.0, 1, 1, 1]).view(1, 4, 1, 1))
        assert bits(other) != before
    assert bits(model) == before


def test_a_copy_of_a_layer_alone_leaves_the_model_behind():
    model = qmodules.QModule(convolutions(4, 16, 8), "L3")
    step(model, batch())
    layer = copy.deepcopy(model[0])
    assert layer.precision.bits == model[0].precision.bits
    assert len(pickle.dumps(layer)) < len(pickle.dumps(model))


def test_layers_built_by_hand_draw_noise_of_their_own():
    """Two layers, and a copy of one, never share a stream, or their errors would add up."""
    first, second = qmodules.QConv2d(4, 4, 1), qmodules.QConv2d(4, 4, 1)
    streams = [first.precision.stream()]
    first.precision._forwards = 0
    third = copy.deepcopy(first)
    streams += [layer.precision.stream() for layer in (second, third)]
    assert len(set(streams)) == 3


def test_a_backward_that_raises_leaves_the_next_one_alone():
    model = qmodules.QModule(convolutions(4, 16, 8), "L3")

    def fail():
        raise RuntimeError("on purpose")

    x = batch().requires_grad_()
    with pytest.raises(RuntimeError, match="on purpose"):
        model(InBackward.apply(x, fail)).square().mean().backward()
    assert set(bits(model).values()) == {2.0}
    for _ in range(12):
        with pytest.raises(RuntimeError, match="on purpose"):
            model(InBackward.apply(x, fail)).square().mean().backward()
    assert len(model[0].precision.model._observed) <= 8
    step(model, batch())
    assert len(set(bits(model).values())) > 1


def test_an_overflow_keeps_the_bits():
    """GradScaler skips such a step, and so does the allocation."""
    model = qmodules.QModule(convolutions(4, 16, 8), "L3")
    step(model, batch())
    before = bits(model)
    for factor in (torch.inf, torch.nan):
        model.zero_grad()
        (model(batch()).mean() * factor).backward()
        assert bits(model) == before


def test_costs_that_have_not_arrived_are_not_waited_for():
    """On CUDA a copy to the host is under way. A forward that comes before it keeps the bits; a later one has them."""

    class Event:
        arrived = False

        def query(self):
            return self.arrived

    model, layers = parts(resolve_level("L3"), 0, 0)
    event = Event()
    from integrations.qmodules import scheme

    kept = scheme._to_host
    scheme._to_host = lambda costs, inputs: (costs, inputs, event)
    try:
        tell(model, (layers[0], [1.0], 64), (layers[1], [1e5], 64))
    finally:
        scheme._to_host = kept
    layers[0].codec(torch.randn(4, 256))
    assert [layer.bits for layer in layers] == [2, 2]
    event.arrived = True
    layers[0].codec(torch.randn(4, 256))
    assert [layer.bits for layer in layers] == [1, 3]


def test_levels_without_allocation_look_at_nothing():
    """L1 and L2 quantise alike everywhere: no token, so that backward computes no norms."""
    for level in ("L1", "L2"):
        precision = LayerPrecision(LEVELS[level], "linear")
        precision.codec(batch())
        assert precision.token() is None


def test_allocation_per_layer_alone():
    """All samples of a layer have the same width, a whole one."""
    options = {"bits": (3,), "per_sample": False, "norm_adaptive": False}
    model = qmodules.QModule(convolutions(4, 16, 8, 32), "L3", **options)
    for _ in range(2):
        step(model, batch())
    found = bits(model)
    assert all(value == int(value) for value in found.values())
    assert len(set(found.values())) > 1


def test_rows_shorter_than_a_group_share_bounds():
    """ActNN padded each sample of a Linear(100) to 256 elements (A27)."""
    precision = LayerPrecision(LEVELS["L3"], "linear", channel_dim=-1)
    x = torch.randn(64, 100)
    stored = precision.codec(x).compress(x)
    assert stored.nbytes == 64 * 100 // 4 + 25 * 8


def test_nested_backwards_of_reentrant_checkpoints():
    from torch.utils.checkpoint import checkpoint

    model = qmodules.QModule(convolutions(4, 16, 8), "L3")
    x = batch().requires_grad_()
    out = checkpoint(model[3:], checkpoint(model[:3], x, use_reentrant=True), use_reentrant=True)
    out.square().mean().backward()
    assert len(set(bits(model).values())) > 1
    assert not model[0].precision.model._observed


def test_that_tensor_is_stored_once(monkeypatch):
    """The widths are decided on the device and compared by nobody: equal averages say that they are alike."""
    stored = []
    compress = DeviceRows.compress
    monkeypatch.setattr(DeviceRows, "compress", lambda *args, **keys: stored.append(1) or compress(*args, **keys))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(4, 16, 1)

        def forward(self, x):
            return self.one(x) + self.other(x)

    torch.manual_seed(0)
    model = qmodules.QModule(Block(), "L3")
    for number in range(1, 4):
        step(model, batch())
        assert len(stored) == number


def test_replicas_in_threads_keep_their_tokens_apart():
    """``nn.DataParallel`` runs copies of a layer that share its precision."""
    precision = LayerPrecision(resolve_level("L3", {"use_gradient": False}), "linear")
    precision.model = ModelPrecision(precision.level)
    precision.codec(batch(samples=8))

    def other():
        precision.codec(batch(samples=4))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert precision.token().samples == 8
    assert precision.token() is None
