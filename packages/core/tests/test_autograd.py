"""``save_for_backward`` and ``saved_tensors_of`` behave as plain saving does, at the decompressed values."""

import gc
import threading
import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import actcore

from .samples import as_bytes, normal

FOUR_BITS = actcore.GroupAffine(bits=4)
X, W = normal(64 * 48).view(64, 48), normal(48 * 32, seed=1).view(48, 32)


class Linear(torch.autograd.Function):
    """``x @ w``; saves x under ``codec`` and w as it is."""

    @staticmethod
    def forward(ctx, x, w, codec=FOUR_BITS, stream=None):
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


def test_gradients_are_those_of_the_decompressed_tensor():
    x, w = leaves()
    Linear.apply(x, w, FOUR_BITS, 3).sum().backward()
    stored = actcore.compress(X, FOUR_BITS, seed=5, stream=actcore.stream_of("0", 3, 0)).decompress()
    ones = torch.ones(64, 32)
    assert torch.equal(w.grad, stored.t() @ ones)
    assert torch.equal(x.grad, ones @ W.t())


@pytest.mark.parametrize("codec", [None, actcore.Raw()], ids=["None", "Raw"])
def test_a_tensor_kept_exactly_is_checked_by_autograd(codec):
    x, w = X.clone(), W.clone().requires_grad_()
    y = Linear.apply(x, w, codec)
    x.add_(1)
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        y.sum().backward()


def test_a_stored_tensor_is_a_snapshot():
    x, w = X.clone(), W.clone().requires_grad_()
    y = Linear.apply(x, w, FOUR_BITS, 3)
    x.zero_()
    y.sum().backward()
    stored = actcore.compress(X, FOUR_BITS, seed=5, stream=actcore.stream_of("0", 3, 0)).decompress()
    assert torch.equal(w.grad, stored.t() @ torch.ones(64, 32))


def test_the_graph_is_freed_by_backward_and_kept_by_retain_graph():
    x, w = leaves()
    y = Linear.apply(x, w)
    parts = [weakref.ref(part) for part in y.grad_fn.saved_tensors if part.dtype == torch.uint8]
    y.sum().backward(retain_graph=True)
    first = w.grad.clone()
    w.grad = None
    y.sum().backward()
    assert torch.equal(first, w.grad)
    assert len(parts) == 1
    assert parts[0]() is None
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        y.sum().backward()


def test_nothing_is_stored_where_there_is_no_backward(monkeypatch):
    def compress(self, tensor, **options):
        raise AssertionError("a tensor is stored")

    monkeypatch.setattr(actcore.GroupAffine, "compress", compress)
    with torch.no_grad():
        Linear.apply(*leaves())
    with torch.inference_mode():
        Linear.apply(X, W)
    Linear.apply(X, W)
    with pytest.raises(AssertionError, match="a tensor is stored"):
        Linear.apply(*leaves())


def test_bytes_that_autograd_holds():
    """Codes, bounds, and one element that carries x's history, beside the weight."""
    x, w = leaves()
    saved = Linear.apply(x, w).grad_fn.saved_tensors
    assert sum(part.untyped_storage().nbytes() for part in saved if part is not w) == (
        FOUR_BITS.stored_bytes(X.numel(), X.dtype) + X.element_size()
    )


def test_no_cycle_keeps_a_result_alive():
    gc.collect()
    gc.disable()
    try:
        y = Exponential.apply(X.clone().requires_grad_())
        reference = weakref.ref(y.grad_fn)
        del y
        assert reference() is None
    finally:
        gc.enable()


def test_backward_in_another_thread():
    x, w = leaves()
    y = Linear.apply(x, w).sum()
    thread = threading.Thread(target=y.backward)
    thread.start()
    thread.join()
    assert w.grad is not None


# ---- noise ----


def stored_codes(*arguments):
    [codes] = [part for part in Linear.apply(*arguments).grad_fn.saved_tensors if part.dtype == torch.uint8]
    return codes.clone()


def test_streams_advance_by_themselves():
    x, w = leaves()
    assert not torch.equal(stored_codes(x, w), stored_codes(x, w))
    assert not torch.equal(stored_codes(x, w, FOUR_BITS, 1), stored_codes(x, w, FOUR_BITS, 2))
    assert torch.equal(stored_codes(x, w, FOUR_BITS, 1), stored_codes(x, w, FOUR_BITS, 1))


def test_two_tensors_of_one_call_round_independently():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            actcore.save_for_backward(ctx, (x, FOUR_BITS), (x, FOUR_BITS), stream=1)
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            one, other = actcore.saved_tensors_of(ctx)
            assert not torch.equal(one, other)
            return grad

    Twice.apply(X.clone().requires_grad_()).sum().backward()


# ---- double backward ----


def second_derivative(function, x):
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    return torch.autograd.grad(slope.sum(), x)[0]


def test_double_backward_has_every_term():
    """z = x ** 3, y = z ** 2 at x = 2: 30 x ** 4 = 480. A payload kept on ctx without history gave 288: it misses the
    6 x of z's own slope, times dy/dz = 16. The tensor is constant, so that storing it is exact."""
    x = torch.full((1024,), 2.0)
    assert torch.equal(second_derivative(lambda x: Cube.apply(x) ** 2, x), torch.full((1024,), 480.0))


def test_gradcheck_of_both_backwards(monkeypatch):
    """One bit stores two values exactly, in float64."""
    monkeypatch.setattr(Cube, "codec", actcore.GroupAffine(bits=1, group_size=32, rounding="nearest"))
    x = torch.tensor([0.5, -1.5], dtype=torch.float64).repeat(32).requires_grad_()

    def cube(values):
        return Cube.apply(values.view(2, 1).expand(2, 32).t().reshape(-1))

    values = torch.tensor([0.5, -1.5], dtype=torch.float64, requires_grad=True)
    assert second_derivative(Cube.apply, x).equal(6 * x.detach())
    assert torch.autograd.gradcheck(cube, values)
    assert torch.autograd.gradgradcheck(cube, values)


def test_double_backward_through_a_stored_result():
    x = torch.full((1024,), 0.5, requires_grad=True)
    y = Exponential.apply(x)  # alive until the second backward
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), x)
    assert torch.equal(second, x.detach().exp())


@pytest.mark.parametrize("fate", ["dropped", "changed in place"])
def test_double_backward_through_a_result_that_is_gone_raises(fate):
    x = torch.full((1024,), 0.5, requires_grad=True)
    y = Exponential.apply(x)
    total = y.sum()
    if fate == "dropped":
        del y
    else:
        y.mul_(2)
    with pytest.raises(RuntimeError, match=r"would be missing; save it exactly, \(tensor, None\)"):
        torch.autograd.grad(total, x, create_graph=True)


def test_double_backward_reaches_a_constant_input():
    """x asks for no gradient: nothing is missing, whether it is alive or not."""
    for keep in (True, False):
        w = W.clone().requires_grad_()
        x = X.clone()
        y = Linear.apply(x, w).square().sum()
        if not keep:
            del x
        (slope,) = torch.autograd.grad(y, w, create_graph=True)
        slope.square().sum().backward()
        assert w.grad is not None


def test_a_tensor_changed_by_its_own_function_is_a_result():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            x.exp_()
            actcore.save_for_backward(ctx, (x, FOUR_BITS))
            return x

        @staticmethod
        def backward(ctx, grad):
            return grad * actcore.saved_tensors_of(ctx)[0]

    def function(x):
        results.append(Double.apply(x * 1))
        return results[-1]

    results = []
    x = torch.full((1024,), 0.5)
    assert torch.equal(second_derivative(function, x), x.exp())


# ---- in the company of others ----


def test_under_checkpoint():
    x, w = leaves()
    checkpoint(Linear.apply, x, w, actcore.GroupAffine(8), 3, use_reentrant=False).sum().backward()
    expected = leaves()
    Linear.apply(*expected, actcore.GroupAffine(8), 3).sum().backward()
    assert torch.equal(w.grad, expected[1].grad)


def test_under_hooks_the_stored_form_is_not_stored_again():
    w = W.clone().requires_grad_()
    big = normal(300_000).view(-1, 48)
    with torch.autograd.graph.saved_tensors_hooks(*actcore.hooks(actcore.GroupAffine(2))):
        y = Linear.apply(big, w, FOUR_BITS, 3)
    y.sum().backward()
    stored = actcore.compress(big, FOUR_BITS, seed=5, stream=actcore.stream_of("0", 3, 0)).decompress()
    assert torch.equal(w.grad, stored.t() @ torch.ones(len(big), 32))


def test_under_save_on_cpu():
    x, w = leaves()
    with torch.autograd.graph.save_on_cpu():
        y = Linear.apply(x, w)
    y.sum().backward()
    assert w.grad is not None


def test_under_torch_func():
    """The Function's own gradient, at a constant that is stored exactly."""
    x = torch.full((1024,), 2.0)
    assert torch.equal(torch.func.grad(lambda x: Cube.apply(x).sum())(x), torch.full((1024,), 12.0))
    pull = torch.func.vjp(Cube.apply, x)[1]
    assert torch.equal(pull(torch.ones(1024))[0], torch.full((1024,), 12.0))
    twice = torch.func.grad(lambda x: torch.func.grad(lambda x: Cube.apply(x).sum())(x).sum())(x)
    assert torch.equal(twice, torch.full((1024,), 12.0))


def test_compiled():
    torch.compiler.reset()
    x, w = leaves()
    y = torch.compile(lambda x, w: Linear.apply(x, w, FOUR_BITS, 3) * 2, backend="aot_eager", fullgraph=True)(x, w)
    y.sum().backward()
    expected = leaves()
    (Linear.apply(*expected, FOUR_BITS, 3) * 2).sum().backward()
    assert torch.equal(w.grad, expected[1].grad)
    torch.compiler.reset()


def test_compiled_noise_advances():
    torch.compiler.reset()
    function = torch.compile(lambda x, w: Linear.apply(x, w), backend="aot_eager", fullgraph=True)
    gradients = []
    for _ in range(2):
        x, w = leaves()
        function(x, w).sum().backward()
        gradients.append(w.grad)
    assert not torch.equal(*gradients)
    torch.compiler.reset()


# ---- errors ----


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ((X,), r"argument 0 must be a pair \(tensor, codec\), got Tensor; try \(tensor, None\)"),
        (((X, None), (X,)), "argument 1 must be a pair"),
        ((([1.0], None),), "the tensor of pair 0 must be a torch.Tensor or None, got list"),
        (((X, actcore.GroupAffine),), "codec must have compress and decompress, got <class"),
        (((X.long(), FOUR_BITS),), "takes float32, float16, bfloat16, float64, got torch.int64"),
    ],
)
def test_wrong_arguments(pairs, text):
    class Saving(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            actcore.save_for_backward(ctx, *pairs)

    with pytest.raises(TypeError, match=text):
        Saving.apply(X.clone().requires_grad_())


def test_nothing_saved():
    class Forgetful(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return actcore.saved_tensors_of(ctx)

    with pytest.raises(RuntimeError, match=r"call actcore.save_for_backward\(ctx, ...\) in forward first"):
        Forgetful.apply(X.clone().requires_grad_()).sum().backward()


def test_payload_bytes_are_those_of_compress():
    x, w = leaves()
    expected = actcore.compress(X, FOUR_BITS, seed=5, stream=actcore.stream_of("0", 3, 0)).payload[0]
    assert torch.equal(as_bytes(stored_codes(x, w, FOUR_BITS, 3)), expected)
