"""``graph_hooks``: compiled regions save the stored forms, and their noise advances."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import actcore
from actcore.device_streams import first_stream, new_key

from .samples import normal, same_bits

ops = torch.ops.actcore
FOUR_BITS, EIGHT_BITS = actcore.GroupAffine(bits=4), actcore.GroupAffine(bits=8)
X = normal(64 * 48).view(64, 48)
W = normal(48 * 48, seed=1).view(48, 48) / 7


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def layers(x, w):
    """Two equal layers; each saves the result of its tanh, once for itself and the next product."""
    h = (x @ w).tanh()
    h = (h @ w).tanh()
    return (h @ w).square().sum()


def leaves():
    return X.clone().requires_grad_(), W.clone().requires_grad_()


def saved_of(y):
    return y.grad_fn.saved_tensors


def codes_of(y):
    return [part.clone() for part in saved_of(y) if part.dtype == torch.uint8]


def run(function, pair, arguments):
    with saved_tensors_hooks(*pair):
        return function(*arguments)


def relative_error(got, expected):
    return ((got - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize(("backend", "dynamic"), [("aot_eager", False), ("aot_eager", True), ("inductor", False)])
def test_a_compiled_region_saves_packed_bytes(backend, dynamic):
    """Of its own values (tanh, twice, and what is squared) a region saves codes and bounds alone."""
    pair = actcore.graph_hooks(EIGHT_BITS)
    function = torch.compile(layers, backend=backend, dynamic=dynamic, fullgraph=True)
    x, w = leaves()
    y = run(function, pair, (x, w))
    given = (x.data_ptr(), w.data_ptr())
    packed = [part for part in saved_of(y) if part.data_ptr() not in given]
    assert {(part.dtype, part.dim()) for part in packed} == {(torch.uint8, 1), (torch.float32, 2)}
    assert sum(part.nbytes for part in packed) == 3 * EIGHT_BITS.stored_bytes(X.numel(), X.dtype)
    y.backward()
    exact = leaves()
    layers(*exact).backward()
    # 8 bits of values in -1..1: a step of 2 / 255, in 3 layers, beside derivatives of the size of the values.
    assert 0 < relative_error(w.grad, exact[1].grad) < 3 * 2 / 255
    assert 0 < relative_error(x.grad, exact[0].grad) < 3 * 2 / 255


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_the_noise_advances(backend):
    """Two steps differ, and two equal layers on equal data do."""

    def equal_layers(x, w):
        return ((x @ w).tanh() @ w).sum() + ((x.clone() @ w.clone()).tanh() @ w).sum()

    pair = actcore.graph_hooks(FOUR_BITS)
    function = torch.compile(equal_layers, backend=backend)
    if backend == "inductor":  # which finds the layers equal, and computes one
        function = torch.compile(layers, backend=backend)
    arguments = leaves()
    first, second = (codes_of(run(function, pair, arguments)) for _ in range(2))
    assert len(first) == len(second) >= 2
    for index, codes in enumerate(first):
        others = second + first[:index]
        assert all(not torch.equal(codes, other) for other in others)


def test_the_same_stream_gives_the_same_bytes_eager_and_compiled():
    """What a region saves is ``compress`` of the tensor with the counter's stream."""
    pair = actcore.graph_hooks(FOUR_BITS, seed=9)
    function = torch.compile(lambda x: (x * 2).tanh().sum(), backend="aot_eager")
    key = new_key(X.device) + 1
    for step in range(1, 4):
        y = run(function, pair, (X.clone().requires_grad_(),))
        expected = actcore.compress((X * 2).tanh(), FOUR_BITS, seed=9, stream=first_stream(key) + step)
        [codes] = codes_of(y)
        assert same_bits(codes, expected.payload[0])


def test_compress_takes_a_stream_on_the_device():
    stream = torch.tensor([-5])
    got = actcore.compress(X, FOUR_BITS, seed=3, stream=stream)
    assert same_bits(got.payload[0], actcore.compress(X, FOUR_BITS, seed=3, stream=-5).payload[0])


def test_only_floating_tensors_are_packed():
    """A gather saves its index, which the region computes."""

    def function(x, w):
        index = (x > 0).sum(1) % 7
        return (x @ w).tanh()[index].sum()

    x, w = leaves()
    y = run(torch.compile(function, backend="aot_eager"), actcore.graph_hooks(EIGHT_BITS), (x, w))
    assert {part.dtype for part in saved_of(y)} == {torch.uint8, torch.float32, torch.int64}
    y.backward()
    exact = leaves()
    function(*exact).backward()
    assert relative_error(w.grad, exact[1].grad) < 3 * 2 / 255  # as above; a wrong index would change whole rows


def test_a_tensor_too_small_to_gain_passes():
    x, w = normal(2).requires_grad_(), normal(2, seed=1).requires_grad_()
    y = run(
        torch.compile(lambda x, w: (x * w).tanh().sum(), backend="aot_eager"), actcore.graph_hooks(FOUR_BITS), (x, w)
    )
    assert {part.dtype for part in saved_of(y)} == {torch.float32}
    y.backward()
    assert torch.allclose(x.grad, (1 - (x * w).tanh() ** 2).detach() * w, rtol=1e-6)  # the same formula, other order


@pytest.mark.parametrize("codec", [actcore.Raw(), actcore.Positive()], ids=repr)
def test_codecs_without_noise(codec):
    def function(x, w):
        return torch.nn.functional.leaky_relu(x @ w, 0.1).sum()

    x, w = leaves()
    run(torch.compile(function, backend="aot_eager"), actcore.graph_hooks(codec), (x, w)).backward()
    exact = leaves()
    function(*exact).backward()
    assert torch.allclose(w.grad, exact[1].grad, rtol=1e-5, atol=1e-5)  # sums of 64 products in another order


def test_strides_come_back():
    def function(x):
        return x.permute(0, 2, 3, 1).mul(2).tanh().sum()

    x = normal(2 * 6 * 8 * 8).view(2, 6, 8, 8).contiguous(memory_format=torch.channels_last).requires_grad_()
    run(torch.compile(function, backend="aot_eager", dynamic=True), actcore.graph_hooks(EIGHT_BITS), (x,)).backward()
    exact = x.detach().clone().requires_grad_()
    function(exact).backward()
    assert relative_error(x.grad, exact.grad) < 2 * 2 / 255 * 2  # slope 1 - y**2 of y within 2 / 255, times 2


def test_outside_of_compiled_regions_they_are_hooks():
    pack, unpack = actcore.graph_hooks(EIGHT_BITS, seed=4, streams=actcore.Streams("mine"))
    assert isinstance(pack, torch.fx.GraphModule)
    assert isinstance(unpack, torch.fx.GraphModule)
    plain_pack, plain_unpack = actcore.hooks(EIGHT_BITS, seed=4, streams=actcore.Streams("mine"))
    assert same_bits(unpack(pack(X)), plain_unpack(plain_pack(X)))
    x = X.clone().requires_grad_()
    h = x * 1
    with saved_tensors_hooks(*actcore.graph_hooks(actcore.Raw())):
        y = h.sin()
    h.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_new_pair_compiles_anew():
    """Rather than take the code that was compiled for another codec."""
    function = torch.compile(layers, backend="aot_eager")
    sizes = []
    for codec in (FOUR_BITS, EIGHT_BITS):
        x, w = leaves()
        y = run(function, actcore.graph_hooks(codec), (x, w))
        sizes.append(sum(part.nbytes for part in saved_of(y) if part.dtype == torch.uint8))
    assert sizes[1] == 2 * sizes[0]


def test_wrong_codec():
    with pytest.raises(TypeError, match="codec must have compress and decompress"):
        actcore.graph_hooks(4)


# ---- the operator ----


def test_opcheck_of_next_stream():
    """Not its comparison of a traced with an eager run: every run gives another stream, which is what it is for."""
    torch.library.opcheck(
        ops.next_stream.default, (X, new_key(X.device)), test_utils=("test_schema", "test_faketensor")
    )
    torch.library.opcheck(
        ops.next_stream.default, (X.clone().requires_grad_(), 0), test_utils="test_autograd_registration"
    )


def test_next_stream_counts_by_key():
    one, other = new_key(X.device), new_key(X.device)
    assert other == one + 1
    drawn = [ops.next_stream(X, key).item() for key in (one, one, other, one)]
    assert drawn == [first_stream(one) + 1, first_stream(one) + 2, first_stream(other) + 1, first_stream(one) + 3]
    assert ops.next_stream(X, one).dtype == torch.int64


def test_next_stream_without_a_key_made_before():
    """As when compiled code comes from another process's cache."""
    key = 1 << 40
    assert ops.next_stream(X, key).item() == first_stream(key) + 1


def test_two_calls_with_one_key_are_never_merged():
    key = new_key(X.device)

    def function(x):
        return ops.next_stream(x, key), ops.next_stream(x, key)

    one, other = torch.compile(function, backend="inductor")(X)
    assert one.item() != other.item()
