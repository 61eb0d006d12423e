"""Nonlinearities: exact where few bits suffice, and otherwise within the error that a bounded change of slope allows.

A smooth nonlinearity's backward multiplies by its slope at the input, which is stored in b bits. A rounding moves an
element by less than its group's step, so the slope by less than the step times the largest second derivative of the
function; beyond the range in which the slope changes, by 1e-4 at most.
"""

import pytest
import torch
import torch.nn.functional as F

from .nets import Net, normal, plain_and_compressed, relative_error, rows

ROWS, WIDTH = 32, 256  # a row is a group


def slopes(operator, x, level="L1", **options):
    """The derivative at x as backward has it, exactly and under compression, and the model."""
    net = Net(lambda self, x: operator(x + self.offset), offset=torch.zeros_like(x))
    plain, compressed, model = plain_and_compressed(net, x, level=level, loss=torch.sum, **options)
    return plain["offset"], compressed["offset"], model


def steepest_change(function):
    """The largest second derivative of a function, on a grid of 1e-3 over the range in which it has one."""
    x = torch.arange(-20, 20, 1e-3, dtype=torch.float64, requires_grad=True)
    [slope] = torch.autograd.grad(function(x).sum(), x)
    return (slope.diff() / 1e-3).abs().max().item()


def steps(values, bits):
    """Of each row, as a column."""
    return (values.amax(1, keepdim=True) - values.amin(1, keepdim=True)) / (2**bits - 1)


SMOOTH = {
    "gelu": (F.gelu, 5),
    "gelu, tanh": (lambda h: F.gelu(h, approximate="tanh"), 5),
    "silu": (F.silu, 12),
    "silu in place": (lambda h: F.silu(h, inplace=True), 12),
    "mish": (F.mish, 12),
    "softplus": (F.softplus, 10),
    "elu": (F.elu, 10),
    "celu": (F.celu, 10),
    "erf": (torch.erf, 3.5),
}


@pytest.mark.parametrize(("level", "bits"), [("L1", 8), ("L1.2", 4)])
@pytest.mark.parametrize("name", SMOOTH)
def test_a_slope_is_off_by_a_step_times_its_change(name, level, bits):
    operator, edge = SMOOTH[name]
    x = 3 * normal(ROWS, WIDTH)
    exact, found, model = slopes(operator, x, level)
    bound = steepest_change(lambda h: operator(h + 0)) * steps(x.clamp(-edge, edge), bits)
    assert ((found - exact).abs() <= bound + 2e-4).all()
    [row] = rows(model, name.split(",")[0].split(" ")[0])
    assert row.stored_bytes == x.numel() * bits // 8 + 8 * ROWS
    assert (found - exact).abs().max() > 0


@pytest.mark.parametrize("name", SMOOTH)
def test_an_outlier_does_not_make_its_group_coarse(name):
    operator, edge = SMOOTH[name]
    x = normal(ROWS, WIDTH)
    x[:, 7], x[:, 11] = 1e4, -1e4
    exact, found, _ = slopes(operator, x)
    assert ((found - exact).abs() <= steepest_change(lambda h: operator(h + 0)) * 2 * edge / 255 + 2e-4).all()


def test_logsigmoid_keeps_two_tensors_of_eight_bits():
    """On the CPU its slope is z / (1 + z) for positive x and 1 / (1 + z) for others, with z = exp(-|x|) saved, too: of
    slope 1 at most in z, whose range is 1. Where x, less than a step, changes its sign, the two are |x| / 2 apart."""
    x = 3 * normal(ROWS, WIDTH)
    exact, found, model = slopes(F.logsigmoid, x)
    assert ((found - exact).abs() <= 1 / 255 + steps(x.clamp(-10, 10), 8) / 2 + 1e-4).all()
    assert {row.codec for row in rows(model, "log_sigmoid")} == {
        "GroupAffine(bits=8, group_size=256, rounding='stochastic')"
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_hardswish_never_takes_one_side_of_its_jumps_for_the_other(dtype, bits):
    """The slope jumps by 1/2 at -3 and 3. Elements at, and one unit in the last place beside, each."""
    x = (3 * normal(ROWS, WIDTH)).to(dtype)
    for at, edge in enumerate((-3.0, 3.0)):
        edge = torch.tensor(edge, dtype=dtype)
        for beside, towards in enumerate((edge, edge - 1, edge + 1)):
            x[:, 3 * at + beside] = torch.nextafter(edge, towards)
    exact, found, _ = slopes(F.hardswish, x, "L1.2", pointwise_bits=bits)
    beyond = (exact == 0) & (x <= -3) | (exact == 1) & (x >= 3)
    assert beyond.sum() > x.numel() // 4
    assert torch.equal(found[beyond], exact[beyond])
    inside = ~beyond
    # A third of a step, which is at most a margin: 6 / (levels - 2) and 1 % and the dtype's rounding.
    step = 1.01 * 6 / (2**bits - 3) + 12 * torch.finfo(dtype).eps
    assert ((found - exact)[inside].abs() <= step / 3 + 4 * torch.finfo(dtype).eps).all()


def test_hardswish_of_one_bit_is_kept():
    exact, found, model = slopes(F.hardswish, 3 * normal(ROWS, WIDTH), bits=1, pointwise_bits=1)
    assert torch.equal(exact, found)
    assert rows(model, "hardswish")[0].codec == "kept"


# ---- results of bounded range ----


@pytest.mark.parametrize(
    ("operator", "change"),
    [
        (torch.sigmoid, 1),  # y (1 - y), of slope 1 - 2 y
        (torch.tanh, 2),  # 1 - y**2, of slope -2 y
        (torch.Tensor.sigmoid_, 1),
        (torch.Tensor.tanh_, 2),
        (F.tanhshrink, 2),
    ],
)
@pytest.mark.parametrize(("level", "bits"), [("L1", 8), ("L1.2", 4)])
def test_sigmoid_and_tanh(operator, change, level, bits):
    x = 3 * normal(ROWS, WIDTH)
    exact, found, model = slopes(operator, x, level)
    result = operator(x.clone()) if operator is not F.tanhshrink else x.tanh()
    assert ((found - exact).abs() <= change * steps(result, bits) + 1e-6).all()
    assert sum(row.stored_bytes for row in rows(model)) == x.numel() * bits // 8 + 8 * ROWS


@pytest.mark.parametrize("operator", [F.softmax, torch.softmax, torch.Tensor.softmax, F.softmin])
@pytest.mark.parametrize("scale", [1, 8])
@pytest.mark.parametrize(("level", "bits"), [("L1", 8), ("L1.2", 4)])
def test_softmax(operator, scale, level, bits):
    """dx = y (g - s) with s = sum(g y). With y off by less than a step d everywhere, s is off by less than
    e = d sum |g|, and dx by d |g - s| + (y + d) e."""
    x, upstream = scale * normal(ROWS, WIDTH), normal(ROWS, WIDTH, seed=1)
    exact, found, model = slopes(lambda h: operator(h, -1) * upstream, x, level)
    y = x.softmax(-1) if operator is not F.softmin else (-x).softmax(-1)
    total = (upstream * y).sum(-1, keepdim=True)
    step = steps(y, bits)
    off = step * upstream.abs().sum(-1, keepdim=True)
    assert ((found - exact).abs() <= step * (upstream - total).abs() + (y + step) * off + 1e-6).all()
    assert f"bits={bits}" in next(row.codec for row in rows(model) if row.role == "result")


def test_softmax_of_eight_bits_loses_little():
    """Against the loose bound above: what 8 bits cost where one key takes nearly all, and where none does. An element's
    error has variance step**2 / 4 at most, and so s of norm(g) step / 2; of these dx takes |g - s| and y."""
    for scale in (1, 8):
        x, upstream = scale * normal(ROWS, WIDTH), normal(ROWS, WIDTH, seed=1)
        exact, found, _ = slopes(lambda h, g=upstream: F.softmax(h, -1) * g, x)
        y = x.softmax(-1)
        centered = upstream - (upstream * y).sum(-1, keepdim=True)
        variance = steps(y, 8).square() / 4 * (centered.square() + y.square() * upstream.square().sum(-1, keepdim=True))
        # 8192 squared errors, each at most 4 times its variance bound's square: their sum is below twice its mean.
        assert (found - exact).square().sum() <= 2 * variance.sum()


# ---- exact in one bit ----

BOUNDS = torch.tensor([-3.0, 3.0, 6.0, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -0.25, 0.75]).repeat(11)[:128]
X = torch.cat([normal(30, 64), BOUNDS.view(2, 64)])
SPECIAL = torch.tensor([float("inf"), float("-inf"), -1e-45, 1e-45, 3e38, -3e38, 2.0, -0.25])
INSIDE = {
    "relu6": [F.relu6, lambda h: F.relu6(h, inplace=True)],
    "hardtanh": [
        F.hardtanh,
        lambda h: F.hardtanh(h, -0.25, 2.0),
        lambda h: F.hardtanh(h, min_val=0.5, max_val=0.75, inplace=True),
        torch.nn.Hardtanh(-1, 3),
        torch.nn.ReLU6(),
    ],
    "hardsigmoid": [F.hardsigmoid, lambda h: F.hardsigmoid(h, inplace=True)],
    "clamp": [
        lambda h: h.clamp(-0.25, 0.5),
        lambda h: torch.clamp(h, min=-0.5),
        lambda h: h.clamp(max=1),
        lambda h: h.clamp_(-1, 0.0),
        lambda h: torch.clamp(h, None, 0.0),
    ],
    "clip": [lambda h: h.clip(0.0, 2.0)],
    "clamp_min": [lambda h: h.clamp_min(0.5), lambda h: torch.clamp_min(h, 0)],
    "clamp_max": [lambda h: h.clamp_max(-0.5)],
    "threshold": [lambda h: F.threshold(h, 0.5, 7.0), lambda h: F.threshold(h, -1, 0.0, inplace=True)],
    "hardshrink": [F.hardshrink, lambda h: F.hardshrink(h, 1.0)],
    "softshrink": [F.softshrink, lambda h: F.softshrink(h, 1.0)],
}
CASES = [(name, operator) for name, operators in INSIDE.items() for operator in operators]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "operator"), CASES)
def test_a_piecewise_constant_slope_takes_one_bit(name, operator, dtype):
    x = (3 * X).to(dtype)
    x[4, :8], x[5] = SPECIAL.to(dtype), X[-1].to(dtype)
    upstream = normal(32, 64, seed=4).to(dtype)
    exact, found, model = slopes(lambda h: operator(h) * upstream, x, "L1.2")
    assert torch.equal(exact, found)
    [row] = rows(model, name)
    assert (row.stored_bytes, row.codec[:7]) == (x.numel() // 8, "BitMask")


@pytest.mark.parametrize(
    "operator",
    [
        lambda h: h.clamp(torch.tensor(-0.5), torch.tensor(0.5)),
        lambda h: h.clamp(2.0, -2.0),
        lambda h: h.to(torch.bfloat16).clamp(0.1, 0.3).float(),
        lambda h: F.hardtanh(h, -1e38, 3.4e38),
    ],
    ids=["tensors", "empty", "rounded bounds", "no value beyond"],
)
def test_bounds_that_leave_no_bit_are_kept(operator):
    exact, found, model = slopes(operator, X)
    assert torch.equal(exact, found)
    assert {row.codec for row in rows(model) if row.operator in ("clamp", "hardtanh") and row.role == "input"} == {
        "kept"
    }


# ---- proportional to what is saved ----


SQUARES = [torch.square, lambda h: h**2, lambda h: torch.pow(h, 2.0), lambda h: h.var(1)]
RESULTS = [torch.exp, torch.exp2, torch.expm1]


@pytest.mark.parametrize(
    ("operator", "level", "bits"),
    [
        *((operator, "L1", 8) for operator in (*SQUARES, *RESULTS)),
        *((operator, "L1.2", 8) for operator in SQUARES),
        *((operator, "L1.2", 4) for operator in RESULTS),
    ],
)
def test_products_with_the_input_or_the_result(operator, level, bits):
    x = normal(ROWS, WIDTH)
    exact, found, model = slopes(operator, x, level)
    [row] = [row for row in rows(model) if row.shape == (ROWS, WIDTH)]
    assert f"bits={bits}" in row.codec
    # Twice the input's rounding, or once the result's, or 2 / (n - 1) of the input's and of its mean's.
    value = x if row.role == "input" else operator(x)
    assert ((found - exact).abs() <= 2 * steps(value, bits) + 1e-5).all()
    assert relative_error({"": exact}, {"": found}) > 0
