"""Reports and plans as text where rich would display them: in a notebook."""

import pytest
import rich.console

import integrations
from integrations.planner.sensitivity.bit_plan import BitPlan

from .nets import gradients, mlp, normal


@pytest.fixture
def in_a_notebook(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as ipykernel does
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)


@pytest.mark.usefixtures("in_a_notebook")
def test_their_text_is_returned_and_not_displayed():
    x = normal(64, 64)
    model = integrations.compress_model(mlp(), level="L2")
    for _ in range(3):
        gradients(model, x)
    handle = integrations.compression(model)
    assert "linear" in str(handle.report())
    assert "\x1b" not in str(handle.report())
    assert isinstance(handle.plan, BitPlan)
    assert "linear" in str(handle.plan)
    assert "stored as" in str(integrations.plan(mlp().train(), (normal(4096, 64),), memory="least"))
    assert "weights" in str(integrations.fit(mlp(), (x,), memory="1GiB", ways=["plain"], grow=False))
