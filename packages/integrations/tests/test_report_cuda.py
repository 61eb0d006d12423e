"""Forecasts of CUDA's operators, which need no GPU; and which operators CUDA has that the CPU has not."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import actcore
import integrations
from actcore import device_streams
from integrations._utils.autocast import autocast_as_on
from integrations.cli import main
from integrations.policies.rules import RULES
from integrations.tracing.storage import store

from .libraries import library_or_skip
from .nets import Net, normal

WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a GPU, and asks it")
W, IMAGES = normal(8, 8, 3, 3), torch.empty(4, 8, 16, 16, device="meta")
CELLS = torch.empty(64, 64, device="meta")


def projected(function):
    """A function of images that autograd alone keeps."""
    return Net(lambda self, x: function(self, F.conv2d(x, self.w, padding=1)), w=W)


# Calls of Python for which CUDA has operators of its own, with the models that make them.
SAME = {
    "conv2d": projected(lambda self, x: F.conv2d(x, self.w)),
    "conv2d by channels": projected(lambda self, x: F.conv2d(x, self.w[:, :1], groups=8)),
    "conv_transpose2d": projected(lambda self, x: F.conv_transpose2d(x, self.w)),
    "batch_norm": projected(lambda self, x: F.batch_norm(x, None, None, self.w[:, 0, 0, 0], training=True).relu()),
    "grid_sample": projected(lambda self, x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), align_corners=False)),
    "scaled_dot_product_attention": projected(lambda self, x: F.scaled_dot_product_attention(x, x.sin(), x.cos())),
}
EXACT = {"lstm_cell": nn.LSTMCell(64, 64), "gru_cell": nn.GRUCell(64, 64)}

# Differentiable operators that CUDA has and the CPU has not, and the call under which the rules know them.
OWN = {
    "_cudnn_ctc_loss": "ctc_loss",
    "_cudnn_rnn": "lstm",
    "_fused_dropout": "dropout",
    "cudnn_affine_grid_generator": "affine_grid_generator",
    "cudnn_batch_norm": "batch_norm",
    "cudnn_convolution": "conv2d",
    "cudnn_convolution_transpose": "conv_transpose2d",
    "cudnn_grid_sampler": "grid_sampler",
    "_thnn_fused_lstm_cell": "lstm_cell",
    "_thnn_fused_gru_cell": "gru_cell",
    "_conv_depthwise2d": "conv2d",
    "conv_depthwise3d": "conv3d",
    "_scaled_dot_product_flash_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_efficient_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_cudnn_attention": "scaled_dot_product_attention",
    "_flash_attention_forward": "",  # by people who call it: no rule
    "_efficient_attention_forward": "",
    "_cudnn_attention_forward": "",
}


def found(report):
    """Rows without what a kernel notes for itself in a few whole numbers."""
    return [
        (row.operator, row.role, row.shape, row.dtype, row.codec, row.original_bytes, row.stored_bytes)
        for row in report.rows
        if row.dtype.is_floating_point or row.original_bytes > 16
    ]


@pytest.mark.parametrize("call", SAME)
def test_what_cuda_saves_is_stored_as_on_the_cpu(call):
    options = {"level": "L1", "min_bytes": 0}
    on_cpu, on_cuda = (
        found(integrations.forecast(SAME[call], IMAGES, device=device, **options)) for device in ("cpu", "cuda")
    )
    assert on_cuda == on_cpu
    assert any(codec != "kept" for _, _, _, _, codec, _, _ in on_cuda) == (call != "grid_sample")


@pytest.mark.parametrize("call", EXACT)
def test_what_cells_on_cuda_save_is_kept(call):
    try:
        report = integrations.forecast(EXACT[call], CELLS, device="cuda", min_bytes=0)
    except RuntimeError as error:
        if not isinstance(error.__cause__.__context__, NotImplementedError):
            raise
        pytest.skip(f"this torch has no {call} on fake tensors")
    assert any(row.operator == call for row in report.rows)
    assert {row.codec for row in report.rows if row.operator == call} == {"kept"}


def test_dropout_keeps_truth_values_on_cuda():
    model = projected(lambda self, x: F.dropout(x, 0.5).sum())
    [on_cpu], [on_cuda] = (
        [row for row in integrations.forecast(model, IMAGES, device=device).rows if row.operator == "dropout"]
        for device in ("cpu", "cuda")
    )
    assert (on_cpu.dtype, on_cuda.dtype) == (torch.float32, torch.bool)
    assert on_cuda.original_bytes * 4 == on_cpu.original_bytes == 4 * IMAGES.numel()
    assert on_cuda.stored_bytes == on_cpu.stored_bytes == IMAGES.numel() // 8


@WITHOUT_GPU
@pytest.mark.filterwarnings("ignore:Net at swap. nothing is offloaded")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_is_no_softmax_where_there_is_no_gpu(dtype, masked):
    """torch asks the GPU for a kernel, and where there is none takes plain operators, which keep every probability."""

    def forward(self, x):
        mask = torch.ones(16, 16, dtype=torch.bool, device=x.device).tril() if masked else None
        return F.scaled_dot_product_attention(x * self.w, x * self.v, x * self.u, mask)

    model, x = Net(forward, w=W[0, 0, 0, 0], v=W[1, 0, 0, 0], u=W[2, 0, 0, 0]).to(dtype), IMAGES.to(dtype)
    rows = [
        row
        for row in integrations.forecast(model, x, level="swap", device="cuda").rows
        if row.operator.startswith("scaled") and row.dtype.is_floating_point
    ]
    of_rows = 16 if dtype is torch.bfloat16 and not masked else 32  # memory-efficient attention has tiles of 32
    size = tuple(IMAGES.shape)
    bias = [("internal", size)] if masked else []
    qkv_and_result = [("input", size), ("other", size), ("other", size), ("result", size)]
    assert sorted((row.role, row.shape) for row in rows) == sorted(
        [*qkv_and_result, *bias, ("internal", (4, 8, of_rows))]
    )


@WITHOUT_GPU
@pytest.mark.filterwarnings("ignore:Net at swap. nothing is offloaded")
def test_heads_are_padded_for_flash_attention():
    """To a multiple of 8 elements, and so is saved what they are multiplied from."""
    model = Net(lambda self, x: F.scaled_dot_product_attention(x * self.w, x * self.v, x * self.u), w=W[0, 0, 0, 0])
    model.v, model.u = nn.Parameter(W[1, 0, 0, 0]), nn.Parameter(W[2, 0, 0, 0])
    x = torch.empty(2, 4, 16, 20, device="meta", dtype=torch.bfloat16)
    rows = integrations.forecast(model.bfloat16(), x, level="swap", device="cuda").rows
    shapes = [row.shape for row in rows if row.operator.startswith("scaled") and row.dtype is torch.bfloat16]
    assert shapes == [(2, 4, 16, 24)] * 4


def test_indices_decide_the_way_that_a_forward_takes_on_cuda():
    def forward(self, tokens, mask):
        x = F.embedding(tokens, self.w) + torch.arange(16, device=tokens.device)[:, None] * self.v
        return F.linear(x, self.v).sin() if bool(mask.all()) else F.linear(x, self.v)

    model = Net(forward, w=normal(32, 64), v=normal(64))
    tokens = torch.arange(64).reshape(4, 16) % 32
    for length in (16, 9):
        mask = torch.arange(16) < length
        on_cpu, on_cuda = (
            found(integrations.forecast(model, (tokens, mask), device=device)) for device in ("cpu", "cuda")
        )
        assert on_cuda == on_cpu
        assert any(row[0] == "sin" for row in on_cuda) == (length == 16)


@WITHOUT_GPU
def test_what_asks_for_the_gpu_itself_says_so():
    with pytest.raises(RuntimeError, match="LSTM uses the GPU directly, but none is available: forecast with device"):
        integrations.forecast(nn.LSTM(8, 8), torch.empty(4, 2, 8), device="cuda")


@WITHOUT_GPU
def test_a_forecast_is_of_a_machine_that_has_the_operators(monkeypatch):
    before = found(integrations.forecast(SAME["conv2d"], IMAGES, device="cuda"))
    monkeypatch.setattr(store, "missing_on", lambda device: "none here" if device.type == "cuda" else "")
    assert found(integrations.forecast(SAME["conv2d"], IMAGES, device="cuda")) == before


RULE = "device must be 'cpu' or 'cuda', the devices that a forecast supports"


@pytest.mark.parametrize("device", ["mps", "gpu", "", "cuda:-1", torch.device("meta")])
def test_other_devices_have_no_forecast(device):
    """Whether torch knows them or not."""
    with pytest.raises(ValueError, match=f"{RULE}, got {str(device)!r}; pass 'cuda', which needs no GPU here"):
        integrations.forecast(nn.Linear(8, 8), torch.empty(4, 8), device=device)


@pytest.mark.parametrize("device", [None, 3, True])
def test_a_forecasts_device_has_a_name(device):
    """Torch takes numbers for those of GPUs."""
    with pytest.raises(
        TypeError, match=rf"{RULE}, as a string or a torch.device, got {device} \(.*\); name the device"
    ):
        integrations.forecast(nn.Linear(8, 8), torch.empty(4, 8), device=device)


@pytest.mark.parametrize(
    ("device", "kind"),
    [("cpu:0", "cpu"), (torch.device("cpu"), "cpu"), (torch.device("cuda"), "cuda"), ("cuda:1", "cuda")],
)
@WITHOUT_GPU
def test_a_forecasts_device_may_be_one_of_several(device, kind):
    report = integrations.forecast(SAME["conv2d"], IMAGES, device=device)
    assert found(report) == found(integrations.forecast(SAME["conv2d"], IMAGES, device=kind))


def test_the_command_of_cuda(capsys, tmp_path):
    library_or_skip("timm")
    main(["report", "--timm", "resnet18", "--device", "cuda", "--json", str(tmp_path / "report.json")])
    assert re.search(r"as\s+on\s+CUDA", capsys.readouterr().out)
    assert integrations.Report.from_json((tmp_path / "report.json").read_text()).rows


@WITHOUT_GPU
def test_autocast_is_forecast_where_there_is_no_gpu():
    """Torch's own would stay off, and the linear layer save numbers of 4 bytes."""
    model = Net(lambda self, x: F.linear(x.sin(), self.w), w=normal(64, 64))
    with autocast_as_on("cuda", torch.bfloat16):
        [row] = [row for row in integrations.forecast(model, CELLS, device="cuda").rows if row.operator == "linear"]
    assert row.original_bytes == 2 * CELLS.numel()
    assert not torch.is_autocast_enabled("cuda")


def test_a_fake_tensor_needs_no_counter_on_its_device(monkeypatch):
    monkeypatch.setattr(device_streams, "_counters", {})
    with FakeTensorMode():
        fake = torch.empty(4, device="cuda")
    assert actcore.replayable(7, fake) == 7
    assert not device_streams._counters


def test_every_operator_that_only_cuda_has_is_known():
    yaml, torchgen = pytest.importorskip("yaml"), pytest.importorskip("torchgen")
    packaged = Path(torchgen.__file__).parent / "packaged"

    def entries(path, key):
        """By operator; those of an overload's kind are one."""
        return [(re.match(r"\w+", entry[key])[0], entry) for entry in yaml.safe_load((packaged / path).read_text())]

    differentiable = {name for name, _ in entries("autograd/derivatives.yaml", "name")}
    on_cuda, elsewhere = set(), set()
    for name, entry in entries("ATen/native/native_functions.yaml", "func"):
        keys = set(re.split(r"\W+", " ".join(entry.get("dispatch") or {})))
        on_cuda.update({name} if "CUDA" in keys else ())
        elsewhere.update({name} if any(key.startswith(("CPU", "Composite")) for key in keys) else ())
    own = {name for name in differentiable & on_cuda - elsewhere if not name.endswith("backward")}
    own = {name for name in own if not name.startswith("miopen")}  # of ROCm, where nobody has looked
    assert own == set(OWN)
    without = {"ctc_loss", "lstm", "affine_grid_generator", "grid_sampler", "lstm_cell", "gru_cell", ""}
    assert {call for call in OWN.values() if call not in RULES} == without  # and so kept exactly
