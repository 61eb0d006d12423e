"""Levels that offload: bitwise as without, owners' tensors left alone; on the CPU nothing is moved, and that is said.

Without a GPU, tensors of the CPU are taken for a GPU's, and a lane that takes notes does the copies.
"""

import copy
import gc
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations
from actcore.codecs import offload

from .nets import Net, assert_same, gradients, mlp, normal, rows

X = normal(48, 64)
N = X.numel()
LEVELS = ["swap", "L4bit-swap", "L3"]
WITHOUT = {"swap": "L0", "L4bit-swap": "L1", "L3": "L2"}
every_level = pytest.mark.parametrize("level", LEVELS)


def waiting():
    return sum(transfer.coming is not None for transfer in offload._transfers.values())


class Classifier(nn.Module):
    """Every kind of codec, a tensor that two operators share, and one that no rule is for."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.norm, self.dropout = nn.LayerNorm(64), nn.Dropout(0.5)

    def forward(self, x):
        h = self.dropout(F.relu(self.norm(self.first(x))))
        return self.last(F.gelu(self.second(h)) * h)


@every_level
def test_gradients_are_those_without_offload(lane, level):
    without = gradients(integrations.compress_model(Classifier(), WITHOUT[level]), X)
    model = integrations.compress_model(Classifier(), level)
    assert_same(without, gradients(model, X))
    assert len(lane.sent) > 4
    # All that was sent is there, but for a linear layer's input in 4 bits, which a norm's 8 bits of it have replaced.
    replaced = 0 if level == "swap" else X.numel() // 2 + 8 * X.numel() // 128
    assert integrations.compression(model).report().host_bytes == sum(lane.sent) - replaced


@every_level
def test_parameters_inputs_and_small_tensors_stay(lane, level):
    """GACT's swap took weights along."""
    model = integrations.compress_model(Classifier(), level)
    gradients(model, X)
    owned = rows(model, owned=True)
    assert {row.owner for row in owned} == {"parameter", "input of the model"}
    assert all(not row.host and row.codec == "kept" for row in owned)
    small = [row for row in rows(model) if row.shape == (48, 1)]  # the norm's statistics
    assert len(small) == 2
    assert all(not row.host for row in small)
    assert all(row.host for row in rows(model) if row.stored_bytes and row not in small)


def test_swap_takes_tensors_as_they_are(lane):
    """One copy of each, a sign's and a mask's included, and none of what two operators save."""
    model = integrations.compress_model(mlp(depth=2), "swap", strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradients(model, X)
    assert [(row.operator, row.codec, row.stored_bytes) for row in rows(model)] == [
        ("relu", "copied, on the host", 4 * N),
        ("linear", "copied, on the host", 0),
        ("relu", "copied, on the host", 4 * N),
    ]
    assert lane.sent == [4 * N] * 2


def test_compressed_first(lane):
    model = integrations.compress_model(mlp(depth=2), "L4bit-swap")
    gradients(model, X)
    assert [(row.codec, row.stored_bytes) for row in rows(model)] == [
        ("Positive(), on the host", N // 8),
        ("GroupAffine(bits=4, group_size=128, rounding='stochastic'), on the host", N // 2 + 8 * N // 128),
        ("Positive(), on the host", N // 8),
    ]
    assert lane.sent == [N // 8, N // 2 + 8 * N // 128, N // 8]


class Forms(nn.Module):
    """Operators whose stored form serves nobody else."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(1, 4, 3, padding=1)

    def forward(self, x):
        h = self.convolution(x.view(-1, 1, 16, 32))
        return F.max_pool2d(F.relu6(F.hardswish(F.gelu(h))), 2)


def test_forms_of_one_operator_go_along(lane):
    without = gradients(integrations.compress_model(Forms(), "L1"), X)
    model = integrations.compress_model(Forms(), "L4bit-swap")
    assert_same(without, gradients(model, X))
    found = {row.operator: row for row in rows(model) if row.stored_bytes}
    assert [*found] == ["gelu", "hardswish", "relu6", "max_pool2d"]
    assert all(row.host and row.codec.endswith(", on the host") for row in found.values())
    assert lane.sent == [row.stored_bytes for row in found.values()]


def test_l3_plans_as_l2_does(lane):
    """What is measured comes back from the host."""
    found = []
    for level in ("L2", "L3"):
        model = integrations.compress_model(Classifier(), level)
        found.append([gradients(model, X) for _ in range(3)][-1])
        found.append(integrations.compression(model).plan.plain())
    assert_same(found[0], found[2])
    assert found[1] == found[3]
    assert len(found[1]["allotments"]) > 3


def relu_and_exact(self, x):
    h = F.relu(F.linear(x, self.w))
    return h.cosh() + h


def exact_and_leaky_relu(self, x):
    h = F.linear(x, self.w)
    return h.cosh() + F.leaky_relu(h)


@pytest.mark.parametrize("forward", [relu_and_exact, exact_and_leaky_relu])
def test_a_sign_and_a_value_of_one_tensor(lane, forward):
    """No rule is for cosh, so it needs the tensor exactly; signs can be read from that."""
    net = Net(forward, w=normal(64, 64) / 8)
    plain = gradients(copy.deepcopy(net), X)
    model = integrations.compress_model(net, "L4bit-swap")
    assert_same(plain, gradients(model, X))
    found = {row.operator: row for row in rows(model)}
    assert (found["cosh"].codec, found["cosh"].stored_bytes) == ("copied, on the host", 4 * N)
    [sign] = [row for row in rows(model) if row.operator != "cosh"]
    assert (sign.codec, sign.stored_bytes) == ("copied, on the host", 0)
    assert integrations.compression(model).report().stored_bytes == 4 * N


def test_a_change_in_place_does_not_reach_what_was_sent(lane):
    def forward(self, x):
        h = F.linear(x, self.w)
        out = h.sin()
        with torch.no_grad():
            h.add_(1)
        return out

    net = Net(forward, w=normal(64, 64) / 8)
    before = Net(lambda self, x: F.linear(x, self.w).sin(), w=net.w)
    assert_same(gradients(before, X), gradients(integrations.compress_model(net, "swap"), X))


def test_views_of_one_storage_are_sent_once_each(lane):
    """Query, key and value of one projection: three parts, and never the whole three times."""

    def forward(self, x):
        query, key, value = F.linear(x, self.w).view(48, 3, 64).unbind(1)
        return (query @ key.t()).sin() @ value

    net = Net(forward, w=normal(192, 64) / 8)
    plain = gradients(copy.deepcopy(net), X)
    model = integrations.compress_model(net, "swap")
    assert_same(plain, gradients(model, X))
    assert integrations.compression(model).report().host_bytes == 3 * 4 * N + 2 * 4 * 48 * 48


@pytest.mark.parametrize(
    "use",
    [lambda h: h[1:].cosh().sum() + h[:-1].cosh().sum(), lambda h: h.sum(0).expand(48, 64).cosh()],
    ids=["windows", "expanded"],
)
def test_what_its_storage_holds_in_fewer_bytes_stays(lane, use):
    net = Net(lambda self, x: use(F.linear(x, self.w)), w=normal(64, 64) / 64)
    plain = gradients(copy.deepcopy(net), X)
    model = integrations.compress_model(net, "swap")
    assert_same(plain, gradients(model, X))
    report = integrations.compression(model).report()
    assert report.host_bytes == 0
    assert report.stored_bytes == report.original_bytes > 0
    assert {row.codec for row in rows(model)} == {"kept"}


def test_what_is_brought_back_early_is_bounded(lane):
    """Here, the guess is wrong at the end of each branch: every other one has its backward first. And there is a
    forward whose backward never comes."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.branches = nn.ModuleList(mlp() for _ in range(8))

        def forward(self, x):
            return [branch(x) for branch in self.branches]

    model = integrations.compress_model(Branches(), "swap")
    seen = []
    for module in model.modules():
        module.register_full_backward_hook(lambda *args: seen.append(waiting()))
    forgotten = model(X)
    outputs = model(X)
    for output in outputs[7::-2] + outputs[6::-2]:
        output.sum().backward()
    assert len(seen) > 8
    assert max(seen) <= offload._AHEAD
    del forgotten, outputs, output
    gc.collect()
    assert len(offload._transfers) == 0


def test_backward_twice_and_of_a_copied_model(lane):
    model = integrations.compress_model(mlp(), "L4bit-swap")
    loss = model(X).square().mean()
    loss.backward(retain_graph=True)
    once = {name: p.grad.clone() for name, p in model.named_parameters()}
    loss.backward()
    assert_same({name: 2 * grad for name, grad in once.items()}, {name: p.grad for name, p in model.named_parameters()})
    twin = copy.deepcopy(model)
    assert_same(gradients(model, X), gradients(twin, X))


def test_a_checkpoint_inside(lane):
    """What backward recomputes is stored anew, after all that the forward stored; GACT's prefetch had its own order."""
    net = nn.Sequential(*mlp(), nn.Linear(64, 64))
    part = net[2:4]
    found = []
    for level in ("L0", "swap"):
        model = Net(lambda self, x: net[4:](torch.utils.checkpoint.checkpoint(part, net[:2](x), use_reentrant=False)))
        model.net = copy.deepcopy(net)
        integrations.compress_model(model, level)
        net.zero_grad()
        model(X).square().mean().backward()
        found.append({name: p.grad.clone() for name, p in net.named_parameters()})
    assert_same(*found)


def test_the_report_says_where(lane):
    model = integrations.compress_model(Classifier(), "L4bit-swap")
    gradients(model, X)
    text = " ".join(str(integrations.compression(model).report()).split())
    assert "Moved to host memory: " in text
    assert "left on the device: 384 B." in text  # the norm's statistics


# ---- on the CPU, as it is ----


@every_level
def test_on_the_cpu_it_says_once_that_nothing_moves(level):
    model = integrations.compress_model(Classifier(), level)
    with pytest.warns(UserWarning, match="nothing is offloaded: offload moves large CUDA tensors") as caught:
        without = gradients(model, X)
    [message] = [str(found.message) for found in caught]
    report = integrations.compression(model).report()
    assert message.endswith("KiB on cpu")
    assert f"{report.stored_bytes / 1024:.1f} KiB on cpu" in message
    assert "Nothing was moved to host memory" in " ".join(str(report).split())
    assert report.host_bytes == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradients(model, X)
        gradients(pickle.loads(pickle.dumps(model)), X)
    assert_same(without, gradients(integrations.compress_model(Classifier(), WITHOUT[level]), X))


def test_swap_on_the_cpu_under_strict():
    model = integrations.compress_model(mlp(), "swap", strict=True)
    with pytest.raises(RuntimeError, match=r"nothing is offloaded: .* large CUDA tensors .* 36.0 KiB on cpu; without"):
        model(X)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
@every_level
def test_on_a_gpu(level):
    model, x = Classifier().cuda(), X.cuda()
    without = gradients(integrations.compress_model(copy.deepcopy(model), WITHOUT[level]), x)
    integrations.compress_model(model, level)
    assert_same(without, gradients(model, x))
    assert integrations.compression(model).report().host_bytes > 0
