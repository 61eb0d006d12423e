"""One pass over a norm's stored input restores what follows the norm, as torch's operators would compute it."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import integrations
from actcore import GroupAffine, compress, decompress
from integrations.policies.norms import CHANNELS as NORM_CHANNELS
from integrations.policies.norms import Standardized
from integrations.runtime import replay
from integrations.runtime.formulas import normalized_inputs
from integrations.runtime.formulas.table import Formulas

from .nets import normal

CHANNELS = 32
SHAPE = (4, CHANNELS, 7, 7)
LAST = torch.channels_last
DECODE, ACTIVATE = (f"actcore.group_affine_standardized_{name}.default" for name in ("decompress", "activation"))


class After(nn.Module):
    """A function between an input, which a norm saves, and a product, which saves the function's result.

    Args:
        function: is given the module, the norm's input and another stored tensor.
    """

    def __init__(self, function, dtype=torch.float64, layout=torch.contiguous_format):
        super().__init__()
        self.function, self.layout = function, layout
        self.x = nn.Parameter(normal(*SHAPE, dtype=dtype) * torch.logspace(-1, 0, CHANNELS).view(-1, 1, 1) + 3)
        self.weight = nn.Parameter(normal(CHANNELS, seed=1, dtype=dtype))
        self.bias = nn.Parameter(normal(CHANNELS, seed=2, dtype=dtype))
        self.other, self.scale = (nn.Parameter(normal(*SHAPE, seed=seed, dtype=dtype)) for seed in (3, 4))
        self.register_buffer("mean", torch.zeros(CHANNELS, dtype=dtype))
        self.register_buffer("variance", torch.ones(CHANNELS, dtype=dtype))
        self.kernel = nn.Parameter(normal(8, CHANNELS, 1, 1, seed=5, dtype=dtype))

    def forward(self, zero):
        x, other = ((one + zero).contiguous(memory_format=self.layout) for one in (self.x, self.other))
        self.product = other * self.scale
        return F.conv2d(self.function(self, x, other), self.kernel), self.product


def batch_norm(net, x, **options):
    return F.batch_norm(x, None, None, net.weight, net.bias, training=True, **options)


def added_in_place(net, x, other):
    y = batch_norm(net, x)
    y += other
    return F.relu(y, inplace=True)


FUNCTIONS = {
    "norm": lambda net, x, other: batch_norm(net, x),
    "torch.batch_norm": lambda net, x, other: torch.batch_norm(
        x, net.weight, net.bias, None, None, True, 0.1, 1e-5, False
    ),
    "no weight": lambda net, x, other: F.relu(F.batch_norm(x, None, None, training=True)),
    "no bias": lambda net, x, other: F.relu(F.batch_norm(x, None, None, net.weight, training=True)),
    "running": lambda net, x, other: F.relu(
        F.batch_norm(x, net.mean, net.variance, net.weight, net.bias, training=True, momentum=0.1)
    ),
    "relu": lambda net, x, other: F.relu(batch_norm(net, x)),
    "relu_": lambda net, x, other: torch.relu_(batch_norm(net, x)),
    "silu": lambda net, x, other: F.silu(batch_norm(net, x)),
    "gelu": lambda net, x, other: F.gelu(batch_norm(net, x)),
    "gelu_tanh": lambda net, x, other: F.gelu(batch_norm(net, x), approximate="tanh"),
    "sum": lambda net, x, other: batch_norm(net, x) + other,
    "sum, relu": lambda net, x, other: F.relu(other + batch_norm(net, x)),
    "sum, relu in place": added_in_place,
    "group": lambda net, x, other: F.relu(F.group_norm(x, 8, net.weight, net.bias)),
    "group, sum, silu": lambda net, x, other: F.silu(F.group_norm(x, CHANNELS, net.weight, net.bias) + other),
}
OTHERS = {
    "scaled sum": lambda net, x, other: F.relu(torch.add(batch_norm(net, x), other, alpha=2)),
    "broadcast sum": lambda net, x, other: F.relu(batch_norm(net, x) + other[:1]),
    "part": lambda net, x, other: F.relu(batch_norm(net, x)[:, :, 1:]).contiguous(memory_format=net.layout),
    "two activations": lambda net, x, other: F.silu(F.relu(batch_norm(net, x))) + 1.0,
    "sum of activation": lambda net, x, other: F.silu(batch_norm(net, x)) + other,
    "sum of two": lambda net, x, other: F.relu(batch_norm(net, x) + F.batch_norm(other, None, None, training=True)),
    "epsilon": lambda net, x, other: F.relu(batch_norm(net, x, eps=1e-9)),
    "evaluated": lambda net, x, other: F.relu(F.batch_norm(x, net.mean, net.variance, net.weight)),
}
ALL = {**FUNCTIONS, **OTHERS}
ONE = torch.zeros((), dtype=torch.float64)


def find_norm(node):
    """The node of the norm behind a node; ``None`` if there is none."""
    if node is None or "NormBackward" in node.name():
        return node
    return next((found for one, _ in node.next_functions if (found := find_norm(one)) is not None), None)


@pytest.fixture
def computed(monkeypatch):
    """The results that one pass has computed."""
    found, activated = [], normalized_inputs.activated

    def spy(*given):
        found.append(activated(*given))
        return found[-1]

    monkeypatch.setattr(normalized_inputs, "activated", spy)
    return found


@pytest.mark.parametrize("layout", [torch.contiguous_format, LAST])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_is_what_torch_makes_of_the_restored_input(name, layout, computed, monkeypatch):
    """In the first forward and in those that repeat it, up to the roundings of five operations on numbers below 64.
    Restored beside a mean of 3, a deviation of a tenth has 48 of an element's 53 bits."""
    net = After(FUNCTIONS[name], layout=layout)
    integrations.compress_model(net, "lean")

    def by_statistics(x, *given, **options):
        cells = node._saved_input.unflatten(1, (groups, -1))
        normal = (cells - mean.view(shape)) * factor.view(shape)
        normal = normal.flatten(1, 2)
        weight, bias = (getattr(net, key) if has else None for key, has in (("weight", has_weight), ("bias", has_bias)))
        normal = normal if weight is None else normal * weight.view(-1, 1, 1)
        return normal if bias is None else normal + bias.view(-1, 1, 1)

    has_weight, has_bias = name != "no weight", name not in ("no weight", "no bias")
    for _ in range(4):
        computed.clear()
        output, product = net(ONE)
        found = output.grad_fn._saved_input
        assert len(computed) == 1
        assert found.data_ptr() == computed[0].data_ptr()
        node = find_norm(output.grad_fn.next_functions[0][0])
        mean, factor = node._saved_result1, node._saved_result2
        batch = mean.dim() == 1
        groups = CHANNELS if batch else mean.shape[1]
        shape = (1, CHANNELS, 1, 1, 1) if batch else (*mean.shape, 1, 1, 1)
        with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
            for module, function in ((F, "batch_norm"), (torch, "batch_norm"), (F, "group_norm")):
                patch.setattr(module, function, by_statistics)
            expected = net.function(net, None, product.grad_fn._saved_self)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        assert found.is_contiguous(memory_format=layout)
        assert (found - expected).abs().max() < 64 * 5 * 2**-48


@pytest.mark.parametrize("layout", [torch.contiguous_format, LAST])
@pytest.mark.parametrize("name", ALL)
def test_one_pass_and_several_restore_the_same(name, layout):
    """By the same bound, of all that may be computed by several."""
    net = After(ALL[name], layout=layout)
    integrations.compress_model(net, "lean")
    for _ in range(3):
        node = net(ONE)[0].grad_fn
        found = node._saved_input
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(normalized_inputs, "activated", lambda *given: None)
            expected = node._saved_input
        assert found.data_ptr() != expected.data_ptr()
        assert found.stride() == expected.stride()
        assert (found - expected).abs().max() < 64 * 5 * 2**-48


class Counting(TorchDispatchMode):
    """Counts operators."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.found[str(function)] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("off", [False, True])
def test_a_norm_is_decoded_once_and_computed_once(off, monkeypatch):
    """For its own backward; what follows takes one pass. Before, each took one decode more, the norm and the ReLU."""
    monkeypatch.setattr(replay, "FORCED_OFF", off)
    torch.manual_seed(0)
    blocks = [
        layer
        for _ in range(3)
        for layer in (nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS), nn.ReLU(inplace=True))
    ]
    net = nn.Sequential(*blocks, nn.Conv2d(CHANNELS, 8, 1)).to(memory_format=LAST)
    integrations.compress_model(net, "lean")
    for _ in range(3):
        with Counting() as counting:
            net(normal(*SHAPE)).sum().backward()
        counted = [counting.found[one] for one in (DECODE, ACTIVATE, "aten.native_batch_norm.default")]
        assert counted == [3, 3, 3]


def run(functions, off, monkeypatch):
    """The gradients and the report's rows of a step with each function in turn."""
    monkeypatch.setattr(replay, "FORCED_OFF", off)
    net, found = After(None, torch.float32, LAST), []
    integrations.compress_model(net, "lean")
    for function in functions:
        net.function = function
        net.zero_grad()
        outputs = net(ONE.float())
        rows = [(one.module, one.operator, one.role, one.codec, one.why, one.stored_bytes, one.original_bytes)
                for one in integrations.compression(net).report().rows]  # fmt: skip
        sum(one.square().sum() for one in outputs).backward()
        found.append(([one.grad for one in net.parameters() if one.grad is not None], rows))
    return found


@pytest.mark.parametrize("order", ["aaabbba", "bbbaaab"])
@pytest.mark.parametrize("name", [one for one in ALL if one != "relu"])
def test_what_differs_is_found_out_anew(name, order, monkeypatch):
    """Bit for bit, as in forwards that find out everything."""
    functions = [ALL["relu" if letter == "a" else name] for letter in order]
    replayed, full = (run(functions, off, monkeypatch) for off in (False, True))
    for at, ((gradients, rows), (expected, told)) in enumerate(zip(replayed, full, strict=True)):
        assert rows == told, at
        assert all(torch.equal(*pair) for pair in zip(gradients, expected, strict=True)), at


@pytest.mark.parametrize("name", FUNCTIONS)
def test_python_makes_no_formula_of_the_forward_before(name, monkeypatch):
    asked, note = [], Formulas.note

    def counting(self, call, outputs):
        asked.append(call)
        note(self, call, outputs)

    monkeypatch.setattr(Formulas, "note", counting)
    net = After(FUNCTIONS[name], torch.float32, LAST)
    integrations.compress_model(net, "lean")
    for step in range(5):
        asked.clear()
        sum(one.sum() for one in net(ONE.float())).backward()
        assert bool(asked) == (step == 0) or step in (1, 2)


def test_an_input_that_is_kept_afterwards_is_read_as_it_is(computed):
    """By torch's operators, and so are the norm's result and what follows."""

    def function(net, x, other):
        y = F.relu(batch_norm(net, x))
        net.kept = torch.lgamma(x)  # which has no rule
        return y

    net = After(function, layout=LAST)
    integrations.compress_model(net, "lean")
    for _ in range(3):
        output, _ = net(ONE)
        assert (output.grad_fn._saved_input - F.relu(batch_norm(net, net.x))).abs().max() < 64 * 5 * 2**-48
    assert not [one for one in computed if one is not None]


def test_an_input_that_is_stored_otherwise_by_now(computed):
    """By other statistics than the norm's: the codes are no longer those of the normalized input."""
    net = After(FUNCTIONS["relu"], layout=LAST)
    integrations.compress_model(net, "lean")
    node = net(ONE)[0].grad_fn
    norm = find_norm(node.next_functions[0][0])
    mean, factor, weight, bias = (
        one.view(-1, 1, 1) for one in (norm._saved_result1, norm._saved_result2, net.weight, net.bias)
    )
    region = node._raw_saved_input.data.bound.held[0].bound.held[0].view.region
    for codec in (Standardized(8, 256, "stochastic", NORM_CHANNELS, CHANNELS), GroupAffine(8)):
        region.value = compress(net.x.detach().contiguous(memory_format=LAST), codec)
        expected = F.relu((decompress(region.value) - mean) * factor * weight + bias)
        assert (node._saved_input - expected).abs().max() < 64 * 5 * 2**-48
    assert not computed


def test_statistics_of_another_norm_are_not_used(computed, monkeypatch):
    monkeypatch.setattr(normalized_inputs, "last_written", lambda: torch.zeros(2, CHANNELS))
    net = After(FUNCTIONS["relu"], layout=LAST)
    integrations.compress_model(net, "lean")
    for _ in range(3):
        net(ONE)[0].grad_fn._saved_input  # noqa: B018 # restores it
    assert not computed


def test_a_norm_whose_input_another_norm_has_stored(computed):
    """By other statistics, since its epsilon is another one: the second norm's result is not in the codes."""

    def function(net, x, other):
        net.first = batch_norm(net, x)
        return F.relu(batch_norm(net, x, eps=0.1))

    net = After(function, layout=LAST)
    integrations.compress_model(net, "L1.1", recompute=True)
    for _ in range(3):
        output, _ = net(ONE)
        expected = F.relu(batch_norm(net, net.x, eps=0.1))
        # A step of 1 / 255 of at most 10 deviations, and of weights below 4.
        assert (output.grad_fn._saved_input - expected).abs().max() < 4 * 10 / 255
    assert not computed


@pytest.mark.parametrize("name", ["relu", "sum, relu"])
@pytest.mark.parametrize("which", ["weight", "bias"])
def test_a_changed_parameter_is_told(name, which):
    net = After(FUNCTIONS[name], layout=LAST)
    integrations.compress_model(net, "lean")
    output, _ = net(ONE)
    with torch.no_grad():
        getattr(net, which).add_(1)
    with pytest.raises(RuntimeError, match="backward recomputes the result of batch_norm from it"):
        output.sum().backward()


def test_it_may_be_read_twice_and_differentiated(computed):
    """With a retained graph, and by create_graph=True."""
    net = After(FUNCTIONS["silu"], layout=LAST)
    integrations.compress_model(net, "lean")
    output, _ = net(ONE)
    loss = output.square().sum()
    [first] = torch.autograd.grad(loss, net.kernel, retain_graph=True)
    with pytest.warns(UserWarning, match="create_graph=True"):
        [again] = torch.autograd.grad(loss, net.kernel, create_graph=True)
    assert torch.equal(first, again)
    assert len(computed) >= 2
    again.sum().backward()


def test_under_autocast():
    """The product reads a cast of what is restored in the input's dtype."""
    net = After(FUNCTIONS["relu"], torch.float32, LAST)
    integrations.compress_model(net, "lean")
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            output, _ = net(ONE.float())
        found = output.grad_fn._saved_input
        assert found.dtype is torch.bfloat16
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(normalized_inputs, "activated", lambda *given: None)
            expected = output.grad_fn._saved_input
        # One rounding to bfloat16 of each, which may fall to another side.
        assert ((found.float() - expected.float()).abs() <= 2**-7 * expected.float().abs() + 1e-5).all()
