"""``Offload`` on a GPU: exact, in order, asynchronous, and in pinned memory."""

import pytest
import torch

import actcore

from .samples import normal, same_bits

if not torch.cuda.is_available():
    pytest.skip("torch finds no GPU", allow_module_level=True)

pytestmark = pytest.mark.cuda

CODECS = [actcore.Raw()]
if not actcore.build_info()["cuda_missing"]:
    CODECS.append(actcore.GroupAffine(bits=4))


def spin():
    """Keeps the current stream busy for about 50 ms."""
    torch.cuda._sleep(100_000_000)


@pytest.mark.parametrize("inner", CODECS, ids=repr)
def test_round_trip(inner):
    x = normal(100_000).cuda().view(100, 1000).t()
    c = actcore.compress(x, actcore.Offload(inner), seed=1, stream=2)
    assert c.device.type == "cpu"
    assert all(part.is_pinned() for part in c.payload)
    back = c.decompress()
    expected = actcore.compress(x, inner, seed=1, stream=2)
    assert c.nbytes == expected.nbytes
    assert same_bits(back, expected.decompress())
    assert (back.device, back.stride()) == (x.device, x.stride())


def test_the_host_does_not_wait():
    x = torch.ones(1 << 20, device="cuda")
    actcore.compress(x, actcore.Offload()).decompress()  # streams and pinned memory are made
    torch.cuda.synchronize()
    spin()
    c = actcore.compress(x, actcore.Offload())
    c.decompress()
    assert not torch.cuda.current_stream().query()  # still spinning


def test_the_copy_waits_for_the_value_and_later_changes_for_nothing():
    x = torch.zeros(1 << 20, device="cuda")
    spin()
    x.fill_(1)
    c = actcore.compress(x, actcore.Offload())
    x.fill_(2)
    del x
    others = [torch.full((1 << 20,), 3.0, device="cuda") for _ in range(8)]  # would take a block freed too early
    assert torch.equal(c.decompress(), torch.ones(1 << 20, device="cuda"))
    del others


def test_a_stack_of_tensors_comes_back():
    tensors = [torch.full((1 << 18,), float(number), device="cuda") for number in range(8)]
    stack = [actcore.compress(tensor, actcore.Offload()) for tensor in tensors]
    del tensors
    for number in reversed(range(8)):
        assert torch.equal(stack.pop().decompress(), torch.full((1 << 18,), float(number), device="cuda"))


def test_training_step():
    gradients = []
    for codec in (None, actcore.Offload()):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*[torch.nn.Linear(256, 256), torch.nn.Tanh()] * 4).cuda()
        x = normal(64 * 256).view(64, 256).cuda()
        if codec is None:
            model(x).sum().backward()
        else:
            with torch.autograd.graph.saved_tensors_hooks(*actcore.hooks(codec)):
                loss = model(x).sum()
            loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_saving_waits_for_the_copy(tmp_path):
    x = torch.zeros(1 << 20, device="cuda")
    spin()
    c = actcore.compress(x.fill_(1), actcore.Offload())
    torch.save(c, tmp_path / "c.pt")
    loaded = torch.load(tmp_path / "c.pt", weights_only=True)
    assert torch.equal(loaded.payload[0], torch.ones(1 << 20))
    assert torch.equal(loaded.decompress(), x)


def test_replays_of_a_graph_advance_the_stream():
    x = torch.ones(1, device="cuda")
    from actcore.device_streams import first_stream, new_key

    key = new_key(x.device)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.ops.actcore.next_stream(x, key)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = torch.ops.actcore.next_stream(x, key)
    found = []
    for _ in range(3):
        graph.replay()
        found.append(drawn.item())
    assert found == [first_stream(key) + step for step in (2, 3, 4)]
