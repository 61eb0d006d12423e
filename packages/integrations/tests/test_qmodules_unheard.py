"""Settings and indices that nothing reads: the user hears of it."""

import warnings

import pytest
import torch
from torch import nn

from integrations import qmodules
from integrations.qmodules import QScheme, config

from .nets import normal


@pytest.fixture(autouse=True)
def settings():
    yield
    qmodules.set_optimization_level("L3")
    QScheme.batch = QScheme.num_samples = None


def net():
    return nn.Sequential(nn.Linear(512, 8))


def train(model, *batches):
    for indices in batches:
        QScheme.batch = indices
        model(normal(4, 512)).square().sum().backward()


def test_a_level_that_is_given_and_settings_that_it_passes_over():
    config.use_gradient = True
    with pytest.warns(UserWarning, match="level='L3' ignores these settings of config: use_gradient"):
        qmodules.QModule(net(), "L3")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert qmodules.summary(qmodules.QModule(net())).level.use_gradient
        qmodules.QModule(net(), "L3", use_gradient=True)
        qmodules.QModule(net(), "L3", use_gradient=False)  # which it was told
        qmodules.set_optimization_level("L2")
        qmodules.QModule(net(), "L3")


def test_indices_that_no_layer_asks_for():
    """``use_gradient`` was set when the model was converted already."""
    model = qmodules.QModule(net())
    config.use_gradient = True
    with pytest.warns(UserWarning, match="no layer used it, although config.use_gradient is on") as seen:
        train(model, range(4), range(4), range(4))
    assert len(seen) == 1


def test_indices_that_fit_no_layer():
    model = qmodules.QModule(net(), "L3", use_gradient=True, num_samples=20)
    with pytest.warns(UserWarning, match="batch has 8 indices, but the layers' inputs had 4") as seen:
        train(model, range(8), range(8), range(8))
    assert len(seen) == 1


def test_indices_that_fit_some_layer_are_as_they_should_be():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(512, 512), nn.Linear(512, 4)

        def forward(self, x):
            return self.head(self.body(x)[:2])

    model = qmodules.QModule(Heads(), "L3", use_gradient=True, num_samples=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, range(4), range(4), torch.arange(4))
        QScheme.batch = None


def test_what_is_no_batch_is_refused_where_it_is_set():
    for wrong in ("abc", object(), [[1], [1, 2]], torch.zeros(2)):
        with pytest.raises(TypeError, match="batch must hold the integer indices of the samples in the data set, got"):
            QScheme.batch = wrong
