"""What ``python -m bench checkpoint`` judges: every number to reach, and whether it is reached."""

from dataclasses import replace

from bench.models import architectures
from bench.suites.memory.checkpoint import planning, report
from bench.suites.memory.checkpoint.entries import Peak, Planned, StepTimes
from bench.ways.checkpoints import LEAST, LEAST_MASKS, PLAIN

from .checkpoint_results import recorded
from .rendering import printed, words

MIB = 2**20


def judged_results():
    own = architectures.ARCHITECTURES["resnet50"]
    small = planning.small(own)
    plans = [
        Planned("resnet50", own.batch, own.size, 1000, [300, 1000], [0.2, 0.0], 300, 9, 1, 5.0, 4.0, 0.1, 0.76),
        Planned("densenet121", 32, 224, 1000, [200, 1000], [0.2, 0.0], 200, 9, 1, 5.0, 4.0, 1.5, 0.81),
    ]
    peaks = [
        Peak("resnet50", PLAIN, own.batch, own.size, 1000 * MIB, 990 * MIB),
        Peak("resnet50", LEAST, own.batch, own.size, 300 * MIB, 300 * MIB),
        Peak("alexnet", PLAIN, 512, 224, 1000 * MIB, 1000 * MIB),
        Peak("alexnet", LEAST, 512, 224, 700 * MIB, 600 * MIB),
    ]
    times = []
    for way, peak, ratio in ((PLAIN, 100, 1.0), (LEAST, 35, 1.5), ("ours, 37 %", 36, 1.2), ("ours, 40 %", 40, 1.1)):
        peaks.append(Peak("resnet50", way, *small, peak * MIB, peak * MIB))
        times.append(StepTimes("resnet50", way, *small, [ratio] * 3, [1.0] * 3, 0.0, 0.0))
    times.append(StepTimes("resnet50", "each block", *small, [1.3] * 3, [1.0] * 3, 0.0, 0.5))
    return recorded(*plans, *peaks, *times)


def found_for(results, part):
    [target] = [one for one in report.targets(results) if part in one.what]
    return target.found, target.reached


def test_what_is_judged():
    results = judged_results()
    assert found_for(results, "accounting, resnet50") == ("76.0%", True)
    assert found_for(results, "accounting, densenet121") == ("81.0%", False)
    assert found_for(results, "accounting, inception_v3") == ("", None)
    assert found_for(results, "capture, resnet50") == ("4.00 s", True)
    assert found_for(results, "search, densenet121") == ("1.50 s", False)
    found, reached = found_for(results, "planned peak")
    assert found == "7 of 8; worst 1.167, alexnet, ours, least, batch 512"
    assert reached is False
    assert found_for(results, "published cut") == ("1.20 times at 64.0%, ours, 37 %", True)
    assert found_for(results, "high cut") == ("1.10 times at 60.0%, ours, 40 %", True)
    assert found_for(results, "in the budget") == ("35.0 36.0 40.0 MiB", True)
    # AlexNet's 30 % are less than the published 34, at half the batch.
    assert found_for(results, "each model") == ("1 of 2; not alexnet", False)
    masks = results.adding([Peak("alexnet", LEAST_MASKS, 512, 224, 650 * MIB, 650 * MIB)])
    assert found_for(masks, "each model") == ("2 of 2; alexnet with ReLUs that keep one bit", True)
    text = printed(results)
    for shown in ("70.0 ✓", "30.0 ✗", "1.167 ✗", "0.10 ✓", "1.50 ✗", "1.20 [1.20, 1.20]"):
        assert shown in text, shown


def test_what_falls_short():
    results = judged_results()
    slow = [replace(time, seconds=[2 * one for one in time.seconds]) for time in results.of(StepTimes)]
    swapped = [replace(peak, peak_bytes=50 * MIB) if peak.way == "ours, 37 %" else peak for peak in results.of(Peak)]
    results = results.adding([*slow, *swapped])
    assert found_for(results, "published cut") == ("3.00 times at 65.0%, ours, least", False)
    assert found_for(results, "high cut") == ("2.20 times at 60.0%, ours, 40 %", False)
    assert found_for(results, "in the budget") == ("35.0 50.0 40.0 MiB", False)
    wrong = [replace(time, gradients=1e-3) for time in results.of(StepTimes)]
    assert "0.001 ✗" in printed(results.adding(wrong))


def test_every_number_to_reach_has_a_place_before_anything_is_measured():
    results = recorded()
    text = words(results)
    assert text.count("not measured") == 6 + 2 + 5 + 1 + 3 + 1
    for what in ("predicted cut", "capture", "search", "planned peak", "published cut", "monotone", "random graphs"):
        assert what in text, what
