"""``torch.compile`` of a compressed model, and compression of a compiled one: its regions store what they save.

``aot_eager`` runs the graphs as AOTAutograd makes them; ``inductor``, which decomposes and fuses them, has a test, too.
"""

import copy
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations
from integrations import compiling
from integrations.saved import compiled_regions

from .nets import EIGHT_BITS, Net, assert_nothing_active, assert_same, gradients, mlp, normal, relative_error, rows

X = normal(48, 64)
W = normal(64, 64, seed=1) / 8


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(model, **options):
    return torch.compile(model, **{"backend": "aot_eager", **options})


def trained(model, function, *inputs):
    """One step's gradients of the model, by name, through what was compiled of it."""
    torch.manual_seed(1)
    model.zero_grad()
    function(*(inputs or (X,))).square().mean().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def report_of(model):
    return integrations.compression(model).report()


class Block(nn.Module):
    """A transformer's: norms, attention and GELU."""

    def __init__(self):
        super().__init__()
        self.norm, self.fused, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)
        self.norm2, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x):
        x = x + 0  # nobody else's
        q, k, v = (part.view(4, -1, 4, 16).transpose(1, 2) for part in self.fused(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Residual(nn.Module):
    """A residual network's block."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))
        self.last = nn.Conv2d(8, 8, 3)

    def forward(self, x):
        x = F.silu(x + 0)
        y = self.norms[0](self.first(x)).relu()
        return self.last((self.norms[1](self.second(y)) + x).relu())


NETS = {
    "mlp": (mlp, (48, 64)),
    "gelu": (lambda: nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.LeakyReLU()), (48, 64)),
    "bounded": (lambda: nn.Sequential(nn.Linear(64, 64), nn.Softmax(-1), nn.Linear(64, 64), nn.Tanh()), (48, 64)),
    "residual": (Residual, (4, 8, 16, 16)),
    "block": (Block, (4, 16, 64)),
}


def build(name):
    torch.manual_seed(0)
    make, shape = NETS[name]
    return make(), normal(*shape)


# ---- the three ways ----


def way_compressed_then_compiled(model, backend="aot_eager", **options):
    return compiled(integrations.compress_model(model, **options), backend=backend)


def way_compiled_in_place(model, **options):
    integrations.compress_model(model, **options).compile(backend="aot_eager")
    return model


def way_compiled_then_compressed(model, **options):
    return integrations.compress_model(compiled(model), **options)


def way_compressed_inside(model, **options):
    function = compiled(model)
    integrations.compress_model(model, **options)
    return function


def way_function(model, **options):
    integrations.compress_model(model, **options)
    return compiled(lambda x: model(x * 1) * 1)


WAYS = [
    way_compressed_then_compiled,
    way_compiled_in_place,
    way_compiled_then_compressed,
    way_compressed_inside,
    way_function,
]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_stores_the_bytes_of_eager(way):
    model, eager = mlp(), integrations.compress_model(mlp())
    gradients(eager, X)
    function = way(model)
    expected = gradients(mlp(), X)
    for step in range(1, 4):
        assert 0 < relative_error(expected, trained(model, function)) < 0.1  # see test_the_error_is_that_of_eager
        assert integrations.compression(model).step == step
    report = report_of(model)
    kinds = {(row.module, row.operator, row.codec.split("(")[0]) for row in report.rows if not row.owner}
    assert ("1", "mm, threshold_backward", "GroupAffine") in kinds
    assert ("", "threshold_backward", "Positive") in kinds  # the last, whose result is the region's
    assert report.stored_bytes == report_of(eager).stored_bytes
    assert report.original_bytes == report_of(eager).original_bytes
    assert_nothing_active()


def test_without_a_graph_break():
    """The model that was compressed first is one region, with ``fullgraph=True``."""
    model = integrations.compress_model(mlp())
    trained(model, compiled(model, fullgraph=True))
    assert report_of(model).ratio > 8


@pytest.mark.parametrize("name", NETS)
def test_the_error_is_that_of_eager(name):
    """The squared error of the whole gradient, summed over 6 steps. It is a sum over thousands of roundings, each
    independent of the others: one step's lies within a half of its mean, the sum of six within a half over root six,
    a fifth, and a quotient of two such within 1.2 / 0.8. What a region keeps, and eager code rounds (query and key),
    makes it less."""
    model, x = build(name)
    exact = gradients(copy.deepcopy(model), x)
    squares = {}
    for kind in ("eager", "compiled"):
        part = integrations.compress_model(copy.deepcopy(model))
        function = part if kind == "eager" else compiled(part)
        steps = [trained(part, function, x) for _ in range(6)]
        squares[kind] = sum((found[name] - exact[name]).square().sum() for found in steps for name in exact).item()
    assert 0 < squares["compiled"] < 1.5 * squares["eager"]
    if name != "block":
        assert squares["compiled"] > squares["eager"] / 1.5


def test_more_bits_are_more_exact():
    model, function = (part := mlp()), way_compressed_then_compiled(part, level="L1.1")
    assert relative_error(gradients(mlp(), X), trained(model, function)) < EIGHT_BITS


def test_decomposed_derivatives():
    """Backends take GELU's and the norm's derivative apart, and compute parts of the forward again."""
    model, x = build("block")
    exact = gradients(copy.deepcopy(model), x)
    eager = integrations.compress_model(copy.deepcopy(model))
    errors = [relative_error(exact, trained(eager, eager, x)) for _ in range(4)]
    integrations.compress_model(model)
    found = trained(model, compiled(model, backend="aot_eager_decomp_partition"), x)
    # The largest of an error's 10 parts in one draw, against the largest in four.
    assert 0 < relative_error(exact, found) < 1.5 * max(errors)
    kept = {row.operator for row in rows(model) if row.codec == "kept" and row.stored_bytes > 8192}
    assert all("attention" in operator for operator in kept)
    assert len([row for row in rows(model) if row.codec.startswith("GroupAffine")]) >= 6


def test_inductor():
    model, function = (part := build("gelu")[0]), way_compressed_then_compiled(part, backend="inductor", level="L1.1")
    assert 0 < relative_error(gradients(build("gelu")[0], X), trained(model, function)) < EIGHT_BITS
    assert report_of(model).ratio > 3
    with torch.compiler.set_stance("fail_on_recompile"):
        trained(model, function)


# ---- what backward does decides ----


def test_the_rules_are_those_of_the_operators():
    model = integrations.compress_model(build("block")[0], min_bytes=0)
    trained(model, compiled(model), normal(4, 16, 64))
    [linear, *_], [gelu] = rows(model, "mm"), rows(model, "gelu_backward")
    assert linear.codec.startswith("GroupAffine(bits=4, group_size=256")
    assert gelu.codec.startswith("GroupAffine(bits=8, group_size=256")
    norms = rows(model, "native_layer_norm_backward")
    statistics = [row for row in norms if row.shape[-1] == 1]
    assert [row.codec for row in statistics] == ["kept"] * 4
    inputs = [row.codec.split(", r")[0] for row in norms if row.shape[-1] == 64]
    assert inputs == ["GroupAffine(bits=8, group_size=64"] * 2  # no group has elements of two rows


def test_masks_and_pools_are_exact():
    def forward(self, x):
        y = F.avg_pool2d(F.dropout(F.conv2d(x, self.w, padding=1), 0.5), 2)
        return F.conv2d(y, self.w)

    model = Net(forward, w=normal(8, 8, 3, 3, seed=2) / 8)
    x = normal(4, 8, 16, 16)
    integrations.compress_model(model, min_bytes=0)
    trained(model, compiled(model), x)
    found = {row.operator: row for row in rows(model)}
    assert found["native_dropout_backward"].codec == "BitMask(values=(0, 1))"
    assert found["native_dropout_backward"].stored_bytes == x.numel() // 8
    assert found["avg_pool2d_backward"].codec == "shape"
    assert found["avg_pool2d_backward"].stored_bytes == 0


def test_a_use_without_a_rule_is_kept_exactly():
    model = Net(lambda self, x: F.linear(x, self.w).cosh().log(), w=W)
    assert_same(gradients(copy.deepcopy(model), X), trained(integrations.compress_model(model), compiled(model)))
    assert {row.codec for row in rows(model)} == {"kept"}


def test_a_mask_that_backward_computes_again_is_exact():
    """inductor's graphs save a convolution's result alone, and normalise it again for ReLU's mask."""

    def forward(self, x):
        return F.linear(
            F.batch_norm(F.linear(x, self.w), None, None, training=True).relu().sum(1, keepdim=True), self.v
        )

    model = integrations.compress_model(Net(forward, w=W, v=W[:, :1]))
    function = compiled(model, backend="aot_eager_decomp_partition")
    trained(model, function)
    [row] = [row for row in rows(model) if row.shape == (48, 64) and row.dtype == torch.float32]
    assert row.codec == "kept"
    assert row.why == "no rule for le of what is computed again in compiled code: kept exactly"


def test_a_relu_whose_result_is_multiplied_keeps_its_mask():
    """4 bits round small elements to zero, where ReLU's derivative would be another one."""
    x = torch.cat([torch.full((24, 63), 1e-6), torch.full((24, 1), -1.0), normal(24, 64).abs()], 1)
    model = Net(lambda self, x: F.linear((x * self.s).relu(), self.w), s=torch.ones(128), w=normal(64, 128, seed=2))
    plain = gradients(copy.deepcopy(model), x)
    found = trained(integrations.compress_model(model), compiled(model), x)
    [row] = [row for row in rows(model) if "threshold" in row.operator]
    assert row.codec.endswith("and Positive()")
    assert torch.allclose(found["s"], plain["s"], rtol=1e-4)  # sums of the same terms, in another order
    assert relative_error({"w": plain["w"]}, found) > 1e-3


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
    assert "share groups: kept exactly" in row.why


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
        assert report_of(twin).ratio > 8
    assert integrations.compression(wrapper).step == 1
    integrations.restore_model(wrapper)
    with pytest.raises(ValueError, match="not compressed"):
        integrations.compression(wrapper)


# ---- never silent ----


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
    assert any("does not tell which operators use it" in message for message in messages)
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
    with pytest.warns(UserWarning, match="Sequential runs uncompressed in a function that is compiled"):
        assert_same(gradients(mlp(), X), trained(model, compiled(lambda x: model(x))))
    assert integrations.compression(model).step == 0
