"""The tables of the smooth functions: their errors beside the optimum and FewBit's; a fit makes them again."""

import json
import math
import os
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from integrations.fewbit import FUNCTIONS, LevelTable, StepTable, approximate, estimate_error, level_table, table
from integrations.policies.codebooks import shipped, tables

SMOOTH = [name for name, function in FUNCTIONS.items() if not function.piecewise]
EVEN = [name for name in SMOOTH if FUNCTIONS[name].even]
WEIGHTS = ("uniform", "normal")


def reference():
    folder = os.environ.get("ACTCORE_DATA") or Path(__file__).parents[4] / "shared" / "data"
    path = Path(folder) / "fewbit_errors.json"
    if not path.is_file():
        pytest.skip("no fewbit_errors.json: ACTCORE_DATA names no folder with it")
    return json.loads(path.read_text(encoding="utf-8"))["functions"]


def slope_of(name, x, parameters=()):
    at = x.clone().requires_grad_()
    return torch.autograd.grad(FUNCTIONS[name].call(at, *parameters).sum(), at)[0]


def steps_at(found, x):
    where = x.abs() if found.even else x
    boundaries = torch.tensor(found.boundaries, dtype=torch.float64)
    return torch.tensor(found.levels, dtype=torch.float64)[torch.bucketize(where, boundaries, right=True)]


def plain_error(name, found, weight="uniform", parameters=(), reach=10.0):
    """The midpoint rule with 400,000 points, nothing of the fit's: beside a jump of 1 off by 2.5e-5 at most."""
    edges = torch.linspace(-reach, reach, 400_001, dtype=torch.float64)
    x = (edges[1:] + edges[:-1]) / 2
    density = torch.ones_like(x) if weight == "uniform" else torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)
    return float((density * (slope_of(name, x, parameters) - steps_at(found, x)).square()).sum() * reach / 200_000)


def errors(name, weight="uniform", parity=None):
    return [
        estimate_error(name, table(name, bits, weight=weight, parity=parity), weight=weight) for bits in range(1, 9)
    ]


@pytest.mark.parametrize("name", SMOOTH)
def test_errors_are_the_optimum_and_below_fewbit(name):
    known = reference().get(name)
    if known is None:
        pytest.skip(f"FewBit has no {name}")
    for parity in {"none", None}:
        uniform, normal = errors(name, parity=parity), errors(name, "normal", parity)
        for bits, row in known.items():
            assert uniform[int(bits) - 1] <= 1.01 * row["optimal"]
            # The file's errors have 6 decimals, and are integrals over a grid, of a jump 1e-4 off.
            assert uniform[int(bits) - 1] <= 1.0001 * row["shipped"] + 5e-7
            assert normal[int(bits) - 1] <= 1.01 * row["optimal_gauss"] + 5e-7


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_the_error_falls_by_three_with_every_further_bit(name, weight):
    """By four in the end, as for every quantiser of many levels; by less while levels are few."""
    for parity in {"none", None}:
        found = errors(name, weight, parity)
        assert all(fine < coarse for coarse, fine in pairwise(found))
        assert all(3 * fine < coarse for coarse, fine in pairwise(found[2:]))


@pytest.mark.parametrize("name", SMOOTH)
def test_the_estimate_is_the_plain_integral(name):
    for weight in WEIGHTS:
        found = table(name, 3, weight=weight)
        assert estimate_error(name, found, weight=weight) == pytest.approx(plain_error(name, found, weight), rel=1e-3)


@pytest.mark.parametrize("name", EVEN)
def test_parity_takes_three_times_off(name):
    for whole, half in zip(errors(name, parity="none"), errors(name), strict=True):
        assert 3 * half < whole


@pytest.mark.parametrize("name", SMOOTH)
def test_tables_are_what_they_should_be(name):
    for weight in WEIGHTS:
        for bits in range(1, 9):
            found = table(name, bits, weight=weight)
            assert (len(found.levels), found.bits, found.even) == (2**bits, bits, name in EVEN)
            assert list(found.boundaries) == sorted(set(found.boundaries))
            codebook = level_table(name, bits, weight=weight)
            slope = slope_of(name, torch.arange(-10_000, 10_001, dtype=torch.float64) / 1000)
            assert len(codebook.levels) == 2**bits
            # hardswish's extremes are where it jumps, and torch's value is that of the other side: it changes a third
            # of 0.001 up to the next point.
            assert codebook.levels[0] == pytest.approx(slope.min().item(), rel=1e-6, abs=4e-4)
            assert codebook.levels[-1] == pytest.approx(slope.max().item(), rel=1e-6, abs=4e-4)


def test_the_published_table_is_found():
    """GELU's of 3 bits, printed with three digits."""
    published = (
        (-2.417, -0.710, -0.326, 0.0, 0.326, 0.710, 2.414),
        (0.0, -0.088, 0.126, 0.372, 0.628, 0.874, 1.088, 1.0),
    )
    found = table("gelu", 3)
    assert found.boundaries == pytest.approx(published[0], abs=0.03)
    assert found.levels == pytest.approx(published[1], abs=0.01)


@pytest.mark.parametrize(("name", "place"), [("selu", 0.0), ("hardswish", 3.0), ("hardswish", -3.0), ("elu", 0.0)])
def test_where_the_derivative_jumps_the_place_is_on_torchs_side(name, place):
    parameters = (2.0,) if name == "elu" else ()
    for bits in (3, 8):
        found = table(name, bits, parameters)
        near = [
            level
            for b, below, level in zip(found.boundaries, found.levels, found.levels[1:], strict=False)
            if abs(b - place) < 1e-6
            for level in (below, level)
        ]
        assert len(near) == 2
        at = torch.tensor([place], dtype=torch.float64)
        slope = slope_of(name, at, parameters)
        assert steps_at(found, at) == min(near, key=lambda level: abs(level - slope.item()))


@pytest.mark.parametrize(("name", "widths"), [("gelu", (1, 3)), ("tanh", (4,))])
def test_the_files_are_what_a_fit_makes(name, widths, tmp_path):
    """Some of them: a fit of all takes minutes. Elsewhere the last digits may differ, by 1e-6 of the error at most."""
    path = shipped.write(name, shipped.fitted(name, widths), tmp_path)
    made = json.loads(path.read_text())
    kept = json.loads((Path(shipped.__file__).parent / "data" / path.name).read_text())
    assert made.keys() == kept.keys() == set(WEIGHTS)
    for weight in WEIGHTS:
        assert made[weight].keys() == kept[weight].keys()
        for kind, rows in made[weight].items():
            for bits, row in zip(widths, rows, strict=True):
                both = []
                for levels in (row, kept[weight][kind][bits - 1]):
                    if kind == "codebooks":
                        found = LevelTable(tuple(levels))
                    else:
                        found = StepTable(tuple(levels[0]), tuple(levels[1]), kind == "even")
                    both.append(estimate_error(name, found, weight=weight))
                assert both[0] == pytest.approx(both[1], rel=1e-6)


def test_every_smooth_function_has_its_file_and_no_other_has():
    folder = Path(shipped.__file__).parent / "data"
    assert sorted(path.stem for path in folder.iterdir()) == sorted(SMOOTH)


PARAMETERS = [
    ("celu", (0.5,)),
    ("celu", (3.0,)),
    ("elu", (0.3,)),
    ("elu", (2.0,)),
    ("softplus", (2.0, 20.0)),
    ("softplus", (0.5, 3.0)),
    ("softplus", (5.0, 2.0)),
    ("softplus", (-1.0, 20.0)),
    ("softplus", (1.0, -30.0)),
]


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS)
def test_parameters_have_tables_of_their_own(name, parameters):
    """FewBit's celu, elu and softplus took the tables of alpha = 1 and beta = 1 for every alpha and beta."""
    scale = {"celu": parameters[0], "elu": 1.0, "softplus": abs(1 / parameters[0])}[name]
    for bits in (2, 4):
        found = table(name, bits, parameters)
        error = plain_error(name, found, parameters=parameters, reach=10 * scale)
        best = approximate(name, bits, parameters=parameters, domain=(-10 * scale, 10 * scale))
        # The plain error is off by 2.5e-5 of the scale beside a jump.
        assert error <= 1.01 * plain_error(name, best, parameters=parameters, reach=10 * scale) + 1e-4 * scale
        if parameters != (1.0, -30.0):  # where the derivative is 1 all over
            assert error < 0.5 * plain_error(name, table(name, bits), parameters=parameters, reach=10 * scale)


def test_a_threshold_beyond_the_domain_changes_nothing():
    assert table("softplus", 3, (1.0, 15.0)) == table("softplus", 3)
    halved = [2 * boundary for boundary in table("softplus", 3, (2.0, 15.0)).boundaries]
    assert halved == pytest.approx(table("softplus", 3).boundaries)


def test_other_parameters_are_fitted_once_for_all_threads(monkeypatch):
    calls = []

    def counted(*arguments, **options):
        calls.append(arguments)
        return approximate(*arguments, **options)

    monkeypatch.setattr(tables, "approximate", counted)
    found = []
    workers = [threading.Thread(target=lambda: found.append(table("elu", 2, (1.25,)))) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(calls) == 1
    assert found == [approximate("elu", 2, parameters=(1.25,))] * 6


def test_no_mode_of_the_callers_reaches_a_fit():
    """Fake tensors, functorch and a default device would make tensors without numbers of the fit's."""
    found = []
    with FakeTensorMode(), torch.device("meta"), torch.inference_mode():
        found.append(table("elu", 2, (0.71,)))
    torch.func.grad(lambda x: (x * (found.append(table("elu", 2, (0.72,))) or 1)).sum())(torch.ones(2))
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, torch.zeros_like):
        found.append(table("elu", 2, (0.73,)))
    compiled = torch.compile(lambda x: x * table("elu", 2, (0.74,)).levels[1], fullgraph=True, backend="eager")
    assert compiled(torch.ones(1, dtype=torch.float64)).item() == approximate("elu", 2, parameters=(0.74,)).levels[1]
    assert found == [approximate("elu", 2, parameters=(alpha,)) for alpha in (0.71, 0.72, 0.73)]


BAD = [
    (ValueError, "function must be one of celu, ", {"function": "gelo"}),
    (ValueError, "relu is piecewise linear and its derivative needs no fit", {"function": "relu"}),
    (ValueError, "bits must be from 1 to 8, got 9", {"bits": 9}),
    (ValueError, "bits must be from 1 to 8, got 0", {"bits": 0}),
    (TypeError, "bits must be an int, got 3.0", {"bits": 3.0}),
    (TypeError, "bits must be an int, got True", {"bits": True}),
    (ValueError, "parameters of gelu must be 0 numbers (it has none), got 1", {"parameters": (1.0,)}),
    (ValueError, "parameters of softplus must be 2 numbers", {"function": "softplus", "parameters": (1.0,)}),
    (ValueError, "parameters of elu must be finite, got (nan,)", {"function": "elu", "parameters": (math.nan,)}),
    (ValueError, "weight must be 'uniform' or 'normal', got 'flat'", {"weight": "flat"}),
]


@pytest.mark.parametrize(("error", "text", "change"), BAD)
def test_wrong_arguments(error, text, change):
    for call in (table, level_table):
        with pytest.raises(error) as raised:
            call(**{"function": "gelu", "bits": 3, **change})
        assert text in str(raised.value)


def test_parity_is_that_of_even_derivatives():
    with pytest.raises(ValueError, match="parity of gelu must be \"none\" or None, got 'even'"):
        table("gelu", 3, parity="even")
    assert table("tanh", 3, parity="even") == table("tanh", 3)
