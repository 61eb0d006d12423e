"""``tools/gpu.sh``: its stages run within their time, what they settle, and what is printed and shown of it."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import actcore
from bench import cli, records
from bench.gpu import __main__ as command
from bench.gpu import kernels, run, tests
from bench.gpu import place as places
from bench.gpu.cases import Case
from bench.gpu.claims import CLAIMS
from bench.gpu.place import ROOT, Place
from bench.gpu.results import FAILED, MISSED, NOT_REACHED, OK, SKIPPED, Row, StageResults
from bench.gpu.stages import STAGES, Stage
from bench.machine import Machine
from bench.markdown import render_record
from bench.record.record import Record
from integrations.forecast.measured import MEASURED

MACHINE = Machine("a GPU", 16, "Linux", {"torch": "2.11.0"}, "0123456789abc", False, "tools/gpu.sh build", "today")
RESULTS = ROOT / "packages" / "bench" / "results"


def python(text):
    return [sys.executable, "-c", text]


@pytest.fixture
def place(tmp_path):
    return Place("cpu", True, tmp_path)


def ran(place, cases, seconds=60.0, at_once=1):
    stage = Stage("build", "a test", seconds, lambda _: cases, at_once)
    return run.StageRun(stage, place, seconds).run()


# ---- cases within a stage's time ----


def test_a_failure_leaves_the_others(place):
    results = ran(
        place,
        [
            Case("breaks", python("raise ValueError('no kernel')"), 30, ["builds"]),
            Case("is not there", python(""), 30, missing="no tool"),
            Case("cannot be read", python("print(1)"), 30, read=lambda done: [Row(done.answer["x"])]),
            Case("works", python("print('{}')"), 30),
        ],
    )
    assert [(row.case, row.outcome) for row in results.rows] == [
        ("breaks", FAILED), ("is not there", SKIPPED), ("cannot be read", FAILED), ("works", OK),
    ]  # fmt: skip
    assert results.rows[0].reason == "exit status 1: ValueError: no kernel"
    assert "its results cannot be read (TypeError" in results.rows[2].reason
    assert results.failed
    assert records.load(place.out / "gpu-build.json").of(StageResults) == [results]
    assert "no kernel" in (place.out / run.LOG).read_text()


def test_what_takes_too_long_is_ended_with_what_it_started(place, tmp_path):
    """A process of its own, of which the child would leave a second one running."""
    pid = tmp_path / "pid"
    text = (
        "import subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
        f"open({str(pid)!r}, 'w').write(str(child.pid)); time.sleep(60)"
    )
    results = ran(place, [Case("hangs", python(text), 4), Case("is next", python(""), 30)])
    assert [row.outcome for row in results.rows] == [FAILED, OK]
    assert "its time was over" in results.rows[0].reason
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


# Said to each, since who runs tests in the background of a shell ignores interrupts, and so would they.
ENDS, GOES_ON = (
    f"import signal; signal.signal(signal.SIGINT, signal.{handler})" for handler in ("default_int_handler", "SIG_IGN")
)
WAITS = """
import time
try:
    print("there", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("written")
"""


def test_what_is_ended_can_write_what_it_knows(monkeypatch):
    """As pytest does, by SIGINT; what goes on is killed."""
    monkeypatch.setattr(run, "_GRACE", 1.0)
    started = [
        subprocess.Popen(python(text), stdout=subprocess.PIPE, text=True, process_group=0)
        for text in (f"{ENDS}\n{WAITS}", f"{GOES_ON}\n{WAITS}")
    ]
    for process in started:
        assert process.stdout.readline() == "there\n"
    run.stop(started)
    assert [process.returncode for process in started] == [0, -signal.SIGKILL]
    assert [process.communicate()[0] for process in started] == ["written\n", ""]


INTERRUPTED = """
import sys
from pathlib import Path
from bench.gpu import __main__ as command
from bench.gpu.cases import Case
from bench.gpu.stages import Stage
python = [sys.executable, "-c"]
cases = [
    Case("works", [*python, ""], 30),
    Case("waits", [*python, {waits!r}], 60),
    Case("is next", [*python, ""], 30),
]
stage = Stage("build", "a test", 60, lambda place: cases)
command.STAGES = {{"build": stage, "tests": stage}}
sys.exit(command.main(["build", "tests", "--device", "cpu", "--dry", "--out", {out!r}]))
"""


def test_an_interrupted_run_says_what_it_found(tmp_path):
    """By SIGHUP, say, of a terminal that is closed, which nohup ignores; and what it ran has ended. An earlier run's
    results are gone."""
    closed = signal.SIGTERM if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else signal.SIGHUP
    pid, earlier = tmp_path / "pid", tmp_path / "gpu-build.json"
    earlier.write_text("{}")
    waits = f"import os; open({str(pid)!r}, 'w').write(str(os.getpid()))\n{WAITS}"
    process = subprocess.Popen(
        python(INTERRUPTED.format(waits=waits, out=str(tmp_path))),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        for _ in range(600):
            if pid.exists() and pid.read_text():
                break
            time.sleep(0.1)
        process.send_signal(closed)
        out, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert has_ended(int(pid.read_text()))
    [results] = records.load(earlier).of(StageResults)
    assert [(row.case, row.outcome) for row in results.rows] == [
        ("works", OK), ("waits", FAILED), ("is next", NOT_REACHED),
    ]  # fmt: skip
    assert results.rows[1].reason.startswith("interrupted after ")
    assert "is next" in out
    assert out.splitlines()[-1].startswith("stage build: 1 ok, 1 failed, 1 not reached; ")
    assert "interrupted; what was found by then is written" in errors


def test_what_the_time_does_not_suffice_for_is_in_the_results(place):
    results = ran(place, [Case("first", python(""), 30), Case("second", python(""), 30)], seconds=0.0)
    assert [row.outcome for row in results.rows] == [NOT_REACHED, NOT_REACHED]
    assert results.failed


# ---- what is settled ----


def stage(*rows, **more):
    return StageResults("kernels", **{"device": "cuda", "dry": False, "rows": list(rows), **more})


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ((), "not settled"),
        ((OK, OK), "holds"),
        ((OK, SKIPPED), "holds"),
        ((SKIPPED,), "not settled"),
        ((OK, NOT_REACHED), "not settled"),
        ((OK, MISSED, NOT_REACHED), "does not hold"),
        ((OK, MISSED, FAILED), "failed"),
    ],
)
def test_a_claim_holds_where_all_that_speaks_for_it_does(outcomes, verdict):
    rows = [Row("a case", outcome, claims=["float32"]) for outcome in outcomes]
    other = Row("another", FAILED, claims=["bfloat16"])
    assert stage(*rows, other).verdict("float32") == verdict
    assert stage(*rows, dry=True).verdict("float32") == "not settled"
    assert stage(*rows, device="cpu").verdict("float32") == "not settled"


def test_every_stage_has_claims_and_every_test_file_one(tmp_path):
    assert set(CLAIMS) == set(STAGES)
    assert set(tests._CLAIMS.values()) < set(CLAIMS["tests"])
    found = {case.name for case in tests.cases(Place("cuda", False, tmp_path))}
    assert found - {"elsewhere"} == set(tests._CLAIMS)  # a new file of tests for a GPU needs a line there
    for test in tests._ELSEWHERE:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / "packages" / "integrations" / "tests" / file).read_text()


# ---- the command, and the page ----


@pytest.mark.parametrize("dry", [False, True])
def test_on_a_gpu_the_commands_are_understood(tmp_path, dry):
    """Nothing else here reads those of a GPU."""
    [*cases] = kernels.cases(Place("cuda", dry, tmp_path))
    assert len(cases) == 2 - dry
    for case in cases:
        module, *arguments = case.command[case.command.index("-m") + 1 :]
        options = cli._parser().parse_args(arguments)
        assert (module, options.device, options.alone, options.group) == ("bench", "cuda", True, [256, 192])
    for name in ("models", "search"):
        [case] = STAGES[name].cases(Place("cuda", dry, tmp_path))
        command = [*case.command, *case.within(case.seconds)]
        options = cli._parser().parse_args(command[command.index("-m") + 2 :])
        assert (options.device, options.deadline) == ("cuda", 480)
    for name, stage in STAGES.items():
        assert stage.seconds + run._GRACE < 9 * 60
        for case in stage.cases(Place("cuda", dry, tmp_path)):
            assert case.seconds <= stage.seconds, name
            assert set(case.claims) <= set(CLAIMS[name])


def test_what_was_built_is_for_a_gpu_alone(tmp_path, monkeypatch):
    """A dry run on a CPU takes what is installed, not what a GPU was built for at some time."""
    (tmp_path / "actcore").mkdir()
    monkeypatch.setattr(places, "SITE", tmp_path)
    paths = {device: Place(device, False, tmp_path).environment()["PYTHONPATH"] for device in ("cuda", "cpu")}
    assert paths["cuda"].split(os.pathsep)[0] == str(tmp_path)
    assert str(tmp_path) not in paths["cpu"]
    assert all(str(ROOT / "packages" / "bench" / "src") in path for path in paths.values())


def test_what_is_wrong_is_said_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main(["build"]) == 1
    assert "torch finds no usable GPU; use --device cpu --dry" in capsys.readouterr().err
    assert command.main(["build", "--device", "cpu"]) == 1
    assert "say so with --dry" in capsys.readouterr().err


def test_without_operators_of_cuda_no_stage_begins(capsys, monkeypatch, tmp_path):
    """On a fresh machine, each call needs the stage `build`."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(places, "SITE", tmp_path / "site")
    monkeypatch.setattr(actcore, "build_info", lambda: {"cuda_missing": "built without nvcc"})
    assert command.main(["kernels", "--out", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "(built without nvcc); run `build` first, in the same call" in printed.err
    monkeypatch.setitem(sys.modules, "actcore", None)
    assert command.main(["kernels", "--out", str(tmp_path / "out")]) == 1
    assert "run `build` first" in capsys.readouterr().err


def test_the_last_lines_have_what_all_stages_settle(capsys):
    row = Row("GroupAffine, 4 bits, float32", claims=["float32"])
    models = dataclasses.replace(stage(Row("the command", FAILED, claims=["smaller"])), stage="models")
    command._tell([stage(row), models])
    lines = capsys.readouterr().out.splitlines()
    assert f"holds: {CLAIMS['kernels']['float32']}" in lines
    assert f"failed: {CLAIMS['models']['smaller']}" in lines
    assert lines[-2].startswith("stage kernels: 1 ok; ")
    assert sum(map(len, CLAIMS.values())) + len(CLAIMS) <= 30  # so few lines that a tail of the output has them all
    command._tell([stage(row, dry=True)])
    assert len(capsys.readouterr().out.splitlines()) == 1  # nothing is settled


def test_no_line_of_a_table_ends_with_blanks(capsys):
    command._show(stage(Row("a", values={"compress": 1.0}), Row("b", SKIPPED, "no tool")), MACHINE)
    assert [line for line in capsys.readouterr().out.splitlines() if line != line.rstrip()] == []


def test_the_cheap_stages_run_dry(tmp_path):
    """As a process, since the script must work where actcore is yet to be built: it imports torch alone."""
    script = str(ROOT / "tools" / "gpu.sh")
    dry = ["build", "sanitize", "kernels", "--device", "cpu", "--dry", "--out", str(tmp_path)]
    done = subprocess.run([script, *dry], env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("build", "sanitize", "kernels"):
        record = records.load(tmp_path / f"gpu-{name}.json")
        [results] = record.of(StageResults)
        assert (results.stage, results.device, results.dry, results.failed) == (name, "cpu", True, False)
        assert record.machine.command.startswith("tools/gpu.sh build sanitize kernels")
        assert f"stage {name}: " in done.stdout.splitlines()[-3:][("build", "sanitize", "kernels").index(name)]
    assert len(done.stdout) < 3 * 12_000
    assert {path.name for path in tmp_path.iterdir()} == {
        *("gpu-build.json", "gpu-sanitize.json", "gpu-kernels.json", "kernels-dry-float32.json", "gpu.log")
    }
    assert cli.main(["show", str(tmp_path / "gpu-kernels.json")]) == 0


def test_what_starts_the_stages_needs_torch_alone():
    text = (
        "import sys; sys.modules.update(dict.fromkeys(('actcore', 'rich', 'matplotlib', 'integrations')));"
        "import bench.gpu.__main__"
    )
    subprocess.run(python(text), check=True)


def test_a_page_shows_what_a_stage_settled():
    row = Row("GroupAffine, 4 bits, float32", MISSED, "0.9 of a copy is the goal", 0, {"compress": 0.8}, ["float32"])
    made = render_record("gpu-kernels.json", Record("gpu", MACHINE, entries=[stage(row)]))
    assert "| GroupAffine, 4 bits, float32 | 0.8 | missed: 0.9 of a copy is the goal |" in made
    assert f"| {CLAIMS['kernels']['float32']} | does not hold |" in made
    assert f"| {CLAIMS['kernels']['bfloat16']} | not settled |" in made


def test_the_devices_that_integrations_takes_for_measured_are_those_of_the_results():
    """MEASURED in integrations.forecast.measured, by which the report says what nobody has measured."""
    found = {records.load(file).settings.get("device", "cpu") for file in RESULTS.glob("*.json")}
    assert set(MEASURED) == found
