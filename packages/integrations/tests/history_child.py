"""Forwards whose histories must not be read carelessly, in a process of their own: a hang holds the GIL, and a chain
that is freed by recursion ends the process.

Prints a JSON list for each that comes back: the way and the case; where gradients are compared, the largest error of
the bias's gradient beside plain training's, and the largest that rounding can make.
"""

import json
import sys
import threading

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import integrations

ROWS = 32
DEEP = 2_000  # operators of each of two kinds
STACK = 512 << 10  # bytes, of which a recursion takes 180 a node: 2,900 nodes fit


class AddOne(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.add_(1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Same(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def view_changed_by_a_function(h):
    return AddOne.apply(h.view(-1)).square().sum()


def part_changed_by_a_function(h):
    AddOne.apply(h[: ROWS // 2])
    return h.square().sum()


def base_changed_before_a_function(h):
    flat = h.view(-1)
    h.mul_(0.5)
    return Same.apply(flat).square().sum()


def base_changed_under_a_view_without_gradient(h):
    with torch.no_grad():
        flat = h.view(-1)
    h.mul_(0.5)
    with torch.no_grad():
        flat.norm()
    return h.square().sum()


def base_changed_under_parts(h):
    parts = h.chunk(2)
    h.mul_(0.5)
    with torch.no_grad():
        parts[0].norm()
    return h.square().sum()


def view_that_a_checkpoint_holds(h):
    with torch.no_grad():
        flat = h.view(-1)
    h.mul_(0.5)

    def segment(h):
        with torch.no_grad():
            flat.norm()
        return h.square()

    return checkpoint(segment, h, use_reentrant=False).sum()


CASES = (
    view_changed_by_a_function,
    part_changed_by_a_function,
    base_changed_before_a_function,
    base_changed_under_a_view_without_gradient,
    base_changed_under_parts,
    view_that_a_checkpoint_holds,
)


class Net(nn.Linear):
    def __init__(self, case):
        torch.manual_seed(0)
        super().__init__(64, 64)
        self.case = case

    def forward(self, x):
        h = super().forward(x)
        self.largest = h.detach().abs().max().item() + 1  # as AddOne makes it
        return self.case(h)


def gradient(case, way):
    """Of the bias; the largest element that was stored; and the bits."""
    net, x = Net(case), torch.randn(ROWS, 64, generator=torch.Generator().manual_seed(1))
    if way == "plain":
        net(x).backward()
        return net.bias.grad, net.largest, 0
    if way == "block":
        with integrations.compress(net, "L1") as handle:
            loss = net(x)
        loss.backward()
        return net.bias.grad, net.largest, handle.level.norm_bits
    handle = integrations.compression(integrations.compress_model(net, way.removesuffix(", adapted")))
    adapted = way.endswith("adapted") and case is not view_that_a_checkpoint_holds  # of which nothing is measured
    if adapted:
        handle.adapt(lambda: net(x).backward())
    net(x).backward()
    return net.bias.grad, net.largest, handle.level.bits if adapted else handle.level.norm_bits


def compare(way):
    for case in CASES:
        plain, largest, _ = gradient(case, "plain")
        got, _, bits = gradient(case, way)
        # A gradient of h is 2h, of which each element is off by a step at most, and the bias adds up the rows.
        bound = ROWS * 2 * 2 * largest / (2**bits - 1)
        print(json.dumps([way, case.__name__, (got - plain).abs().max().item(), bound]), flush=True)


class Chain(nn.Linear):
    def forward(self, x):
        x = super().forward(x)
        for _ in range(DEEP):
            x = F.silu(x) * 1.0  # one that saves, and one that does not
        return x.sum()


def deep(way):
    torch.manual_seed(0)
    net, x = Chain(16, 64), torch.ones(8, 16)
    if way == "block":
        with integrations.compress(net, "L1"):
            loss = net(x)
    else:
        integrations.compress_model(net, way)
        with torch.autocast("cpu", dtype=torch.bfloat16):  # where a tensor may be the cast of a parameter
            loss = net(x)
    loss.backward()
    del loss
    print(json.dumps([way]), flush=True)


if __name__ == "__main__":
    what, *ways = sys.argv[1:]
    threading.stack_size(STACK if what == "deep" else 0)
    for way in ways:
        thread = threading.Thread(target={"deep": deep, "compare": compare}[what], args=(way,))
        thread.start()
        thread.join()
