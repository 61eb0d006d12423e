"""The error of levels at width: at most 0.15 of the gradient, from hidden size 64 to 8192.

With ``ACTCORE_LONG=1`` each width, which takes 8 GiB, otherwise some.
"""

import os

import pytest
import torch

from .sweep import wide_models
from .sweep.case import relative_error
from .sweep.results import ERROR
from .sweep.wide_models import DEVIATION, FAMILIES, WIDTHS

LONG = os.environ.get("ACTCORE_LONG") == "1"


# Width, and the deviation of weights: 512 features of four times the deviation have the logits of 8192.
CASES = [(width, DEVIATION) for width in (WIDTHS if LONG else (64, 512))] + [(512, 4 * DEVIATION)]


@pytest.mark.parametrize(("width", "deviation"), CASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_is_off_by_no_more_than_promised(family, width, deviation):
    hf = pytest.importorskip("integrations.hf")
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    case = wide_models.case(family, width, deviation)

    def gradient():
        case.model.zero_grad()
        torch.manual_seed(0)  # of dropout
        case.loss().backward()
        return [torch.zeros(()) if one.grad is None else one.grad for one in case.model.parameters()]

    exact = [one.clone() for one in gradient()]
    for level in ("L1", "lean"):
        hf.compress_model(case.model, level)
        error = relative_error(gradient(), exact)
        hf.restore_model(case.model)
        assert 0 < error <= ERROR, level
