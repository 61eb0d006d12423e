"""``region_stream`` and ``begin_regions``: the noise of compiled regions and the notes of their runs; and the overloads
named ``graph``, which compiled regions call."""

import ctypes
import threading

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import actcore
from actcore.device_streams import begin_regions
from actcore.ops import payload_bytes

from .samples import normal, same_bits

ops = torch.ops.actcore
X = normal(1000)
KEY = 0x9E3779B97F4A7C15  # more than 2**63


@pytest.fixture(autouse=True)
def outside():
    begin_regions(0)
    yield
    begin_regions(0)


def drawn(count, key=None):
    """The streams of as many regions, of a forward that begins now if a key is given."""
    if key is not None:
        begin_regions(key)
    return [ops.region_stream(X, region, []).item() for region in range(count)]


# ---- streams ----


def test_a_forward_of_the_same_key_draws_the_same_streams():
    assert drawn(5, KEY) == drawn(5, KEY)


@pytest.mark.parametrize("key", [1, KEY])
def test_streams_differ_between_regions_and_keys(key):
    found = drawn(100, key) + drawn(100, key + 1)
    assert len(set(found)) == 200


def test_a_stream_follows_from_the_place_in_the_forward_alone():
    """Not from the region's number, which depends on what was compiled before."""
    expected = drawn(2, KEY)
    begin_regions(KEY)
    assert [ops.region_stream(X[:3], number, [4]).item() for number in (70, 7)] == expected


def test_outside_of_forwards_all_streams_differ():
    assert len(set(drawn(100, 0) + drawn(100, 0))) == 200
    assert not begin_regions(0)


def test_a_stream_is_a_new_tensor_for_each_region():
    begin_regions(KEY)
    one, other = ops.region_stream(X, 1, []), ops.region_stream(X, 1, [])
    assert (one.shape, one.dtype, one.device) == ((1,), torch.int64, X.device)
    assert one.data_ptr() != other.data_ptr()


# ---- notes ----


def test_notes_have_numbers_and_sizes_in_order():
    begin_regions(KEY)
    for region, sizes in ((3, []), (1 << 40, [5, -1]), (3, [7])):
        ops.region_stream(X, region, sizes)
    assert begin_regions(0) == [3, 0, 1 << 40, 2, 5, -1, 3, 1, 7]
    assert begin_regions(0) == []


@pytest.mark.parametrize("count", [32, 33, 1000])
def test_more_notes_than_there_was_room_for(count):
    """The room for notes begins with 64: two for each region."""
    begin_regions(KEY)
    expected = drawn(count)
    begin_regions(KEY)
    assert drawn(count) == expected
    notes = begin_regions(KEY + 1)
    assert notes == [number for region in range(count) for number in (region, 0)]
    assert drawn(1) != expected[:1]  # the key is the last one, although it was asked twice
    assert begin_regions(0) == [0, 0]


def test_a_forward_inside_takes_notes_of_its_own():
    begin_regions(1)
    ops.region_stream(X, 10, [])
    assert begin_regions(2) == [10, 0]
    inside = ops.region_stream(X, 20, []).item()
    assert begin_regions(1) == [20, 0]
    again = ops.region_stream(X, 11, []).item()
    assert begin_regions(0) == [11, 0]
    assert inside != again


def test_each_thread_has_its_own():
    begin_regions(KEY)
    ops.region_stream(X, 1, [])
    found = []

    def other():
        found.append(ops.region_stream(X, 5, []).item())  # outside of forwards
        found.append(begin_regions(KEY))
        found.append(drawn(2))
        found.append(begin_regions(0))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    _, before, streams, notes = found
    assert (before, notes) == ([], [0, 0, 1, 0])
    assert ops.region_stream(X, 2, []).item() == streams[1]  # the second of this forward, too
    assert begin_regions(0) == [1, 0, 2, 0]


def test_a_listener_is_called_with_each_number():
    heard = []
    listener = ctypes.CFUNCTYPE(None, ctypes.c_int64)(heard.append)
    begin_regions(KEY, ctypes.cast(listener, ctypes.c_void_p).value)
    drawn(3)
    begin_regions(KEY)
    drawn(1)
    assert heard == [0, 1, 2]


# ---- the operators ----


def test_opcheck_of_region_stream():
    """Not its comparison of a traced with an eager run: every run gives another stream, which is what it is for."""
    for sizes in ([], [3, 4]):
        torch.library.opcheck(ops.region_stream.default, (X, 7, sizes), test_utils=("test_schema", "test_faketensor"))


def test_two_regions_in_a_graph_are_never_merged():
    def function(x):
        return ops.region_stream(x, 1, []), ops.region_stream(x, 1, [])

    begin_regions(KEY)
    one, other = torch.compile(function, backend="inductor")(X)
    assert one.item() != other.item()
    assert begin_regions(0) == [1, 0, 1, 0]


CODES, BOUNDS = ops.group_affine_compress(X, 3, 256, True, 9, 5)


def make_payload(codes, bounds):
    """Codes and bounds in one tensor, with zeros between them up to a multiple of a pair of bounds."""
    gap = -codes.numel() % (2 * bounds.element_size())
    return torch.cat([codes, codes.new_zeros(gap), bounds.view(-1).view(torch.uint8)])


GRAPHS = {
    "group_affine_compress": ((X, 3, 256, True, 9, 5), (X, 3, 256, True, 9, torch.tensor([5]))),
    "group_affine_decompress": (
        (CODES, BOUNDS, 1000, 3, 256),
        (make_payload(CODES, BOUNDS), 1000, torch.float32, 3, 256),
    ),
    "bit_mask_compress": ((X.gt(0), 0.0, 1.0),) * 2,
    "bit_mask_decompress": ((ops.bit_mask_compress(X.gt(0), 0.0, 1.0)[0], 1000, torch.bool, 0.0, 1.0),) * 2,
    "positive_mask": ((X,),) * 2,
}


def one_tensor(name, found):
    """The results of an operator as its overload for graphs returns them."""
    if name == "group_affine_compress":
        return make_payload(*found)
    return found[0] if name == "bit_mask_compress" else found


def test_every_overload_for_graphs_is_here():
    found = {schema.name for schema in torch._C._jit_get_all_schemas() if schema.overload_name == "graph"}
    assert {name.removeprefix("actcore::") for name in found if name.startswith("actcore::")} == set(GRAPHS)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_overload_gives_the_same_bits(name):
    arguments, given = GRAPHS[name]
    expected = one_tensor(name, getattr(ops, name)(*arguments))
    assert same_bits(expected, getattr(ops, name).graph(*given))


@pytest.mark.parametrize("numel", [0, 1, 31, 32, 33, 255, 256, 257, 1000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bits", range(1, 9))
def test_one_payload_has_the_codes_and_the_bounds(numel, dtype, bits):
    x = torch.randn(numel, dtype=torch.float64).to(dtype)
    key = 9, torch.tensor([5])
    payload = ops.group_affine_compress.graph(x, bits, 32, True, *key)
    codes, bounds = ops.group_affine_compress(x, bits, 32, True, 9, 5)
    assert same_bits(payload, make_payload(codes, bounds))
    assert payload.numel() == payload_bytes(numel, dtype, bits, 32)
    restored = ops.group_affine_decompress.graph(payload, numel, dtype, bits, 32)
    assert same_bits(restored, ops.group_affine_decompress(codes, bounds, numel, bits, 32))


@pytest.mark.parametrize("nbytes", [0, 391, 393])
def test_a_damaged_payload_is_refused(nbytes):
    payload = torch.zeros(nbytes, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="payload must hold 408 bytes"):
        ops.group_affine_decompress.graph(payload, 1000, torch.float32, 3, 256)


@pytest.mark.parametrize("name", GRAPHS)
def test_opcheck_of_a_graph_overload(name):
    torch.library.opcheck(getattr(ops, name).graph, GRAPHS[name][1], test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_overload_has_no_kernel_for_autograd_in_python(name):
    """The others refuse gradients there; compiled code runs below autograd and would only pay for it."""
    one = f"actcore::{name}"
    for key in ("AutogradCPU", "AutogradCUDA", "Autograd"):
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(f"{one}.graph", key)
    assert torch._C._dispatch_has_kernel_for_dispatch_key(one, "Autograd")


@pytest.mark.parametrize("stream", [5, -(1 << 62)])
def test_a_graph_overload_reads_its_stream_in_each_run(stream):
    given = torch.tensor([0])
    graph = make_fx(lambda x, stream: ops.group_affine_compress.graph(x, 3, 256, True, 9, stream))(X, given)
    given.fill_(stream)
    found, expected = graph(X, given), ops.group_affine_compress(X, 3, 256, True, 9, stream)
    assert same_bits(found, make_payload(*expected))


def test_vmap_takes_each_row_by_itself():
    """Also by the overload for graphs, to which a stream on the device leads."""
    rows, codec = X.view(4, 250), actcore.GroupAffine(bits=4)
    stream = torch.tensor([5])
    found = torch.func.vmap(lambda row: actcore.compress(row, codec, seed=3, stream=stream).payload[0])(rows)
    alone = [actcore.compress(row, codec, seed=3, stream=stream).payload[0] for row in rows]
    assert all(same_bits(one, other) for one, other in zip(found, alone, strict=True))
