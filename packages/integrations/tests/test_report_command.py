"""``integrations.forecast``, and the command ``report`` that stands on it."""

import copy
import importlib
import json
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import integrations
from integrations import Report
from integrations.cli import main
from integrations.forecast.scaled import scaled
from integrations.forecast.subject import Subject

from .libraries import library_or_skip
from .nets import Net, mlp, normal


def images():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3),
        nn.SiLU(),
        nn.Dropout2d(0.2),
        nn.Flatten(),
        nn.LazyLinear(10),
    )


X = normal(48, 64)


class Block(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.dropout = dropout

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)
        return x + F.dropout(self.out(mixed.transpose(1, 2).flatten(2)), 0.1)


class Segments(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(0.0), Block(0.0))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def tied():
    model = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 50))
    model[3].weight = model[0].weight
    return model


def graph(x, edges):
    return torch.zeros(20, 32).index_add(0, edges[1], x[edges[0]]).relu()


def kept_edges(self, x, edges):
    """As many rows as there are edges between two nodes: a shape that integers decide."""
    return graph(F.linear(x, self.w), edges[:, edges[0] != edges[1]])


MODELS = {
    "images": (images, lambda: (normal(4, 3, 12, 12),)),
    "attention": (lambda: nn.Sequential(Block(0.0), Block(0.3)), lambda: (normal(4, 40, 32),)),
    "checkpoints": (Segments, lambda: (normal(4, 40, 32),)),
    "tied": (tied, lambda: (torch.arange(48).view(4, 12),)),
    "graph": (
        lambda: Net(kept_edges, w=normal(32, 32)),
        lambda: (normal(20, 32), torch.stack([torch.arange(60) % 20, torch.arange(60) % 7])),
    ),
}


def as_told(report):
    """All that a row says but the values of a mask, which are elements."""
    return [
        (row.module, row.operator, row.role, row.shape, row.dtype, row.original_bytes, row.stored_bytes, row.owner)
        for row in report.rows
    ], [row.codec for row in report.rows if "BitMask" not in row.codec]


@pytest.mark.parametrize("level", ["L1", "L1.2", "swap"])
@pytest.mark.parametrize("name", MODELS)
def test_a_forecast_is_the_report_of_the_real_forward(name, level):
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    model, given = make(), inputs()
    model(*given)  # makes what is lazy
    foreseen = integrations.forecast(model, given, level=level)
    integrations.compress_model(model, level)
    model(*given).sum().backward()
    assert as_told(foreseen) == as_told(integrations.compression(model).report())
    assert foreseen.original_bytes > 0


@pytest.mark.parametrize("level", ["L2", "L2.2"])
def test_a_forecast_of_an_adaptive_level_is_what_its_plan_may_take(level):
    """And takes, but for less than one bit more an element of the largest tensor: with that, one of them would be
    raised."""
    torch.manual_seed(0)
    model, x = nn.Sequential(Block(0.0), Block(0.0), nn.Linear(32, 32), nn.GELU()), normal(4, 40, 32)
    foreseen = integrations.forecast(model, x, level=level)
    handle = integrations.compression(integrations.compress_model(model, level))
    handle.adapt(lambda: model(x).square().sum().backward())
    model(x).square().sum().backward()
    found = handle.report()
    largest = max(row.original_bytes for row in found.rows) // 4
    assert foreseen.stored_bytes - largest // 8 < found.stored_bytes <= foreseen.stored_bytes
    assert foreseen.level == found.level == level
    assert "average bits" in foreseen.plan


def test_options_of_the_level_are_taken():
    model, x = mlp(), normal(48, 64)
    few, many = (integrations.forecast(model, x, level="L1", bits=bits).stored_bytes for bits in (2, 8))
    assert few < many
    assert integrations.forecast(model, x, level="L1", bits=2).level == "L1 with bits=2"


def test_a_forecast_touches_nothing():
    model, x = images(), normal(4, 3, 12, 12)
    model(x).sum().backward()
    model.eval()
    state = copy.deepcopy(model.state_dict())
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    before = torch.get_rng_state()
    integrations.forecast(model, x)
    assert torch.equal(torch.get_rng_state(), before)
    assert not model.training
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is gradients[name] for name, parameter in model.named_parameters())
    assert x.grad is None
    with pytest.raises(ValueError, match="is not compressed"):
        integrations.compression(model)


def test_a_forecast_takes_a_model_and_inputs_without_memory():
    """A batch of a million: 2.6 TB of activations."""
    with torch.device("meta"):
        model, x = mlp(width=10_000, depth=2), torch.empty(1_000_000, 10_000)
    report = integrations.forecast(model, x)
    # Both ReLU results, of which the first is the second layer's input, too; 4 bits and 8 bytes a group, or 1 bit.
    elements = 10**10
    assert report.original_bytes == 2 * 4 * elements
    assert report.stored_bytes == elements // 8 * 2 + elements // 2 + elements // 256 * 8


def test_a_forecast_says_that_it_is_one():
    report = integrations.forecast(mlp(), normal(48, 64))
    assert "A forecast" in report.caption
    assert "A forecast" in str(report)
    assert report.model == "Sequential"


def test_a_forward_that_looks_at_elements_raises():
    model = Net(lambda self, x: F.linear(x, self.w) * x.max().item(), w=normal(64, 64))
    with pytest.raises(RuntimeError, match=r"the forward of Net looks at elements.*compress the model, call it once"):
        integrations.forecast(model, normal(48, 64))


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (3, {}, TypeError, "model must be a torch.nn.Module, got int"),
        (mlp(), {"level": "L9"}, ValueError, "level must be one of"),
        (mlp(), {"bts": 3}, ValueError, "options of a level are"),
        (integrations.compress_model(mlp()), {}, ValueError, "compressed already"),
    ],
)
def test_bad_input_raises(model, options, error, message):
    with pytest.raises(error, match=message):
        integrations.forecast(model, normal(48, 64), **options)


def run(capsys, *arguments):
    code = main(["report", *map(str, arguments)])
    return code, capsys.readouterr()


def test_the_command_for_timm(capsys, tmp_path):
    library_or_skip("timm")
    pytest.importorskip("matplotlib")
    names = [tmp_path / f"memory.{kind}" for kind in ("json", "png", "html")]
    files = [
        part for option, name in zip(("--json", "--plot", "--html"), names, strict=True) for part in (option, name)
    ]
    code, told = run(
        capsys, "--timm", "resnet18", "--batch", 4, "--image-size", 64, "--level", "L1.1", "--loss", "none", *files
    )
    assert code == 0, told.err
    assert "resnet18 (timm), batch 4x3x64x64" in told.out
    assert "layer1" in told.out
    assert "Saved tensors at L1.1" in told.out
    assert all(name.stat().st_size > 10_000 for name in names)
    report = Report.from_json(names[0].read_text())
    import timm

    model = integrations.compress_model(timm.create_model("resnet18"), "L1.1")
    model(torch.randn(4, 3, 64, 64)).sum().backward()
    assert as_told(report) == as_told(integrations.compression(model).report())


def test_the_command_for_transformers(capsys, tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    small = ("num_hidden_layers=2", "hidden_size=64", "num_attention_heads=4", "intermediate_size=128")
    code, told = run(capsys, "--hf", "bert", "--length", 32, "--set", *small, "--all", "--json", tmp_path / "a.json")
    assert code == 0, told.err
    assert "bert (transformers), batch 8 x 32 tokens" in told.out
    assert "query" in told.out  # every tensor is listed
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert {size for row in rows for size in row["shape"]} >= {64, 128}
    assert "bert.encoder.layer.1.attention.self" in {row["module"] for row in rows}
    assert "scaled_dot_product_attention" in {row["operator"] for row in rows}


def test_the_command_for_a_config_json(capsys, tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=100).save_pretrained(tmp_path)
    code, told = run(capsys, "--hf", tmp_path / "config.json", "--batch", 2, "--length", 16, "--depth", 2)
    assert code == 0, told.err
    assert "gpt2 (transformers), batch 2 x 16 tokens" in told.out
    assert "lm_head" in told.out


def test_the_command_of_a_dtype_and_of_checkpoints(capsys, tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
    transformers.LlamaConfig(num_hidden_layers=2, vocab_size=100, **sizes).save_pretrained(tmp_path)
    kept = {}
    for name, options in {
        "wide": ("--dtype", "float32"),
        "narrow": ("--dtype", "bfloat16"),
        "mixed": ("--dtype", "bfloat16-mixed"),
        "wide, cuda": ("--dtype", "float32", "--device", "cuda"),
        "mixed, cuda": ("--dtype", "bfloat16-mixed", "--device", "cuda"),
        "repeated": ("--dtype", "bfloat16", "--checkpoint"),
    }.items():
        path = tmp_path / f"{name}.json"
        code, told = run(capsys, "--hf", tmp_path / "config.json", "--json", path, *options)
        assert code == 0, told.err
        kept[name] = Report.from_json(path.read_text()).original_bytes
    assert kept["repeated"] < kept["narrow"] < kept["mixed"] < kept["wide"]
    assert kept["mixed, cuda"] < kept["wide, cuda"]
    code, told = run(capsys, "--hf", tmp_path / "config.json", "--dtype", "int4")
    assert code == 1
    assert "dtype must be one of float32" in told.err
    code, told = run(capsys, "--pyg", "GCN", "--checkpoint")
    assert code == 1
    assert "no gradient checkpointing of its own" in told.err


@pytest.mark.parametrize("name", ["GCN", "GAT", "SAGEConv"])
def test_the_command_for_pyg(capsys, name):
    pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
    code, told = run(capsys, "--pyg", name, "--nodes", 200, "--edges", 900, "--features", 32, "--option", "bits=3")
    assert code == 0, told.err
    assert f"{name} (PyG), 200 nodes, 900 edges" in told.out
    assert "Saved tensors at L1 with bits=3" in told.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--timm", "resnet5x"), "--timm must be a model that timm has"),
        (("--timm", "resnet18", "--level", "L9"), "level must be one of L0"),
        (("--timm", "resnet18", "--option", "bits"), "--option must be NAME=VALUE, got 'bits'"),
        (("--timm", "resnet18", "--html", "/nowhere/at/all.html"), "there is no folder /nowhere/at"),
        (("--hf", "bort"), "--hf must be a model type of transformers"),
        (("--hf", "bert", "--set", "hidden_sizes=3"), "--set must be fields of BertConfig, got hidden_sizes"),
        (("--pyg", "GCM"), "--pyg must be a class of torch_geometric.nn"),
        (("--pyg", "Linear"), "--pyg must be a layer with out_channels"),
        (("--pyg", "MLP"), "integrations.forecast"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(capsys, arguments, message):
    library = {"--timm": "timm", "--hf": "transformers", "--pyg": "torch_geometric"}[arguments[0]]
    library_or_skip(library)
    code, told = run(capsys, *arguments)
    assert code == 1
    assert message in told.err
    assert told.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "one of the arguments --timm --hf --pyg is required"),
        (("--timm", "a", "--hf", "b"), "not allowed with argument"),
        (("--timm", "a", "--batch", "0"), "must be a whole number of 1 or more, got '0'"),
    ],
)
def test_what_cannot_be_parsed_is_said_in_a_line(capsys, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        main(["report", *arguments])
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "library"), [("--timm", "timm"), ("--hf", "transformers"), ("--pyg", "torch_geometric")]
)
def test_a_library_that_is_not_there_is_named(capsys, monkeypatch, option, library):
    monkeypatch.setitem(sys.modules, library, None)
    code, told = run(capsys, option, "anything")
    assert code == 1
    assert f"pip install actcore-integrations[{option.removeprefix('--')}]" in told.err


def looking(batch):
    torch.manual_seed(0)
    model = Net(lambda self, x: F.linear(x, self.w).relu() * x.max().item(), w=normal(64, 64))
    return Subject("looking", model, (normal(16 * batch, 64),))


@pytest.mark.parametrize("batch", [3, 20])
def test_a_forward_that_looks_at_elements_is_run_for_small_batches_and_continued(batch):
    """Its tensors are of whole groups at every size, so that the line through two sizes is exact."""
    report = scaled(looking, batch, "L1.1")
    subject = looking(batch)
    integrations.compress_model(subject.model, "L1.1")
    subject.model(*subject.args).sum().backward()
    assert as_told(report) == as_told(integrations.compression(subject.model).report())
    assert "looks at elements" in report.note


def test_what_saves_other_tensors_for_another_batch_cannot_be_continued():
    def make(batch):
        return Subject(
            "odd", Net(lambda self, x: F.gelu(x @ self.w) if batch > 2 else x @ self.w, w=normal(64, 64)), (X,)
        )

    with pytest.raises(RuntimeError, match="switch off what is random in it"):
        scaled(make, 8, "L1")


def test_the_command_continues_a_model_of_sound(capsys):
    pytest.importorskip("transformers", reason="transformers is not installed")
    small = ("num_hidden_layers=1", "hidden_size=32", "num_attention_heads=2", "intermediate_size=64", "layerdrop=1e-6")
    code, told = run(
        capsys,
        "--hf",
        "wav2vec2",
        "--length",
        8000,
        "--set",
        *small,
        "conv_dim=(16, 16, 16, 16, 16, 16, 16)",
        "--batch",
        9,
    )
    assert code == 0, told.err
    assert "9 x 8000 samples" in told.out
    assert "continued in a line to 9" in told.out


@pytest.mark.parametrize("looks", [False, True], ids=["forecast", "scaled"])
def test_the_command_exchanges_layers(monkeypatch, tmp_path, looks):
    class Looks(nn.Module):
        def forward(self, x):
            return x if x.sum().item() else -x

    def subject(name, batch, size, elements, **options):
        layers = nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.Dropout(), nn.LayerNorm(64), nn.Linear(64, 8)
        model = nn.Sequential(*layers, *([Looks()] if looks else []))
        return Subject(
            name, model, (torch.randn(batch, 64) if elements else torch.empty(batch, 64, device="meta"),), {}
        )

    monkeypatch.setattr(importlib.import_module("integrations.forecast.timm"), "subject", subject)
    path = tmp_path / "report.json"
    asked = ["--activations", "4", "--linear", "0.5", "--q-layers", "L2", "--loss", "none", "--json", str(path)]
    main(["report", "--timm", "net", "--batch", "64", *asked])
    report = Report.from_json(path.read_text())
    rows = {row.module: row for row in report.rows if not row.owner and row.role != "internal"}
    assert [(row.operator, row.codec) for row in rows.values()] == [
        ("linear_randomized", "sketch of 32 rows in 4 bits"),
        ("few-bit gelu", "4-bit steps"),
        ("linear_randomized", "sketch of 32 rows in 4 bits"),
        ("dropout", "mask of 1 bit"),
        ("QLayerNorm", rows["4"].codec),
        ("linear_randomized", "sketch of 32 rows in 4 bits"),
    ]
    assert rows["1"].original_bytes == 64 * 64 * 4
    assert "1 activation in 4 bits" in report.exchanged
