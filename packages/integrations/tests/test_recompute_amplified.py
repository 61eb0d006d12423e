"""What backward recomputes from rounded values amplifies no error without bound: poles read what the forward had."""

import copy

import pytest
import torch
from torch import nn

from integrations.capture.dispatch.decisions import amplified

from .nets import EIGHT_BITS, Net, gradients, normal, relative_error
from .recompute_levels import compressed, keeping_the_first

WEIGHTS = {"w": normal(128, 64, seed=1) / 8, "v": normal(64, 128, seed=2) / 12}
X = normal(256, 64)

NEAR_A_POLE = {
    "log": lambda h: (h.relu() + 1e-3).log(),
    "log1p": lambda h: (h.relu() - 0.999).log1p(),
    "sqrt": lambda h: (h.relu() + 1e-4).sqrt(),
    "sqrt in place": lambda h: (h.relu() + 1e-4).sqrt_(),
    "pow": lambda h: (h.relu() + 1e-4).pow(0.5),
    "reciprocal": lambda h: 1 / (h.relu() + 1e-2),
    "division": lambda h: h.sigmoid() / (h.relu() + 1e-2),
    "division by what has no gradient": lambda h: h.sigmoid() / (h.relu() + 1e-2).detach(),
}


@pytest.mark.parametrize("name", NEAR_A_POLE)
def test_a_level_with_a_plan_rounds_nothing_that_is_amplified(name):
    """Three blocks, of which the plan keeps what the first operator made, and what has to be exact."""

    def forward(self, x):
        for _ in range(3):
            x = x + nn.functional.linear(NEAR_A_POLE[name](nn.functional.linear(x, self.w)), self.v)
        return x

    model = Net(forward, **WEIGHTS)
    exact = gradients(copy.deepcopy(model), X)
    planned = compressed(copy.deepcopy(model), "L1.1", checkpoint=keeping_the_first(model, (X,)))
    assert relative_error(exact, gradients(planned, X)) < EIGHT_BITS


@pytest.mark.parametrize(
    ("function", "args", "places"),
    [
        (torch.ops.aten.sqrt.default, (X,), [0]),
        (torch.ops.aten.sqrt_.default, (X,), [0]),
        (torch.ops.aten.pow.Tensor_Scalar, (X, 0.5), [0]),
        (torch.ops.aten.pow.Tensor_Scalar, (X, -1), [0]),
        (torch.ops.aten.pow.Tensor_Scalar, (X, 2), []),
        (torch.ops.aten.pow.Tensor_Tensor, (X, X + 1), [0]),
        (torch.ops.aten.div.Tensor, (X, X + 1), [1, 0]),
        (torch.ops.aten.addcdiv.default, (X, X + 1, X + 2), [2, 1]),
        (torch.ops.aten.exp.default, (X,), []),
        (torch.ops.aten.add.Tensor, (X, X), []),
    ],
    ids=lambda one: str(one) if isinstance(one, torch._ops.OpOverload) else "",
)
def test_what_is_near_a_pole(function, args, places):
    assert [id(tensor) for tensor in amplified(function, args)] == [id(args[place]) for place in places]
