"""The stage ``tests``: every test that takes a GPU, file beside file."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from xml.etree import ElementTree

from bench.gpu.cases import Case, Done, in_a_line
from bench.gpu.place import ROOT, SCRATCH, Place
from bench.gpu.results import FAILED, NOT_REACHED, OK, SKIPPED, Row

_SECONDS = 270
_REPORT = 30  # seconds before the end of its time in which pytest begins no other test, and writes its report
_TEST = 120  # that a test may take: one that hangs does not take the others of its file with it
_SESSION = (2, 3)  # pytest-timeout, from which on it ends a session
_ENDED = (0, 1, 5)  # exit statuses of pytest: all passed, some failed, nothing was left to run
_STOPPED = "session-timeout: "  # pytest-timeout's word for what it has ended
_ONE_GPU = "two GPUs"  # of reasons to skip a test that say nothing against a machine with one GPU
_CLAIMS = {  # by file
    "test_cuda": "bits",
    "test_cuda_fused": "bits",
    "test_cuda_standardized": "bits",
    "test_cuda_streams": "streams",
    "test_cuda_graphs": "capture",
    "test_cuda_large": "large",
    "test_cuda_offload": "offload",
    "test_cuda_offload_peak": "offload",
    "test_cuda_compiled": "compiled",
    "test_cuda_models": "steps",
}
_ELSEWHERE = (  # tests that take a GPU, in files that do not
    "test_actnn_allocation.py::test_a15_on_cuda_no_step_synchronises",
    "test_actnn_defects.py::test_a16_side_streams_and_other_devices",
    "test_fewbit_surroundings.py::test_under_autocast_on_cuda_it_returns_what_torchs_does",
    "test_offload.py::test_on_a_gpu",
    "test_recompute_workspaces.py::test_scratch_of_cuda",
)


def cases(place: Place) -> list[Case]:
    """A process for each file; in a dry run one for all, since most of its time is that of importing torch."""
    found = sorted(ROOT.glob("packages/*/tests/test_cuda*.py"))
    # Others read or emulate what a GPU would do, and are tests like all others.
    files = [str(path.relative_to(ROOT)) for path in found if "torch.cuda.is_available()" in path.read_text()]
    elsewhere = [f"packages/integrations/tests/{test}" for test in _ELSEWHERE]
    if place.dry:
        return [_case(place, "all", [*files, *elsewhere])]
    # The longest begins first.
    files.sort(key=lambda file: -(ROOT / file).stat().st_size)
    return [*(_case(place, Path(file).stem, [file]) for file in files), _case(place, "elsewhere", elsewhere)]


def _case(place: Place, name: str, tests: Sequence[str]) -> Case:
    report = SCRATCH / f"tests-{name}-{place.device}.xml"
    report.unlink(missing_ok=True)
    options = [f"--junitxml={report}", "-q", "--tb=short", "-p", "no:cacheprovider", "-o", "minversion=7"]

    def read(done: Done) -> Iterator[Row]:
        try:
            text = report.read_text()
        except OSError:
            yield Row(
                name, FAILED, done.reason or "pytest wrote no report", round(done.seconds, 1), claims=[_claim(name)]
            )
            return
        report.unlink()
        found = list(rows(text, done, place))
        yield from found
        if _stopped(done) or done.code not in _ENDED:
            yield _cut_off(name, done)

    return Case(
        name,
        place.python("pytest", *tests, *options),
        _SECONDS,
        [_claim(name)],
        read=read,
        within=_timeouts,
    )


def _timeouts(seconds: float) -> list[str]:
    """Of pytest-timeout, where it is there."""
    try:
        number = version("pytest-timeout")
    except PackageNotFoundError:
        return []
    options = [f"--timeout={_TEST}"]
    if tuple(int(part) for part in number.split(".")[:2] if part.isdecimal()) >= _SESSION:
        options.append(f"--session-timeout={max(1.0, seconds - _REPORT):.0f}")
    return options


def _stopped(done: Done) -> bool:
    return done.over or _STOPPED in done.output


def _cut_off(name: str, done: Done) -> Row:
    """Of a session that did not end by itself: tests that it did not come to are not in its report."""
    stopped = _stopped(done)
    reason = f"pytest was stopped after {done.seconds:.0f} s" if stopped else done.reason
    return Row(f"{name}: the rest", NOT_REACHED if stopped else FAILED, reason, claims=[_claim(name)])


def rows(report: str, done: Done, place: Place) -> Iterator[Row]:
    """A row for each file of a report in JUnit's form, and one for each test of it that failed.

    Where there is a GPU, a file of which nothing ran has failed: it has found no operators, say. One of which a test
    was skipped was not reached as a whole: tests of a CPU that are beside it say nothing of a GPU.
    """
    files: dict[str, list[ElementTree.Element]] = {}
    for test in ElementTree.fromstring(report).iter("testcase"):
        module = test.get("classname") or test.get("name") or ""
        files.setdefault(module.split(".")[-1], []).append(test)
    if not files:
        yield Row("pytest", FAILED, done.reason or "no test was found", round(done.seconds, 1))
    for file, tests in files.items():
        failed = [test for test in tests if _told(test, "failure", "error") is not None]
        skipped = [test for test in tests if _told(test, "skipped") is not None]
        passed = len(tests) - len(failed) - len(skipped)
        values: dict[str, float | str] = {"passed": passed, "failed": len(failed), "skipped": len(skipped)}
        seconds = round(sum(float(test.get("time") or 0) for test in tests), 1)
        why = dict.fromkeys(_said(test, "skipped") for test in skipped)
        outcome = FAILED if failed else OK if passed else SKIPPED
        if place.device == "cuda" and outcome != FAILED and any(_ONE_GPU not in reason for reason in why):
            outcome = NOT_REACHED if passed else FAILED
        yield Row(file, outcome, in_a_line("; ".join(why)), seconds, values, [_claim(file)])
        for test in failed:
            yield Row(f"{file}::{test.get('name')}", FAILED, _said(test, "failure", "error"), claims=[_claim(file)])


def _claim(file: str) -> str:
    return _CLAIMS.get(file, "elsewhere")


def _told(test: ElementTree.Element, *kinds: str) -> ElementTree.Element | None:
    return next((found for kind in kinds if (found := test.find(kind)) is not None), None)


def _said(test: ElementTree.Element, *kinds: str) -> str:
    told = _told(test, *kinds)
    if told is None:
        return ""
    message = told.get("message") or ""
    if message == "collection skipped":  # of a whole file; the reason is in the text, as a tuple's last part
        with contextlib.suppress(ValueError, SyntaxError, TypeError):
            *_, message = ast.literal_eval(told.text or "")
            message = message.removeprefix("Skipped: ")
    return in_a_line(message)
