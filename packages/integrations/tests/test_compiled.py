"""``torch.compile`` of a compressed model, and compression of a compiled one: its regions store what they save."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations

from .nets import EIGHT_BITS, Net, assert_nothing_active, assert_same, gradients, mlp, normal, relative_error, rows
from .regions import (
    WAYS,
    X,
    compiled,
    make_report,
    trained,
    way_compiled_in_place,
    way_compiled_then_compressed,
    way_compressed_then_compiled,
    way_function,
)

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@pytest.mark.parametrize("way", WAYS)
def test_every_way_stores_the_bytes_of_eager(way):
    model, eager = mlp(), integrations.compress_model(mlp())
    gradients(eager, X)
    function = way(model)
    expected = gradients(mlp(), X)
    for step in range(1, 4):
        assert 0 < relative_error(expected, trained(model, function)) < 0.1  # see test_the_error_is_that_of_eager
        assert integrations.compression(model).step == step
    report = make_report(model)
    kinds = {(row.module, row.operator, row.codec.split("(")[0]) for row in report.rows if not row.owner}
    assert ("1", "mm, threshold_backward", "GroupAffine") in kinds
    assert ("", "threshold_backward", "Positive") in kinds  # the last, whose result is the region's
    assert report.stored_bytes == make_report(eager).stored_bytes
    assert report.original_bytes == make_report(eager).original_bytes
    assert_nothing_active()


def test_without_a_graph_break():
    """The model that was compressed first is one region, with ``fullgraph=True``."""
    model = integrations.compress_model(mlp())
    trained(model, compiled(model, fullgraph=True))
    assert make_report(model).ratio == 8


def test_more_bits_are_more_exact():
    model, function = (part := mlp()), way_compressed_then_compiled(part, level="L1.1")
    assert relative_error(gradients(mlp(), X), trained(model, function)) < EIGHT_BITS


# ---- parts ----


def test_a_compiled_part():
    """Its input is an activation of the part before, and stored; what is around it is stored as ever."""
    model = mlp()
    plain = gradients(copy.deepcopy(model), X)
    integrations.compress_model(model, "L1.1")
    model[2].compile(backend="aot_eager")
    assert relative_error(plain, trained(model, model)) < EIGHT_BITS
    [row] = [row for row in rows(model) if row.role == "compiled"]
    assert (row.operator, row.codec.split(",")[0]) == ("mm", "GroupAffine(bits=8")
    assert integrations.compression(model).step == 1


def test_an_input_of_a_region_that_is_kept_is_reported():
    """What the model computed without gradients is kept by the region, and by nobody else."""

    class Features(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Linear(64, 64)

        def forward(self, x):
            with torch.no_grad():
                x = x.sin()
            return self.part(x).relu()

    model = integrations.compress_model(Features())
    model.part.compile(backend="aot_eager")
    trained(model, model)
    [row] = [row for row in rows(model) if row.role == "compiled"]
    assert (row.codec, row.original_bytes, row.stored_bytes) == ("kept", X.nbytes, X.nbytes)


# ---- from step to step ----


def test_the_noise_advances_and_nothing_is_compiled_again():
    model = integrations.compress_model(mlp(), "L1.2")
    function = compiled(model)
    first = trained(model, function)
    with torch.compiler.set_stance("fail_on_recompile"):
        second = trained(model, function)
    assert relative_error(first, second) > 1e-3


def test_a_resumed_run_draws_the_same_noise():
    """Streams are those of the step, as in eager code."""
    model = integrations.compress_model(mlp(), "L1.2")
    function = compiled(model)
    trained(model, function)
    state = integrations.compression(model).state_dict()
    expected = trained(model, function)
    other = mlp()
    again = compiled(integrations.compress_model(other, "L1.2"))
    integrations.compression(other).load_state_dict(state)
    assert_same(expected, trained(other, again))


def test_sizes_that_change():
    """They are compiled once more, and then no more; the report has today's."""
    model = integrations.compress_model(mlp(), "L1.1")
    function = compiled(model)
    for size in (48, 33):
        trained(model, function, normal(size, 64))
    with torch.compiler.set_stance("fail_on_recompile"):
        for size in (40, 72):
            x = normal(size, 64)
            assert relative_error(gradients(mlp(), x), trained(model, function, x)) < EIGHT_BITS
            assert {row.shape for row in rows(model)} == {(size, 64)}


def test_rows_of_changing_length_share_groups():
    """No group fits them all, so what is normalised row by row is kept."""
    model = Net(lambda self, x: F.layer_norm((x * self.s).sin(), x.shape[-1:]), s=torch.ones(1))
    function = compiled(integrations.compress_model(model))
    x = normal(48, 64)
    torch._dynamo.mark_dynamic(x, 1)
    trained(model, function, x)
    [row] = [row for row in rows(model, "native_layer_norm_backward") if row.shape == x.shape]
    assert "share quantization groups: kept exactly" in row.why


def test_training_converges():
    """As the uncompressed twin does."""
    losses = {}
    for kind in ("plain", "compressed"):
        model = mlp()
        function = model if kind == "plain" else compiled(integrations.compress_model(model))
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        target = normal(48, 64, seed=5).relu()
        for _ in range(20):
            optimizer.zero_grad()
            loss = F.mse_loss(function(X), target)
            loss.backward()
            optimizer.step()
        losses[kind] = loss.item()
    assert abs(losses["compressed"] - losses["plain"]) < 0.02 * losses["plain"]


# ---- left alone ----


def test_eval_and_no_grad_are_plain():
    model = integrations.compress_model(mlp())
    function = compiled(model)
    with torch.no_grad():
        assert torch.equal(function(X), mlp()(X))
    assert_same(gradients(mlp(), X), trained(model.eval(), function))
    assert integrations.compression(model).step == 0


@pytest.mark.parametrize("way", [way_compiled_in_place, way_compiled_then_compressed, way_function])
def test_restore(way):
    model = mlp()
    function = way(model)
    trained(model, function)
    integrations.restore_model(model)
    assert_same(gradients(mlp(), X), trained(model, function))


def test_copies():
    """A deep copy of the compiled wrapper, which does not copy what was set on it, is compressed as well."""
    wrapper = integrations.compress_model(compiled(mlp()))
    assert integrations.compression(wrapper) is integrations.compression(wrapper._orig_mod)
    trained(wrapper, wrapper)
    for twin in (copy.deepcopy(wrapper), pickle.loads(pickle.dumps(wrapper._orig_mod))):
        trained(twin, twin)
        assert integrations.compression(twin).step == 2
        assert make_report(twin).ratio == 8
    assert integrations.compression(wrapper).step == 1
    integrations.restore_model(wrapper)
    with pytest.raises(ValueError, match="not compressed"):
        integrations.compression(wrapper)
