"""The input of a norm is stored by the mean and inverse deviation that torch's norm computes, in every forward."""

import copy
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations
from actcore import compress
from integrations.policies.norms import CHANNELS, Standardized
from integrations.policies.standardizing import undo_epsilon
from integrations.runtime import replay
from integrations.tracing import norm_inputs, tracker
from integrations.tracing.norm_inputs import PendingStore, run_norm

from .nets import EIGHT_BITS, Net, assert_same, gradients, normal, plain_and_compressed, rows

CHANNEL = torch.logspace(-3, 0, 32).view(32, 1, 1)
NORMS = {
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "torch.batch_norm": lambda x: torch.batch_norm(x, None, None, None, None, True, 0.1, 1e-5, False),
    "batch_norm, channels last": lambda x: F.batch_norm(
        x.contiguous(memory_format=torch.channels_last), None, None, training=True
    ),
    "batch_norm, rows": lambda x: F.batch_norm(x.movedim(1, -1).reshape(-1, 32), None, None, training=True),
    "group_norm, channels last": lambda x: F.group_norm(x.contiguous(memory_format=torch.channels_last), 8),
    "instance_norm": lambda x: F.instance_norm(x),
}


@pytest.fixture
def written(monkeypatch):
    """For each stored form: the node that saved the input, whether it has given the statistics, and the payload."""
    found, write = [], PendingStore.write

    def spy(self, node, epsilon):
        found.append((node, write(self, node, epsilon), self.parts))
        return found[-1][1]

    monkeypatch.setattr(PendingStore, "write", spy)
    return found


def saved_by(node):
    """The mean and inverse deviation that a node has saved."""
    return node._saved_result1.reshape(-1), node._saved_result2.reshape(-1)


@pytest.mark.parametrize("off", [False, True])
@pytest.mark.parametrize("level", ["L1", "lean"])
@pytest.mark.parametrize("name", NORMS)
def test_statistics_are_computed_once(name, level, off, written, monkeypatch):
    """By torch's norm, in the first forward and in those that repeat it."""
    monkeypatch.setattr(replay, "FORCED_OFF", off)
    monkeypatch.setattr(norm_inputs, "COMPRESS", None)
    monkeypatch.setattr(norm_inputs, "_KERNEL", None)
    net = Net(lambda self, x: NORMS[name](self.w + x), w=normal(16, 32, 7, 7) * CHANNEL + 3)
    integrations.compress_model(net, level=level)
    for _ in range(3):
        out = net(torch.zeros(()))
        [(node, given, (_, _, statistics))] = written
        mean, factor = saved_by(node)
        assert given
        if "group" not in name:
            factor = undo_epsilon(factor, 1e-5).reciprocal()
        assert torch.equal(statistics, torch.stack([mean, factor.reciprocal()]))
        out.sum().backward()
        written.clear()


@pytest.mark.parametrize(("level", "bits"), [("L1.1", 8), ("lean", 6)])
@pytest.mark.parametrize("name", [name for name in NORMS if "group" not in name])
def test_channels_of_less_variance_than_epsilon_keep_their_gradient(name, level, bits):
    """Their elements are divided by their own deviation, not by the root of epsilon, which is 30 times that. Channels
    are last, so that they share groups with others."""
    small = torch.ones(32).index_fill(0, torch.arange(0, 32, 2), 1e-4)[:, None, None]
    x = (normal(16, 32, 7, 7) * small).to(memory_format=torch.channels_last)
    net = Net(lambda self, zero: NORMS[name](self.w + zero), w=x)

    def loss(output):
        return (output * normal(*output.shape, seed=1)).sum().sin()

    plain, compressed, _ = plain_and_compressed(net, torch.zeros(()), level=level, loss=loss)
    expected, found = (one["w"] for one in (plain, compressed))
    error = (found - expected).square().sum([0, 2, 3]) / expected.square().sum([0, 2, 3])
    assert error.max() < (EIGHT_BITS * 255 / (2**bits - 1)) ** 2


@pytest.mark.parametrize("variance", [0.0, 1e-14, 1e-9, 1e-5, 1e-2, 1e4])
@pytest.mark.parametrize("epsilon", [1e-8, 1e-5, 1e-3, 1.0])
def test_epsilon_is_undone(variance, epsilon):
    """Within what float32 has left of the variance: half a unit of 2^-24 of the sum, three times."""
    exact = torch.tensor([variance + epsilon], dtype=torch.float64)
    found = undo_epsilon(exact.rsqrt().float(), epsilon).double().square()
    assert (found - max(variance, 1e-6 * epsilon)).abs() <= 4 * 2**-24 * exact + 1e-6 * found


class Norms(nn.Module):
    """Convolutions, norms and activations, with a residual connection."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.inner, self.head = (nn.Conv2d(a, b, 3, padding=1) for a, b in ((3, 32), (32, 32), (32, 8)))
        self.one, self.two = nn.BatchNorm2d(32), nn.GroupNorm(8, 32)
        self.to(memory_format=torch.channels_last, dtype=dtype)

    def forward(self, x):
        h = F.relu(self.one(self.stem(x)))
        return self.head(F.relu(self.two(self.inner(h)) + h))


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_plan_stores_as_the_level_alone(dtype, written):
    """In its first forward, which a tape follows, and in later ones. In bfloat16, casts of the statistics are operators
    that the tape must not see."""
    x, net = normal(4, 3, 14, 14, dtype=dtype), Norms(dtype)
    alone, planned = copy.deepcopy(net), copy.deepcopy(net)
    integrations.compress_model(alone, "L1", min_bytes=1024)
    integrations.compress_model(planned, "L1", checkpoint=1.0, min_bytes=1024)
    for _ in range(4):
        expected, found = [], []
        for model, statistics in ((alone, expected), (planned, found)):
            written.clear()
            loss = model(x).float().square().mean()
            statistics += [(given, *parts) for _, given, parts in written]
            loss.backward()
        assert len(expected) == len(found) == 2
        for one, other in zip(expected, found, strict=True):
            assert one[0]
            assert other[0]
            assert all(torch.equal(*pair) for pair in zip(one[1:], other[1:], strict=True))
        for one, other in zip(alone.parameters(), planned.parameters(), strict=True):
            assert torch.equal(one.grad, other.grad)


def test_a_plan_with_an_error_stores_by_them_in_each_forward(written):
    """Whether the tape follows a forward, or its sites or calls are known."""
    net, x = Norms(), normal(4, 3, 14, 14)
    integrations.compress_model(net, memory=0.9, error=0.2, min_bytes=1024)
    for _ in range(4):
        net(x).square().mean().backward()
        assert written
        assert all(given for _, given, _ in written)
        written.clear()


@pytest.mark.parametrize("autocast", [False, True])
def test_statistics_of_fewer_bits_serve_as_well(autocast, written):
    """On the CPU, torch rounds those of bfloat16 parameters to bfloat16. An element is restored by the mean that it was
    stored by, so that it is off by a step of 1 / 255 of at most 10 deviations, and by three roundings of its dtype."""
    x = normal(4, 32, 7, 7).bfloat16() + 3
    net = Net(
        lambda self, zero: F.batch_norm(self.w + zero, None, None, self.v, training=True),
        w=x,
        v=torch.ones(32).bfloat16(),
    )
    integrations.compress_model(net, level="L1.1")
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        net(torch.zeros((), dtype=torch.bfloat16))
    [(node, given, (_, _, statistics))] = written
    assert given
    assert node._saved_result1.dtype is torch.bfloat16
    assert statistics.dtype is torch.float32
    assert torch.equal(statistics[0], node._saved_result1.float())
    apart = (node._saved_input - x).abs().float()
    assert (apart <= 10 / 255 * statistics[1].max() + 3 * torch.finfo(torch.bfloat16).eps * x.abs().max()).all()


def test_a_retained_graph_and_a_second_derivative(written):
    net = Net(lambda self, x: NORMS["batch_norm"](self.w + x), w=normal(16, 32, 7, 7))
    weights = normal(16, 32, 7, 7, seed=1)
    plain = copy.deepcopy(net)
    integrations.compress_model(net, level="L1.1")
    found = []
    for model in (plain, net):
        loss = (model(torch.zeros(())) * weights).sum()
        [first] = torch.autograd.grad(loss, model.w, retain_graph=True)
        [again] = torch.autograd.grad(loss, model.w, create_graph=True)
        [second] = torch.autograd.grad(again.square().sum(), model.w)
        assert torch.equal(first, again)
        found.append((first, second))
    assert len(written) == 1
    for expected, one in zip(*found, strict=True):
        assert (one - expected).norm() < 0.02 * expected.norm()  # EIGHT_BITS of tests/nets.py


def test_inside_a_checkpoint(written):
    """The segment's norm saves nothing for the level, and its gradient is the plain one's."""
    net = Net(
        lambda self, x: torch.utils.checkpoint.checkpoint(NORMS["batch_norm"], self.w + x, use_reentrant=False),
        w=normal(16, 32, 7, 7),
    )
    weights = normal(16, 32, 7, 7, seed=1)
    plain = gradients(copy.deepcopy(net), torch.zeros(()), loss=lambda out: (out * weights).sum())
    integrations.compress_model(net, level="L0")
    assert_same(plain, gradients(net, torch.zeros(()), loss=lambda out: (out * weights).sum()))
    assert not written


def test_running_statistics_are_not_those_of_the_input(written):
    """A norm that is in evaluation mode while its model is trained. Without running statistics it takes the input's."""
    for tracks in (True, False):
        net = nn.Sequential(nn.Linear(32, 512), nn.BatchNorm1d(512, track_running_stats=tracks))
        net[1].eval()
        integrations.compress_model(net, level="L1")
        net(normal(16, 32)).sum().backward()
        assert [given for _, given, _ in written] == [True] * (not tracks)


@pytest.mark.parametrize("eps", [0.0, 1e-12])
def test_a_constant_channel_without_an_epsilon(eps, written):
    """Its inverse deviation is 0 or very large, so that its elements could not be restored: own statistics serve."""
    x = normal(16, 32, 7, 7)
    x[:, 3] = 2.5
    net = Net(lambda self, zero: torch.batch_norm(self.w + zero, *[None] * 4, True, 0.1, eps, False), w=x)
    integrations.compress_model(net, level="L1")
    out = net(torch.zeros(()))
    assert not written
    [row] = [row for row in rows(net, "batch_norm") if row.role == "input"]
    assert row.codec.endswith("standardised")
    restored = out.grad_fn._saved_input[:, 3]
    # By its own rounding errors alone: the mean's, which 784 terms leave at 1e-6 of it at most.
    assert torch.allclose(restored, x[:, 3], rtol=2e-6, atol=0)


def test_a_constant_channel_is_nearly_exact(written):
    """The rounding error of the mean is divided by the factor by which it was multiplied, so it does not grow."""
    x = normal(16, 32, 7, 7)
    x[:, 3] = 2.5
    net = Net(lambda self, zero: F.batch_norm(self.w + zero, None, None, training=True), w=x)
    integrations.compress_model(net, level="L1.1")
    restored = net(torch.zeros(())).grad_fn._saved_input[:, 3]
    assert [given for _, given, _ in written] == [True]
    # A step of 1 / 255 of at most 10 deviations, of which this channel's is the root of epsilon.
    assert (restored - 2.5).abs().max() <= 10 / 255 * 1e-5**0.5 + 2e-6 * 2.5


CODEC = Standardized(8, 256, "stochastic", CHANNELS, 32)
X = normal(4, 32, 7, 7)


def is_stored(payload):
    expected = compress(X, CODEC, seed=1).payload
    return all(torch.equal(*pair) for pair in zip(payload, expected, strict=True))


def test_what_a_norm_leaves_by_an_error_is_stored(monkeypatch):
    """Another saved tensor may share the stored form."""

    def failing(x, *others):
        stored.append(CODEC.compress(X, seed=1, operator=norm_inputs.compress_for_norm))
        raise ValueError("after autograd has saved the input")

    stored: list = []
    monkeypatch.setitem(norm_inputs._EPSILON, failing, 7)
    with pytest.raises(ValueError, match="after autograd"):
        run_norm(failing, (X,), {}, lambda tensor: nullcontext())
    assert is_stored(stored[0].payload)


def test_what_others_compress_meanwhile_is_stored_at_once(monkeypatch):
    """Such as what is copied to the host, which begins before the norm has returned."""

    def compressing(x):
        found.append(is_stored(CODEC.compress(x, seed=1).payload))

    found = []
    monkeypatch.setitem(norm_inputs._EPSILON, compressing, 7)
    run_norm(compressing, (X,), {}, lambda tensor: nullcontext())
    assert found == [True]


def test_a_node_without_its_statistics_stores_by_others(monkeypatch, written):
    """As under a plan that recomputes them."""
    monkeypatch.setattr(norm_inputs, "_kept_in", lambda node, name: None)
    net = Net(lambda self, x: NORMS["batch_norm"](self.w + x), w=X)
    integrations.compress_model(net, level="L1.1")
    out = net(torch.zeros(()))
    assert [given for _, given, _ in written] == [False]
    # A step of 1 / 255 of at most 10 deviations.
    assert (out.grad_fn._saved_input - X).abs().max() <= 10 / 255 * 1.1


def test_no_more_memory_is_kept():
    """What autograd holds after a forward: as many bytes as the report says, with and without the norm's statistics."""
    from .nets import profiled_bytes

    def left(hidden):
        net = Norms()
        integrations.compress_model(net, level="L1")
        with pytest.MonkeyPatch.context() as patch:
            if not hidden:
                patch.setattr(tracker, "run_norm", lambda function, args, kwargs, hidden: function(*args, **kwargs))
            x, outputs = normal(4, 3, 14, 14), []
            net(x).sum().backward()
            return profiled_bytes(lambda: outputs.append(net(x)))

    assert left(True) == left(False)


def test_a_forward_that_was_interrupted_leaves_no_norm_running(written):
    """Where an interrupt comes before the norm's own block has ended."""

    def interrupted(net, x):
        norm_inputs._thread.pending = []
        raise KeyboardInterrupt

    net = Net(interrupted, w=X)
    integrations.compress_model(net, level="L1.1")
    with pytest.raises(KeyboardInterrupt):
        net(torch.zeros(()))
    net.function = lambda self, x: NORMS["batch_norm"](self.w + x)
    out = net(torch.zeros(()))
    assert [given for _, given, _ in written] == [True]
    # A step of 1 / 255 of at most 10 deviations.
    assert (out.grad_fn._saved_input - X).abs().max() <= 10 / 255 * 1.1
