"""``report(closure)``: what storing and restoring each tensor takes, measured in a step that leaves no trace."""

import itertools
import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import integrations
from integrations.runtime import timed

from .nets import Net, gradients, mlp, normal

X = normal(48, 64)


@pytest.fixture
def clock(monkeypatch):
    """Each look at it is a second later than the one before."""
    monkeypatch.setattr(timed, "perf_counter", map(float, itertools.count()).__next__)


def compressed(model, level="L1"):
    integrations.compress_model(model, level)
    return integrations.compression(model)


def step(model, x=X):
    return lambda: model(x).square().mean().backward()


def alone(report):
    return [row for row in report.rows if not row.owner]


def test_a_row_has_the_time_of_storing_and_of_restoring_it(clock):
    model = nn.Sequential(mlp(), nn.LayerNorm(64), nn.GELU())
    report = compressed(model).report(step(model))
    assert {row.seconds for row in alone(report)} == {2.0}
    assert {row.seconds for row in report.rows if row.owner} == {None}


def test_what_backward_does_not_reach_is_stored_alone(clock):
    model = nn.Sequential(mlp(), nn.GELU())
    report = compressed(model).report(lambda: model(X))
    assert {row.seconds for row in alone(report)} == {1.0}


def test_each_copy_of_a_number_of_unpacks_counts(clock):
    model = mlp()

    def twice():
        loss = model(X).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()

    assert {row.seconds for row in alone(compressed(model).report(twice))} == {3.0}


def test_the_step_leaves_no_trace():
    model = nn.Sequential(mlp(), nn.Dropout(0.5), nn.BatchNorm1d(64))
    handle = compressed(model)
    step(model)()
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    copies = {name: grad.clone() for name, grad in grads.items()}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    state, number = torch.get_rng_state(), handle.step
    handle.report(step(model))
    assert (handle.step, handle._timed) == (number, None)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is grads[name] for name, parameter in model.named_parameters())
    assert all(torch.equal(grads[name], copy) for name, copy in copies.items())
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())


def test_the_gradient_of_a_measured_step_is_that_of_any_other():
    """All that is stored here is exact, so that it is plain autograd's, too."""
    model = Net(lambda self, x: F.relu(x @ self.w).sum(), w=normal(64, 64))
    expected = gradients(model, X, loss=lambda output: output)
    handle, found = compressed(model), []

    def closure():
        model(X).backward()
        found.append(model.w.grad.clone())
        model.zero_grad()

    report = handle.report(closure)
    assert {row.codec for row in alone(report)} == {"Positive()"}
    assert len(found) == 2
    assert all(torch.equal(grad, expected["w"]) for grad in found)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_are_measured(clock, reentrant):
    inner = mlp()
    model = Net(lambda self, x: checkpoint(inner, F.gelu(x @ self.w), use_reentrant=reentrant), w=normal(64, 64))
    report = compressed(model).report(step(model))
    seconds = {row.operator: row.seconds for row in alone(report)}
    assert seconds["gelu"] == 2.0
    assert seconds["checkpoint"] >= 1.0


def test_the_next_step_is_not_measured():
    model = mlp()
    handle = compressed(model)
    handle.report(step(model))
    step(model)()
    assert {row.seconds for row in handle.report().rows} == {None}


def test_table_json_and_page_tell_the_times(clock, tmp_path):
    model = mlp()
    handle = compressed(model)
    report = handle.report(step(model))
    assert "2.0 s" in str(report)
    told = json.loads(report.to_json())
    assert [row["seconds"] for row in told["rows"]] == [row.seconds for row in report.rows]
    report.html(tmp_path / "report.html")
    assert "per step for compression" in (tmp_path / "report.html").read_text(encoding="utf-8")
    step(model)()
    assert "time" not in str(handle.report()).splitlines()[2]


def test_an_adaptive_level_keeps_its_plan():
    model = mlp()
    handle = compressed(model, "L2")
    plan = handle.adapt(step(model))
    report = handle.report(step(model))
    assert handle.plan is plan
    assert all(row.seconds > 0 for row in alone(report))


@pytest.mark.parametrize(
    ("level", "closure", "error", "message"),
    [
        ("L1", 3, TypeError, "closure must be"),
        ("L0", lambda: None, ValueError, "level must be one that compresses, .* a time to measure, got 'L0'"),
        ("L1", lambda: None, RuntimeError, "it ran no compressed forward of Sequential"),
    ],
)
def test_bad_input_raises(level, closure, error, message):
    with pytest.raises(error, match=message):
        compressed(mlp(), level).report(closure)


def test_what_the_closure_raises_comes_through_and_leaves_nothing():
    model = mlp()
    handle = compressed(model)
    calls = iter((lambda: step(model)(), lambda: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        handle.report(lambda: next(calls)())
    assert (handle._timed, handle.in_trial) == (None, False)


def test_a_block_s_handle_measures_blocks(clock):
    model = mlp()
    with integrations.compress(model) as handle:
        step(model)()
        with pytest.raises(RuntimeError, match="Call it after the with statement"):
            handle.report(step(model))
    assert {row.seconds for row in alone(handle.report(step(model)))} == {2.0}
