"""The report as JSON, and back."""

import dataclasses
import json

import pytest
import torch
from torch import nn

import integrations
from integrations import Report

from .nets import mlp, normal


@pytest.fixture(scope="module")
def report():
    model = integrations.compress_model(nn.Sequential(mlp(), nn.LayerNorm(64)), "L1.2", bits=3)
    model(normal(48, 64)).sum().backward()
    return integrations.compression(model).report()


def test_there_and_back(report):
    assert Report.from_json(report.to_json()) == report
    assert str(Report.from_json(report.to_json())) == str(report)


def test_every_field_comes_back():
    row = integrations.Row("a", "b", "c", (2, 3), torch.bfloat16, "d", 12, 4, "e", "f", host=True, seconds=0.5)
    words = {"plan": "g", "monitor": "h", "recomputed": "k", "model": "i", "note": "j", "exchanged": "l", "loss": "m"}
    words |= {"peak_source": "n", "peak_note": "o"}
    numbers = {"gradient_bytes": 8, "original_peak_bytes": 16, "peak_bytes": 10, "measured_peak_bytes": 11}
    ranks = (integrations.RankSummary(0, "L3", 12, 4, 16, 10, "n", 11), integrations.RankSummary(1, error="p"))
    report = Report("L3", [row], off=True, offload=True, ranks=ranks, **numbers, **words)
    assert Report.from_json(report.to_json()) == report
    defaults = Report("L3", [row])
    assert all(getattr(report, field.name) != getattr(defaults, field.name) for field in dataclasses.fields(report)[2:])


def test_other_programs_find_sums_and_names(report):
    told = json.loads(report.to_json())
    assert (told["format"], told["version"], told["model"]) == ("integrations report", 1, "Sequential")
    assert told["level"] == "L1.2 with bits=3"
    assert told["original_bytes"] == report.original_bytes == sum(row["original_bytes"] for row in told["rows"])
    assert told["stored_bytes"] == report.stored_bytes
    assert told["rows"][0]["dtype"] == "float32"
    assert told["rows"][0]["shape"] == list(report.rows[0].shape)


def test_an_empty_report_too():
    report = integrations.compression(integrations.compress_model(mlp())).report()
    assert Report.from_json(report.to_json()) == report


def damaged(report, change):
    told = json.loads(report.to_json())
    change(told)
    return json.dumps(told)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda told: told.update(format="another"), "without 'format'"),
        (lambda told: told.update(version=2), "of version 1, got 2"),
        (lambda told: told.pop("rows"), "its rows are not: KeyError"),
        (lambda told: told.pop("level"), "no more or less"),
        (lambda told: told.update(strange=1), "no more or less"),
        (lambda told: told["rows"][0].pop("codec"), "its rows are not: TypeError"),
        (lambda told: told["rows"][0].update(strange=1), "its rows are not: TypeError"),
        (lambda told: told["rows"][0].update(dtype="float33"), "'float33' is no dtype of torch"),
        (lambda told: told["rows"][0].update(dtype="nn"), "'nn' is no dtype of torch"),
        (lambda told: told.update(rows=3), "its rows are not"),
    ],
)
def test_what_is_no_report_raises(report, change, message):
    with pytest.raises(ValueError, match=message):
        Report.from_json(damaged(report, change))


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_what_is_no_json_raises(text):
    with pytest.raises(ValueError, match=r"must be .* to_json"):
        Report.from_json(text)
