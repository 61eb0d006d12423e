"""Gradients under inductor are right if backward reads views of tensors with strides that inductor chooses.

A region that stored a view by the strides of the trace read memory beyond the tensor, and gave NaN.
"""

from itertools import cycle

import pytest
import torch
from torch import nn

import integrations
from integrations.qmodules.device_rows import view_as_rows

from .long_form import LONG
from .nets import EIGHT_BITS, normal, relative_error, rows

pytestmark = pytest.mark.usefixtures("fresh_compiler", "quick_kernels")

WIDTH, LENGTH = 64, 16
VIEWS = {
    "select": (lambda y: y[:, 3], WIDTH),
    "narrow": (lambda y: y[:, 2:9], WIDTH),
    "step": (lambda y: y[:, ::3], WIDTH),
    "transpose": (lambda y: y.transpose(1, 2), LENGTH),
    "expand": (lambda y: y[:, :1].expand(-1, 5, -1), WIDTH),
    "permute": (lambda y: y.permute(1, 0, 2), WIDTH),
    "channels last": (lambda y: y.unflatten(2, (8, 8)).contiguous(memory_format=torch.channels_last), 8),
    "split": (lambda y: y.split(24, 2)[1], 24),
    "unbind": (lambda y: y.unbind(1)[5], WIDTH),
    "overlapping": (lambda y: y.unfold(2, 16, 8), 16),
}


X = normal(8, LENGTH, WIDTH)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        query, key, value = self.project(x).unflatten(2, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(LENGTH, LENGTH, 3, padding=1)

    def forward(self, x):
        return self.conv(x.unflatten(2, (8, 8))).flatten(2)


PRODUCERS = {
    "norm": lambda: nn.LayerNorm(WIDTH),
    "activation": nn.GELU,
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "convolution": Convolution,
    "attention": Attention,
}


class Viewed(nn.Module):
    """Producers, views of their results, and a matrix product of each view. The weight's gradient reads the view."""

    def __init__(self, pairs):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.pairs = nn.Linear(WIDTH, WIDTH), pairs
        self.producers = nn.ModuleDict({producer: PRODUCERS[producer]() for producer, _ in pairs})
        self.products = nn.ModuleList(nn.Linear(VIEWS[view][1], 24) for _, view in pairs)

    def forward(self, x):
        y = self.first(x)
        made = {name: producer(y) for name, producer in self.producers.items()}
        products = (
            product(VIEWS[view][0](made[producer]))
            for product, (producer, view) in zip(self.products, self.pairs, strict=True)
        )
        return torch.cat([product.flatten() for product in products])


FEW = [("norm", "select"), ("activation", "step"), ("linear", "overlapping")]
SOME = [(producer, view) for producer in PRODUCERS for view in ("select", "permute")]
EACH = list(zip(cycle(PRODUCERS), VIEWS, strict=False))
ALL = [[(producer, view) for view in VIEWS] for producer in PRODUCERS]
"""``EACH`` has every producer and every view. With ``ACTCORE_LONG=1``, each producer's result is tested in each view.
Each compilation takes half a minute."""

long = pytest.mark.skipif(not LONG, reason="one of the long forms: set ACTCORE_LONG=1")
parts = pytest.mark.parametrize("pairs", ALL if LONG else [EACH], ids=lambda pairs: pairs[0][0] if LONG else "each")


def grads_of(function, model, x):
    model.zero_grad()
    function(x).square().mean().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def compiled_and_exact(pairs, x=X, **asked):
    """Return a compressed and compiled model, the function that runs it, and its exact gradients."""
    model = Viewed(pairs)
    exact = grads_of(model, model, x)
    integrations.compress_model(model, **asked)
    return model, torch.compile(model, fullgraph=True), exact


def whole(gradients):
    return {"": torch.cat([gradient.flatten() for gradient in gradients.values()])}


@parts
def test_a_level(pairs):
    model, function, exact = compiled_and_exact(pairs, level="L1.1", min_bytes=0)
    assert relative_error(exact, grads_of(function, model, X)) <= EIGHT_BITS
    assert {row.codec for row in rows(model, "mm")} > {"kept"}


def test_sizes_that_change():
    model, _, _ = compiled_and_exact(FEW, level="L1.1", min_bytes=0)
    twin, function = Viewed(FEW), torch.compile(model, fullgraph=True, dynamic=True)
    for size in (8, 5, 12):
        x = normal(size, LENGTH, WIDTH)
        assert relative_error(grads_of(twin, twin, x), grads_of(function, model, x)) <= EIGHT_BITS


@long
def test_lean_is_as_exact_as_in_eager_code():
    """Squared errors of the whole gradient, summed over three steps: see ``test_compiled_graphs``, whose bound for six
    steps is 1.5; a sum of three scatters by 0.3, and 1.3 / 0.7 is less than 2."""
    model, function, exact = compiled_and_exact(SOME, level="lean", min_bytes=0)
    squares = [
        sum(relative_error(whole(exact), whole(grads_of(run, model, X))) ** 2 for _ in range(3))
        for run in (function, model)
    ]
    assert 0 < squares[0] < 2 * squares[1]


@pytest.mark.parametrize("error", [pytest.param(0, marks=long), 0.1])
def test_a_plan(error):
    """If nothing is rounded, the only difference is that inductor adds up in another order."""
    pairs, memory = (SOME, 0.85) if LONG else (EACH[: len(PRODUCERS)], 0.95)
    # Inductor makes of these views copies, which no plan without recomputation can do without.
    stores = {"stores": ("exact", "bits"), "fallback": "least"} if error else {}
    model, function, exact = compiled_and_exact(pairs, memory=memory, error=error, **stores)
    assert relative_error(whole(exact), whole(grads_of(function, model, X))) <= (error or 1e-5)
    assert (len({row.codec for row in rows(model) if "GroupAffine" in row.codec}) > 0) == bool(error)


def test_rows_of_a_q_layer():
    """Each row stores its elements in memory order, whatever strides the compiler chooses."""

    def rows_in_order(x):
        y = x + x
        return [view_as_rows(view(y)) for view in (lambda y: y[1], lambda y: y[:, ::2], lambda y: y.transpose(1, 2))]

    for found, expected in zip(torch.compile(rows_in_order, fullgraph=True)(X), rows_in_order(X), strict=True):
        assert torch.equal(found, expected)
