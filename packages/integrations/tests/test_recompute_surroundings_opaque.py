"""What a plan cannot see into: operators with effects, kernels that torch does not dispatch, errors; and what is left
after them."""

import gc
import weakref

import pytest
import torch

from integrations.checkpoint import capture

from .nets import Net, normal
from .recompute_nets import net
from .recompute_run import run
from .recompute_twins import assert_like_twin


def square_sum(forward, model):
    forward(normal(4, 6)).square().sum().backward()


def test_an_operator_with_effects_runs_once():
    calls = []

    @torch.library.custom_op("recompute_surroundings::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.shape)
        return x * 2

    counted.register_fake(torch.empty_like)
    counted.register_autograd(lambda ctx, gradient: gradient * 2)
    model = Net(lambda model, x: counted((x * model.weight).exp()).sin().exp(), weight=normal(6)).train()
    assert_like_twin(model, (normal(4, 6),), square_sum)
    assert len(calls) == 2  # one of each twin, none of the capture


class Tripled(torch.autograd.Function):
    """Of which a kernel writes the result by its address, as one of Triton's does."""

    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        y.numpy()[...] = x.numpy() * 3
        ctx.save_for_backward(y)
        return y.sin()

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * 3 * y.cos()


class TripledInPlace(torch.autograd.Function):
    """Of which a kernel overwrites the input, and no version tells."""

    @staticmethod
    def forward(ctx, x):
        sine = x.sin()
        x.numpy()[...] *= 3
        ctx.save_for_backward(x)
        return sine

    @staticmethod
    def backward(ctx, gradient):
        (tripled,) = ctx.saved_tensors
        return gradient * (tripled / 3).cos()


@pytest.mark.parametrize("function", [Tripled, TripledInPlace])
def test_what_a_kernel_writes_unseen_is_kept(function):
    model = Net(lambda model, x: function.apply((x * model.weight) * 2).exp().sin().exp(), weight=normal(6)).train()
    graph = assert_like_twin(model, (normal(4, 6),), square_sum)
    assert graph.note.startswith("captured on real tensors: on fake ones it raised")
    written = "aten.empty_like.default" if function is Tripled else "aten.mul.Tensor"
    assert not next(op for op in reversed(graph.ops) if op.name == written).repeatable


def test_what_a_kernel_reads_before_it_is_overwritten_unseen_is_not_read_again():
    def forward(model, x):
        y = x * model.weight
        z = y.sin()  # autograd saves y, and will read what is there then, as a plain step does
        y.detach().numpy()[...] = 2.0
        return z.exp().cos() + y.detach()

    model = Net(forward, weight=normal(6)).train()
    assert_like_twin(model, (normal(4, 6),), square_sum)


def test_a_real_capture_of_an_ordinary_model_repeats_what_one_on_fake_tensors_does():
    for name in ("resnet", "transformer", "odd"):
        model, args, kwargs = net(name)
        fake, real = capture(model, args, kwargs), capture(model, args, kwargs, real=True)
        assert [op.repeatable for op in real.ops] == [op.repeatable for op in fake.ops], name


class Fragile(torch.autograd.Function):
    breaks = False

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if Fragile.breaks:
            raise KeyError("in backward")
        return gradient


def test_the_step_after_an_error_in_backward(monkeypatch):
    model = Net(lambda model, x: Fragile.apply((x * model.weight).exp().sin()).exp().cos(), weight=normal(6)).train()

    def step(forward, model):
        monkeypatch.setattr(Fragile, "breaks", True)
        with pytest.raises(KeyError, match="in backward"):
            square_sum(forward, model)
        monkeypatch.setattr(Fragile, "breaks", False)
        model.zero_grad()
        square_sum(forward, model)

    assert_like_twin(model, (normal(4, 6),), step)


def test_an_error_while_operators_are_repeated_is_told_and_the_next_step_is_right(monkeypatch):
    model = Net(lambda model, x: (x * model.weight).exp().sin().exp(), weight=normal(6)).train()
    forward = run(model, capture(model, normal(4, 6)), [])
    output = forward(normal(4, 6))
    with monkeypatch.context() as broken:
        broken.setattr(torch._ops.OpOverload, "__call__", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            output.sum().backward()
    assert torch.is_grad_enabled()
    with pytest.raises(RuntimeError, match="a second time"):
        output.sum().backward()
    model.zero_grad()
    forward(normal(4, 6)).sum().backward()
    ours, model.weight.grad = model.weight.grad, None
    model(normal(4, 6)).sum().backward()
    assert torch.equal(ours, model.weight.grad)


def test_a_forward_without_backward_leaves_nothing(no_garbage_collection):
    made = []

    def forward(model, x):
        y = (x * model.weight).exp()
        made.append(weakref.ref(y.untyped_storage()))
        return y.sin().exp()

    model = Net(forward, weight=normal(6)).train()
    call = run(model, capture(model, normal(4, 6)), [])
    gc.collect()
    made.clear()
    output = call(normal(4, 6))
    assert [storage() for storage in made] == [None]  # a plain forward keeps it
    result = weakref.ref(output.untyped_storage())
    del output
    assert result() is None
    square_sum(call, model)


def test_memory_that_was_given_back_is_never_read():
    model = Net(lambda model, x: (x + model.weight).exp().sin(), weight=normal(6)).train()
    output = run(model, capture(model, normal(4, 6)), [])(normal(4, 6))
    model.weight.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match=r"tensor of shape \[6\], but its storage was resized to 0.*fully_shard"):
        output.sum().backward()
