import dataclasses

import pytest

from bench.results.statistics import UNDECIDED
from bench.runner.memory import Memory
from bench.suites.gnn.entries import Curve
from bench.suites.gnn.report import rows

from .gnn_records import replaced


def test_rows_against_values_computed_by_hand(results):
    plain, compressed = rows(results)
    assert (plain.level, compressed.level) == ("L0", "L1")
    assert plain.accuracy == 81.0
    assert plain.ratio is None
    assert compressed.difference.mean == pytest.approx(0.5)
    assert compressed.loss_ratio == pytest.approx((1.1 + 1.0) / 2)
    assert compressed.time_ratio == pytest.approx(1.5)
    assert compressed.ratio == 16.0
    assert compressed.agreement == 1.0  # 17 - 2 MiB measured, 16 - 1 MiB reported
    assert compressed.peak_ratio == 2.0


def test_a_model_s_rows_are_together_whatever_was_taken_up(results):
    """Memory of a level that was measured later came after all models, under a second heading."""
    plain, compressed = results.of(Memory)
    later = dataclasses.replace(compressed, level="L1.2")
    others = [dataclasses.replace(memory, model="sage") for memory in results.of(Memory)]
    curves = [*results.of(Curve), *(dataclasses.replace(curve, model="sage") for curve in results.of(Curve))]
    changed = replaced(results, curves=curves, memories=[plain, compressed, later, *others])
    assert [(row.model, row.level) for row in rows(changed)] == [
        ("gcn", "L0"), ("gcn", "L1"), ("gcn", "L1.2"), ("sage", "L0"), ("sage", "L1")
    ]  # fmt: skip


def test_times_of_another_hour_are_not_compared(results):
    """Full precision that failed and was trained later was compared with, as if it had taken turns."""
    curves = [dataclasses.replace(curve, commit="0123456789") for curve in results.of(Curve)]
    assert list(rows(replaced(results, curves=curves)))[1].time_ratio is None
    beside = [dataclasses.replace(curve, plain_seconds=[0.5]) for curve in curves]
    assert list(rows(replaced(results, curves=beside)))[1].time_ratio == pytest.approx((3 + 6) / 2)


def test_verdicts(results):
    plain, compressed = rows(results)
    assert plain.accuracy_reached is True
    assert plain.loss_reached is None
    assert compressed.accuracy_reached == UNDECIDED  # from two seeds
    assert compressed.loss_reached is False  # 5 % more
    assert compressed.ratio_reached is True
    assert compressed.agreement_reached is True


def test_other_data_have_no_target_for_accuracy_and_ratio(results):
    plain, compressed = rows(replaced(results, dataset="digits"))
    assert plain.accuracy_reached is None
    assert compressed.ratio_reached is None


def test_what_was_not_measured_is_not_judged(results):
    memories = [dataclasses.replace(memory, live_bytes=None, peak_bytes=None) for memory in results.of(Memory)]
    _, compressed = rows(replaced(results, memories=memories))
    assert compressed.agreement is None
    assert compressed.agreement_reached is None
    assert compressed.peak_ratio is None


def test_a_report_that_is_wrong_by_ten_percent_is_seen(results):
    plain, compressed = results.of(Memory)
    wrong = dataclasses.replace(compressed, original_bytes=round(compressed.original_bytes * 1.1))
    _, row = rows(replaced(results, memories=[plain, wrong]))
    assert row.agreement_reached is False
