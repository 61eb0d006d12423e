#!/usr/bin/env python3
"""Build actcore for this machine's GPU, and run what only a GPU can tell, in steps that end within nine minutes.

tools/gpu.py build tests kernels --within 570; --help lists the steps, CONTRIBUTING.md says how to record results.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "packages" / "core"
SCRATCH = ROOT / "build" / "gpu"
SITE = SCRATCH / "site"
"""The built actcore. It comes before an installed one."""

SECONDS = {
    "check": 60,
    "build": 420,
    "tests": 300,
    "sanitize": 420,
    "kernels": 240,
    "models": 530,
    "search": 530,
    "curves": 530,
}
"""The steps in their order, and the seconds that each may take. ``check`` takes the place of ``build`` if that is left
out: it fails if actcore has no CUDA operators, which the others would skip."""
DEADLINE = 480
AROUND = 40  # seconds in which a command with a deadline starts and ends
GRACE = 5  # seconds in which an interrupted command writes its results
CHECK = "import sys, actcore; sys.exit(actcore.build_info()['cuda_missing'] or None)"  # exits with the reason
PYTEST = ["-q", "-m", "cuda", "-p", "no:cacheprovider", "-o", "minversion=7"]
OK = "ok"

Command = list[str | Path]


def commands(step: str, out: Path, seconds: float) -> Iterator[Command]:
    """Yield the commands of a step.

    Args:
        step: a name of ``SECONDS``.
        out: folder of results.
        seconds: that the step may take.
    """
    python: Command = [sys.executable, "-W", "ignore", "-m"]
    deadline = ["--deadline", f"{max(1.0, min(DEADLINE, seconds - AROUND)):.0f}"]
    if step == "build":
        yield from build_commands()
        yield [sys.executable, "-c", CHECK]
    elif step == "check":
        yield [sys.executable, "-c", CHECK]
    elif step == "tests":
        limits = ["--timeout=120"] if find_spec("pytest_timeout") else []
        workers = ["-n", "4", "--dist", "loadfile"] if find_spec("xdist") else []
        report = f"--junitxml={out / 'cuda-tests.xml'}"
        options = [*PYTEST, "--tb=short", report, *limits, *workers]
        yield [*python, "pytest", *options, *cuda_test_files()]
    elif step == "sanitize":
        file = CORE / "tests" / "test_cuda_operator_calls.py"
        for tool in ("memcheck", "racecheck", "synccheck"):
            # Errors that torch asks for and handles are none; those of launches are exceptions.
            watch = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--report-api-errors", "no"]
            yield [*watch, *python, "pytest", *PYTEST, file]
    elif step == "kernels":
        for dtypes in (("float32", "int64", "int32"), ("bfloat16",)):  # so that an error of one leaves the other
            options = [*("--device", "cuda", "--alone", "--size", "1GiB", "--rounds", "9", "--group", "256")]
            options += ["--group", "192", *(part for dtype in dtypes for part in ("--dtype", dtype))]
            yield [*python, "bench", "kernels", *options, "--json", out / f"kernels-cuda-{dtypes[0]}.json"]
    elif step == "models":
        yield [*python, "bench", "systems", "--device", "cuda", *deadline, "--json", out / "systems-cuda.json"]
    elif step == "search":
        yield [*python, "bench", "search", "--gpu", "--device", "cuda", *deadline, "--json", out / "search-cuda.json"]
    elif step == "curves":
        yield [*python, "bench", "curves", "--device", "cuda", *deadline, "--json", out / "curves-cuda.json"]


def build_commands() -> Iterator[Command]:
    """Yield CMake's commands, as scikit-build-core would call them, and the self-check of the result."""
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    ask = [sys.executable, "-m", "pybind11", "--cmakedir"]
    found = {
        "CMAKE_BUILD_TYPE": "Release",
        "Python_EXECUTABLE": sys.executable,
        "pybind11_DIR": subprocess.run(ask, capture_output=True, text=True).stdout.strip(),
        "ACTCORE_WITH_CUDA": "ON",
        "CMAKE_CUDA_ARCHITECTURES": f"{major}{minor}-real",
    }
    folder = SCRATCH / "cmake"
    yield ["cmake", "-S", CORE, "-B", folder, "-G", "Ninja", *(f"-D{name}={value}" for name, value in found.items())]
    yield ["cmake", "--build", folder]
    yield ["cmake", "-E", "rm", "-rf", SITE]
    yield ["cmake", "--install", folder, "--prefix", SITE]
    yield ["cmake", "-E", "copy_directory", CORE / "src" / "actcore", SITE / "actcore"]
    yield [sys.executable, "-m", "actcore"]


def cuda_test_files() -> list[Path]:
    """Return the files with tests marked ``cuda``: to collect all others takes as long as these tests do."""
    files = sorted(ROOT.glob("packages/*/tests/test_*.py"))
    return [file for file in files if "pytest.mark.cuda" in file.read_text("utf-8")]


def run(command: Command, seconds: float, log: Path) -> str:
    """Run a command for so many seconds at most, and return ``OK`` or what it failed with."""
    if seconds <= 0:
        return "not reached: the time was over"
    packages = [SITE, *(ROOT / "packages" / name / "src" for name in ("integrations", "bench"))]
    path = [*map(str, packages), *filter(None, [os.environ.get("PYTHONPATH")])]
    programs = [str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/local/cuda/bin"]
    more = {"PYTHONPATH": os.pathsep.join(path), "PATH": os.pathsep.join(programs), "PYTHONUNBUFFERED": "1"}
    if "compute-sanitizer" in command:  # each tensor has memory of its own, so that what is next to it is nobody's
        more["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    with log.open("ab") as output:
        output.write(f"==== {shlex.join(map(str, command))}\n".encode())
        output.flush()
        try:  # a group of its own: whatever the command starts is ended with it
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **more},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        except OSError as error:
            return f"failed: {error}"
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"ended after {seconds:.0f} s: its time was over"
        finally:
            end(process)
    return OK if code == 0 else f"failed: exit status {code}"


def end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a process and what it has started, and kill them if they go on."""
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(GRACE)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def run_steps(steps: Sequence[str], out: Path, within: float) -> bool:
    """Run steps, print what each command came to, and return whether all were ok.

    A failure does not stop the other steps, unless there are no CUDA operators.
    """
    log, stop, rows = out / "gpu.log", time.monotonic() + within, []
    log.write_bytes(b"")
    try:
        for step in steps:
            begin = time.monotonic()
            stop_step = min(stop, begin + SECONDS[step])
            for command in commands(step, out, stop_step - begin):
                start, size = time.monotonic(), log.stat().st_size
                outcome = run(command, stop_step - start, log)
                rows.append((step, outcome, time.monotonic() - start, shlex.join(map(str, command))[:100]))
                if outcome != OK:
                    print("\n".join(log.read_bytes()[size:].decode(errors="replace").splitlines()[-20:]), flush=True)
                    if step in ("check", "build"):
                        return False
    finally:  # also of an interrupted run
        for step, outcome, seconds, text in rows:
            print(f"{step:9} {seconds:6.1f} s  {outcome}: {text}")
    return all(outcome == OK for _, outcome, _, _ in rows)


def main() -> int:
    """Run the steps of the command line. Return 0, 1 after a failure, 2 where there is no GPU."""
    parser = argparse.ArgumentParser(prog="tools/gpu.py", description=__doc__)
    names = [name for name in SECONDS if name != "check"]
    parser.add_argument("steps", nargs="+", choices=[*names, "all"], metavar="STEP", help=f"{', '.join(names)}, all")
    folder = Path(os.environ.get("OUT") or ROOT / "bench-results" / "gpu")
    parser.add_argument("--out", type=Path, default=folder, help="folder of results; default: $OUT, or %(default)s")
    parser.add_argument("--within", type=float, default=float("inf"), help="seconds that all steps may take")
    parser.add_argument("--print", action="store_true", help="print the commands and run nothing")
    options = parser.parse_args()
    asked, out = names if "all" in options.steps else options.steps, options.out.resolve()
    steps = asked if "build" in asked else ["check", *asked]
    if options.print:
        for step in steps:
            print(*(shlex.join(map(str, one)) for one in commands(step, out, SECONDS[step])), sep="\n")
        return 0
    if not torch.cuda.is_available():
        print("tools/gpu.py: torch finds no usable GPU; --print shows the commands", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that a command is ended with the script
        signal.signal(number, signal.default_int_handler)
    return int(not run_steps(steps, out, options.within))


if __name__ == "__main__":
    sys.exit(main())
