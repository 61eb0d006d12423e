"""The command ``report``, which stands on ``integrations.forecast``."""

import importlib
import json
import sys

import pytest
import torch
from torch import nn

import integrations
from integrations import Report
from integrations.cli import main
from integrations.estimate.forecast.subject import Subject

from .libraries import library_or_skip
from .nets import as_told


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
    assert "L1.1: saved " in told.out
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
    assert "no gradient checkpointing to enable" in told.err


@pytest.mark.parametrize("name", ["GCN", "GAT", "SAGEConv"])
def test_the_command_for_pyg(capsys, name):
    pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
    code, told = run(capsys, "--pyg", name, "--nodes", 200, "--edges", 900, "--features", 32, "--option", "bits=3")
    assert code == 0, told.err
    assert f"{name} (PyG), 200 nodes, 900 edges" in told.out
    assert "L1 with bits=3: saved " in told.out


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
    assert "extrapolated linearly to 9" in told.out


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

    monkeypatch.setattr(importlib.import_module("integrations.estimate.forecast.timm"), "subject", subject)
    path = tmp_path / "report.json"
    asked = ["--activations", "4", "--linear", "0.5", "--q-layers", "ActNN-L2", "--loss", "none", "--json", str(path)]
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
