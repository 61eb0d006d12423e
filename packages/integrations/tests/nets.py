"""Small models and the few questions that most tests ask of them."""

import copy
import itertools

import torch
from torch import nn

import integrations

# How far a gradient may be off with its operator's inputs in 8 bits. A group of 256 near-normal elements spans at most
# 8 standard deviations, so a rounding's standard deviation, at most half a step, is 8 / 255 / 2 = 1.6 % of the
# elements'. A weight gradient sums these errors with the coefficients with which it sums the elements, so where those
# have random signs its own relative error is that; where they have not, the elements' sum grows faster, and it is less.
EIGHT_BITS = 0.02


class Net(nn.Module):
    """A model from a function ``forward(self, *inputs)`` and its parameters."""

    def __init__(self, forward, **parameters):
        super().__init__()
        self.function = forward
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value.clone()))

    def forward(self, *inputs):
        return self.function(self, *inputs)


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def mlp(width=64, depth=3):
    """Linear and ReLU, ``depth`` times."""
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())))


def gradients(model, *inputs, loss=lambda output: output.square().mean()):
    """One step's gradients by name; dropout draws the same in every call."""
    torch.manual_seed(1)
    model.zero_grad()
    loss(model(*inputs)).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def plain_and_compressed(model, *inputs, level="L1", loss=lambda output: output.square().mean(), **options):
    """The gradients of an untouched twin, of the model under compression, and the compressed model."""
    plain = gradients(copy.deepcopy(model), *inputs, loss=loss)
    integrations.compress_model(model, level, **options)
    return plain, gradients(model, *inputs, loss=loss), model


def rows(model, operator=None, owned=False):
    """Report rows, by default those of tensors that autograd alone keeps alive."""
    report = integrations.compression(model).report()
    found = [row for row in report.rows if operator in (None, row.operator) and bool(row.owner) == owned]
    # Before torch 2.13, each checkpoint saves an empty tensor of its own.
    return [row for row in found if (row.operator, row.shape) != ("checkpoint", (0,))]


def as_told(report):
    """All that a row says but the values of a mask, which are elements."""
    return [
        (row.module, row.operator, row.role, row.shape, row.dtype, row.original_bytes, row.stored_bytes, row.owner)
        for row in report.rows
    ], [row.codec for row in report.rows if "BitMask" not in row.codec]


def assert_same(expected, found):
    """Bit for bit, by name."""
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(value, found[name]), f"{name} differs by {(value - found[name]).abs().max():.3g}"


def relative_error(expected, found):
    """The largest relative error of any tensor of a dictionary, in the Euclidean norm."""
    return max(((value - found[name]).norm() / value.norm()).item() for name, value in expected.items())


def assert_nothing_active():
    """What is saved now is the tensor itself, no hook is set and no torch function mode is left."""
    y = (torch.ones(600, requires_grad=True) * 2).relu()
    assert y.grad_fn._saved_result.data_ptr() == y.data_ptr()
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    assert torch.overrides._get_current_function_mode_stack() == []


def profiled_bytes(call, every_thread=True):
    """The most bytes that a call has allocated at once on a CPU, and those that it leaves; those of its own thread, or
    also of other threads that the profiler sees."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as watched:
        call()
    events = sorted(watched.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    own = events[0].start_thread_id()  # the call starts what other threads do
    seen = (event for event in events if every_thread or event.start_thread_id() == own)
    found = list(itertools.accumulate(event.nbytes() for event in seen if event.name() == "[memory]"))
    return max(found), found[-1]


def check_steps_and_peak(model, plain, step):
    """Check that four steps with a plan have the plain gradients bit for bit, and that a fifth keeps to the plan.

    Args:
        model: the compressed model.
        plain: its plain twin.
        step: takes one of both and a seed, and returns the gradients of a step.
    """
    for seed in range(4):
        assert all(map(torch.equal, *(step(net, seed) for net in (model, plain))))
        model.zero_grad()
        plain.zero_grad()
    most, left = profiled_bytes(lambda: step(model, 5))
    # No plan has the small tensors of autograd and of the loss: a twentieth, as for other layers.
    assert most - left <= 1.05 * integrations.compression(model).plan.peak


def make_closure(model):
    """A forward and a backward of 48 rows of 64 features, as ``gradient_error`` takes them."""
    x = normal(48, 64)

    def closure():
        model.zero_grad()
        model(x).square().mean().backward()

    return closure


def whole_gradient(model):
    torch.manual_seed(3)
    make_closure(model)()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
