"""Processes that answer requests, and the time by which they have to."""

import os
import time

import pytest

from bench.runner import child
from bench.runner.child import Ended, TooLong, Worker
from bench.runner.run import Deadline

ECHO = """
import json, os, sys, time

for line in sys.stdin:
    asked = json.loads(line)
    if "sleep" in asked:
        time.sleep(asked["sleep"])
    if "exit" in asked:
        print("the last words", file=sys.stderr)
        os._exit(asked["exit"])
    print(json.dumps({"process": os.getpid(), "said": asked["say"]}), flush=True)
"""


@pytest.fixture
def worker(monkeypatch, tmp_path):
    (tmp_path / "echo.py").write_text(ECHO)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Worker("echo") as made:
        yield made


def test_a_process_answers_more_than_once(worker):
    first, second = worker.ask({"say": 1}), worker.ask({"say": 2}, seconds=60)
    assert (first["said"], second["said"]) == (1, 2)
    assert first["process"] == second["process"]
    worker.end()
    assert worker.ask({"say": 3})["process"] != first["process"]


def test_a_process_that_ends_says_how_and_another_is_started(worker):
    with pytest.raises(Ended, match="ended with code 7: the last words") as found:
        worker.ask({"exit": 7})
    assert (found.value.code, found.value.errors) == (7, "the last words\n")
    assert worker.ask({"say": 1})["said"] == 1


def test_a_process_that_takes_too_long_is_killed(worker):
    process = worker.ask({"say": 1})["process"]
    with pytest.raises(TooLong, match="did not finish in 0 seconds"):
        worker.ask({"sleep": 1000, "say": 2}, seconds=0.2)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert worker.ask({"say": 3})["said"] == 3  # of another process: the late answer is nobody's


def test_a_process_that_does_not_end_by_itself_is_killed(worker, monkeypatch):
    monkeypatch.setattr(child, "_FAREWELL", 0.2)
    process = worker.ask({"say": 1})["process"]
    worker._process.stdin.write('{"sleep": 1000}\n')
    worker.end()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_deadline():
    never = Deadline()
    assert (never.left, never.share, never.over) == (None, None, False)
    passed = Deadline(10, start=time.monotonic() - 11)
    assert passed.over
    assert passed.share < 0
    # Nothing takes more than its part; at the end there is less than that.
    assert Deadline(4000).share == 1000
    assert Deadline(4000, start=time.monotonic() - 3500).share <= 500
    assert 30 < Deadline(100, start=time.monotonic() - 50).share <= 50  # and no process begins in a fourth of little
    assert Deadline(100).share == 60
    assert str(Deadline(480)) == "the deadline of 480 s"
