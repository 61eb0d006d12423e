"""Adaptive levels where nothing can be measured: one warning, and the same words wherever one looks."""

import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import integrations

from .nets import Net, mlp, normal

X = normal(32, 64)
COMPILED = (
    "each quantized tensor is in compiled code, where nothing can be measured, so all keep the level's fixed bits"
)


def compiled():
    torch.manual_seed(0)
    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    model.compile(backend="aot_eager")
    return model


def vmapped():
    def forward(net, x):
        return torch.vmap(lambda row: F.gelu(row @ net.first) @ net.second)(x)

    return Net(forward, first=normal(64, 64), second=normal(64, 64, seed=1))


def checkpointed():
    def forward(net, x):
        return checkpoint(torch.sigmoid, x @ net.weight, use_reentrant=False)

    return Net(forward, weight=normal(64, 64))


def trained(make, steps=4, warn=True, **monitor):
    """The handle, what it warned of, and a closure."""
    model = integrations.compress_model(make(), "L2", min_bytes=0)
    handle = integrations.compression(model)
    if monitor:
        handle.monitor(**monitor)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            model(X).square().mean().backward()
    return handle, [str(one.message) for one in caught if "at L2" in str(one.message)], model


def words(handle):
    return " ".join(str(handle.report()).split())


@pytest.mark.parametrize(
    ("make", "why"),
    [(compiled, COMPILED), (vmapped, "as under torch.vmap"), (checkpointed, "an input of a checkpoint")],
)
def test_it_is_said_once_in_the_report_and_by_adapt(make, why):
    handle, said, model = trained(make)
    assert len(said) == 1
    assert why in said[0]
    assert f"No plan: {handle.obstacle}" in words(handle)
    assert "No plan yet" not in words(handle)
    with pytest.raises(RuntimeError, match=handle.obstacle):
        handle.adapt(lambda: model(X).square().mean().backward())


def test_a_monitor_without_a_closure_says_that_nothing_predicts():
    handle, said, model = trained(compiled, every=1, bound=0.01)
    assert [COMPILED in one for one in said] == [True, True]
    assert "handle.monitor(closure) measures it" in said[1]
    assert "no plan predicts the gradient's error: each quantized tensor is in compiled code" in words(handle)
    handle.monitor(lambda: model(X).square().mean().backward(), every=1, bound=10.0)
    for _ in range(2):
        model(X).square().mean().backward()
    assert handle.last_error.measured


def test_bits_that_the_monitor_raises_are_fixed_ones():
    """No plan is asked for, which would raise in the middle of training."""
    handle, _, model = trained(compiled)
    handle.monitor(lambda: model(X).square().mean().backward(), every=1, bound=1e-6, raise_bits=True)
    for _ in range(2):
        model(X).square().mean().backward()
    assert (handle.level.bits, handle.plan) == (5, None)


def test_where_part_of_a_model_is_compiled_the_rest_has_a_plan():
    handle, said, _ = trained(lambda: nn.Sequential(compiled(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)))
    assert said == []
    assert handle.plan is not None


def test_nothing_to_quantise_is_no_warning_of_its_own():
    handle, said, _ = trained(lambda: Net(lambda net, x: (x @ net.weight).relu(), weight=normal(64, 64)))
    assert said == []
    assert "No plan: no tensor is quantized" in words(handle)


def test_a_forward_that_another_threads_forward_interrupts_is_no_obstacle():
    """The later one is measured in its place: of the first one, nothing is known of what could be measured."""
    model = mlp()

    def step():
        with integrations.compress(model, "L2.2", min_bytes=0) as handle:
            model(X).sum().backward()
        return handle

    def meanwhile(*given):
        hook.remove()
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()

    step()  # the second one is measured
    hook = model[2].register_forward_hook(meanwhile)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert step().obstacle == ""
        assert [step().plan is not None for _ in range(3)][-1]
