"""The rows of layers that store for themselves: what torch's own layer would keep before, all their payloads after."""

import copy
import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.autograd import Function

import actcore
import integrations
from actcore import stored
from integrations import fewbit, qmodules

from .nets import gradients, normal

IMAGES, TOKENS = normal(16, 3, 16, 16), normal(8, 20, 32)
CHANNELS_LAST = IMAGES.to(memory_format=torch.channels_last)


def report_of(model, x, level="L1", **options):
    """Of the second forward: the first makes tables of steps, which a cache keeps from then on."""
    integrations.compress_model(model, level, **options)
    for _ in range(2):
        torch.manual_seed(1)
        model(x).sum().backward()
    return integrations.compression(model).report()


def free(report):
    """Rows of what autograd alone keeps."""
    return [row for row in report.rows if not row.owner]


def images(layer, features=4 * 14 * 14):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), layer, nn.Conv2d(16, 4, 3), nn.Flatten(), nn.Linear(features, 5)
    )


class Tokens(nn.Module):
    """Four layers save one tensor."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.norm, self.outer = nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 8)
        self.query, self.key, self.value = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        x = self.norm(self.inner(x))
        return self.outer(nn.functional.gelu(x + self.value(torch.tanh(self.query(x))) * self.key(x)))


class Attention(nn.Module):
    def __init__(self, weights):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.weights = nn.Linear(32, 32), weights
        self.attention = nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True)

    def forward(self, x):
        x = self.linear(x)
        return self.attention(x, x, x, need_weights=self.weights)[0]


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places, self.linear = nn.Embedding(100, 32), nn.Embedding(100, 32), nn.Linear(32, 100)

    def forward(self, x):
        return self.linear(self.words(x) + self.places((x * 3) % 100))


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
    plain, found = report_of(make(), x), report_of(make(), x, **options)
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
    report = report_of(model, x, "L1", min_bytes=1 << 30)
    assert len([row for row in free(report) if row.module == "1"]) == rows
    table = 32 if type(model[1]) is fewbit.GELU else 0  # of 8 steps, which the cache keeps anyway
    assert report.stored_bytes == bytes_alone - table


def test_the_words_of_the_rows():
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 64, 64), nn.SiLU(), nn.Dropout(), nn.Linear(64, 10)),
    )
    report = report_of(model, IMAGES, activations="fewbit", linear=0.3, layers="q")
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

    rows = free(report_of(Net(), normal(64, 64)))
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


OPTIONS = {"activations": "fewbit", "linear": 0.3, "layers": "q"}


def test_gradients_are_those_without_anybody_listening(monkeypatch):
    found = []
    for heard in (True, False):
        if not heard:
            monkeypatch.setattr(stored._Here, "listener", property(lambda self: None, lambda self, value: None))
        model = integrations.compress_model(Tokens(), **OPTIONS)
        torch.manual_seed(2)
        found.append(gradients(model, TOKENS))
        rows = integrations.compression(model).report().rows
        assert any(not row.operator for row in rows) is not heard
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_nobody_is_told_without_a_session(monkeypatch):
    told = []
    monkeypatch.setattr(stored, "Stored", lambda *args, **kwargs: told.append(args))
    monkeypatch.setattr(stored.Absent, "like", lambda *args, **kwargs: told.append(args))
    model = fewbit.convert(Tokens(), bits=3, linear=0.3)
    model(TOKENS).sum().backward()
    actcore.dropout(normal(64).requires_grad_()).sum().backward()
    assert not told
    assert not stored.is_heard()
    integrations.compress_model(model, "L0")
    model(TOKENS).sum().backward()
    assert not told


def test_listeners_are_those_of_their_thread_and_go_with_their_block():
    class Listener:
        def __init__(self):
            self.told = []

        def stored(self, announced):
            self.told += announced

    x = normal(64).requires_grad_()
    outer, inner, elsewhere = Listener(), Listener(), []
    with stored.Listening(outer):
        with stored.Listening(inner):
            actcore.relu(x)
        thread = threading.Thread(target=lambda: elsewhere.append((stored.is_heard(), actcore.relu(x))))
        thread.start()
        thread.join()
        with torch.no_grad():
            actcore.relu(x)
        with pytest.raises(ZeroDivisionError), stored.Listening(inner):
            raise ZeroDivisionError
        actcore.dropout(x)
    actcore.relu(x)
    assert not elsewhere[0][0]
    assert [one.operator for one in inner.told] == ["relu"]
    assert [one.operator for one in outer.told] == ["dropout"]


def test_what_a_checkpoint_saves_is_its_own():
    class Net(nn.Sequential):
        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)

    model = nn.Sequential(nn.Linear(32, 32), Net(fewbit.GELU(), qmodules.QLinear(32, 32)))
    report = report_of(model, TOKENS)
    # Before torch 2.13 a checkpoint saves a tensor without elements, too.
    assert [row.operator for row in free(report) if row.original_bytes] == ["checkpoint"]


def test_a_row_holds_no_tensor():
    """What was announced goes as it would without."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.gone = nn.Linear(32, 32), []

        def forward(self, x):
            for _ in range(2):
                x = self.linear(x)
                y = fewbit.functional.gelu(x)
                self.gone.append(weakref.ref(x))
                x = y
                del y
            assert self.gone[0]() is None
            return x

    model = Net()
    gc.disable()
    try:
        report_of(model, TOKENS)
    finally:
        gc.enable()
    assert all(gone() is None for gone in model.gone)


@pytest.mark.parametrize("make", [Tokens, lambda: images(nn.GELU())], ids=["tokens", "images"])
@pytest.mark.parametrize("options", [*({name: given} for name, given in OPTIONS.items()), OPTIONS], ids=str)
def test_a_forecast_has_the_same_rows(make, options):
    x = TOKENS if make is Tokens else IMAGES
    real = report_of(make(), x, **options)
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


def test_a_forward_made_no_smaller_is_told_of_exchanged_layers_too():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    options = {"linear": {"proj_dim_ratio": 0.99, "bits": None}, "min_bytes": 1 << 30}
    integrations.compress_model(model, strict=True, **options)
    with pytest.raises(RuntimeError, match="nothing is stored in fewer bytes"):
        model(normal(256, 64).requires_grad_())


@pytest.mark.parametrize(
    ("options", "undone"),
    [({"activations": "fewbit", "linear": 0.5}, fewbit.restore_model), ({"layers": "q"}, qmodules.revert)],
    ids=["fewbit", "Q-layers"],
)
def test_what_was_exchanged_is_told_after_the_model_was_restored(options, undone):
    """A trainer's callback restores the model when training ends. So is what somebody else has put back."""
    said = []
    for by_hand in (False, True):
        model = integrations.compress_model(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)), **options)
        gradients(model, normal(48, 64))
        handle = integrations.compression(model)
        if by_hand:
            undone(model)
        said.append(handle.report().exchanged)
        integrations.restore_model(model)
        integrations.compress_model(model, level="L0", loss={"head": "2"})  # of which this handle knows nothing
        assert handle.report().exchanged == said[-1]
    assert said[0].startswith("Exchanged: ")
    assert "until somebody put them back" in said[1]
