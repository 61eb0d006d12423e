"""Wrong input: the error names the argument, the rule, what it got and what to do."""

import pytest
import torch
from torch import nn

import integrations
from integrations import checkpoint, fewbit, qmodules

from .nets import mlp

LEVELS = ", ".join(integrations.LEVELS)
OPTIONS = ", ".join(integrations.Level.__dataclass_fields__)
ENTRANCES = {
    "compress_model": integrations.compress_model,
    "compress": lambda *args, **options: integrations.compress(*args, **options).__enter__(),
}
both_entrances = pytest.mark.parametrize("enter", ENTRANCES.values(), ids=ENTRANCES.keys())


@both_entrances
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"level": "L9"}, ValueError, f"level must be one of {LEVELS}, got 'L9'"),
        ({"level": "l1"}, ValueError, f"level must be one of {LEVELS}, got 'l1'"),
        ({"level": 1}, TypeError, f"level must be a string, one of {LEVELS}, got 1"),
        ({"level": ["L1"]}, TypeError, f"level must be a string, one of {LEVELS}, got ['L1']"),
        (
            {"bit": 4},
            ValueError,
            f"options of a level are {OPTIONS}, got 'bit'",
        ),
        ({"bits": "4"}, TypeError, "bits must be an int, got '4'"),
        ({"bits": 4.0}, TypeError, "bits must be an int, got 4.0"),
        ({"bits": True}, TypeError, "bits must be an int, got True"),
        ({"bits": 0}, ValueError, "bits must be from 1 to 8, got 0"),
        ({"bits": 9}, ValueError, "bits must be from 1 to 8, got 9"),
        ({"product_bits": 9}, ValueError, "bits must be from 1 to 8, got 9"),
        ({"norm_bits": None}, TypeError, "norm_bits must be an int, got None"),
        ({"group_size": 100}, ValueError, "group_size must be a positive multiple of 32, got 100"),
        ({"group_size": 0}, ValueError, "group_size must be a positive multiple of 32, got 0"),
        ({"min_bytes": -1}, ValueError, "min_bytes must not be negative, got -1; 0 compresses every tensor"),
        ({"seed": 0.5}, TypeError, "seed must be an int, got 0.5"),
        ({"seed": 2**64}, ValueError, f"seed must fit in 64 bits, got {2**64}"),
        ({"seed": -(2**63) - 1}, ValueError, "seed must fit in 64 bits"),
    ],
)
def test_levels_and_options(enter, arguments, error, message):
    model = mlp()
    with pytest.raises(error) as raised:
        enter(model, **arguments)
    assert message in str(raised.value)
    assert "forward" not in vars(model)  # nothing was begun
    assert all(not module._forward_hooks for module in model.modules())


@both_entrances
@pytest.mark.parametrize("model", [None, "resnet50", torch.relu, nn.Linear, torch.nn.Parameter(torch.ones(3))])
def test_what_is_no_model(enter, model):
    with pytest.raises(TypeError, match=f"model must be a torch.nn.Module, got {type(model).__name__}"):
        enter(model)


@both_entrances
def test_compressing_twice(enter):
    model = integrations.compress_model(mlp())
    handle = integrations.compression(model)
    with pytest.raises(
        ValueError, match=r"Sequential is compressed already; call integrations\.restore_model"
    ) as raised:
        enter(model, "L1.2")
    assert "first" in str(raised.value)
    assert integrations.compression(model) is handle


def test_a_model_that_is_not_compressed():
    for model in (mlp(), integrations.restore_model(integrations.compress_model(mlp()))):
        with pytest.raises(ValueError, match="Sequential is not compressed; call compress_model"):
            integrations.compression(model)


def test_a_wrapper_of_a_compressed_model():
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    with pytest.raises(ValueError, match=r"Wrapper is not compressed, but its module is; pass model\.module"):
        integrations.compression(Wrapper(integrations.compress_model(mlp())))


@pytest.mark.parametrize(
    ("done", "undo"),
    [
        (integrations.compress_model, integrations.restore_model),
        (fewbit.convert, fewbit.restore_model),
        (qmodules.QModule, qmodules.restore_model),
        (
            lambda model: checkpoint.apply(model.train(), checkpoint.plan(model, torch.randn(2, 16))),
            checkpoint.restore_model,
        ),
    ],
    ids=["compress_model", "fewbit", "qmodules", "checkpoint"],
)
def test_undoing_twice(done, undo):
    """The second call has nothing to undo. A model that contains a changed model raises."""
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.ReLU())
    before = list(model.children())
    assert undo(undo(done(model))) is model
    assert [type(one) for one in model.children()] == [type(one) for one in before]
    outer = nn.Sequential(done(model))
    with pytest.raises(ValueError, match=r"Sequential is not .*, but its module '0' is; pass that module instead"):
        undo(outer)


@pytest.mark.parametrize("function", [integrations.compression, integrations.restore_model])
def test_asking_what_is_no_model(function):
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got NoneType"):
        function(None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "state must be of version 7, got 99"),
        ({"colour": 1}, "state must have what state_dict returned and no more; it adds colour"),
        ({"adaptive": {"plan": None}}, "the state of L1 must have no plan, got"),
        ({"options": {"adaptive": True}}, "the state of L1 with adaptive=True must have its measurements"),
        ({"level": "L9"}, f"level must be one of {LEVELS}, got 'L9'"),
        ({"options": {"colour": 1}}, "options of a level are .*, got 'colour'"),
        ({"options": {"bits": 12}}, "bits must be from 1 to 8, got 12"),
    ],
)
def test_a_state_of_something_else(change, message):
    handle = integrations.compression(integrations.compress_model(mlp()))
    before = handle.state_dict()
    with pytest.raises(ValueError, match=message):
        handle.load_state_dict({**before, **change})
    assert handle.state_dict() == before


def test_a_state_that_lacks_parts():
    handle = integrations.compression(integrations.compress_model(mlp()))
    with pytest.raises(ValueError, match="state must have version, level, options and step; it lacks level, step"):
        handle.load_state_dict({"version": 1, "options": {}})


def test_a_state_with_a_step_that_is_no_number():
    handle = integrations.compression(integrations.compress_model(mlp()))
    for step in ("many", None, -1):
        with pytest.raises((TypeError, ValueError), match="step"):
            handle.load_state_dict({**handle.state_dict(), "step": step})
