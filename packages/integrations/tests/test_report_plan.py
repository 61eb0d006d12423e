"""``python -m integrations report --memory``: the plan of a model by name, before any training."""

import re

import pytest
import torch
import torch.nn.functional as F

import integrations
from integrations.checkpoint import Plan
from integrations.cli import main

from .libraries import library_or_skip

SMALL = ("--timm", "resnet18", "--batch", "2", "--image-size", "64")


def test_it_is_the_plan_of_the_model_itself(capsys, tmp_path):
    timm = library_or_skip("timm")
    names = tmp_path / "plan.json", tmp_path / "plan.html"
    files = ("--json", names[0], "--html", names[1])
    assert main(["report", *SMALL, "--memory", "0.7", "--error", "0", *map(str, files)]) == 0
    told = capsys.readouterr().out
    assert "resnet18 (timm), batch 2x3x64x64" in told
    assert "activation peak" in told
    assert names[1].stat().st_size > 10_000

    model, images = timm.create_model("resnet18").train(), torch.randn(2, 3, 64, 64)
    labels = torch.zeros(2, dtype=torch.int64)
    own = integrations.plan(
        model, (images,), memory=0.7, error=0, measure=False, loss=lambda logits: F.cross_entropy(logits, labels)
    )
    found = Plan.load(names[0])
    assert found.choice == own.choice
    integrations.apply(model, found)
    model(images).sum().backward()


def test_a_model_that_returns_its_loss_has_no_other(capsys, tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    fields = ("num_hidden_layers=2", "hidden_size=64", "num_attention_heads=4", "intermediate_size=128")
    command = ["report", "--hf", "llama", "--batch", "1", "--length", "32", "--set", *fields, "--memory", "1GiB"]
    assert main([*command, "--json", str(tmp_path / "plan.json")]) == 0
    assert Plan.load(tmp_path / "plan.json").graph.differentiated == "the loss that the model returned"
    assert main([*command[:-1], "1KiB"]) == 1
    told = capsys.readouterr().err
    assert "memory with error=0 must be at least" in told
    assert 'loss="chunked"' not in told  # one chunk has all of 32 tokens


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--memory", "0.5", "--level", "L1"), "--memory cannot be combined with a level"),
        (("--memory", "0.5", "--activations", "3"), "--memory cannot be combined with a level"),
        (("--memory", "0.5", "--device", "cuda"), "--device must be cpu with --memory"),
        (("--memory", "8"), "memory with error=0 must be at least"),
        (("--memory", "much"), "memory must be a number with a unit"),
        (("--error", "0.1"), "--error must be left out without --memory"),
    ],
)
def test_what_does_not_go_together_is_said_in_a_line(capsys, arguments, message, monkeypatch):
    library_or_skip("timm")
    monkeypatch.setenv("INTEGRATIONS_PROGRESS", "0")  # of a search that takes seconds on a slow machine
    assert main(["report", *SMALL, *arguments]) == 1
    # Torch may log a line of its own, where something imports its compilers for the first time.
    told = [line for line in capsys.readouterr().err.strip().splitlines() if not re.match(r"[IWE]\d{4} ", line)]
    assert len(told) == 1, told
    assert told[0].startswith("python -m integrations: ")
    assert message in told[0]
