"""``fewbit.convert`` on models of transformers and timm, tiny and with random weights."""

import copy

import pytest
import torch
from torch import nn

from integrations import fewbit

from .fewbit_nets import kept_bytes
from .libraries import library_or_skip
from .nets import normal

IDS = torch.arange(32).view(2, 16) % 29


def transformer(name, **options):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(vocab_size=32, bos_token_id=0, eos_token_id=1, **options)
    torch.manual_seed(0)
    return getattr(transformers, f"{name}Model")(config).train()


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}


def act_of(name, act):
    def make():
        if name == "GPT2":
            return transformer(name, activation_function=act, **GPT2)
        return transformer(name, hidden_act=act, **SIZES)

    return make


# A model, its activations, what they become, and the function of which they have the steps.
TRANSFORMERS = {
    "bert": (act_of("Bert", "gelu"), "GELUActivation", "GELU", "gelu"),
    "bert, in python": (act_of("Bert", "gelu_python"), "GELUActivation", "Approximated", "gelu"),
    "llama": (act_of("Llama", "silu"), "SiLUActivation", "SiLU", "silu"),
    "gpt2": (act_of("GPT2", "gelu_new"), "NewGELUActivation", "Approximated", "gelu_tanh"),
    "gpt2, tanh": (act_of("GPT2", "gelu_pytorch_tanh"), "GELUTanh", "GELU", "gelu_tanh"),
    "gpt2, fast": (act_of("GPT2", "gelu_fast"), "FastGELUActivation", "Approximated", "gelu_tanh"),
    "gpt2, accurate": (act_of("GPT2", "gelu_accurate"), "AccurateGELUActivation", "Approximated", "gelu_tanh"),
    "gpt2, quick": (act_of("GPT2", "quick_gelu"), "QuickGELUActivation", "Approximated", "quick_gelu"),
    "gpt2, mish": (act_of("GPT2", "mish"), "MishActivation", "Mish", "mish"),
    "gpt2, relu2": (act_of("GPT2", "relu2"), "ReLUSquaredActivation", "Approximated", "squared_relu"),
}


def language_step(model, ids=IDS):
    """The last hidden state and the gradients, dropout drawing the same in every call."""
    model.zero_grad()
    torch.manual_seed(3)
    output = model(ids).last_hidden_state
    (output * normal(*output.shape, seed=5)).sum().backward()
    return output.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def image_step(model, x):
    """The same for an image model."""
    model.zero_grad()
    torch.manual_seed(3)
    output = model(x)
    (output * normal(*output.shape, seed=5)).sum().backward()
    return output.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


def same(one, other):
    return torch.equal(one[0], other[0]) and all(torch.equal(one[1][name], other[1][name]) for name in one[1])


class ByHand(torch.autograd.Function):
    """A formula with a derivative of steps, in plain PyTorch."""

    @staticmethod
    def forward(ctx, x, formula, table):
        ctx.save_for_backward(x)
        ctx.table = table
        return formula(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        boundaries, levels = torch.tensor(ctx.table.boundaries), torch.tensor(ctx.table.levels)
        index = torch.bucketize(x.abs() if ctx.table.even else x, boundaries, right=True)
        return gradient * levels[index], None, None


@pytest.mark.parametrize(("make", "before", "after", "function"), TRANSFORMERS.values(), ids=TRANSFORMERS.keys())
def test_transformers(make, before, after, function):
    model = make()
    plain = language_step(model)
    plain_bytes = kept_bytes(model, IDS)
    by_hand = copy.deepcopy(model)
    table = fewbit.table(function, 3)
    activations = [module for module in by_hand.modules() if type(module).__name__ == before]
    for module in activations:
        module.forward = lambda x, formula=module.forward: ByHand.apply(x, formula, table)
    expected = language_step(by_hand)

    fewbit.convert(model)
    found = language_step(model)
    assert list(fewbit.summary(model).converted.values()) == [(before, f"fewbit.{after}")] * len(activations)
    assert len(activations) == 2
    assert torch.equal(found[0], plain[0])
    assert same(found, expected)
    assert kept_bytes(model, IDS) < plain_bytes
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(IDS).last_hidden_state, by_hand.eval()(IDS).last_hidden_state)
    model.train()
    assert same(language_step(fewbit.restore_model(model)), plain)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_of_transformers(reentrant):
    model = fewbit.convert(transformer("Bert", hidden_act="gelu", **SIZES))
    expected = language_step(model)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    assert same(language_step(model), expected)


def test_a_model_with_linear_layers_and_activations_trains():
    model = fewbit.convert(transformer("Bert", hidden_act="gelu", **SIZES), linear=0.5)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    target = normal(2, 16, 32, seed=8)
    losses = []
    for _ in range(30):
        loss = (model(IDS).last_hidden_state - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert sum(after == "fewbit.RandomizedLinear" for _, after in fewbit.summary(model).converted.values()) == 13


IMAGES = {
    "vit_tiny_patch16_224": ({"img_size": 32, "depth": 2}, {("GELU", "fewbit.GELU")}),
    "vit_base_patch16_clip_quickgelu_224": (
        {"img_size": 32, "depth": 2, "embed_dim": 32, "num_heads": 4},
        {("QuickGELU", "fewbit.Approximated")},
    ),
    "convnext_atto": ({"depths": (1, 1, 1, 1)}, {("GELU", "fewbit.GELU")}),
    "test_efficientnet": ({}, {("SiLU", "fewbit.SiLU")}),
}


@pytest.mark.parametrize(("name", "options", "expected"), [(name, *rest) for name, rest in IMAGES.items()])
def test_timm(name, options, expected):
    timm = library_or_skip("timm")
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **options).train()
    x = normal(4, 3, 32, 32)
    twin = copy.deepcopy(model)  # batch norms count their steps
    plain = image_step(model, x)
    plain_bytes = kept_bytes(model, x)
    fewbit.convert(twin)
    found = image_step(twin, x)
    assert set(fewbit.summary(twin).converted.values()) == expected
    assert torch.equal(found[0], plain[0])
    assert not same(found, plain)
    assert kept_bytes(twin, x) < plain_bytes
    assert same(image_step(fewbit.restore_model(twin), x)[1:] and image_step(twin, x), image_step(model, x))


def test_timms_own_formulas():
    activations = library_or_skip("timm.layers.activations")
    for kind, function in (("Swish", "silu"), ("Mish", "mish"), ("HardSwish", "hardswish"), ("GELUTanh", "gelu_tanh")):
        model = nn.Sequential(nn.Linear(8, 8), getattr(activations, kind)())
        x = normal(40, 8)
        plain = model(x)
        act = model[1]
        fewbit.convert(model)
        assert torch.equal(model(x), plain)
        (found,) = torch.autograd.grad(model[1](leaf := model[0](x).detach().requires_grad_()).sum(), leaf)
        table = fewbit.table(function, 3)
        (expected,) = torch.autograd.grad(ByHand.apply(leaf, act.forward, table).sum(), leaf)
        assert torch.equal(found, expected)
    model = fewbit.convert(nn.Sequential(activations.Swish(inplace=True)))
    assert fewbit.summary(model).kept == {"0": "Swish works in place"}


def test_norms_of_timm():
    norms = library_or_skip("timm.layers.norm")
    plain = nn.Sequential(norms.LayerNorm(16), norms.LayerNorm2d(8), norms.LayerNorm(16))
    plain[2]._fast_norm = True
    model = fewbit.convert(copy.deepcopy(plain), norms=True)
    x = normal(2, 8, 16, 16)
    assert torch.equal(model(x), plain(x))
    assert fewbit.summary(model).converted == {"0": ("LayerNorm", "fewbit.LayerNorm")}
    assert fewbit.summary(model).kept == {
        "1": "LayerNorm2d is a subclass of LayerNorm",
        "2": "timm.layers.norm.LayerNorm is a subclass of LayerNorm",
    }
    assert type(fewbit.restore_model(model)[0]) is norms.LayerNorm


def test_linear_layers_of_gpt2():
    kinds = pytest.importorskip("transformers.pytorch_utils")
    layers = nn.Sequential(nn.Linear(8, 8), kinds.Conv1D(8, 8))
    weights = [layer.weight for layer in layers]
    model = fewbit.convert(layers, linear=0.5)
    converted = fewbit.summary(model).converted
    assert converted == {"0": ("Linear", "fewbit.RandomizedLinear"), "1": ("Conv1D", "fewbit.RandomizedConv1D")}
    assert [layer.weight for layer in model] == weights
    assert "nf=8, nx=8" in repr(model[1])
    assert type(fewbit.restore_model(model)[1]) is kinds.Conv1D
