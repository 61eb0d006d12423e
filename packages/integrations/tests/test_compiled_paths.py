"""Plans of compiled models whose forward takes another path in some steps. Compiled code cannot run a second time."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import integrations
from integrations.checkpoint import plan_of
from integrations.runtime.compiled.matching import Operator, is_same_path

from .varying_nets import DEPTH, WIDTH, Chain, Net, errors, net

ERROR = 0.1
TOLD = "as torch.compile traces it, is not the one that was captured"

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def test_each_step_is_within_the_bound() -> None:
    """A path of which most is planned had the plan's few bits: an error of 0.25 after one block."""
    model, exact = net(Chain)
    integrations.compress_model(model, error=ERROR, stores=("bits",), min_bytes=0)
    function = torch.compile(model, backend="aot_eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert max(errors(model, exact, [range(DEPTH)] * 2, function)) <= ERROR
    assert not plan_of(model).choice.fits_any_path
    with pytest.warns(UserWarning, match=TOLD):
        assert max(errors(model, exact, [range(1), range(5)], function)) <= ERROR


class _Decides(Net):
    """Leave early where a tensor says so, which breaks the graph."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.blocks[0](x)
        if y.sum() > self.least:
            return self.blocks[1](y)
        return super().forward(y)

    least = torch.inf


@pytest.mark.filterwarnings("ignore")
def test_a_branch_that_depends_on_data_is_within_the_bound() -> None:
    torch.manual_seed(1)
    model = _Decides(Chain, nn.GELU).train()
    exact = copy.deepcopy(model)
    integrations.compress_model(model, error=ERROR, stores=("bits",), min_bytes=0)
    function = torch.compile(model, backend="aot_eager")
    for least in (torch.inf, -torch.inf):
        model.least = exact.least = least
        assert max(errors(model, exact, [range(DEPTH)], function)) <= ERROR


class _Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)


def test_models_that_do_not_vary_follow_their_plan() -> None:
    """Torch compiles dropout, batch normalization and the mask of attention to other operators."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.SiLU(), nn.Dropout(0.1), _Attention(), nn.Linear(14, WIDTH))
    model = nn.Sequential(*layers, nn.GELU(), nn.Linear(WIDTH, WIDTH)).train()
    integrations.compress_model(model, error=0.2, stores=("bits", "slopes"), min_bytes=0)
    function = torch.compile(model, backend="aot_eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            function(torch.randn(4, 3, 16, 16)).square().mean().backward()
    assert not plan_of(model).choice.fits_any_path


def test_what_is_the_same_path() -> None:
    def ops(*names: str) -> list[Operator]:
        return [Operator(f"aten.{name}.default", ((2, 3),), (place,)) for place, name in enumerate(names)]

    dropout = ("empty_like", "bernoulli_", "div_", "mul")
    counter = [Operator("aten.add_.Tensor", ((),), (0,))]
    assert is_same_path(ops("mm", "relu_"), ops("mm", "relu"))
    assert is_same_path(ops("mm", *dropout, "mm"), ops("mm", "native_dropout", "mm"))
    assert is_same_path(ops("native_batch_norm"), [*counter, *ops("_native_batch_norm_legit")])
    assert not is_same_path(ops("mm", "relu"), ops("mm", "gelu"))
    assert not is_same_path(ops("mm", "relu"), ops("mm"))
    assert not is_same_path(ops("mm"), ops("mm", "relu"))
    assert is_same_path(ops(*dropout, "mul", "ne"), ops("native_dropout", "mul"))
    assert not is_same_path(ops("mm", *dropout), ops("mm"))
    assert not is_same_path(ops("mm"), ops("mm", "native_dropout"))
    assert not is_same_path(ops("mm", "mul"), ops("mm", "native_dropout"))
    assert not is_same_path(ops("native_batch_norm"), ops())
