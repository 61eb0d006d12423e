"""A converted model that something else changes: ``summary`` tells what it is now, and ``revert`` loses nothing."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from integrations import qmodules

from .nets import normal
from .qnets import step


def net():
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU())


def test_revert_refuses_a_layer_that_was_parametrized_since():
    """It left a Linear without a weight."""
    model = qmodules.QModule(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Linear(4, 4)), "L2")
    parametrizations.spectral_norm(model[1])
    with pytest.raises(ValueError, match=r"after QModule, got 1 with weight; call torch.*remove_parametrizations"):
        qmodules.revert(model)
    assert type(model[0]) is qmodules.QConv2d  # nothing has changed
    step(model[1], normal(2, 4))
    parametrize.remove_parametrizations(model[1], "weight")
    assert [type(layer) for layer in qmodules.revert(model)] == [nn.Conv2d, nn.Linear]
    step(model[1], normal(2, 4))


def test_summary_is_of_the_model_as_it_is():
    """``convert_sync_batchnorm`` after ``QModule`` puts torch's norm in the place of ours."""
    model = qmodules.QModule(net(), "L2")
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model[2] = nn.ReLU()
    model.append(nn.ReLU())
    found = qmodules.summary(model)
    assert dict(found.converted) == {"0": ("Conv2d", "QConv2d")}
    assert dict(found.kept) == {
        "1": "SyncBatchNorm took the place of QBatchNorm2d after QModule",
        "2": "ReLU took the place of QReLU after QModule",
        "3": "ReLU came after QModule",
    }
    del model[3]
    assert "3" not in qmodules.summary(model).kept


def test_summary_says_that_a_level_is_off():
    assert "2 layers converted, which at this level are torch's own, 0 kept" in str(
        qmodules.summary(qmodules.QModule(nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), "L0"))
    )


class Tokens(nn.Module):
    """A container that owns a parameter, as vision transformers do."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(4))
        self.head = nn.Linear(4, 4)


class LayerNorm(nn.LayerNorm):
    """A subclass with its base's name, as timm has them."""


def test_summary_names_no_containers_and_no_parametrizations():
    model = nn.Sequential(Tokens(), parametrizations.spectral_norm(nn.Linear(4, 4)), LayerNorm(4))
    assert dict(qmodules.summary(qmodules.QModule(model, "L2")).kept) == {
        "1": "ParametrizedLinear is a subclass of torch.nn.Linear",
        "2": f"{__name__}.LayerNorm is a subclass of torch.nn.LayerNorm",
    }


def test_a_plain_number_of_bits_is_for_every_group():
    model = qmodules.QModule(nn.Sequential(nn.Linear(8, 8)), "L3", bits=4)
    assert qmodules.summary(model).level.bits == (4, 4, 4)
    assert qmodules.QLevel(bits=2.5).bits == (2.5, 2.5, 2.5)
