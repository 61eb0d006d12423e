"""Whole steps on a GPU: in each way the gradient is what it is on a CPU, and a replayed forward stores what one that
decides anew does. On a CPU the same tests show that the bounds are those of the ways, and not of a device."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import actcore
import integrations
from integrations.runtime import replay
from integrations.runtime.packing import PackedForward

from .nets import EIGHT_BITS, normal

pytestmark = pytest.mark.cuda
STEPS = 5  # the first decides, the others replay


class Attention(nn.Module):
    """One product makes query, key and value; a residual, a norm and an activation follow."""

    def __init__(self):
        super().__init__()
        self.before, self.norm = nn.LayerNorm(64), nn.LayerNorm(64)
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        qkv = self.qkv(self.before(x)).view(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(*qkv.unbind(0))
        x = x + F.dropout(self.out(found.transpose(1, 2).reshape(x.shape)), 0.1)
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Gated(nn.Module):
    """A decoder's block, but for its attention: an RMS norm, and an activation times another product."""

    def __init__(self):
        super().__init__()
        self.norm, self.gate, self.up, self.down = nn.RMSNorm(64), *(nn.Linear(64, 64, bias=False) for _ in range(3))

    def forward(self, x):
        normed = self.norm(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3),
        nn.BatchNorm2d(32), nn.SiLU(), nn.Conv2d(32, 32, 3), nn.GroupNorm(4, 32), nn.Hardswish(), nn.Flatten(),
        nn.Linear(3872, 10),
    )  # fmt: skip


def channels_last():
    return convolutions().to(memory_format=torch.channels_last)


def features():
    return nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.Tanh(), nn.Dropout(0.2), nn.Linear(128, 10))


IMAGES, TOKENS, ROWS = (8, 3, 30, 30), (4, 48, 64), (96, 64)
NETS = {
    "convolutions": (convolutions, IMAGES),
    "channels last": (channels_last, IMAGES),
    "attention": (lambda: nn.Sequential(Attention(), Attention()), TOKENS),
    "gated": (lambda: nn.Sequential(Gated(), Gated()), TOKENS),
    "features": (features, ROWS),
}
WAYS = {  # and the bits in which what backward multiplies by is stored; ``None`` for those that round nothing
    "L0": ({"level": "L0"}, None),
    "L1": ({"level": "L1"}, 4),
    "L1.1": ({"level": "L1.1"}, 8),
    "lean": ({"level": "lean"}, 4),
    "L2 at 8 bits": ({"level": "L2", "bits": 8}, 8),
    "swap": ({"level": "swap"}, None),
    "L4bit-swap": ({"level": "L4bit-swap"}, 4),
    "few-bit": ({"level": "L1.1", "activations": "fewbit"}, 3),
    "checkpoint": ({"level": "L1.1", "checkpoint": "optimal"}, 8),
    "a plan, exact": ({"level": None, "error": 0}, None),
}


@pytest.fixture
def device(kind):
    if kind == "cuda":
        if reason := actcore.build_info()["cuda_missing"]:
            pytest.skip(f"no CUDA operators: {reason}")
        if not torch.cuda.is_available():
            pytest.skip("torch finds no GPU")
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)  # else a GPU adds up a gradient in any order
    yield torch.device(kind)
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@pytest.fixture
def anew(monkeypatch):
    """Grows by the step of each saved tensor that Python decides on."""
    found, decide = [], PackedForward._pack_anew
    monkeypatch.setattr(
        PackedForward, "_pack_anew", lambda self, *given: (found.append(self.step), decide(self, *given))[1]
    )
    return found


def made(net, device):
    make, shape = NETS[net]
    torch.manual_seed(0)
    model, x = make().to(device), normal(*shape).to(device)
    return model, x.to(memory_format=torch.channels_last) if net == "channels last" else x


def trained(model, x):
    """The gradients of some steps, each of all parameters together."""
    found = []
    for _ in range(STEPS):
        torch.manual_seed(1)
        model.zero_grad()
        output = model(x)
        (output * normal(*output.shape, seed=2).to(output)).mean().backward()
        found.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    return found


@pytest.mark.filterwarnings("ignore:.*(deterministic|nothing is offloaded|has a few-bit form)")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "net"), [("cpu", "attention"), *(("cuda", net) for net in NETS)])
def test_every_step_has_the_gradient_of_its_bits(kind, net, way, device, monkeypatch):
    """A step of rounding is 255 / (2**bits - 1) of one of 8 bits. What rounds nothing may add up in another order."""
    model, x = made(net, device)
    options, bits = WAYS[way]
    exact = trained(copy.deepcopy(model), x)
    anew = copy.deepcopy(model)
    found = trained(integrations.compress_model(model, min_bytes=0, **options), x)
    bound = 1e-5 if bits is None else EIGHT_BITS * 255 / (2**bits - 1)
    for one, plain in zip(found, exact, strict=True):
        assert (one - plain).norm() <= bound * plain.norm()
    if "error" in options or "activations" in options or device.type == "cpu":
        return  # a plan follows the clock; layers draw noise by themselves; of a CPU test_replay.py says the same
    monkeypatch.setattr(replay, "FORCED_OFF", True)
    for step, (one, other) in enumerate(
        zip(found, trained(integrations.compress_model(anew, min_bytes=0, **options), x), strict=True)
    ):
        assert torch.equal(one, other), step


@pytest.mark.parametrize("net", ["attention", "gated", "features"])
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_step_like_the_last_is_replayed(kind, net, device, anew, monkeypatch):
    """The first decides. What the others store is compared above."""
    monkeypatch.setattr(replay, "FORCED_OFF", False)
    model, x = made(net, device)
    trained(integrations.compress_model(model, "L1.1", min_bytes=0), x)
    assert set(anew) == {0}
