"""The stage ``sanitize``: every operator under compute-sanitizer, on small tensors that begin and end anywhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from bench.gpu.cases import Case, Done, in_a_line
from bench.gpu.facts import tool_at
from bench.gpu.place import Place
from bench.gpu.results import FAILED, NOT_REACHED, OK, SKIPPED, Row

_SECONDS = 300  # of calls
_AROUND = 100  # seconds for what begins and ends with them, which is slow under a tool, too
_LIMIT = _SECONDS + _AROUND
_TOOLS = ("memcheck", "racecheck", "synccheck")
_RESULTS = "results"  # the claim of the calls; a tool has its own
_PROGRAM = "compute-sanitizer"
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
_MISMATCH = re.compile(r"^not as on the CPU: (.*)", re.MULTILINE)
_REFUSAL = re.compile(r"^=* *(Error: .*)$", re.MULTILINE)
_FINDING = re.compile(r"========= (?!COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY)(\S.*)")


def cases(place: Place) -> list[Case]:
    """One for each tool; on the CPU the calls alone."""
    calls = place.python("bench.gpu.sanitized", "--device", place.device, *["--dry"] * place.dry)
    # Each tensor has memory of its own then, so that what is next to it is nobody's.
    alone = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    if place.device == "cpu":
        return [Case("calls", calls, 90, [_RESULTS], read=_calls)]
    found = tool_at(_PROGRAM)
    missing = "" if found else f"{_PROGRAM} is not there"
    return [
        Case("calls", calls, 90, [_RESULTS], read=_calls),
        *(
            Case(
                tool,
                # Errors that torch asks for, and handles, are none; those of launches are exceptions here.
                [found or _PROGRAM, "--tool", tool, "--error-exitcode", "9", "--report-api-errors", "no", *calls],
                _LIMIT,
                [tool],
                alone,
                _read(tool),
                missing,
                _seconds,
            )
            for tool in _TOOLS
        ),
    ]


def _seconds(given: float) -> list[str]:
    return ["--seconds", f"{max(1.0, min(_SECONDS, given - _AROUND)):.0f}"]


def _calls(done: Done) -> Iterator[Row]:
    """Of the calls without a tool."""
    values = _values(done)
    reason = _mismatch(done) or done.reason
    outcome = FAILED if reason else OK
    yield Row("calls, without a sanitizer", outcome, reason, round(done.seconds, 1), values, [_RESULTS])


def _read(tool: str) -> Callable[[Done], Iterator[Row]]:
    def read(done: Done) -> Iterator[Row]:
        summary = _SUMMARY.search(done.output)
        found = int(summary[1]) if summary else -1
        mismatch = _mismatch(done)
        # Calls whose results are wrong end as failed; of what the tool watches, its summary speaks.
        reason, outcome = "" if mismatch and summary else done.reason, FAILED
        refused = _REFUSAL.search(done.output)
        if refused and found <= 0 and not done.answer:  # the tool itself did not work; nothing was called
            reason = in_a_line(refused[1])
            outcome = SKIPPED if "not supported" in reason else FAILED
        elif found > 0:
            first = _FINDING.search(done.output)
            reason = f"{found} findings, the first: {first[1] if first else 'see the log'}"
        elif not reason and (not summary or not done.answer):
            reason = "the tool gave no summary, or the calls did not end; see the log"
        elif not reason:
            outcome = OK
        if outcome == OK and not done.answer["whole"]:
            outcome, reason = NOT_REACHED, "calls stopped before the time was over, and none before was wrong"
        yield Row(tool, outcome, reason, round(done.seconds, 1), _values(done), [tool])
        if mismatch:
            yield Row(f"{tool}: {_RESULTS}", FAILED, mismatch, claims=[_RESULTS])

    return read


def _mismatch(done: Done) -> str:
    """What the calls returned that is not the CPU's; empty where nothing was."""
    wrong = (done.answer or {}).get("wrong", 0)
    first = _MISMATCH.search(done.output)
    return (
        f"{wrong} calls return not what the CPU does, the first: {first[1] if first else 'see the log'}"
        if wrong
        else ""
    )


def _values(done: Done) -> dict[str, float | str]:
    answer = done.answer or {}
    return {"operators": answer.get("operators", 0), "calls": answer.get("calls", 0)}
