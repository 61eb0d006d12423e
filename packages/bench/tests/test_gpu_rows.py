"""``tools/gpu.sh``: what its stages make of what their processes leave."""

import dataclasses
import subprocess
from pathlib import Path

import pytest
import torch

from actcore.ops import CPU_OPERATORS
from bench.cli import records
from bench.gpu import build, facts, kernels, models, sanitize, sanitized, search, tests
from bench.gpu.cases import Done
from bench.gpu.claims import CLAIMS
from bench.gpu.place import Place
from bench.gpu.results import FAILED, MISSED, NOT_REACHED, OK, SKIPPED, Row
from bench.results.machine import Machine
from bench.results.record import Record
from bench.suites.kernels.results import Measurement, Timing
from bench.suites.memory.systems.results import Cell, Figures
from bench.suites.search.results import Search, Trial

MACHINE = Machine("a GPU", 16, "Linux", {"torch": "2.11.0"}, "0123456789abc", False, "tools/gpu.sh build", "today")
SETTINGS = {"device": "cuda", "seed": 0}


def test_the_self_check_must_have_been_on_the_device():
    cuda = Place("cuda", False, Path())
    text = "cuda_missing           built without nvcc\ncpu  relu_mask    ok\n"
    row = build._checked(Done(0, text, 1.0), cuda)
    assert (row.outcome, row.reason) == (
        FAILED, "no operator was checked on cuda: cuda_missing           built without nvcc",
    )  # fmt: skip
    assert build._checked(Done(0, f"{text}cuda relu_mask    ok\n", 1.0), cuda).outcome == OK
    wrong = build._checked(Done(1, f"{text}cuda relu_mask    DISAGREES WITH THE REFERENCE\n", 1.0), cuda)
    assert (wrong.outcome, wrong.reason) == (FAILED, "relu_mask disagree with the reference")


REPORT = """<testsuites><testsuite>
<testcase classname="" name="packages.core.tests.test_cuda_large" time="0.0"><skipped message="collection skipped">
('packages/core/tests/test_cuda_large.py', 30, 'Skipped: torch finds no GPU')</skipped></testcase>
<testcase classname="packages.core.tests.test_cuda" name="test_rows[float32]" time="1.5"/>
<testcase classname="packages.core.tests.test_cuda" name="test_masks" time="0.5"><failure message="assert 1 == 2">
there</failure></testcase>
</testsuite></testsuites>"""


def test_a_report_of_tests_by_file():
    rows = list(tests.rows(REPORT, Done(1, "", 9.0), Place("cpu", True, Path())))
    assert rows == [
        Row("test_cuda_large", SKIPPED, "torch finds no GPU", 0.0, {"passed": 0, "failed": 0, "skipped": 1}, ["large"]),
        Row("test_cuda", FAILED, "", 2.0, {"passed": 1, "failed": 1, "skipped": 0}, ["bits"]),
        Row("test_cuda::test_masks", FAILED, "assert 1 == 2", claims=["bits"]),
    ]
    large, *_ = tests.rows(REPORT, Done(1, "", 9.0), Place("cuda", False, Path()))
    assert (large.outcome, large.reason) == (FAILED, "torch finds no GPU")  # it was there to be tested


LARGE = """
import pytest


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_large(device):
    if device == "cuda":
        pytest.skip("takes 32 GiB of a GPU, of which 7 are free")


def test_another():
    {}
"""


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """What the stage makes of a file of tests that pytest has run."""
    monkeypatch.setattr(tests, "SCRATCH", tmp_path)

    def run(name, text, device="cuda", **more):
        (tmp_path / f"{name}.py").write_text(text)
        case = tests._case(Place(device, device == "cpu", tmp_path), name, [str(tmp_path / f"{name}.py")])
        done = subprocess.run([*case.command, "--rootdir", str(tmp_path)], capture_output=True, text=True)
        assert done.returncode in (0, 1, 5), done.stdout
        [report] = tmp_path.glob("tests-*.xml")
        rows = case.rows(dataclasses.replace(Done(done.returncode, done.stdout + done.stderr, 9.0), **more))
        assert not report.exists()
        return rows

    return run


def test_what_a_gpu_skips_is_not_settled_by_tests_of_a_cpu_beside_it(ran):
    """The claims of files with CPU parameters held with every test of a GPU skipped."""
    [row] = ran("test_cuda_large", LARGE.format("pass"))
    assert (row.outcome, row.reason) == (NOT_REACHED, "takes 32 GiB of a GPU, of which 7 are free")
    assert (row.claims, row.values) == (["large"], {"passed": 2, "failed": 0, "skipped": 1})
    [row] = ran("test_cuda_large", LARGE.format("pass"), device="cpu")
    assert row.outcome == OK
    [row] = ran("test_cuda_streams", "import pytest\ndef test_one(): pass\n@pytest.mark.skip(reason='needs two GPUs')\n"
                "def test_two(): pass\n")  # fmt: skip
    assert (row.outcome, row.reason) == (OK, "needs two GPUs")


def test_a_reason_is_read_from_what_pytest_writes(ran):
    """Of a whole file pytest writes a tuple, as Python would, whatever quotes are in the reason."""
    said = 'no CUDA operators: it\'s built without "nvcc" (Skipped: none)'
    [row] = ran("test_cuda", f"import pytest\npytest.skip({said!r}, allow_module_level=True)\n")
    assert (row.case, row.outcome, row.reason) == ("test_cuda", FAILED, said)


def test_a_session_that_was_stopped_does_not_settle_its_claim(ran):
    """Its report has none of the tests that it did not come to."""
    [row, rest] = ran(
        "test_cuda", "def test_one(): pass\n", output="!!! session-timeout: 240.0 sec exceeded !!!", code=1
    )
    assert (row.outcome, rest.outcome, rest.claims) == (OK, NOT_REACHED, ["bits"])
    assert rest.reason == "pytest was stopped after 9 s"


@pytest.mark.parametrize(
    ("number", "options"), [("2.4.0", ["--timeout=120", "--session-timeout=240"]), ("2.2.0", ["--timeout=120"])]
)
def test_pytest_ends_before_its_time_is_over(monkeypatch, number, options):
    monkeypatch.setattr(tests, "version", lambda package: number)
    assert tests._timeouts(270) == options


def test_summaries_of_the_sanitizer():
    answer = '{"operators": 27, "calls": 9, "wrong": 0, "whole": true}\n'
    read = sanitize._read("memcheck")
    [clean] = read(Done(0, f"{answer}========= ERROR SUMMARY: 0 errors\n", 1.0))
    assert (clean.outcome, clean.claims, clean.values["operators"]) == (OK, ["memcheck"], 27)
    lines = ("COMPUTE-SANITIZER", "Invalid __global__ read of size 4", "ERROR SUMMARY: 2 errors")
    [dirty] = read(Done(9, "".join(f"========= {line}\n" for line in lines), 1.0))
    assert dirty.reason == "2 findings, the first: Invalid __global__ read of size 4"
    mismatch = f"not as on the CPU: relu_mask, float32[1]\n{answer.replace('0,', '3,')}"
    clean, other = read(Done(1, f"{mismatch}========= ERROR SUMMARY: 0 errors\n", 1.0))
    assert (clean.outcome, clean.claims) == (OK, ["memcheck"])  # whose memory nobody touched
    reason = "3 calls return not what the CPU does, the first: relu_mask, float32[1]"
    assert (other.case, other.outcome, other.reason, other.claims) == (
        "memcheck: results", FAILED, reason, ["results"],
    )  # fmt: skip
    [calls] = sanitize._calls(Done(1, mismatch, 1.0))
    assert (calls.outcome, calls.reason, calls.claims) == (FAILED, reason, ["results"])
    [short] = read(Done(0, f"{answer.replace('true', 'false')}========= ERROR SUMMARY: 0 errors\n", 1.0))
    assert (short.outcome, short.reason) == (
        NOT_REACHED,
        "calls stopped before the time was over, and none before was wrong",
    )
    [race] = sanitize._read("racecheck")(Done(0, f"{answer}========= RACECHECK SUMMARY: 0 hazards displayed\n", 1.0))
    assert race.outcome == OK
    [silent] = read(Done(0, "========= COMPUTE-SANITIZER\n", 1.0))
    assert silent.outcome == FAILED
    assert silent.reason == "the tool gave no summary, or the calls did not end; see the log"


def test_a_sanitizer_that_refuses_the_device_is_skipped():
    """It was a failure, with whatever its last line was for a reason."""
    text = "========= COMPUTE-SANITIZER\n========= Error: Device {}\n=========     in the driver\n{}"
    read = sanitize._read("memcheck")
    for summary in ("", "========= ERROR SUMMARY: 0 errors\n"):
        [refused] = read(Done(1, text.format("not supported. Please refer to the list of devices", summary), 1.0))
        assert (refused.outcome, refused.claims) == (SKIPPED, ["memcheck"])
        assert refused.reason == "Error: Device not supported. Please refer to the list of devices"
    [broken] = read(Done(1, text.format("could not be attached", ""), 1.0))
    assert (broken.outcome, broken.reason) == (FAILED, "Error: Device could not be attached")


def test_a_sanitizer_that_is_not_there_is_a_row(monkeypatch, tmp_path):
    monkeypatch.setattr(facts.shutil, "which", lambda program, path=None: None)
    cases = sanitize.cases(Place("cuda", False, tmp_path))
    assert [case.missing for case in cases] == ["", *["compute-sanitizer is not there"] * 3]


def test_the_sanitizer_sees_every_operator():
    """And what differs from the CPU is told: a call that returns something else."""
    calls = sanitized.call_all(torch.device("cpu"), dry=True)
    every = {name.partition("::")[2] for name in torch._C._dispatch_get_all_op_names() if name.startswith("actcore::")}
    every = {name for name in every if not name.startswith(("next_stream", *CPU_OPERATORS, "_"))}
    assert every - calls.names == set()
    assert calls.wrong == []
    assert calls.end == float("inf")
    assert sanitized.call_all(torch.device("cpu"), dry=True, seconds=-1.0).count == 0
    calls.device = torch.device("meta")
    calls._placed = lambda tensor: tensor + 1
    calls("positive_mask", torch.tensor([-0.5]))
    assert calls.wrong == ["positive_mask, float32[1]"]
    calls.standardized(torch.arange(64.0), 4, 32, True, 1, 2, 8, 8, 0)
    _, codes, statistics = calls.wrong
    assert codes.startswith("group_affine_standardized_compress, float32[64]")
    assert statistics.startswith("group_affine_standardized_compress, the statistics of float32[64]")


def test_kernels_that_miss_the_goal():
    def entry(case, seconds):
        times = {("torch", "copy_"): 1.0, ("torch", "clone"): 1.0}
        times |= {("actcore", "compress"): seconds, ("actcore", "decompress"): 1.0}
        timings = [Timing(*whose, 100, [time]) for whose, time in times.items()]
        return Measurement(case, 4, "float32", 2**30, {}, 0.9, timings)

    names = ("GroupAffine, 4 bits", "GroupAffine, 4 bits, groups of 192", "GroupAffine, 2 bits", "Narrow(0, 8)")
    found = Record("kernels", MACHINE, SETTINGS, [entry(names[0], 1.25), entry(names[1], 1.0)])
    missed, reached = kernels.rows(found)
    goal = "compress: 0.9 of a copy is the goal"
    assert (missed.outcome, missed.reason, missed.claims) == (MISSED, goal, ["float32"])
    assert missed.values["compress"] == 0.8
    assert [kernels._rate(figure) for figure in (0.01234, 2.5, 99.96, 3210.4)] == ["0.0123", "2.5", "100", "3210"]
    assert (reached.outcome, reached.claims) == (OK, ["groups"])


@pytest.mark.parametrize(
    ("case", "dtype", "claims"),
    [
        ("GroupAffine, 4 bits", "float32", ["float32"]),
        ("GroupAffine, 2 bits", "float32", ["float32"]),
        ("GroupAffine, 4 bits", "bfloat16", ["bfloat16"]),
        ("GroupAffine, 2 bits", "bfloat16", ["others"]),  # the estimate has it below the goal
        ("Float8, e4m3", "bfloat16", ["others"]),
        ("Float8, e4m3, groups of 192", "float32", ["others"]),
        ("GroupAffine, 1 bit, groups of 192", "float32", ["groups"]),
        ("GroupAffine, 8 bits, groups of 192", "bfloat16", ["groups"]),
        ("GroupAffine, 2 bits, groups of 192", "bfloat16", ["others"]),
        ("Narrow(0, 8)", "int32", ["integers"]),
        ("relu", "float32", []),
    ],
)
def test_what_fails_speaks_for_the_claim_that_it_would_have_spoken_for(case, dtype, claims):
    """Failed groups of 192 spoke for their dtype, a failed operator for all codecs."""
    goal = None if case == "relu" else 0.9
    timings = [
        Timing(*whose, 100, [1.0]) for whose in (("torch", "copy_"), ("torch", "clone"), ("actcore", "compress"))
    ]
    entry = Measurement(case, 4, dtype, 2**30, {}, goal, timings)
    failed = Measurement(case, 4, dtype, 2**20, failure="RuntimeError: no, it does not")
    found = list(kernels.rows(Record("kernels", MACHINE, SETTINGS, [entry, failed])))
    assert [row.outcome for row in found] == [OK, FAILED]
    assert [row.claims for row in found] == [claims, claims]
    assert found[1].reason == "RuntimeError: no, it does not"
    assert set(claims) <= set(CLAIMS["kernels"])


def test_kernels_that_were_cut_off_are_those_that_were_measured(tmp_path):
    """The file was written at the end alone, and deleted when it was read."""
    case, _ = kernels.cases(Place("cuda", False, tmp_path))
    entry = Measurement("Positive", 1, "float32", 2**30, {}, None, [])
    file = tmp_path / "kernels-cuda-float32.json"
    assert str(file) in case.command
    records.save(Record("kernels", MACHINE, {"device": "cuda", "rounds": 1}, [entry]), file)
    measured, rest = case.rows(Done(-9, "", 170.0, over=True))
    assert (measured.outcome, rest.outcome) == (OK, NOT_REACHED)
    assert rest.claims == ["float32", "integers", "groups", "others"]
    assert file.exists()


def cell(way, peak, **more):
    return Cell("resnet50", way, "ResNet-50", peak, **more)


def test_models_whose_peaks_are_not_smaller():
    cells = [
        cell("plain", 100, seconds=[0.1, 0.1], plain_seconds=[0.1, 0.1]),
        cell("L1", 50, seconds=[0.2, 0.3], plain_seconds=[0.1, 0.1]),
        cell("swap", 100, figures=Figures(reserved_bytes=3 << 20, launches=7, cpu_seconds=[0.3, 0.1, 0.2])),
        cell("not measured", None),
        cell("plan", 60, planned_bytes=50),
        cell("compiled", None, failure="OutOfMemoryError: no"),
        cell("torch_remat", 0, does_not_apply="not of this model"),
    ]
    found = list(
        models.rows(Record("systems", MACHINE, SETTINGS, cells, ["vit: plan: not reached"]), Done(1, "killed", 1.0))
    )
    assert [row.outcome for row in found] == [OK, OK, MISSED, OK, MISSED, FAILED, SKIPPED, NOT_REACHED, FAILED]
    assert [row.claims for row in found[-2:]] == [["smaller", "planned"]] * 2  # of what is left out, nothing is known
    assert found[1].values["over plain"] == 2.5
    assert found[1].values["% of plain"] == 50
    assert (found[2].claims, found[3].claims, found[4].claims) == (["smaller"], [], ["smaller", "planned"])
    assert found[2].values == {
        "peak MiB": 0.0, "% of plain": 100, "reserved MiB": 3.0, "CPU ms": 200.0, "launches": 7,
    }  # fmt: skip


def searched(**more):
    def one(way, largest, ended=True):
        trials = [Trial(largest, fits=True), Trial(2 * largest)]
        return Search("resnet50-batch", way, largest=largest if ended else None, ended=ended, trials=trials)

    searches = [one("plain", 100), one("L1", 410), one("L2", 300, **more), one("Q-layers", 700)]
    return Record("search", MACHINE, SETTINGS, searches)


def test_searches_beside_what_was_published():
    found = {row.case: row for row in search.rows(searched(), Done(0, "", 1.0))}
    assert found["resnet50-batch: L1"].values["times plain"] == 4.1
    missed = found["resnet50-batch: GACT's 4.2 times"]
    assert (missed.outcome, missed.reason, missed.claims) == (MISSED, "L1 has the most", ["resnet50-gact"])
    assert found["resnet50-batch: ActNN's 6.6 times"].outcome == OK
    assert found["bert-large-batch: GACT's 24.7 times"].outcome == SKIPPED


def test_what_was_not_searched_to_its_end_misses_nothing():
    """But what was reached by then is."""
    found = {row.case: row for row in search.rows(searched(ended=False), Done(0, "", 1.0))}
    cut_off = found["resnet50-batch: L2"]
    assert (cut_off.outcome, cut_off.values["largest"], cut_off.values["times plain"]) == (NOT_REACHED, 300, 3.0)
    assert found["resnet50-batch: GACT's 4.2 times"].outcome == NOT_REACHED
    assert found["resnet50-batch: ActNN's 6.6 times"].outcome == OK


@pytest.mark.parametrize(
    ("stage", "results"),
    [
        (models, Record("systems", MACHINE, SETTINGS, [cell("plain", 100), cell("L1", 50)])),
        (search, searched()),
    ],
)
def test_what_a_deadline_has_cut_off_is_continued(tmp_path, stage, results):
    """Its file was deleted first. In a dry run it is, since that is to show that all works."""
    [case] = stage.cases(Place("cuda", False, tmp_path))
    file = Path(case.command[case.command.index("--json") + 1])
    records.save(results, file)
    [again] = stage.cases(Place("cuda", False, tmp_path))
    assert {OK} < {row.outcome for row in again.rows(Done(1, "it failed", 1.0))}
    assert again.rows(Done(1, "it failed", 1.0))[-1].reason == "exit status 1: it failed"
    for given, deadline in ((600, 480), (240, 200)):
        assert list(again.within(given)) == ["--deadline", str(deadline)]
    dry = tmp_path / file.name.replace("cuda", "dry")
    records.save(results, dry)
    stage.cases(Place("cuda", True, tmp_path))
    assert file.exists()
    assert not dry.exists()
