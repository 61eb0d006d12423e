"""A pytest plugin that compresses what a library's own tests train; ``peers_run.py`` runs it.

    PYTHONPATH=packages/integrations/tests/peers pytest -p peers_plugin --peers-way L1.1 --peers-json FILE ...

Each test is a line of the file, a JSON object, as soon as it ends; a line before it says that it began, so that a
process that dies is known to have died in it.
"""

import json
import signal
import threading
from pathlib import Path

import pytest
from peers_hook import WAYS, Outermost

_STATE = pytest.StashKey()


class TooLong(BaseException):
    """A test took longer than it may. An ``Exception`` would be taken for the failure of a capture that it comes in."""


class _State:
    def __init__(self, config):
        self.outermost = Outermost(config.getoption("peers_way"), config.getoption("peers_calls"))
        self.file = Path(config.getoption("peers_json")).open("a", encoding="utf-8")  # noqa: SIM115 - pytest_unconfigure closes it
        self.seconds = config.getoption("peers_seconds")
        self.put = self.outermost.put()

    def write(self, **line):
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()


def pytest_addoption(parser):
    group = parser.getgroup("peers")
    group.addoption("--peers-way", dest="peers_way", choices=list(WAYS), default="plain")
    group.addoption("--peers-json", dest="peers_json", required=True, help="the file for the lines")
    group.addoption("--peers-only", dest="peers_only", help="a file with the names of the tests to run, one a line")
    calls = "a function that is a forward, too: FILE:NAME, where its first argument is the module"
    group.addoption("--peers-calls", dest="peers_calls", action="append", default=[], help=calls)
    group.addoption("--peers-seconds", dest="peers_seconds", type=int, default=120, help="that one test may take")


def pytest_configure(config):
    # Tests train models so small that nothing can be compressed, which a warning tells.
    config.addinivalue_line("filterwarnings", "ignore:.*nothing is (stored in fewer bytes|offloaded):UserWarning")
    state = config.stash[_STATE] = _State(config)
    state.put.__enter__()


def pytest_unconfigure(config):
    if state := config.stash.get(_STATE, None):
        state.put.__exit__(None, None, None)
        state.file.close()


def pytest_collection_modifyitems(config, items):
    if only := config.getoption("peers_only"):
        names = set(Path(only).read_text("utf-8").splitlines())
        items[:] = [item for item in items if item.nodeid in names]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    state = item.config.stash[_STATE]
    state.write(began=item.nodeid)
    state.outermost.take()
    with _at_most(state.seconds):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    result = yield
    item.config.stash[_STATE].outermost.restore()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    state = item.config.stash[_STATE]
    if report.failed or (report.when == "call" or report.skipped):
        why = "" if call.excinfo is None else f"{call.excinfo.typename}: {call.excinfo.value}"
        state.write(test=item.nodeid, when=report.when, outcome=report.outcome, why=why[:1000], **_trace(report))
    if report.when == "teardown":
        state.write(test=item.nodeid, when="end", **vars(state.outermost.take()))
    return report


def _trace(report):
    return {"trace": str(report.longrepr)[-4000:]} if report.failed else {}


class _at_most:
    """A block that raises ``TooLong`` in the main thread after some seconds."""

    def __init__(self, seconds):
        self._seconds = seconds if threading.current_thread() is threading.main_thread() else 0

    def __enter__(self):
        if self._seconds:
            self._before = signal.signal(signal.SIGALRM, self._raise)
            signal.alarm(self._seconds)

    def __exit__(self, *error):
        if self._seconds:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, self._before)

    def _raise(self, number, frame):
        raise TooLong(f"longer than {self._seconds} s")
