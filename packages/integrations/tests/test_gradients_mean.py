"""Over many seeds the mean of a whole network's gradient is the exact one, where the docs call its operators unbiased.

``test_gradients_noise.py`` compares one operator at a time with what its codec predicts. In a network roundings meet: a
gradient is a product of what several layers stored. Its mean stays exact as long as these round independently.
"""

import pytest
import torch
import torch.nn.functional as F

import integrations
from integrations.policies import policy

from .nets import Net, normal

SEEDS = 64
# What is compared is a sum over 2,016 pairs of seeds, so nearly normal: beyond this once in 300,000 by chance.
Z = 4.5

IMAGES = normal(8, 4, 8, 8)
PARAMETERS = {
    "k0": normal(8, 4, 3, 3, seed=1) / 6,
    "k1": normal(8, 8, 3, 3, seed=2) / 8,
    "w0": normal(16, 32, seed=3) / 4,
    "w1": normal(32, 16, seed=4) / 4,
    "w2": normal(32, 32, seed=5) / 6,
    "scale": normal(32, seed=6),
}


def convolutions(self, x):
    h = F.max_pool2d(F.relu(F.conv2d(x * 1, self.k0, padding=1)), 2)
    return F.dropout(F.conv2d(h, self.k1, padding=1), 0.1).flatten(2)


def unbiased(self, x):
    """Linear operators, products, exp and var, beside what is stored exactly: every kind that the docs call so."""
    h = convolutions(self, x)
    h = (h @ self.w0) * F.linear(h, self.w1)
    h = torch.einsum("bci,ij->bcj", (0.3 * h).exp(), self.w2) * self.scale
    return h.square().var(2)


def smooth(self, x):
    """GELU's slope is not linear in its input."""
    return F.gelu(2 * convolutions(self, x) @ self.w0)


def cube(self, x):
    """One stored copy is a factor twice: h * h saves h, and so does the product of that with h."""
    h = convolutions(self, x) @ self.w0
    return h * h * h


def gradients(forward, level, seeds=SEEDS, **options):
    """The gradient, by parameter, of each seed: float64[seeds, elements]."""
    found = []
    model = Net(forward, **PARAMETERS)
    for seed in range(seeds):
        torch.manual_seed(1)  # for dropout
        model.zero_grad()
        with integrations.compress(model, level, seed=seed, **options):
            output = model(IMAGES)
        output.backward(normal(*output.shape, seed=9))
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).double())
    return torch.stack(found)


def distance(forward, level, **options):
    """How far the mean over seeds is from the exact gradient, in standard errors of that distance; negative where it is
    nearer than chance has it.

    With e_i the error of seed i, the mean of <e_i, e_j> over all pairs of seeds has expectation |bias|**2: 0 where
    there is none, whatever the noise. Its variance then is 2 / (M (M - 1)) times the mean square of <e_i, e_j>.
    """
    [exact] = gradients(forward, "L0", seeds=1)
    errors = gradients(forward, level, **options) - exact
    spread = errors.std(0)
    noisy = spread > 1e-6 * exact.abs().max()
    assert (errors[:, ~noisy].abs() <= 1e-5 * exact.abs().max()).all()  # float32 sums in another order
    errors = errors[:, noisy] / spread[noisy]  # so that every element counts alike
    products = (errors @ errors.T)[~torch.eye(SEEDS, dtype=torch.bool)]
    return (products.mean() / (2 * products.square().mean() / products.numel()).sqrt()).item()


@pytest.mark.parametrize("level", ["L1", "L1.2"])
def test_the_mean_over_seeds_is_the_exact_gradient(level):
    assert distance(unbiased, level) < Z


@pytest.mark.parametrize("forward", [smooth, cube])
def test_what_the_docs_name_as_biased_is_seen(forward):
    """In 3 bits, where the bias shows among the noise: the same comparison could fail above."""
    assert distance(forward, "L1", bits=3, product_bits=3, pointwise_bits=3) > 2 * Z


def test_rounding_to_nearest_is_seen(monkeypatch):
    """The same error in every seed."""
    stochastic = policy.GroupAffine
    monkeypatch.setattr(policy, "GroupAffine", lambda *sizes: stochastic(*sizes, rounding="nearest"))
    [exact], found = gradients(unbiased, "L0", seeds=1), gradients(unbiased, "L1", seeds=2)
    assert torch.equal(*found)
    assert (found[0] - exact).norm() > 0.01 * exact.norm()
