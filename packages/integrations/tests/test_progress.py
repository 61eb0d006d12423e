"""The line that says what takes long: when it is shown, where, and that it is gone afterwards."""

import io
import re
import threading
import time
from contextlib import nullcontext, redirect_stderr

import pytest
import torch
from rich.console import Console
from rich.live import Live

import integrations
from integrations import checkpoint
from integrations._utils import progress as lines
from integrations._utils.progress import progress, stage
from integrations.capture.reachable_state import _only_shows
from integrations.planner import alternatives, plan_recomputation, plan_with_stores

from .nets import gradients
from .recompute_levels import deep

LINE = "Planning Net: searching, 0 s"
SHOWN, REMOVED = "\x1b[?25l", "\x1b[?25h"  # how a terminal's cursor is hidden, and shown again


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def at_once(monkeypatch):
    """Lines are shown and updated without waiting."""
    monkeypatch.setattr(lines, "AFTER", 0.0)
    monkeypatch.setattr(lines, "_EVERY", 0.001)
    monkeypatch.delenv("INTEGRATIONS_PROGRESS", raising=False)
    monkeypatch.delenv("RANK", raising=False)


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def threads():
    return [one for one in threading.enumerate() if isinstance(one, lines._Line)]


def wait_for(condition):
    """Let the thread that shows the line run."""
    for _ in range(10_000):
        if condition():
            return
        time.sleep(0.001)
    raise AssertionError("it never came")


# ---- when and where ----


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_nothing_is_shown_for_what_is_fast(kind):
    with redirect_stderr(kind()) as stream, progress("Planning Net") as told:
        told("searching")
        assert len(threads()) == 1
    assert threads() == []
    assert stream.getvalue() == ""
    assert lines.AFTER == 3


def test_a_log_file_gets_one_plain_line(at_once):
    with redirect_stderr(io.StringIO()) as stream, progress("Planning Net"), progress("Planning Inner") as told:
        told("searching")
        wait_for(stream.getvalue)
        stage("measuring")
        time.sleep(0.01)
    off = r"so far \(INTEGRATIONS_PROGRESS=0 turns this line off\)\n"
    assert re.fullmatch(f"Planning Net(: searching)?, 0 s {off}", stream.getvalue())


def test_a_log_file_gets_another_line_each_minute(at_once, monkeypatch):
    assert lines._AGAIN == 60
    monkeypatch.setattr(lines, "_AGAIN", 0.001)
    with redirect_stderr(io.StringIO()) as stream, progress("Planning Net") as told:
        wait_for(stream.getvalue)
        told("searching")
        wait_for(lambda: "Planning Net: searching, 0 s so far\n" in stream.getvalue())
    assert threads() == []
    assert stream.getvalue().count("INTEGRATIONS_PROGRESS=0") == 1


@pytest.mark.parametrize("raises", [False, True])
def test_a_terminal_shows_a_line_that_goes_away(at_once, terminal, raises):
    expected = pytest.raises(KeyboardInterrupt) if raises else nullcontext()
    with redirect_stderr(terminal), expected, progress("Planning Net") as told:
        told("searching")
        wait_for(lambda: LINE in terminal.getvalue())
        told("measuring [red]the error")
        wait_for(lambda: "measuring [red]the error" in terminal.getvalue())
        if raises:
            raise KeyboardInterrupt
    assert threads() == []
    text = terminal.getvalue()
    assert text.count(SHOWN) == text.count(REMOVED) == 1
    assert "\x1b[2K" in text[text.rindex("the error") :]  # the line is erased
    stage("nothing listens")


def test_the_users_own_display_stays(at_once, terminal):
    """rich has one display at a time: the plain line is printed above it."""
    with (
        redirect_stderr(terminal),
        Live("the user's", console=Console(file=terminal, force_terminal=True), auto_refresh=False),
        progress("Planning Net"),
    ):
        wait_for(lambda: "Planning Net" in terminal.getvalue())
    assert "so far" in terminal.getvalue()
    assert terminal.getvalue().count(SHOWN) == 1


def test_two_threads_share_a_terminal(at_once, terminal):
    def other():
        with progress("Planning Other"):
            wait_for(lambda: "Planning Other, 0 s so far" in terminal.getvalue())

    with redirect_stderr(terminal), progress("Planning Net"):
        wait_for(lambda: "Planning Net" in terminal.getvalue())
        worker = threading.Thread(target=other)
        worker.start()
        worker.join()
    assert terminal.getvalue().count(SHOWN) == 1


@pytest.mark.parametrize("widgets", [False, True])
def test_a_notebook_needs_widgets_for_a_transient_line(monkeypatch, widgets):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(lines, "find_spec", lambda name: object() if widgets else None)
    assert lines._draws() is widgets


@pytest.mark.parametrize(("name", "value"), [("INTEGRATIONS_PROGRESS", "0"), ("RANK", "1")])
def test_it_can_be_turned_off_and_other_ranks_are_silent(at_once, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with progress("Planning Net"):
        assert threads() == []


def test_the_rank_of_a_process_group_counts(at_once, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for rank in (0, 1):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        assert lines._is_wanted() is (rank == 0)


def test_a_stream_that_is_gone_breaks_nothing(at_once):
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        with redirect_stderr(stream), progress("Planning Net"):
            wait_for(lambda: not threads())


def test_a_line_ends_with_its_block_whatever_becomes_of_that(at_once, terminal):
    """An interrupt may come while the block is left, before it has said so."""
    work = lines._Work("Planning Net")
    line = lines._Line(work)
    with redirect_stderr(terminal):
        line.start()
        wait_for(lambda: SHOWN in terminal.getvalue())
        del work
        line.join(10)
    assert not line.is_alive()
    assert REMOVED in terminal.getvalue()


# ---- what it says ----


def test_planning_says_what_it_does(monkeypatch):
    told = []

    def noting(module, name):
        function = getattr(module, name)

        def call(*args, **kwargs):
            told.append(str(lines._work_here()).rpartition(",")[0])
            return function(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    for module, name in ((plan_with_stores, "capture_reaching"), (plan_recomputation, "capture")):
        noting(module, name)
        noting(module, "solved")
    noting(alternatives, "solved")
    capturing, searching = "Planning Sequential: capturing the step", "Planning Sequential: searching"
    model, args = deep()
    checkpoint.plan(model, args)
    assert told == [capturing, searching]
    told.clear()
    integrations.plan(model=model, args=args, memory="least").accumulating  # noqa: B018  # it searches
    assert told == [capturing, searching, searching]
    told.clear()
    integrations.compress_model(model, memory="least")
    gradients(model, *args)
    assert told[:2] == [capturing, searching]
    assert threads() == []


def test_a_capture_knows_that_lines_and_bars_touch_nothing():
    before = set(threading.enumerate())
    with progress("Planning Net"), Live("a bar", console=Console(file=io.StringIO(), force_terminal=True)):
        more = set(threading.enumerate()) - before
        assert len(more) == 2
        assert all(map(_only_shows, more))
    assert not _only_shows(threading.Thread())
