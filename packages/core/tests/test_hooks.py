"""``hooks``: what autograd saves goes through a codec, and nothing else changes."""

import gc
import threading
import warnings
import weakref

import pytest
import torch

import actcore

from .hooked import EIGHT_BITS, X, mlp, noting, under
from .samples import DTYPES, name_of, normal

# ---- what is stored ----


def test_gradients_are_those_of_the_decompressed_tensors():
    """tanh's slope at a value 1/255 of the range, 2, away, at most: 2 * 2 / 255 times 1 + 4 / 255 for the square."""
    x = X.clone().requires_grad_()
    with under(EIGHT_BITS):
        y = x.tanh()
    y.sum().backward()
    exact = 1 - X.tanh() ** 2
    assert not torch.equal(x.grad, exact)
    assert (x.grad - exact).abs().max() < 4 / 255 * (1 + 4 / 255)


def test_parameters_and_their_views_are_kept():
    codec = noting()
    with under(codec):
        mlp()(X).square().sum().backward()
    assert codec.shapes == [(64, 48), (64, 64), (64, 64), (64, 32)]  # input, tanh twice (result, input), output


def test_a_frozen_parameter_is_kept():
    frozen = torch.nn.Linear(48, 32).requires_grad_(False)
    x = X.clone().requires_grad_()
    codec = noting()
    with under(codec):
        frozen(x).sum().backward()
    assert codec.shapes == []
    assert torch.equal(x.grad, torch.ones(64, 32) @ frozen.weight)


@pytest.mark.parametrize(
    "save",
    [
        lambda x: torch.sparse.mm(x.detach().relu().to_sparse(), x.t()),
        lambda x: torch.sparse.mm(x.detach().relu().to_sparse_csr(), x.t()),
        lambda x: torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 10, 64])) * 2.5,
        lambda x: torch.nested.as_nested_tensor([x, x[:3]]).sin().to_padded_tensor(0.0),
        lambda x: torch.nn.functional.embedding(torch.arange(48).view(6, 8), x),
        lambda x: x.masked_fill(x > 0, 0.0),
        lambda x: torch.view_as_complex(x.view(64, 24, 2)).abs(),
    ],
    ids=["coo", "csr", "jagged", "nested", "indices", "bool", "complex"],
)
@pytest.mark.filterwarnings("ignore:.*(prototype|beta) stage", "error::UserWarning:actcore")
def test_what_a_codec_cannot_take_is_kept(save):
    gradients = []
    for codec in (actcore.Raw(), EIGHT_BITS):
        x = X.clone().requires_grad_()
        with under(codec):
            y = save(x)
            y = torch.cat([part.flatten() for part in y.unbind()]) if y.is_nested else y
        y.abs().sum().backward()
        gradients.append(x.grad)
    assert (gradients[0] - gradients[1]).abs().max() < 100 * 8 / 255


def test_a_refused_float_tensor_is_kept_with_a_warning():
    x = X.clone().requires_grad_()
    with under(actcore.BitMask()), pytest.warns(UserWarning, match="kept as it is: .* two values"):
        y = (x * 1).sin()
    y.sum().backward()
    assert torch.equal(x.grad, X.cos())


def test_a_refusal_is_told_to_the_policy_that_chose_the_codec():
    x = torch.ones(8, 8, requires_grad=True)
    with (
        actcore.saved_tensors(lambda saved: actcore.Narrow(0, 3) if saved.dtype == torch.int64 else actcore.Raw()),
        pytest.warns(UserWarning, match="kept as it is: .* values from low to high"),
    ):
        x.index_select(0, torch.arange(8)).sum().backward()
    with under(actcore.BitMask()):  # one codec for all: integers that it refuses were not meant
        x.index_select(0, torch.arange(8)).sum().backward()


def test_a_stored_form_that_shares_memory_is_checked():
    """A codec of one's own that keeps the tensor: a change in place is still seen."""

    class Aliasing:
        def compress(self, tensor, *, seed=0, stream=0):
            return actcore.Compressed.of(self, tensor, (tensor.detach(),))

        def decompress(self, compressed):
            return compressed.payload[0]

    x = X.clone().requires_grad_()
    h = x * 1
    with under(Aliasing()):
        y = h.sin()
    y.sum().backward(retain_graph=True)
    h.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_dtype_and_strides_survive(dtype):
    x = normal(64 * 48, dtype).view(64, 48).t().requires_grad_()
    pack, unpack = actcore.hooks(EIGHT_BITS)
    back = unpack(pack(x * 1))
    assert (back.dtype, back.shape, back.stride()) == (x.dtype, x.shape, x.stride())


# ---- in-place changes, lifetime, second uses ----


def test_a_change_in_place_is_seen_with_the_message_of_torch():
    plain, hooked = [], []
    for messages, codec in ((plain, None), (hooked, actcore.Raw())):
        x = X.clone().requires_grad_()
        h = x * 1
        if codec is None:
            y = h.sin()
        else:
            with under(codec):
                y = h.sin()
        h.add_(1)
        with pytest.raises(RuntimeError) as error:
            y.sum().backward()
        messages.append(str(error.value))
    start = "one of the variables needed for gradient computation has been modified by an inplace operation: "
    assert plain[0].startswith(start)
    assert hooked[0].startswith(
        start + "[torch.FloatTensor [64, 48]] is at version 1; expected version 0 instead. Hint"
    )


def test_a_stored_tensor_is_a_snapshot():
    x = torch.ones(1024).requires_grad_()
    h = x * 1
    with under(EIGHT_BITS):
        y = h * h
    h.detach().zero_()
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((1024,), 2.0))


@pytest.mark.parametrize("codec", [EIGHT_BITS, actcore.Raw()], ids=repr)
def test_no_cycle_keeps_a_result_alive(codec):
    """exp saves its own result."""
    gc.collect()
    gc.disable()
    try:
        with under(codec):
            y = X.clone().requires_grad_().exp()
        reference = weakref.ref(y)
        del y
        assert reference() is None
    finally:
        gc.enable()


def test_retain_graph():
    x = X.clone().requires_grad_()
    with under(EIGHT_BITS):
        y = x.tanh().sum()
    y.backward(retain_graph=True)
    first, x.grad = x.grad, None
    y.backward()
    assert torch.equal(first, x.grad)
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        y.backward()


def test_no_grad_stores_nothing():
    codec = noting()
    with under(codec), torch.no_grad():
        mlp()(X)
    with under(codec), torch.inference_mode():
        mlp()(X)
    assert codec.shapes == []


def test_double_backward_has_every_term():
    """(x ** 3) ** 2 at 2, a constant, which is stored exactly: 480, not 288."""
    x = torch.full((1024,), 2.0, requires_grad=True)
    with under(EIGHT_BITS):
        z = (x * 1).pow(3)
        y = z * z
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), x)
    assert torch.equal(second, torch.full((1024,), 480.0))


# ---- noise ----


def test_no_two_packs_share_a_stream():
    codec = noting()
    for _ in range(3):  # a new pair for every step, as people write it
        with under(codec):
            mlp()(X).square().sum().backward()
    other = noting()
    with under(other):
        mlp()(X).square().sum().backward()
    streams = codec.streams + other.streams
    assert len(streams) == len(set(streams)) == 16


def test_streams_of_ones_own_repeat():
    steps = []
    for _ in range(2):
        codec = noting()
        with under(codec, seed=7, streams=actcore.Streams("mine")):
            mlp()(X).square().sum().backward()
        steps.append(codec.streams)
    assert steps[0] == steps[1]
    assert {seed for seed, stream in steps[0]} == {7}


def test_streams_know_their_position():
    streams = actcore.Streams("a")
    first = [streams.next() for _ in range(5)]
    assert first == [actcore.stream_of("a", step, 0) for step in range(5)]
    assert actcore.Streams("a", 3).next() == first[3]
    assert actcore.Streams("b").next() != first[0]
    assert actcore.stream_of("a", 0, 0, micro_step=1) not in first


def test_streams_shared_by_threads():
    streams, drawn = actcore.Streams(), []
    threads = [threading.Thread(target=lambda: drawn.extend([streams.next() for _ in range(2000)])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(drawn)) == 8000
    assert streams.position == 8000


# ---- errors ----


@pytest.mark.parametrize("codec", [actcore.GroupAffine, None, 4])
def test_wrong_codec(codec):
    with pytest.raises(TypeError, match="codec must have compress and decompress"):
        actcore.hooks(codec)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"seed": "0"}, TypeError, "seed must be an int, got '0'"),
        ({"seed": 1 << 64}, ValueError, "seed must fit in 64 bits"),
        ({"streams": 3}, TypeError, "streams must be an actcore.Streams, got 3"),
    ],
)
def test_wrong_options(arguments, error, text):
    with pytest.raises(error, match=text):
        actcore.hooks(EIGHT_BITS, **arguments)
    with pytest.raises(error, match=text):
        actcore.saved_tensors(lambda saved: EIGHT_BITS, **arguments)


def test_wrong_policy():
    with pytest.raises(TypeError, match="policy must be a function from a SavedTensor to a codec, got GroupAffine"):
        actcore.saved_tensors(EIGHT_BITS)
    h = X.clone().requires_grad_() * 1
    with pytest.raises(TypeError, match="codec must have compress"), actcore.saved_tensors(lambda saved: None):
        h.sin()


def test_nothing_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with under(EIGHT_BITS):
            mlp()(X).square().sum().backward()
