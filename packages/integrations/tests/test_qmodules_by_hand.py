"""Q-layers that were built by hand, alone and in a model that ``QModule`` converts."""

import pytest
from torch import nn

from integrations import qmodules

from .nets import normal
from .qnets import step


@pytest.fixture(autouse=True)
def settings():
    yield
    qmodules.set_optimization_level("L3")


def test_layers_built_by_hand_take_the_level_that_is_set():
    qmodules.set_optimization_level("L2")
    qmodules.config.activation_compression_bits = [4, 6]
    layer = qmodules.QConv2d(3, 8, 3, group=1)
    assert layer.precision.level.bits == (4, 6)
    assert layer.precision.group == 1
    with pytest.raises(ValueError, match=r"group must be an index into the level's bits \(4, 6\), from 0 to 1, got 2"):
        qmodules.QLinear(3, 4, group=2)


def test_layers_built_by_hand_share_bits_once_they_are_in_a_model():
    qmodules.set_optimization_level("L3")
    layers = [qmodules.QConv2d(3, 16, 3, padding=1), qmodules.QReLU(), qmodules.QConv2d(16, 8, 3), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(8 * 14 * 14, 4))

    def bits():
        for _ in range(2):
            step(model, normal(8, 3, 16, 16))
        return [layer.precision.bits for layer in (model[0], model[2])]

    assert bits() == [2.0, 2.0]
    qmodules.QModule(model, "L3")
    assert len({id(layer.precision.model) for layer in (model[0], model[2], model[4])}) == 1
    assert bits() != [2.0, 2.0]
    qmodules.restore_model(model)
    assert [type(layer) for layer in model[:3]] == [qmodules.QConv2d, qmodules.QReLU, qmodules.QConv2d]
    assert bits() == [2.0, 2.0]


def test_a_layer_built_by_hand_that_is_a_model_stays():
    layer = qmodules.QLinear(4, 4)
    assert qmodules.restore_model(qmodules.QModule(layer)) is layer


def test_revert_leaves_layers_built_by_hand():
    model = qmodules.QModule(nn.Sequential(nn.Linear(4, 4), qmodules.QLinear(4, 4)))
    qmodules.restore_model(model)
    assert [type(layer) for layer in model] == [nn.Linear, qmodules.QLinear]
