"""Tests of ``integrations`` that record what they measure: the file that they write, and its tables."""

import importlib.util
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest

from bench.cli import main, suites
from bench.cli.markdown import render_record
from bench.errors import BenchError
from bench.recorded_tests.operators import (
    EXACT,
    FAILS,
    IN_PLACE,
    KEPT,
    NOT_RUN,
    NOTHING,
    ROUNDED,
    Operated,
    Saved,
    lines,
)
from bench.recorded_tests.sweep import Swept
from bench.recorded_tests.write import measure_subjects
from bench.results.record import Record

from .rendering import MACHINE

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "packages" / "bench" / "results"
SETTINGS = {"level": "L1", "steps": 1, "seed": 0, "device": "cpu"}
GOOD = Swept("PyG", "", "SGConv", original_bytes=9, stored_bytes=3, rows=1, errors=[0.1, 0.1])
GOOD = replace(GOOD, same_loss=True, stepped=True, restored=True, repeated=True, plain_seconds=1.0, seconds=2.0)


@pytest.fixture(scope="module", params=["sweep", "operator_database"])
def found(request):
    """What a test has of a subject: a module of the tests of ``integrations``."""
    file = ROOT / "packages" / "integrations" / "tests" / request.param / "results.py"
    spec = importlib.util.spec_from_file_location(f"{request.param}_results", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where a dataclass looks for its annotations
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_a_test_has_the_names_that_files_have(found):
    measured, entry = (found.Swept, Swept) if hasattr(found, "Swept") else (found.Operated, Operated)
    names = {one.name for one in fields(measured)} - {"does_not_apply"}
    assert names == {name for name, *_ in entry.declared() if "." not in name}
    if entry is Operated:
        assert {one.name for one in fields(found.Saved)} == {one.name for one in fields(Saved)}


# ---- the file ----


@dataclass(frozen=True)
class Subject:
    name: str

    @property
    def place(self):
        return "PyG", "", self.name


def recorded(file, *names, fails=(), seconds=2.0, **settings):
    def measure(subject):
        if subject.name in fails:
            raise RuntimeError("a shape\nis wrong")
        found = {one.name: getattr(GOOD, one.name) for one in fields(GOOD)}
        return replace(GOOD, **{**found, "name": subject.name, "seconds": seconds})

    return measure_subjects(file, "sweep", {**SETTINGS, **settings}, [Subject(name) for name in names], measure)


def test_a_file_is_taken_up_and_shown(tmp_path, capsys):
    file = tmp_path / "sweep.json"
    assert [one.name for one in recorded(file, "SGConv")] == ["SGConv"]
    assert [one.name for one in recorded(file, "SGConv", "GCNConv", seconds=3.0)] == ["GCNConv"]
    record = suites.load(file)
    assert [(one.name, one.seconds) for one in record.of(Swept)] == [("SGConv", 2.0), ("GCNConv", 3.0)]
    assert record.machine.command.startswith("python -m pytest")
    assert main.main(["show", str(file)]) == 0
    assert "PyG: 2 of 2 passed at L1" in capsys.readouterr().out
    with pytest.raises(BenchError, match="holds results of another level"):
        recorded(file, "SGConv", level="L1.1")
    with pytest.raises(BenchError, match="cannot be written: there is no folder"):
        recorded(tmp_path / "none" / "sweep.json", "SGConv")


def test_what_fails_is_recorded_and_the_rest_goes_on(tmp_path):
    file = tmp_path / "sweep.json"
    with pytest.raises(AssertionError, match="GCNConv: RuntimeError: a shape is wrong"):
        recorded(file, "GCNConv", "SGConv", fails=["GCNConv"])
    failed, other = suites.load(file).of(Swept)
    assert failed.failure == "RuntimeError: a shape is wrong"
    assert not failed.passed
    assert other.passed
    page = render_record(file.name, suites.load(file))
    assert "Did not pass: GCNConv, RuntimeError: a shape is wrong." in page
    recorded(file, "GCNConv", "SGConv")  # what failed is tried again
    assert not any(one.failure for one in suites.load(file).of(Swept))


# ---- the sweep ----


def test_what_keeps_an_entry_from_passing():
    assert GOOD.passed
    assert GOOD.error == pytest.approx(0.1)
    for wrong in (
        {"errors": [0.0, 0.3]},  # 0.21 in the root of the mean square
        {"errors": [float("nan")]},
        {"errors": []},
        {"errors": [0.2], "eased_errors": [0.16]},
        {"stored_bytes": 9},
        {"rows": 0},
        {"same_loss": False},
        {"failure": "RuntimeError: no"},
    ):
        assert not replace(GOOD, **wrong).passed, wrong
    assert replace(GOOD, errors=[0.2], eased_errors=[0.1]).passed
    assert replace(GOOD, stored_bytes=9, why="9 B: too small").passed


def test_notes_say_what_did_not_pass_and_why_nothing_is_smaller():
    wrong = replace(GOOD, name="vit", errors=[0.3], where="head.weight", share=0.5)
    same = replace(GOOD, name="tiny", stored_bytes=9, why="9 B: too small")
    page = render_record("sweep.json", Record("sweep", MACHINE, SETTINGS, [wrong, same]))
    assert "Did not pass: vit, the gradient's error is 0.300, 50% of its square in head.weight." in page
    assert "No fewer bytes are stored of tiny: 9 B: too small." in page


@pytest.mark.parametrize("name", ["sweep-cpu", "sweep-lean-cpu", "sweep-cuda"])
def test_recorded_sweeps_have_all_subjects(name):
    swept = suites.load(RESULTS / f"{name}.json").of(Swept)
    assert len(swept) == 119
    assert [one.name for one in swept if not one.passed] == (["vit"] if name == "sweep-cuda" else [])


@pytest.mark.parametrize("name", ["sweep-widths-cpu", "sweep-widths-lean-cpu"])
def test_recorded_widths_are_within_the_promised_error(name):
    swept = suites.load(RESULTS / f"{name}.json").of(Swept)
    assert len(swept) == 24
    assert all(one.passed and one.accurate for one in swept)


# ---- the operators ----


def operator(name, store="", why="", **more):
    saved = [Saved(name, "input", store, why)] if store else []
    return Operated(name, "function", "float32", samples=2, saved=saved, **more)


OPERATORS = [
    operator("sigmoid", ROUNDED, "a slope", bounds={"slope": 0.5}, error=0.02),
    replace(operator("sigmoid", ROUNDED, "a slope", bounds={"slope": 0.4}), form=IN_PLACE),
    operator("sort", EXACT, "indices"),
    operator("log", KEPT, "exp() and division amplify an error without bound"),
    operator("view_as_real"),
    Operated("eq", "function", "", does_not_apply="no gradient"),
]


def test_each_operator_is_in_one_table():
    record = Record("operators", MACHINE, {"level": "L1.1", "samples": 2, "planned": 1, "seed": 0}, OPERATORS)
    verdicts = {line.name: line.verdict for line in lines(record)}
    assert verdicts == {"eq": NOT_RUN, "log": KEPT, "sigmoid": ROUNDED, "sort": EXACT, "view_as_real": NOTHING}
    wrong = replace(record.find(Operated, name="log"), wrong={"L1.1: results differ": 1})
    [failed] = [one for one in lines(record.adding([wrong])) if one.name == "log"]
    assert (failed.verdict, list(failed.wrong)) == (FAILS, ["function, float32: L1.1: results differ (1 samples)"])
    page = render_record("operators.json", record)
    assert "| sigmoid, in place too | input of sigmoid | slope |" in page
    assert "| exp() and division amplify an error without bound | 1 | log |" in page
    assert "| no gradient | 1 | eq |" in page
