"""``save_for_backward`` and ``saved_tensors_of`` behave as plain saving does, at the decompressed values."""

import gc
import threading
import weakref

import pytest
import torch

import actcore

from .samples import as_bytes
from .saving import FOUR_BITS, Exponential, Linear, W, X, leaves


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
    y = Linear.apply(x, w)  # up to torch 2.11 the saved tensors go with it
    saved = y.grad_fn.saved_tensors
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
    y = Linear.apply(*arguments)  # up to torch 2.11 the saved tensors go with it
    [codes] = [part for part in y.grad_fn.saved_tensors if part.dtype == torch.uint8]
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
