"""A compiled region that stores nothing in fewer bytes says why, and an error passes through it."""

import warnings

import pytest
import torch.nn.functional as F

import integrations
from integrations._utils import compiling
from integrations.runtime.compiled import regions as compiled_regions

from .nets import Net, assert_nothing_active, assert_same, gradients, mlp, rows
from .regions import W, X, compiled, trained

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def test_nothing_stored_in_fewer_bytes():
    model = integrations.compress_model(Net(lambda self, x: F.linear(x, self.w).cosh(), w=W))
    with pytest.warns(UserWarning, match="no rule for sinh in compiled code: kept exactly"):
        trained(model, compiled(model))


def test_strict():
    model = integrations.compress_model(Net(lambda self, x: F.linear(x, self.w).cosh(), w=W), strict=True)
    function = compiled(model)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="nothing is stored in fewer bytes"):
            function(X)
        assert_nothing_active()


def test_a_torch_that_does_not_show_its_graphs(monkeypatch):
    monkeypatch.setattr(compiled_regions, "_context", lambda: None)
    model = integrations.compress_model(mlp())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_same(gradients(mlp(), X), trained(model, compiled(model)))
    messages = [str(found.message) for found in caught]
    assert any("does not report which operators use them" in message for message in messages)
    assert any("nothing is stored in fewer bytes" in message for message in messages)


def test_an_adaptive_level_has_its_fixed_bits():
    model = integrations.compress_model(mlp(), "L2.2")
    function = compiled(model)
    for _ in range(3):
        trained(model, function)
    assert integrations.compression(model).plan is None
    assert any("the level's fixed bits, as in all compiled code" in row.why for row in rows(model))


def test_an_error_in_the_forward_comes_through():
    def forward(self, x):
        if x.shape[0] == 3:
            raise KeyError("mine")
        return F.linear(x, self.w).relu()

    model = integrations.compress_model(Net(forward, w=W))
    function = compiled(model)
    trained(model, function)
    with pytest.raises(KeyError, match="mine"):
        function(X[:3])
    assert_nothing_active()
    trained(model, function)
    assert integrations.compression(model).step == 3


def test_a_torch_that_skips_no_frames(monkeypatch):
    """Dynamo then traces the frame that should open the session."""
    monkeypatch.setattr(compiling, "_SKIPS", False)
    model = integrations.compress_model(mlp())
    with pytest.raises(Exception, match=r"Sequential at L1 cannot be compressed .*this version of torch cannot break"):
        compiled(lambda x: model(x))(X)
    assert integrations.compression(model).step == 0
