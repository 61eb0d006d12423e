"""Where results were made, said also where packages lie on Python's path and were not installed."""

import subprocess
from importlib.metadata import PackageNotFoundError

import pytest
import torch

import integrations
from bench.results import machine
from bench.results.machine import Machine


@pytest.fixture
def nothing_is_installed(monkeypatch):
    def absent(package):
        raise PackageNotFoundError(package)

    monkeypatch.setattr(machine, "version", absent)


def test_packages_that_were_not_installed_have_a_version(nothing_is_installed):
    """PackageNotFoundError ended every benchmark."""
    here = Machine.here(torch.device("cpu"), 1, ("actcore-integrations", "torch-geometric"))
    assert here.versions == {"actcore-integrations": integrations.__version__}
    assert machine.version_of("actcore-integrations")
    assert not machine.version_of("torch-geometric")


def test_a_package_that_cannot_be_imported_has_none(nothing_is_installed, monkeypatch):
    """As actcore before it is built."""
    monkeypatch.setitem(machine._MODULES, "actcore", "actcore_that_is_not_there")
    assert machine.version_of("actcore") == ""


def test_a_package_that_fails_in_any_way_has_none(nothing_is_installed, monkeypatch):
    """As actcore where its operators were built for another torch: an OSError, which ended runs on a GPU."""

    def fail(name):
        raise OSError("undefined symbol")

    monkeypatch.setattr(machine.importlib, "import_module", fail)
    assert machine.version_of("actcore") == ""


def test_a_copy_without_git_takes_the_commit_that_it_is_told(monkeypatch):
    def fail(*arguments):
        raise subprocess.CalledProcessError(128, "git")

    monkeypatch.setattr(machine, "_git", fail)
    monkeypatch.delenv(machine.COMMIT, raising=False)
    assert machine._commit() == ("", False)
    monkeypatch.setenv(machine.COMMIT, "0123abcd+")
    assert machine._commit() == ("0123abcd", True)
