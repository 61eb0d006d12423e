"""Models of four libraries: a capture changes nothing of them, and their first step is the one that was captured.

With ``ACTCORE_LONG=1`` (``nox -s peers``) each of the sixty, otherwise every sixth one.
"""

import dataclasses
import warnings

import pytest
import torch

from integrations import checkpoint
from integrations.tracing.tensors import tensors_in

from .capture_models import MODELS
from .heap import changes, snapshot
from .long_form import LONG

pytestmark = pytest.mark.usefixtures("alone", "no_fakes")


def read_loss(output):
    own = getattr(output, "loss", None)
    if own is not None:
        return own
    if dataclasses.is_dataclass(output) and not isinstance(output, dict):
        output = vars(output)
    return sum(tensor.float().square().sum() for tensor in tensors_in(output) if tensor.requires_grad)


def test_there_are_sixty():
    assert len(MODELS) == 60


@pytest.mark.parametrize("name", list(MODELS)[:: 1 if LONG else 6])
def test_a_capture_leaves_a_model_as_it_was_and_its_plan_is_followed_at_once(name):
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    model.train()
    before = snapshot(model)
    plan = checkpoint.plan(model, args, kwargs=kwargs)
    assert not changes(before)
    del before
    checkpoint.apply(model, plan)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*forward is not the one that was captured")
        read_loss(model(*args, **kwargs)).backward()
    assert checkpoint.plan_of(model) is plan
