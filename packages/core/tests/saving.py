"""Functions that save through a codec, as the tests of ``save_for_backward`` use them."""

import torch

import actcore

from .samples import normal

FOUR_BITS = actcore.GroupAffine(bits=4)
X, W = normal(64 * 48).view(64, 48), normal(48 * 32, seed=1).view(48, 32)


class Linear(torch.autograd.Function):
    """``x @ w``; saves x under ``codec`` and w as it is."""

    @staticmethod
    def forward(ctx, x, w, codec="four bits", stream=None):
        # torch.compile of torch 2.10 takes no object for a default.
        codec = FOUR_BITS if codec == "four bits" else codec
        actcore.save_for_backward(ctx, (x, codec), (None, None), (w, None), seed=5, stream=stream)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, nothing, w = actcore.saved_tensors_of(ctx)
        assert nothing is None
        return grad @ w.t(), x.t() @ grad, None, None


class Cube(torch.autograd.Function):
    """``x ** 3`` with its input saved, in the style that ``torch.func`` asks for."""

    generate_vmap_rule = False
    codec = FOUR_BITS

    @staticmethod
    def forward(x):
        return x * x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        actcore.save_for_backward(ctx, (inputs[0], Cube.codec))

    @staticmethod
    def backward(ctx, grad):
        (x,) = actcore.saved_tensors_of(ctx)
        return grad * 3 * x * x


class Exponential(torch.autograd.Function):
    """``exp(x)`` with its result saved."""

    @staticmethod
    def forward(ctx, x):
        result = x.exp()
        actcore.save_for_backward(ctx, (result, FOUR_BITS))
        return result

    @staticmethod
    def backward(ctx, grad):
        (result,) = actcore.saved_tensors_of(ctx)
        return grad * result


def leaves():
    return X.clone().requires_grad_(), W.clone().requires_grad_()
