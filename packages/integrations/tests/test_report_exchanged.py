"""The rows of layers that store for themselves: what torch's own layer would keep before, all their payloads after."""

import copy

import pytest
import torch
from torch import nn
from torch.autograd import Function

import actcore
import integrations
from integrations import fewbit, qmodules

from .exchanged_nets import (
    CHANNELS_LAST,
    EXCHANGED,
    IMAGES,
    TOKENS,
    Attention,
    Tokens,
    Words,
    free,
    images,
    make_report,
)
from .nets import normal

SMOOTH = (
    "Hardswish",
    "CELU",
    "ELU",
    "SELU",
    "GELU",
    "Mish",
    "SiLU",
    "LogSigmoid",
    "Softplus",
    "Softsign",
    "Tanhshrink",
)
STEPS = ("ReLU", "ReLU6", "LeakyReLU", "Hardtanh", "Hardsigmoid", "Hardshrink", "Softshrink")
IN_PLACE = ("ReLU", "ReLU6", "LeakyReLU", "Hardtanh", "Hardsigmoid", "Hardswish", "CELU", "ELU", "SELU", "Mish", "SiLU")
SKETCHES = {
    "gaussian": {"proj_dim_ratio": 0.3},
    "4 bits": {"proj_dim_ratio": 0.3, "bits": 4},
    "sampled": {"proj_dim_ratio": 0.3, "matmul": "rows"},
}
CASES = {
    **{name: (lambda name=name: images(getattr(nn, name)()), IMAGES, {"activations": 3}) for name in (*SMOOTH, *STEPS)},
    **{
        f"{name} in place": (lambda name=name: images(getattr(nn, name)(inplace=True)), IMAGES, {"activations": 3})
        for name in IN_PLACE
    },
    **{
        name: (lambda name=name: images(getattr(nn, name)()), IMAGES, {"activations": {"functions": [name.lower()]}})
        for name in ("Sigmoid", "Tanh")
    },
    "threshold": (lambda: images(nn.Threshold(0.1, 0.0)), IMAGES, {"activations": 3}),
    "threshold in place": (lambda: images(nn.Threshold(0.1, 0.0, True)), IMAGES, {"activations": 3}),
    "at random": (lambda: images(nn.GELU()), IMAGES, {"activations": {"rounding": "stochastic"}}),
    **{
        f"Q, {name}": (lambda layer=layer: images(copy.deepcopy(layer)), IMAGES, {"layers": "q"})
        for name, layer in {
            "relu": nn.ReLU(),
            "relu in place": nn.ReLU(inplace=True),
            "leaky relu": nn.LeakyReLU(),
            "gelu": nn.GELU(),
            "silu in place": nn.SiLU(inplace=True),
            "batch norm": nn.BatchNorm2d(16),
            "group norm": nn.GroupNorm(4, 16),
            "layer norm": nn.LayerNorm([16, 16, 16]),
            "rms norm": nn.RMSNorm([16, 16, 16]),
            "dropout": nn.Dropout(0.5),
            "dropout in place": nn.Dropout(0.5, inplace=True),
            "transposed": nn.ConvTranspose2d(16, 16, 3, padding=1),
            "padding": nn.Conv2d(16, 16, 3, padding=1, padding_mode="reflect"),
        }.items()
    },
    **{
        f"Q, {type(layer).__name__}, {name}": (
            lambda layer=layer: images(copy.deepcopy(layer), 4 * 36).to(memory_format=torch.channels_last),
            x,
            {"layers": {"level": "L2"}},
        )
        for layer in (nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(8))
        for name, x in (("contiguous", IMAGES), ("channels last", CHANNELS_LAST))
    },
    **{f"sketch, {name}": (Tokens, TOKENS, {"linear": options}) for name, options in SKETCHES.items()},
    "Q, tokens": (Tokens, TOKENS, {"layers": "q"}),
    "norms": (Tokens, TOKENS, {"activations": {"norms": True}}),
    "all": (Tokens, TOKENS, {"activations": "fewbit", "linear": 0.3, "layers": "q"}),
    "Q, attention": (lambda: Attention(False), TOKENS, {"layers": "q"}),
    "Q, attention's weights": (lambda: Attention(True), TOKENS, {"layers": "q"}),
    "Q, swapped": (lambda: images(nn.GELU()), IMAGES, {"layers": {"level": "swap"}}),
    "embeddings": (Words, torch.randint(100, (8, 40)), {"layers": "q"}),
}


@pytest.mark.parametrize(("make", "x", "options"), CASES.values(), ids=CASES.keys())
def test_before_is_what_torchs_own_layers_keep(make, x, options):
    plain, found = make_report(make(), x), make_report(make(), x, **options)
    assert found.original_bytes == plain.original_bytes
    assert all(row.operator for row in found.rows)
    assert not any(row.dtype is torch.uint8 for row in found.rows)


def kept_by_autograd(model, x):
    """Bytes of the storages that autograd alone keeps, of a model that nobody compresses."""
    known = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers(), x)}
    held, storages = [], {}

    def pack(tensor):
        if tensor.untyped_storage()._cdata not in known:
            storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        held.append(tensor)  # so that no address comes to mean another
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x)
    return sum(storages.values())


ALONE = {
    "relu": (lambda: fewbit.ReLU(), 1),
    "gelu": (lambda: fewbit.GELU(bits=3), 1),
    "sketch": (lambda: fewbit.RandomizedLinear(64, 64, proj_dim_ratio=0.25), 1),
    "sampled": (lambda: fewbit.RandomizedLinear(64, 64, proj_dim_ratio=0.25, matmul="rows"), 1),
    "linear": (lambda: qmodules.QLinear(64, 64), 1),
    "norm": (lambda: qmodules.QLayerNorm(64), 3),
    "dropout": (lambda: qmodules.QDropout(), 1),
}


@pytest.mark.parametrize(("make", "rows"), ALONE.values(), ids=ALONE.keys())
def test_a_row_for_each_tensor_and_after_all_of_its_payload(make, rows):
    """At a level that keeps all it may, what is stored is what autograd holds without any level."""
    model, x = nn.Sequential(nn.Linear(64, 64), make(), nn.Softmax(-1)), normal(256, 64)
    bytes_alone = kept_by_autograd(model, x)
    report = make_report(model, x, "L1", min_bytes=1 << 30)
    assert len([row for row in free(report) if row.module == "1"]) == rows
    table = 32 if type(model[1]) is fewbit.GELU else 0  # of 8 steps, which the cache keeps anyway
    assert report.stored_bytes == bytes_alone - table


def test_the_words_of_the_rows():
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 64, 64), nn.SiLU(), nn.Dropout(), nn.Linear(64, 10)),
    )
    report = make_report(model, IMAGES, activations="fewbit", linear=0.3, layers="q")
    told = [(row.module, row.operator, row.role, row.shape, row.dtype) for row in free(report)]
    image, f = (16, 16, 16, 16), torch.float32
    assert told == [
        ("0", "QConv2d", "input", (16, 3, 16, 16), f),
        ("1", "QBatchNorm2d", "input", image, f),
        ("1", "QBatchNorm2d", "internal", (16,), f),
        ("1", "QBatchNorm2d", "internal", (16,), f),
        ("2", "few-bit gelu", "input", image, f),
        ("3", "QConv2d", "input", image, f),
        ("4", "relu", "result", image, f),
        ("5", "max_pool2d", "input", image, f),
        ("5", "max_pool2d", "internal", (16, 16, 8, 8), torch.int64),
        ("7", "linear_randomized", "input", (16, 1024), f),
        ("8", "few-bit silu", "input", (16, 64), f),
        ("9", "dropout", "mask", (16, 64), f),
        ("10", "linear_randomized", "input", (16, 64), f),
    ]
    codecs = {row.codec for row in free(report)}
    assert {
        "3-bit steps",
        "signs of 1 bit",
        "shape",
        "places of 2 bits",
        "sketch of 4 rows in 4 bits",
        "mask of 1 bit",
    } < codecs
    assert "GroupAffine(bits=2 on average, group_size=256)" in codecs
    assert "input of the model is alive anyway" in report.rows[0].why
    assert report.original_bytes > 4 * report.stored_bytes
    assert report.exchanged.startswith("Exchanged: 3 activations in 3 bits")
    assert report.exchanged.endswith("Q-layers.")


def test_rows_of_functions_by_hand():
    class Scale(Function):
        @staticmethod
        def forward(ctx, x, weight):
            actcore.save_for_backward(ctx, (x, actcore.GroupAffine(bits=4)), (weight, None))
            return x * weight

        @staticmethod
        def backward(ctx, gradient):
            x, weight = actcore.saved_tensors_of(ctx)
            return gradient * weight, (gradient * x).sum()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.scale = nn.Linear(64, 64), nn.Parameter(torch.ones(()))

        def forward(self, x):
            x = actcore.relu(self.linear(x))
            x = fewbit.functional.swiglu(Scale.apply(x, self.scale), bits=4)
            with actcore.saved_tensors(lambda saved: actcore.GroupAffine(bits=8)):
                return x * x.detach().exp()

    rows = free(make_report(Net(), normal(64, 64)))
    assert [(row.operator, row.role, row.original_bytes) for row in rows] == [
        ("relu", "result", 64 * 64 * 4),
        ("Scale", "input", 0),
        ("few-bit silu", "input", 64 * 64 * 4),
        ("gated product", "input", 64 * 32 * 4),
        ("gated product", "other", 0),
        ("mul", "other", 64 * 32 * 4),
    ]
    assert rows[1].codec.startswith("GroupAffine(bits=4")
    assert all(row.stored_bytes for row in rows)


@pytest.mark.parametrize("make", [Tokens, lambda: images(nn.GELU())], ids=["tokens", "images"])
@pytest.mark.parametrize("options", [*({name: given} for name, given in EXCHANGED.items()), EXCHANGED], ids=str)
def test_a_forecast_has_the_same_rows(make, options):
    x = TOKENS if make is Tokens else IMAGES
    real = make_report(make(), x, **options)
    found = integrations.forecast(make(), torch.empty(x.shape, device="meta"), **options)
    assert [row for row in found.rows if not row.owner] == free(real)
    assert found.exchanged == real.exchanged


def test_a_plan_counts_what_is_recomputed():
    model = integrations.compress_model(Tokens(), activations="fewbit", layers={"level": "L2"}, checkpoint="optimal")
    for _ in range(2):
        model(TOKENS).sum().backward()
    report = integrations.compression(model).report()
    assert all(row.operator for row in free(report) if row.dtype is torch.uint8)
    assert report.stored_bytes < report.original_bytes
