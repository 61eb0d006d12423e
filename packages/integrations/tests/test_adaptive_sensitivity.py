"""The estimator of sensitivities: what it measures, against arithmetic, against GACT's two-seed estimate, and that the
step that is measured is the step that it would have been."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations
from actcore import GroupAffine, compress, decompress
from integrations.api.handle.two_seed import two_seed_errors
from integrations.planner.sensitivity.rounding import rounding_energies, rounding_noise

from .nets import assert_same, mlp, normal

X = normal(48, 64)
LABELS = torch.arange(48) % 10


class Convolutional(nn.Module):
    """Batch norm, a residual connection, pooling."""

    def __init__(self, width=8):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.second, self.other = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.last = nn.Linear(width, 10)

    def forward(self, x):
        x = self.norm(self.first(x)).relu()
        x = F.max_pool2d(x + self.other(self.second(x)), 2)
        return self.last(x.mean((2, 3)))


class Transformer(nn.Module):
    """Layer norms, attention of matrix products, a sum for the residual connection."""

    def __init__(self, width=32, depth=2):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "qkv": nn.Linear(width, 3 * width),
                    "one": nn.LayerNorm(width),
                    "up": nn.Linear(width, 2 * width),
                    "down": nn.Linear(2 * width, width),
                    "two": nn.LayerNorm(width),
                }
            )
            for _ in range(depth)
        )
        self.last = nn.Linear(width, 10)

    def forward(self, x):
        for block in self.blocks:
            q, k, v = block["qkv"](x).chunk(3, -1)
            x = block["one"](x + torch.softmax(q @ k.transpose(-1, -2) / 32**0.5, -1) @ v)
            x = block["two"](x + block["down"](block["up"](x).relu()))
        return self.last(x.mean(1))


class Smooth(nn.Module):
    """Nonlinearities whose input is stored in a form of its own, and attention that is recomputed in backward."""

    def __init__(self, width=32):
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, width)
        self.last = nn.Linear(width, 10)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).movedim(-3, 0).transpose(-3, -2)
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(-3, -2).flatten(-2)
        x = x + F.hardswish(self.down(F.gelu(self.up(x))))
        return self.last(x.mean(1))


def classify(model, x, labels):
    """A closure that draws the same dropout in every call."""

    def closure():
        torch.manual_seed(7)
        model.zero_grad()
        F.cross_entropy(model(x), labels).backward()

    return closure


MODELS = {
    "mlp": lambda: (nn.Sequential(mlp(), nn.Dropout(0.2), nn.Linear(64, 10)), X, LABELS),
    "convolutional": lambda: (Convolutional(), normal(4, 3, 16, 16), LABELS[:4]),
    "transformer": lambda: (Transformer(), normal(4, 32, 32), LABELS[:4]),
    "smooth": lambda: (Smooth(), normal(4, 32, 32), LABELS[:4]),
}
FOUR_BITS = {f"{name}_bits": 4 for name in ("norm", "product", "pointwise", "attention")}


def compressed(name, **options):
    model, x, labels = MODELS[name]()
    integrations.compress_model(model, "L2", **{"min_bytes": 0, **options})
    return model, integrations.compression(model), classify(model, x, labels)


# ---- the variance model ----


@pytest.mark.parametrize("numel", [2048, 300, 100])
@pytest.mark.parametrize("bits", [1, 4, 8])
def test_the_energy_of_rounding_is_that_of_the_codec(numel, bits):
    """The mean over 200 roundings. An element's squared error is at most step^2, so that the standard deviation of the
    mean is at most step^2 * sqrt(n / 200); 5 of them are allowed."""
    x = normal(numel).relu()
    predicted = rounding_energies(x, 256)[bits - 1].item()
    codec = GroupAffine(bits)
    found = [(decompress(compress(x, codec, seed=1, stream=s)) - x).square().sum().item() for s in range(200)]
    step = x.max().item() / (2**bits - 1)
    assert abs(sum(found) / 200 - predicted) < 5 * step**2 * (numel / 200) ** 0.5


def test_large_tensors_are_sampled():
    x = normal(256 * 1000)
    exact = sum(rounding_energies(part, 256) for part in x.split(256 * 250))  # 250 groups: all are looked at
    # 250 and more of 1000 groups, whose energies vary by a fifth: their mean by a fifth / sqrt(250), allowed 5 times.
    assert torch.allclose(rounding_energies(x, 256), exact, rtol=5 * 0.2 / 250**0.5, atol=0)


def test_constant_and_empty_tensors_have_no_energy():
    assert rounding_energies(torch.full((512,), 3.0), 256).tolist() == [0] * 8
    assert rounding_energies(torch.zeros(0), 256).tolist() == [0] * 8


def test_noise_has_the_energy_and_the_ranges():
    x = torch.cat([normal(256), 100 * normal(256), torch.full((256,), 2.0), normal(10)])
    noise = rounding_noise(x, 256, torch.tensor(7.0, dtype=torch.float64), torch.Generator().manual_seed(0))
    assert noise.double().square().sum().item() == pytest.approx(7, rel=1e-5)  # float32, 778 terms
    ratio = noise[256:512].abs().max() / noise[:256].abs().max()
    spread = (x[256:512].max() - x[256:512].min()) / (x[:256].max() - x[:256].min())
    assert ratio.item() == pytest.approx(spread.item(), rel=1e-5)
    assert not noise[512:768].any()


# ---- the costs ----


def test_a_linear_layers_cost_is_known_in_closed_form():
    """Rows of dY weigh the rounding errors of rows of x, for a group that is a row: C = sum_r |dY_r|^2 energy_r."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 10))
    x = X.double()
    model.double()
    hidden = model[0](x).detach()
    (upstream,) = torch.autograd.grad(F.cross_entropy(out := model(x), LABELS), out)
    exact = sum(
        row.square().sum() * rounding_energies(values, 256) for row, values in zip(upstream, hidden, strict=True)
    )
    integrations.compress_model(model, "L2")
    plan = integrations.compression(model).adapt(classify(model, x, LABELS), passes=10)
    (entry,) = plan.allotments
    # Noise of random signs in 256 columns: the cost's standard deviation is that of a mean of 256 products, below 1/8
    # of it, and 10 passes draw anew; 5 of these.
    assert entry.error == pytest.approx(exact[entry.bits - 1].item(), rel=5 / 8 / 10**0.5)


@pytest.mark.parametrize("name", MODELS)
def test_costs_agree_with_the_two_seed_estimate(name):
    """Within a factor of 2.5: the reference's own mean over 12 pairs varies by a third (a squared norm of 12 draws),
    and the model may err by as much as it was seen to (1.7)."""
    _, handle, closure = compressed(name, **FOUR_BITS)
    fresh = handle.state_dict()
    plan = handle.adapt(closure, passes=4)
    copies = [entry.identities for entry in plan.allotments]
    handle.load_state_dict(fresh)  # without the plan: 4 bits each
    pairs = [two_seed_errors(handle, closure, copies, pair) for pair in range(12)]
    for entry, *found in zip(plan.allotments, *pairs, strict=True):
        reference = sum(found) / len(found) * 15**2
        assert 0.4 < entry.sensitivity / reference < 2.5, entry


def test_what_is_measured_of_forms_and_of_attention():
    """All that is rounded, but what hardswish saves: its range depends on the bits."""
    _, handle, closure = compressed("smooth")
    plan = handle.adapt(closure)
    planned = [name.operator for entry in plan.allotments for name in entry.identities]
    assert planned == [*["scaled_dot_product_attention"] * 3, "linear", "gelu", "linear", "linear"]
    closure()
    found = {row.operator: row for row in handle.report().rows}
    [gelu] = [entry for entry in plan.allotments if entry.identities[0].operator == "gelu"]
    assert found["gelu"].codec.startswith(f"GroupAffine(bits={gelu.bits},")
    assert found["gelu"].why.endswith("bits by the plan")
    assert found["gelu"].stored_bytes == gelu.nbytes
    assert found["hardswish"].codec.startswith("GroupAffine(bits=8,")


def test_the_prediction_is_the_error_that_is_seen():
    """The relative error of the whole gradient over 8 steps, within a factor of 1.5: its square has 8 draws."""
    model, handle, closure = compressed("convolutional")
    exact = copy.deepcopy(model)
    integrations.restore_model(exact)
    classify(exact, *MODELS["convolutional"]()[1:])()
    gradient = torch.cat([parameter.grad.flatten() for parameter in exact.parameters()])
    plan, errors = handle.adapt(closure, passes=4), []
    for _ in range(8):
        closure()
        found = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        errors.append((found - gradient).square().sum() / gradient.square().sum())
    measured = (sum(errors) / 8).sqrt().item()
    assert 1 / 1.5 < plan.relative_error / measured < 1.5


# ---- the step that is measured ----


@pytest.mark.parametrize("name", MODELS)
def test_a_measured_step_has_the_gradients_of_one_that_is_not(name):
    gradients, random = [], []
    for adaptive in (True, False):
        model, handle, closure = compressed(name, adaptive=adaptive)
        handle.step = 1  # the second forward is measured
        closure()
        assert (handle.plan is not None) == adaptive
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
        random.append(torch.get_rng_state())
    assert_same(*gradients)
    assert torch.equal(*random)


def test_a_node_that_cannot_run_again_is_no_obstacle():
    """A Function of somebody else: it may have side effects, and runs once."""
    calls = []

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            calls.append(1)
            return gradient * 2

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = mlp(depth=1), mlp(depth=1)

        def forward(self, x):
            return self.two(Once.apply(self.one(x)))

    model = integrations.compress_model(Net(), "L2")
    plan = integrations.compression(model).adapt(lambda: model(X).square().sum().backward(), passes=1)
    assert len(calls) == 1
    assert all(entry.error > 0 for entry in plan.allotments)


def test_a_checkpoint_inside_is_measured_around():
    from torch.utils.checkpoint import checkpoint

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.three = mlp(depth=2), mlp(depth=2), mlp(depth=2)

        def forward(self, x):
            return self.three(checkpoint(self.two, self.one(x), use_reentrant=False))

    model = integrations.compress_model(Net(), "L2")
    plan = integrations.compression(model).adapt(lambda: model(X).square().sum().backward(), passes=1)
    assert {entry.identities[0].module for entry in plan.allotments} >= {"one.2", "three.2"}
