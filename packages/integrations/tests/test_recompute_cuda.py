"""Plans of CUDA's operators, on fake tensors, which need no GPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from integrations.capture import capture as capturing
from integrations.capture.costs import workspaces
from integrations.capture.dispatch.memory import allocated
from integrations.checkpoint import capture, plan
from integrations.planner.plan_with_stores import planned
from integrations.policies.levels import resolve_level
from integrations.tracing.tensors import tensors_in

from . import fake_engine
from .recompute_nets import net

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)
BATCH, HEADS, TOKENS, WIDTH = 2, 4, 63, 8


class Net(nn.Module):
    """Operators that differ from the CPU's: a convolution, its normalisation, dropout, attention by one kernel."""

    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel
        self.conv, self.norm = nn.Conv2d(3, HEADS * WIDTH, 3, padding=1), nn.BatchNorm2d(HEADS * WIDTH)
        self.dropout, self.qkv = nn.Dropout(0.1), nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)

    def forward(self, x):
        x = self.dropout(F.relu(self.norm(self.conv(x)))).flatten(2).transpose(1, 2)
        return self.kernel(*(part.unflatten(2, (HEADS, WIDTH)).transpose(1, 2) for part in self.qkv(x).chunk(3, 2)))


# A kernel, and the shape of its logarithm of the softmax's sum.
KERNELS = {
    "flash": (
        lambda *qkv: aten._scaled_dot_product_flash_attention(*qkv, 0.1)[0].float().sum(),
        (BATCH, HEADS, TOKENS),
    ),
    "efficient": (
        lambda *qkv: aten._scaled_dot_product_efficient_attention(*qkv, None, True, 0.1)[0].float().sum(),
        (BATCH, HEADS, 64),  # a whole number of tiles of 32 rows
    ),
    "cudnn": (
        lambda *qkv: aten._scaled_dot_product_cudnn_attention(*qkv, None, True, 0.1)[0].float().sum(),
        (BATCH, HEADS, TOKENS, 1),
    ),
}


def total(output):
    return sum(tensor.sum() for tensor in tensors_in(output) if tensor.requires_grad)


@pytest.fixture
def fake_gpu(monkeypatch):
    """What is on ``meta`` is taken to be on a GPU."""
    monkeypatch.setattr(torch.Tensor, "backward", fake_engine.backward)
    monkeypatch.setattr(capturing, "_get_device", lambda *_: CUDA)


def on_meta(kernel, dtype=torch.bfloat16):
    with torch.device("meta"):
        model = Net(kernel).to(dtype).train()
        return model, torch.empty(BATCH, 3, 9, 7, dtype=dtype)


@pytest.mark.parametrize("name", ["resnet", "densenet", "transformer", "nested"])
def test_the_engine_in_python_is_torchs(name, monkeypatch):
    model, args, kwargs = net(name)

    def captured():
        # Not held: outputs would have all that was saved, since nobody can make a node let go from Python.
        return capture(model, args, kwargs, loss=total, holds_outputs=False)

    found = captured()
    monkeypatch.setattr(torch.Tensor, "backward", fake_engine.backward)
    assert captured() == found


@pytest.mark.parametrize("name", KERNELS)
def test_what_attention_saves(name, fake_gpu):
    kernel, sums = KERNELS[name]
    graph = capture(*on_meta(kernel))
    [op] = [op for op in graph.ops if "attention" in op.name]
    out, logsumexp, seed, offset = op.makes[:4]
    assert (op.shapes[0], op.shapes[1]) == ((BATCH, HEADS, TOKENS, WIDTH), sums)
    assert set(op.packs) == {out, logsumexp, seed, offset}
    sizes = [graph.values[value].nbytes for value in (out, logsumexp, seed, offset)]
    # 2 bytes an element of the result, 4 of the sums, whatever the result's dtype; the least block for a seed.
    sums_bytes = allocated(4 * torch.Size(sums).numel(), CUDA)
    assert sizes == [allocated(2 * BATCH * HEADS * TOKENS * WIDTH, CUDA), sums_bytes, 512, 512]
    assert op.repeatable
    assert not op.decides  # its whole numbers are notes to its own backward, no places that are looked up
    # Query, key and value are views of one projection, which backward reads with all that the kernel has noted.
    step = next(step for step in graph.steps if set(op.packs) <= set(step.reads))
    [projection] = set(step.reads) - set(op.packs)
    assert graph.values[projection].nbytes == allocated(3 * 2 * BATCH * HEADS * TOKENS * WIDTH, CUDA)


def test_what_dropout_saves(fake_gpu):
    graph = capture(*on_meta(KERNELS["flash"][0]))
    [op] = [op for op in graph.ops if op.name == "aten.native_dropout.default"]
    elements = BATCH * TOKENS * HEADS * WIDTH
    result, mask = op.makes
    assert graph.values[result].nbytes == allocated(2 * elements, CUDA)
    assert graph.values[mask].nbytes == allocated(elements, CUDA)  # truth values, a byte each
    assert mask in op.packs


@pytest.mark.skipif(not torch.backends.cudnn.is_available(), reason="torch was built without cuDNN")
def test_what_cudnns_batchnorm_saves(fake_gpu):
    graph = capture(*on_meta(KERNELS["efficient"][0], torch.float32))
    [op] = [op for op in graph.ops if op.name == "aten.cudnn_batch_norm.default"]
    # The statistics, and cuDNN's reserve, of which a fake one knows the size no better than we do.
    assert {graph.values[value].nbytes for value in op.packs} == {512, 0}
    assert op.scratch == 2 * 512  # of running statistics, which a repetition must not update once more


def test_a_plan_of_cuda(fake_gpu):
    model, x = on_meta(KERNELS["flash"][0])
    made = plan(model, x)
    assert made.peak < made.plain_peak
    assert all(value.nbytes % 512 == 0 for value in made.graph.values)
    assert all(nbytes % 512 == 0 for nbytes in (*made.graph.other, *made.graph.standing))
    # Weight and bias of three layers, 2 bytes an element.
    assert made.graph.gradients == sum(allocated(2 * parameter.numel(), CUDA) for parameter in model.parameters())


def test_values_take_what_the_allocator_counts():
    assert [allocated(nbytes, CUDA) for nbytes in (0, 1, 512, 513, 10**6)] == [0, 512, 512, 1024, 1000448]
    assert allocated(513, torch.device("cpu")) == 513


class Allocator:
    """torch's counters, of whole blocks."""

    def __init__(self):
        self.now = self.most = 3 * 512

    def take(self, nbytes):
        self.now += allocated(nbytes, CUDA)
        self.most = max(self.most, self.now)

    def reset(self):
        self.most = self.now


def test_scratch_is_beside_whole_blocks(monkeypatch):
    """A result of 700 bytes has 1024, which are none of the kernel's own."""
    allocator, left = Allocator(), []

    class Call:
        def __call__(self):
            allocator.now -= sum(left)  # the result of the call before
            left[:] = [allocated(700, CUDA)]
            allocator.take(700)
            allocator.take(2000)
            allocator.now -= 2048

        def new_bytes(self, _):
            return 700

        def seconds(self, _):
            return 1.0

    for name, function in (
        ("synchronize", lambda *_: None),
        ("reset_peak_memory_stats", allocator.reset),
        ("memory_allocated", lambda: allocator.now),
        ("max_memory_allocated", lambda: allocator.most),
    ):
        monkeypatch.setattr(torch.cuda, name, function)
    assert workspaces._cost_on_cuda(Call()).scratch == 2048


def test_what_a_level_stores_takes_whole_blocks_too(fake_gpu):
    model, x = on_meta(KERNELS["flash"][0])
    made = planned(model, resolve_level("L1", {}), (x,), {})
    rows = zip(made.graph.values, made.candidates.options, strict=True)
    held = [(option.held, value.nbytes) for value, row in rows for option in row]
    assert held
    assert all(stored % 512 == 0 and stored < nbytes for stored, nbytes in held)


def test_what_goes_to_the_host_takes_nothing(fake_gpu):
    """And what backward recomputes is about to be read, and stays on the device."""
    model, x = on_meta(KERNELS["flash"][0])
    made = planned(model, resolve_level("swap", {}), (x,), {})
    assert {option.held for row in made.candidates.options for option in row} == {0}
    assert made.plain_peak < made.uncompressed_peak
