"""``python -m integrations report`` says where nothing was measured."""

import pytest
import torch

from integrations.cli import main
from integrations.estimate.forecast import measured

from .libraries import library_or_skip


@pytest.fixture
def accelerator(monkeypatch):
    """What the machine has."""

    def has(kind):
        monkeypatch.setattr(measured, "_own", lambda: kind)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: kind == "cuda")
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")

    return has


def test_a_kind_of_device_that_nothing_was_measured_on(accelerator):
    accelerator("xpu")
    said = "device xpu: this project has no measurements on this kind of device"
    assert measured.unmeasured().startswith(said)


def test_on_the_cpu_there_is_nothing_to_say(accelerator):
    accelerator("cpu")
    assert measured.unmeasured() == ""


def test_a_gpu_is_named_until_it_was_measured(accelerator, monkeypatch):
    accelerator("cuda")
    monkeypatch.setattr(measured, "MEASURED", ("cpu",))
    assert "device cuda (a GPU): this project has no measurements" in measured.unmeasured()
    monkeypatch.setattr(measured, "MEASURED", ("cpu", "cuda"))
    assert measured.unmeasured() == ""


def test_a_device_that_a_report_is_of_need_not_be_there(accelerator, monkeypatch):
    accelerator("cpu")
    monkeypatch.setattr(measured, "MEASURED", ("cpu",))
    assert measured.unmeasured("cuda").startswith("device cuda: this project has no measurements")


def test_the_command_prints_it_last(accelerator, capsys):
    library_or_skip("timm")
    command = ["report", "--timm", "resnet18", "--batch", "1", "--image-size", "64"]
    accelerator("cpu")
    assert main(command) == 0
    before = capsys.readouterr().out
    accelerator("xpu")
    assert main(command) == 0
    assert capsys.readouterr().out == f"{before}{measured.unmeasured()}\n"
