"""What a file has of an earlier run."""

from dataclasses import replace

import pytest

from bench import records
from bench.errors import BenchError
from bench.layout import header
from bench.machine import Machine
from bench.pages import where
from bench.systems.results import SystemResults
from bench.taken_up import taken_up

MACHINE = Machine("a processor", 2, "Linux", {"torch": "2.15.0"}, "0123", False, "python one", "today")


def threads_of(results):
    return results.machine.threads


def run(file, command, **changes):
    results = SystemResults(replace(MACHINE, command=command, **changes), "cpu")
    found = taken_up(results, file, threads_of, "number of threads")
    records.save(found, file)
    return found


def test_every_command_that_made_a_file_is_kept_once(tmp_path):
    file = tmp_path / "out.json"
    assert run(file, "python one").machine.commands == ["python one"]
    assert run(file, "python two").machine.commands == ["python one", "python two"]
    found = run(file, "python one")
    assert found.machine.commands == ["python two", "python one"]
    assert where(found).startswith("`python two`, `python one`; a processor, 2 threads")
    assert "command  python two\n         python one; " in header("Numbers", found.machine, 0.0).plain


def test_other_settings_are_refused(tmp_path):
    file = tmp_path / "out.json"
    run(file, "python one")
    with pytest.raises(BenchError, match="of another number of threads"):
        run(file, "python two", threads=1)
