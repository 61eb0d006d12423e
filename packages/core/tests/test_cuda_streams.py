"""Kernels run on torch's current stream and the input's device, and CUDA graphs replay them."""

import pytest
import torch

import actcore

from .samples import assert_same_bytes, normal

if actcore.build_info()["cuda_missing"]:
    pytest.skip(f"no CUDA operators: {actcore.build_info()['cuda_missing']}", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("torch finds no GPU", allow_module_level=True)

pytestmark = pytest.mark.cuda


def test_torchs_generator_is_neither_used_nor_moved():
    state = torch.cuda.get_rng_state()
    actcore.decompress(actcore.compress(torch.ones(1000, device="cuda"), actcore.GroupAffine(4)))
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_kernels_run_on_the_current_stream():
    """Queued behind a long wait on their stream, they see what was written there after they were called elsewhere."""
    expected = actcore.compress(torch.ones(100_000), actcore.GroupAffine(4)).payload[1]
    x = torch.zeros(100_000, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        actcore.compress(x, actcore.GroupAffine(4))  # loads the kernel and allocates, both of which may wait
        stream.synchronize()
        torch.cuda._sleep(1_000_000_000)  # about half a second
        x.fill_(1)
        c = actcore.compress(x, actcore.GroupAffine(4))
    assert not stream.query()  # it did not wait for the stream
    stream.synchronize()
    assert_same_bytes(c.payload[1], expected)


def test_a_cuda_graph_replays_with_new_input():
    x = torch.zeros(10_000, device="cuda")
    codec = actcore.GroupAffine(4)
    actcore.decompress(actcore.compress(x, codec))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = actcore.decompress(actcore.compress(x, codec, seed=1))
    for seed in (0, 1):
        new = normal(10_000, seed=seed)
        x.copy_(new)
        graph.replay()
        assert_same_bytes(y, actcore.decompress(actcore.compress(new, codec, seed=1)))


@pytest.mark.parametrize(
    "codec", [actcore.GroupAffine(3), actcore.Float8(), actcore.GroupAffineRows((1, 3, 4, 8))], ids=repr
)
def test_keys_on_the_device(codec):
    x = normal(1200).view(4, 300)
    key = (torch.tensor([-1]).cuda(), torch.tensor(7).cuda())
    got = actcore.compress(x.cuda(), codec, seed=key[0], stream=key[1]).payload
    for one, other in zip(got, actcore.compress(x, codec, seed=-1, stream=7).payload, strict=True):
        assert_same_bytes(one, other)


@pytest.mark.parametrize("codec", [actcore.GroupAffine(3), actcore.Float8()], ids=repr)
def test_each_replay_of_a_cuda_graph_draws_anew(codec):
    x = normal(10_000).cuda()
    stream = torch.zeros(1, dtype=torch.int64, device="cuda")
    actcore.compress(x, codec, seed=1, stream=stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stream += 1
        codes = actcore.compress(x, codec, seed=1, stream=stream).payload[0]
    stream.zero_()
    for step in (1, 2, 3):
        graph.replay()
        assert_same_bytes(codes, actcore.compress(x.cpu(), codec, seed=1, stream=step).payload[0])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_kernels_run_on_the_inputs_device():
    x = normal(10_000)
    with torch.cuda.device(0):
        c = actcore.compress(x.to("cuda:1"), actcore.GroupAffine(4))
        assert c.device == torch.device("cuda:1")
        assert_same_bytes(c.decompress(), actcore.decompress(actcore.compress(x, actcore.GroupAffine(4))))
        assert torch.cuda.current_device() == 0
