"""With the monitor on, the report names the first saved tensor that is not finite."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations

from .nets import normal

X = normal(48, 64)


class Poisoned(nn.Module):
    """``value`` is added to one element between the second and the third layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.value = 0.0

    def forward(self, x):
        h = self.layers[1](self.layers[0](x).relu())
        poison = torch.zeros_like(h)
        poison[7, 9] = self.value
        return self.layers[3](self.layers[2](h + poison))


def monitored(level="L1", every=1, **options):
    model = integrations.compress_model(Poisoned(), level, **options)
    integrations.compression(model).monitor(every=every, bound=None)
    return model


def run(model, value=0.0, x=X):
    model.value = value
    model(x).sum().backward()


def caption(model):
    return " ".join(str(integrations.compression(model).report()).split())


@pytest.mark.parametrize("level", ["L1", "L1.2", "L2", "L4bit-swap"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.filterwarnings("ignore:.*nothing is offloaded")
def test_the_first_tensor_is_named(level, dtype):
    """The first layers' are finite; the fourth has a NaN in every element of a row, after the third has one."""
    model = monitored(level).to(dtype)
    run(model, float("nan"), X.to(dtype))
    assert "Not finite in step 0: the first NaN is in layers.2: linear input." in caption(model)
    assert not model.layers[2].weight.grad.isfinite().all()  # as in plain training


@pytest.mark.parametrize("value", [float("inf"), -float("inf")])
def test_an_infinity_is_told_from_the_nans_that_it_makes(value):
    model = monitored()
    run(model, value)
    assert "the first infinity is in layers.2: linear input." in caption(model)
    model.layers[3].weight.data.zero_()  # infinity times 0
    model.layers[2].weight.data[::2] = 0
    integrations.compression(model).monitor(every=1, bound=None)
    run(model, value)
    assert "the first NaN is in layers.3: linear input; the first infinity is in layers.2: linear input." in caption(
        model
    )


def test_parameters_and_inputs_are_named_too():
    model = monitored()
    model.layers[1].weight.data[0, 0] = float("nan")
    run(model)
    assert "the first NaN is in layers.1: linear other." in caption(model)
    model = monitored()
    run(model, x=X.clone().fill_(float("nan")))
    assert "the first NaN is in layers.0: linear input." in caption(model)


def test_nothing_is_said_where_all_is_finite():
    model = monitored()
    run(model)
    assert "finite" not in caption(model)


def test_only_the_steps_that_are_monitored_are_looked_at():
    model = monitored(every=2)
    for value in (0.0, float("nan"), 0.0):
        run(model, value)
    assert "finite" not in caption(model)
    run(model)
    run(model, float("nan"))
    assert "Not finite in step 4" in caption(model)


def test_the_first_of_a_row_of_steps_stays_until_one_is_finite_and_another_not():
    model = monitored()
    run(model, float("nan"))
    model.layers[0].weight.data.fill_(float("nan"))  # what an optimizer's step makes of it
    run(model)
    run(model)
    assert "Not finite in step 0: the first NaN is in layers.2" in caption(model)
    model.layers[0].weight.data.fill_(0.1)
    run(model)
    assert "Not finite in step 0" in caption(model)
    run(model, float("inf"))
    assert "Not finite in step 4: the first infinity is in layers.2" in caption(model)


def test_a_copy_and_a_state_know_it():
    model = monitored()
    run(model, float("nan"))
    other = monitored()
    handle = integrations.compression(other)
    handle.load_state_dict(integrations.compression(model).state_dict())
    for found in (copy.deepcopy(model), other):
        assert "Not finite in step 0: the first NaN is in layers.2" in caption_after_a_finite_step(found)


def caption_after_a_finite_step(model):
    run(model)
    return caption(model)


def test_a_masks_infinities_are_meant():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(64, 64)

        def forward(self, x):
            mask = torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1).bool(), -float("inf"))
            h = self.project(x).view(6, 1, 8, 64)
            return F.scaled_dot_product_attention(h, h, h, mask)

    model = integrations.compress_model(Attention())
    integrations.compression(model).monitor(every=1, bound=None)
    model(X).sum().backward()
    assert "finite" not in caption(model)


def test_a_closures_forwards_are_not_looked_at():
    model = monitored()
    handle = integrations.compression(model)
    run(model)
    handle.gradient_error(lambda: run(model, 1e30))
    run(model)
    with pytest.raises(ValueError, match="closure"):
        handle.monitor()
    handle.gradient_error(lambda: run(model, float("nan")))
    assert "finite" not in caption(model)


def test_what_is_not_a_number_is_no_obstacle():
    """Integers, booleans, complex numbers, no elements, sparse tensors."""

    class Kinds(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 64))

        def forward(self, x):
            rows = self.weight[torch.arange(48) % 7]
            spectrum = torch.view_as_real(torch.fft.fft(rows * x) ** 2).sum()
            sparse = torch.sparse.mm(torch.eye(48).to_sparse(), rows).sum()
            return (rows[:0].exp().sum() + spectrum + sparse + F.dropout(rows).sum()) * 1.0

    model = integrations.compress_model(Kinds(), min_bytes=0)
    integrations.compression(model).monitor(every=1, bound=None)
    model(X).backward()
    assert "finite" not in caption(model)
