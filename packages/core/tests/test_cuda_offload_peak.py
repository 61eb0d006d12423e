"""What ``Offload`` takes of a GPU's memory while the host is ahead of it: some tensors, and not all of them."""

import pytest
import torch

import actcore

if not torch.cuda.is_available():
    pytest.skip("torch finds no GPU", allow_module_level=True)

pytestmark = pytest.mark.cuda

MIB = 2**20
SIZE, COUNT = 64 * MIB, 24
# Tensors that may lie on the device at once: the one that is being computed and the one before it, its copy, those
# whose copies to the host have not ended, and in backward those that are on their way back, one of them too many.
AT_ONCE = 10


def chain(x):
    """A chain of sines; each keeps its input, of which nothing else holds any."""
    for _ in range(COUNT):
        x = x.sin()
    return x


@pytest.fixture
def peaks():
    """Runs a step; returns the most that was reserved and active besides what was before."""

    def step(x, codec):
        if codec is None:
            y = chain(x)
        else:
            with torch.autograd.graph.saved_tensors_hooks(*actcore.hooks(codec)):
                y = chain(x)
        torch.autograd.grad(y.sum(), x)

    def run(codec):
        x = torch.ones(SIZE // 4, device="cuda", requires_grad=True)
        step(x, codec)  # loads the kernels, and pins the host's memory, which waits for the device
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved()
        torch.cuda._sleep(1_000_000_000)  # about half a second, in which the host enqueues all of the forward
        step(x, codec)
        torch.cuda.synchronize()
        found = torch.cuda.memory_stats()
        return found["reserved_bytes.all.peak"] - before, found["active_bytes.all.peak"]

    yield run
    torch.cuda.empty_cache()


def test_the_reserved_peak_is_bounded_where_the_host_is_ahead(peaks):
    reserved, _ = peaks(actcore.Offload())
    assert reserved <= AT_ONCE * SIZE


def test_plain_training_reserves_all_of_it(peaks):
    """Else the bound would say nothing."""
    reserved, active = peaks(None)
    assert reserved >= COUNT * SIZE
    assert active >= COUNT * SIZE
