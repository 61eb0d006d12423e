"""A net in which a function lies between what is stored and what a linear layer saves, and which tells both."""

import torch
from torch import nn

import integrations

ROWS, FEATURES, CLASSES = 64, 96, 24


class Between(nn.Module):
    """Makes ``h``, saves it in a product, and gives a function of it to a linear layer.

    The product is with a parameter of as many elements, so that the parameter's gradient is ``h`` as it was stored; the
    layer's is ``c^T y`` with the ``y`` that backward got.
    """

    def __init__(self, function, shape=(ROWS, FEATURES), features=FEATURES, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.before = nn.Linear(shape[-1], shape[-1], dtype=dtype)
        self.scale = nn.Parameter(torch.ones(shape, dtype=dtype))
        self.after = nn.Linear(features, CLASSES, bias=False, dtype=dtype)

    def forward(self, x):
        h = self.before(x)
        told = h * self.scale
        return told, self.after(self.function(h))


def inputs(net):
    torch.manual_seed(1)
    return 2 * torch.randn_like(net.scale)


def step(net, x, steps=3, **options):
    """A step at a level: what the product had stored, what the layer's weight got for its gradient and with which
    gradient of its output, and the report's row of the layer's input."""
    model = integrations.compress_model(net, **{"level": "L1", "recompute": True, **options})
    row = None
    for _ in range(steps):  # the third does again what the second decided
        model.zero_grad()
        told, output = model(x)
        row = next(one for one in integrations.compression(model).report().rows if reads(one))
        torch.manual_seed(2)
        gradient = torch.randn_like(output)
        torch.autograd.backward([told, output], [torch.ones_like(told), gradient])
    integrations.restore_model(model)
    return net.scale.grad, net.after.weight.grad, gradient, row


def reads(row):
    return row.module == "after" and row.operator == "linear" and row.role != "other"


def expected(gradient, y):
    """The weight's gradient, if backward gets this ``y``."""
    return gradient.flatten(0, -2).t().mm(y.flatten(0, -2))


def close(one, other):
    """Whether two gradients differ by the rounding of a product of some hundred rows alone."""
    eps = torch.finfo(one.dtype).eps
    return bool(((one - other).abs() <= 8 * eps * other.abs().amax()).all())
