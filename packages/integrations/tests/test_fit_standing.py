"""What ``fit`` says stands through a step: weights, gradients, optimizers' states, adapters, the shares of ranks."""

import pytest
import torch
from torch import nn

import integrations
from integrations.planner.optimizers import OPTIMIZERS

from .fit_llama import DEEP, VOCABULARY, config_of
from .libraries import library_or_skip
from .nets import mlp, normal


def test_what_does_not_depend_on_inputs():
    model = mlp()
    count = sum(parameter.numel() for parameter in model.parameters())
    largest = max(parameter.numel() for parameter in model.parameters())
    fit = integrations.fit(model, normal(4, 64), memory="1MiB", ways=["plain"], grow=False)
    assert (fit.weights, fit.gradients, fit.states) == (4 * count, 4 * count, 8 * count)
    assert fit.standing.step == 8 * largest
    on_gpu = integrations.fit(model, normal(4, 64), memory="1MiB", ways=["plain"], device="cuda", grow=False)
    assert on_gpu.standing.step == 4 * count
    fused = integrations.fit(model, normal(4, 64), memory="1MiB", ways=["plain"], optimizer="adamw-fused", grow=False)
    assert (fused.states, fused.standing.step) == (8 * count, 0)
    assert all(parameter.grad is None for parameter in model.parameters())


# The optimizers that torch has; their states after a step, but for the count of steps.
TORCHS = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "adamw": (torch.optim.AdamW, {}),
    "adam": (torch.optim.Adam, {}),
    "adafactor": (torch.optim.Adafactor, {}),
}


@pytest.mark.parametrize("name", TORCHS)
def test_states_are_those_of_torch(name):
    kind, options = TORCHS[name]
    parameters = [nn.Parameter(normal(6, 10)), nn.Parameter(normal(10))]
    optimizer = kind(parameters, lr=0.1, **options)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    states = [one for state in optimizer.state.values() for one in state.values() if isinstance(one, torch.Tensor)]
    made = sum(4 * one.numel() for one in states if one.dim())
    assert OPTIMIZERS[name].states(parameters) == made


def test_adapters_alone_are_trained():
    library_or_skip("peft")
    options = {"memory": "1GiB", "tokens": 32, "ways": ["plain"], "grow": False}
    whole = integrations.fit(config_of(1), **options)
    for lora in (4, "r=4", {"r": 4, "targets": "all-linear"}):
        fit = integrations.fit(config_of(1), lora=lora, **options)
        assert fit.standing.parameters == whole.standing.parameters + fit.standing.trained
        assert fit.states == 2 * fit.gradients == 8 * fit.standing.trained
    some = integrations.fit(config_of(1), lora="r=4,targets=q_proj+v_proj", **options)
    assert 0 < some.standing.trained < fit.standing.trained


def test_adapters_as_text():
    """A single target is a name, not peft's pattern of whole paths; numbers and truth values are no text."""
    library_or_skip("peft")
    options = {"memory": "1GiB", "tokens": 32, "ways": ["plain"], "grow": False}
    one, by_name, two = (
        integrations.fit(config_of(1), lora=lora, **options).standing.trained
        for lora in ("r=4 targets=q_proj", {"r": 4, "targets": "q_proj"}, "r=4,targets=q_proj+o_proj")
    )
    assert 0 < one == by_name < two
    for more in ("lora_dropout=0.05", "use_rslora=False"):
        assert integrations.fit(config_of(1), lora=f"r=4 targets=q_proj {more}", **options).standing.trained == one


def test_dtypes():
    options = {"memory": "1GiB", "tokens": 64, "batch": 2, "ways": ["plain"], "grow": False}
    wide, narrow, mixed = (
        integrations.fit(config_of(1), dtype=dtype, **options)
        for dtype in ("float32", torch.bfloat16, "bfloat16-mixed")
    )
    assert narrow.gradients * 2 == wide.gradients == mixed.gradients
    assert narrow.best.activations < mixed.best.activations < wide.best.activations


def test_a_level_under_autocast():
    """What autocast makes of parameters is kept alive by autocast, and no level stores it."""
    options = {"memory": "1GiB", "batch": 2, "tokens": 256, "optimizer": "sgd", "dtype": "bfloat16-mixed"}
    fit = integrations.fit(config_of(1), ways=["plain", "lean"], grow=False, **options)
    assert 0 < fit.way("lean").activations < fit.way("plain").activations


def test_ranks_share():
    one, eight = (
        integrations.fit(config_of(2), memory="1GiB", ways=["plain"], fsdp=fsdp, grow=False) for fsdp in (1, 8)
    )
    assert eight.states * 8 == one.states
    assert eight.gradients * 8 == one.gradients
    assert 0 < eight.best.gathered < one.weights
    assert one.best.gathered == 0
    assert "FSDP2" in str(eight)


def test_ranks_with_a_row_of_an_adapter():
    """FSDP2 gives each of the first 8 of 64 ranks a row of A of (8, inputs), and a part of the others' B."""
    library_or_skip("peft")
    options = {"memory": "1GiB", "tokens": 32, "ways": ["plain"], "grow": False, "lora": "r=8,targets=q_proj"}
    one, many = (integrations.fit(config_of(1), fsdp=fsdp, **options) for fsdp in (1, 64))
    row, outputs = 64, 64
    assert one.gradients == 4 * (8 * row + outputs * 8)
    assert many.gradients == 4 * (row + outputs * 8 // 64)
    assert many.states == 2 * many.gradients


def test_ranks_hold_gradients_whole_until_their_unit_is_over():
    """Those of the head and of the embedding, which are in no layer, to the end of backward."""
    options = {"memory": "1GiB", "tokens": 16, "ways": ["plain"], "optimizer": "sgd", "grow": False}
    one, many = (integrations.fit(config_of(DEEP), fsdp=fsdp, **options) for fsdp in (1, 64))
    root = 2 * 4 * 64 * VOCABULARY
    layer = (one.gradients - root) // DEEP
    # The root with the gradient of its head, and a layer with its gradients and two buffers.
    assert many.total >= many.weights + 1.5 * root + 3 * layer


def test_gradients_that_are_there_already():
    fresh, added = (
        integrations.fit(config_of(1), memory="1GiB", tokens=128, ways=["plain"], accumulate=accumulate, grow=False)
        for accumulate in (False, True)
    )
    assert added.best.gradients == added.gradients > fresh.best.gradients
