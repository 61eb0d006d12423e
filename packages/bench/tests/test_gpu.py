"""``tools/gpu.py``: its commands, and how they end; the marker of tests that take a GPU; recorded stages."""

import importlib.util
import re
import sys
import time
from pathlib import Path

import pytest
import torch

from bench.cli import main, suites
from bench.cli.markdown import render_record
from bench.results.machine import Machine
from bench.results.record import Record
from bench.suites.gpu_stages import CLAIMS, FAILED, MISSED, NOT_REACHED, OK, Row, StageResults
from integrations.estimate.forecast.measured import MEASURED

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "packages" / "bench" / "results"
MACHINE = Machine("a GPU", 16, "Linux", {"torch": "2.11.0"}, "0123456789abc", False, "tools/gpu.sh build", "today")


@pytest.fixture(scope="module")
def gpu():
    spec = importlib.util.spec_from_file_location("gpu", ROOT / "tools" / "gpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- the script ----


def python(text):
    return [sys.executable, "-c", text]


def test_benchmarks_understand_its_commands(gpu, tmp_path):
    found = {step: [list(map(str, one)) for one in gpu.commands(step, tmp_path, 530)] for step in gpu.SECONDS}
    parsed = {
        step: [main._parser().parse_args(one[one.index("bench") + 1 :]) for one in found[step]]
        for step in ("kernels", "models", "search", "curves")
    }
    assert [len(some) for some in parsed.values()] == [2, 1, 1, 1]
    assert all(options.device == "cuda" for some in parsed.values() for options in some)
    assert all((options.alone, options.group) == (True, [256, 192]) for options in parsed["kernels"])
    assert [some[0].deadline for some in list(parsed.values())[1:]] == [480] * 3
    assert len(found["sanitize"]) == 3
    for step in ("build", "check"):
        assert "cuda_missing" in found[step][-1][-1]


def test_each_step_ends_within_nine_minutes(gpu, tmp_path):
    assert max(gpu.SECONDS.values()) + gpu.GRACE < 9 * 60
    [command] = gpu.commands("models", tmp_path, 100)
    assert command[command.index("--deadline") + 1] == "60"


def test_a_failure_leaves_the_other_commands(gpu, monkeypatch, tmp_path, capsys):
    cases = {
        "tests": [python("print('found'); raise ValueError('no kernel')"), ["no-such-tool"]],
        "kernels": [python("import time; time.sleep(60)"), python("")],
        "search": [python("import os; assert os.environ['PYTHONPATH'].count('packages') >= 2")],
    }
    monkeypatch.setattr(gpu, "commands", lambda step, out, seconds: cases[step])
    monkeypatch.setitem(gpu.SECONDS, "kernels", 1)
    assert not gpu.run_steps(list(cases), tmp_path, within=60)
    outcomes = [line.partition(" s  ")[2].partition(":")[0] for line in capsys.readouterr().out.splitlines()[-5:]]
    assert outcomes == ["failed", "failed", "ended after 1 s", "not reached", "ok"]
    assert "ValueError: no kernel" in (tmp_path / "gpu.log").read_text()
    monkeypatch.setattr(gpu, "commands", lambda step, out, seconds: cases["search"])
    assert gpu.run_steps(["search"], tmp_path, within=60)


def test_without_cuda_operators_nothing_else_runs(gpu, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu, "commands", lambda step, out, seconds: [python("import sys; sys.exit('built without')")])
    assert not gpu.run_steps(["check", "tests"], tmp_path, within=60)
    printed = capsys.readouterr().out
    assert "built without" in printed
    assert "tests" not in printed


def test_what_takes_too_long_is_ended_with_what_it_started(gpu, tmp_path):
    pid = tmp_path / "pid"
    text = (
        "import subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
        f"open({str(pid)!r}, 'w').write(str(child.pid)); time.sleep(60)"
    )
    assert gpu.run(python(text), 4, tmp_path / "gpu.log").startswith("ended after 4 s")
    assert has_ended(int(pid.read_text()))


def has_ended(pid):
    """Whether a process is gone, or waits for nothing but that init takes note of its end."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_what_is_ended_can_write_its_results(gpu, tmp_path):
    """By SIGINT, which a shell's background job ignores, and so would what it starts: the child says otherwise."""
    written = tmp_path / "written"
    text = (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    open({str(written)!r}, 'w').write('all of it')"
    )
    gpu.run(python(text), 2, tmp_path / "gpu.log")
    assert written.read_text() == "all of it"


def test_without_a_gpu_it_says_so(gpu, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "tests", "--out", str(tmp_path / "out")])
    assert gpu.main() == 2
    printed = capsys.readouterr()
    assert "torch finds no usable GPU; --print shows the commands" in printed.err
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--print"])
    assert gpu.main() == 0
    assert " -m cuda " in capsys.readouterr().out


# ---- the marker ----


def test_every_test_that_takes_a_gpu_is_marked(gpu):
    takes_one = re.compile(r"(?:if|skipif\() ?not torch\.cuda\.is_available\(\)")
    files = [file for file in ROOT.glob("packages/*/tests/*.py") if takes_one.search(file.read_text("utf-8"))]
    assert len(files) >= 15
    assert set(files) <= set(gpu.cuda_test_files())


# ---- recorded stages ----


def stage(*rows):
    return StageResults("kernels", rows=list(rows))


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ((), "not settled"),
        ((OK, OK), "holds"),
        ((OK, "skipped"), "holds"),
        (("skipped",), "not settled"),
        ((OK, NOT_REACHED), "not settled"),
        ((OK, MISSED, NOT_REACHED), "does not hold"),
        ((OK, MISSED, FAILED), "failed"),
    ],
)
def test_a_claim_holds_where_all_that_speaks_for_it_does(outcomes, verdict):
    rows = [Row("a case", outcome, claims=["float32"]) for outcome in outcomes]
    assert stage(*rows, Row("another", FAILED, claims=["bfloat16"])).verdict("float32") == verdict


def test_recorded_stages_load_and_render():
    files = sorted(RESULTS.glob("gpu-*.json"))
    assert {file.stem.removeprefix("gpu-") for file in files} == set(CLAIMS)
    for file in files:
        record = suites.load(file)
        [found] = record.of(StageResults)
        assert {claim for row in found.rows for claim in row.claims} <= set(CLAIMS[found.stage])
        assert f"| what the stage {found.stage} settles | verdict |" in render_record(file.name, record)


def test_a_page_shows_what_a_stage_settled():
    row = Row("GroupAffine, 4 bits, float32", MISSED, "0.9 of a copy is the goal", 0, {"compress": 0.8}, ["float32"])
    made = render_record("gpu-kernels.json", Record("gpu", MACHINE, entries=[stage(row)]))
    assert "| GroupAffine, 4 bits, float32 | 0.8 | missed: 0.9 of a copy is the goal |" in made
    assert f"| {CLAIMS['kernels']['float32']} | does not hold |" in made
    assert f"| {CLAIMS['kernels']['bfloat16']} | not settled |" in made


def test_the_devices_that_integrations_takes_for_measured_are_those_of_the_results():
    """MEASURED in integrations.estimate.forecast.measured, by which the report says what nobody has measured."""
    found = {suites.load(file).settings.get("device", "cpu") for file in RESULTS.glob("*.json")}
    assert set(MEASURED) == found
