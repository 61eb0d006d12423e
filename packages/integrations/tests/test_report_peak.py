"""The step's peak in a report: simulated for a plan, estimated from saved tensors for a level."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import integrations
from integrations import Report, Row
from integrations.report.peak import estimated_peaks, gradient_bytes_by_module
from integrations.tracing.storage.records import IN_CHUNKS, name_of_chunks

from .nets import mlp, normal, profiled_bytes


def row(module, elements, stored, codec="GroupAffine(bits=4)", dtype=torch.float32, **changed):
    nbytes = elements * dtype.itemsize
    made = Row(module, "op", "input", (elements,), dtype, codec, nbytes, stored, "why", "")
    return dataclasses.replace(made, **changed)


def test_the_peak_is_in_the_middle_or_later_and_without_the_gradients_that_stay():
    rows = [row("a", 100, 50), row("b", 300, 150), row("c", 25, 100, "kept")]
    # c's operator: 1700 saved, and 100 for the gradient of its input. b's: 1600, 100 and 1200. a's: 400, 1200 and 400.
    # Compressed, b's has 200 saved, 1200 restored, 100 and 1200; a's 50, 400 restored, 1200 and 400.
    assert estimated_peaks(rows, {}) == (2900, 2700)
    # At b's, the gradients of c's parameters are there; of all, 90 are left after backward.
    assert estimated_peaks(rows, {"a": 40, "b": 30, "c": 20}) == (2900 + 20 - 90, 2700 + 20 - 90)
    assert estimated_peaks(rows, {}, gradient_bytes=5000) == (1700 + 5000 + 100, 300 + 5000 + 100)
    # In the end there is the gradient of a's input beside all of them.
    assert estimated_peaks(rows, {"a": 10_000}) == (400, 400)
    assert estimated_peaks([], {}) == (0, 0)


def test_what_the_peak_does_not_count():
    alive = row("a", 100, 0, "kept", owner="parameter")
    assert estimated_peaks([alive], {}) == (0, 0)
    on_host = row("a", 100, 50, host=True)  # restored in backward
    assert estimated_peaks([on_host], {}) == (800, 800)
    # An index that is expanded to 100 x 8 is 800 bytes; the gradient of what it selects from has 100 x 8 elements.
    index = row("a", 800, 100, "Narrow()", torch.int64, original_bytes=800)
    assert estimated_peaks([index], {}) == (800 + 3200, 100 + 800 + 3200)


def test_a_loss_in_chunks_has_no_logits():
    rows = [row("a", 100, 400, "kept"), row("", 1000, 40, name_of_chunks(8, 0))]
    # Plain: 4400 saved, and the gradients of the softmax and the logits.
    assert estimated_peaks(rows, {}) == (4400 + 8000, 400 + 400)


def test_the_forward_of_a_loss_in_chunks_has_a_chunk():
    """And its gradient of the head's weight is still there after the loss. The peak was 0."""
    chunks = name_of_chunks(8, 3200)
    loss = row("", 25, 100, chunks), row("", 3200, 400, chunks, shape=(32, 100), role="result")
    rows = [row("a", 100, 400, "kept"), *loss]
    # What is kept, the loss's gradients, and a chunk of 8 rows of 100 classes, less the gradients that stay.
    gradients = {"a": 40, "head": 400}
    assert estimated_peaks(rows, gradients)[1] == 400 + 500 + 8 * 100 * 4 - 440
    # An embedding saves nothing that counts: its gradient is made last, beside that of its output.
    assert estimated_peaks(rows, {**gradients, "embedding": 10_000})[1] == 400


def test_a_plan_says_its_peaks_and_a_level_estimates_them():
    model, x = mlp(), normal(256, 64)
    integrations.compress_model(model, memory=0.9, error=0.1)
    model(x).square().sum().backward()
    handle = integrations.compression(model)
    plan, report = handle._plan_manager.plan, handle.report()
    assert (report.original_peak_bytes, report.peak_bytes) == (plan.uncompressed_peak, plan.peak)
    assert report.title.endswith(", planned; not measured on the CPU")
    integrations.compress_model(integrations.restore_model(model), level="L1")
    model(x).square().sum().backward()
    estimated = integrations.compression(model).report()
    assert estimated.title.endswith(", estimated")
    assert "Temporary memory of operators does not count." in estimated.caption
    # The estimate omits only the loss in an MLP of that size.
    assert estimated.original_peak_bytes <= plan.uncompressed_peak
    assert estimated.peak_bytes < estimated.original_peak_bytes
    assert integrations.forecast(mlp(), (torch.empty(256, 64, device="meta"),)).peak_bytes == estimated.peak_bytes


def test_peaks_that_nobody_knows_are_not_told():
    assert Report("L1", [row("a", 8, 2)]).title.endswith("; step peak not known")
    assert "peak" not in integrations.compression(integrations.compress_model(mlp())).report().title


def test_gradients_are_those_of_trained_parameters_each_once():
    model = nn.Sequential(
        nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4, bias=False)), nn.Linear(4, 4).requires_grad_(False)
    )
    model[1][0].weight = model[0].weight
    assert gradient_bytes_by_module(model) == {"0": 80}


def test_gradients_of_parameters_without_a_shape_and_on_other_ranks():
    model = integrations.compress_model(nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 1)))
    assert gradient_bytes_by_module(model) == {"1": 4 * 9}
    assert not integrations.compression(model).report().rows
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        cut = distribute_tensor(torch.zeros(8, 6), init_device_mesh("cpu", (2,)), [Shard(0)])
        model = nn.Linear(6, 8, bias=False)
        model.weight = nn.Parameter(cut)
        assert gradient_bytes_by_module(model) == {"": 4 * 4 * 6}
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("frozen", [False, True])
def test_a_loss_in_chunks_has_its_rows(frozen):
    """A report had only the gradients that the loss keeps, and not the logits that it avoids."""
    torch.manual_seed(0)
    labels = torch.arange(96) % 50

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(16, 32), nn.Linear(32, 50).requires_grad_(not frozen)

        def forward(self, x):
            return nn.functional.cross_entropy(self.head(self.body(x).tanh()), labels)

    found = []
    for loss in (None, {"head": "head"}):
        model = integrations.compress_model(Net(), level="L0" if loss else "L1", loss=loss, min_bytes=1 << 30)
        model(normal(96, 16)).backward()
        found.append(integrations.compression(model).report())
    plain, chunked = found
    rows = [one for one in chunked.rows if one.operator == "chunked cross_entropy"]
    assert [one.role for one in rows] == (["result"] if frozen else ["input", "result"])
    assert rows[-1].shape == (96, 50)
    assert rows[-1].original_bytes == 96 * 50 * 4
    gradients = 96 * 32 * 4 + (0 if frozen else (50 * 32 + 50) * 4)
    assert sum(one.stored_bytes for one in rows) == gradients
    targets = labels.numel() * 8  # torch's loss keeps them; these are an input of nobody's
    assert abs(chunked.original_bytes - plain.original_bytes) <= targets
    assert f"{IN_CHUNKS} of" in rows[-1].codec


class Adapted(nn.Module):
    """A layer that is more than a weight and a bias."""

    def __init__(self, features, classes):
        super().__init__()
        self.in_features, self.out_features = features, classes
        self.base, self.adapter = nn.Linear(features, classes), nn.Linear(features, classes, bias=False)
        self.base.requires_grad_(False)

    def forward(self, x):
        return self.base(x) + self.adapter(x)


@pytest.mark.parametrize("head", [nn.Linear, Adapted])
@pytest.mark.parametrize("cap", [None, 5.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_estimate_counts_all_tensors_of_a_chunk(dtype, cap, head):
    """For bfloat16 it missed the logits in float32 and the sum of the weight's gradients; with a cap, tanh's result."""
    rows, features, classes = 600, 64, 3000
    torch.manual_seed(0)
    labels = torch.arange(rows)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(features, features), head(features, classes)

        def forward(self, x):
            logits = self.head(self.body(x).tanh())
            logits = logits if cap is None else cap * (logits / cap).tanh()
            return nn.functional.cross_entropy(logits.float(), labels)

    model = integrations.compress_model(Net().to(dtype), level="L0", loss={"head": "head"}, min_bytes=1 << 30)
    x = normal(rows, features).to(dtype)
    with torch.backends.mkldnn.flags(enabled=False):  # oneDNN has buffers for products in bfloat16
        model(x).backward()
        model.zero_grad()
        most, left = profiled_bytes(lambda: model(x).backward())
    missing = most - left - integrations.compression(model).report().peak_bytes
    # The estimate has no numbers of rows: at most 16 of 8 bytes for one in a chunk of 128, and two for each.
    assert 0 <= missing <= 128 * 16 * 8 + rows * 2 * 8
