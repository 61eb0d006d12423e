"""Models of four libraries under inductor have the gradient error of eager code.

With ``ACTCORE_LONG=1`` all of ``NAMES`` are compiled, half a minute each, otherwise one. The results of the
long form are in ``docs/results/inductor.md``; ``ACTCORE_LONG_RESULTS`` names a folder for its results.
"""

import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn

import integrations
from integrations.planner.bounds import EIGHT_BITS

from .capture_models import MODELS
from .long_form import LONG
from .test_capture_models import read_loss

pytestmark = pytest.mark.usefixtures("fresh_compiler", "quick_kernels")

LEVEL = "L1"
STEPS = 16
BOUND = 1.15
"""Bound on the error relative to eager code's, by the root mean squares of the steps' errors.

A step's error is a sum over thousands of roundings, and a few tensors have the largest part: its square scatters by a
third at most. The mean of 16 squares scatters by a twelfth, its root by half of that, and the quotient of two roots by
6 %. The bound is 2.5 of these away from 1.

Below ``EIGHT_BITS`` the quotient says nothing: all that is stored is exact or has 8 bits, and the compiler decides
which tensors these are. Of the softmax that PyG writes out, it has the quotient exactly and ``exp`` in 8 bits; eager
code has them the other way round.
"""

NAMES = [
    *("timm: resnet18", "timm: mobilenetv3_small_050", "timm: convnext_atto", "timm: vit_tiny_patch16_224"),
    *("timm: swin_tiny_patch4_window7_224", "timm: xcit_nano_12_p16_224", "timm: resnext26ts", "timm: pvt_v2_b0"),
    *("transformers: bert, padded", "transformers: gpt2", "transformers: llama", "transformers: gemma 2"),
    *("transformers: qwen 3", "transformers: t5", "transformers: vit", "transformers: segformer"),
    *("diffusers: unet", "diffusers: autoencoder", "diffusers: dit", "diffusers: sd3"),
    *("pyg: GCNConv", "pyg: SAGEConv", "pyg: GATConv", "pyg: TransformerConv"),
]
SOME = ["pyg: GCNConv"]


def without_chance(model):
    """Turn dropout off, since inductor draws other numbers. Make batch norms use running statistics: batch statistics
    of so few elements amplify any error."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if name in ("drop_prob", "dropout", "dropout_p", "attention_dropout") and isinstance(value, float):
                setattr(module, name, 0.0)


def gradient(model, run, args, kwargs):
    model.zero_grad()
    read_loss(run(*args, **kwargs)).backward()
    return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])


def error(model, run, args, kwargs, exact, steps=STEPS):
    """Return the root mean square of the steps' errors of the whole gradient, relative to the exact gradient."""
    squares = [(gradient(model, run, args, kwargs) - exact).square().sum() for _ in range(steps)]
    return (torch.stack(squares).mean() / exact.square().sum()).sqrt().item()


@pytest.mark.parametrize("name", NAMES if LONG else SOME)
def test_the_error_is_that_of_eager(name):
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    model.train()
    without_chance(model)
    exact = gradient(model, model, args, kwargs)
    integrations.compress_model(model, LEVEL, min_bytes=0)
    eager = error(model, model, args, kwargs, exact)
    compiled = error(model, torch.compile(model), args, kwargs, exact)
    report = integrations.compression(model).report()
    found = {"model": name, "eager": eager, "compiled": compiled, "ratio": report.ratio}
    if folder := os.environ.get("ACTCORE_LONG_RESULTS"):
        with Path(folder, "inductor_models.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
    assert compiled <= max(BOUND * eager, EIGHT_BITS), found


def test_there_are_twenty_four():
    assert len(NAMES) == len(set(NAMES)) == 24
    assert set(SOME) < set(NAMES) <= set(MODELS)
