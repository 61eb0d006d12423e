"""What ``Offload`` holds on a device while the host is far ahead of it, on streams and an allocator of the tests."""

import random

import pytest
import torch

import actcore
from actcore.codecs import offload

from . import fake_cuda

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")

BLOCK = 4 * 1000


@pytest.fixture
def cuda(monkeypatch):
    cuda = fake_cuda.install(monkeypatch)
    lane = offload.Lane(torch.device("cpu"))
    monkeypatch.setattr(offload, "lane", lambda device: lane)
    monkeypatch.setattr(offload, "_leaves", lambda device: True)
    monkeypatch.setattr(offload, "in_cuda_graph", lambda: cuda.capturing)
    for order in ("_last", "_leaving", "_ahead"):
        monkeypatch.setattr(offload, order, {})
    return cuda


def layer(cuda, number):
    """A tensor of the forward, stored; its own memory is free again."""
    h = cuda.new(torch.full((1000,), float(number)))
    cuda.run(write=[h])
    return actcore.compress(h, actcore.Offload())


def use(cuda, stored, number):
    value = stored.decompress()
    cuda.run(read=[value])
    assert torch.equal(value, torch.full((1000,), float(number)))


@pytest.mark.parametrize("layers", [8, 24])
def test_the_device_holds_a_few_tensors_however_far_the_host_is_ahead(cuda, layers):
    """One that is made and two on their way out; in backward one in use and two on their way back."""
    stack = [layer(cuda, number) for number in range(layers)]
    assert cuda.reserved == 3 * BLOCK
    for number in reversed(range(layers)):
        use(cuda, stack.pop(), number)
    assert cuda.reserved == 3 * BLOCK


@pytest.mark.parametrize("leaving", [0, 1])
def test_fewer_may_be_on_their_way_out(cuda, leaving):
    """What leaves without a copy on the device may be changed in place right afterwards."""
    codec, stack = actcore.Offload(leaving=leaving, ahead=False), []
    for number in range(8):
        h = cuda.new(torch.full((1000,), float(number)))
        cuda.run(write=[h])
        stack.append(actcore.compress(h, codec))
        cuda.run(write=[h])
        h.zero_()
    assert cuda.reserved <= (2 + leaving) * BLOCK  # the last tensor and the one before it, and one that is leaving
    del h
    for number in reversed(range(8)):
        use(cuda, stack.pop(), number)
    assert cuda.reserved <= (2 + leaving) * BLOCK


def test_what_is_dropped_and_what_dies_on_its_way_is_not_given_out_too_early(cuda):
    """In any order of storing, using and forgetting: the streams of the test assert it."""
    order = random.Random(0)
    kept = {}
    for number in range(300):
        kept[number] = layer(cuda, number)
        for _ in range(order.randrange(3)):
            if kept:
                use(cuda, kept[found := order.choice(list(kept))], found)
        for _ in range(order.randrange(3)):
            if kept:
                del kept[order.choice(list(kept))]
    kept.clear()
    assert cuda.reserved <= (1 + actcore.Offload().leaving + 1 + offload._AHEAD) * BLOCK


def test_another_stream_may_use_what_was_fetched_for_one(cuda):
    stack = [layer(cuda, number) for number in range(6)]
    first, second = cuda.current, fake_cuda.Stream(cuda)
    for number in reversed(range(6)):
        with cuda.stream(second if number % 2 else first):
            second.wait_stream(first)
            use(cuda, stack.pop(), number)
            layer(cuda, 0)


def test_what_is_stored_in_a_capture_stays_and_nothing_waits_across_its_border(cuda):
    """What began before it goes on beside it. A replay would write to pinned memory that is somebody else's by then."""
    before = [layer(cuda, number) for number in range(4)]
    use(cuda, before[3], 3)  # the one before is on its way
    before[0] = layer(cuda, 0)
    with cuda.capture():
        h = torch.full((1000,), 10.0)
        inside = actcore.compress(h, actcore.Offload())
        h.zero_()
        assert inside.codec == actcore.Raw()
        assert torch.equal(inside.decompress(), torch.full((1000,), 10.0))
        use(cuda, before.pop(), 3)
        del before[2]
    layer(cuda, 20)
    use(cuda, before[0], 0)


def test_no_memory_for_the_one_before_is_no_error(cuda, monkeypatch):
    stack = [layer(cuda, number) for number in range(3)]
    fetch, asked = offload._Transfer.fetch, []

    def scarce(transfer, lane):
        asked.append(transfer)
        if len(asked) % 2 == 0:  # each fetch of what is needed is followed by one ahead
            raise torch.OutOfMemoryError
        fetch(transfer, lane)

    monkeypatch.setattr(offload._Transfer, "fetch", scarce)
    for number in reversed(range(3)):
        use(cuda, stack.pop(), number)
    assert len(asked) == 5
