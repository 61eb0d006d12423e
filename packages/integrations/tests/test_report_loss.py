"""A forecast counts the loss: what it saves, whose loss it is, and the gradient that its backward begins with."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations
from integrations import Report
from integrations.cli import main

from .libraries import library_or_skip
from .nets import mlp, normal

X = normal(48, 64)
LOGITS = 48 * 64 * 4


class ReturnsItsLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x, labels):
        logits = self.linear(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def of_the_loss(report):
    return [row for row in report.rows if row.module == "(loss)"]


def test_cross_entropy_saves_as_it_is_and_makes_a_gradient():
    plain, report = (integrations.forecast(mlp(), X, loss=loss) for loss in (None, "cross_entropy"))
    assert (plain.loss, plain.gradient_bytes, of_the_loss(plain)) == ("", 0, [])
    rows = of_the_loss(report)
    assert list(report.rows[: -len(rows)]) == list(plain.rows)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda packed: packed):
        F.cross_entropy(X.clone().requires_grad_(), torch.zeros(48, dtype=torch.int64))
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in saved}
    target = 48 * 8  # is the loop's own
    assert sum(row.original_bytes for row in rows) == sum(storages.values()) - target
    assert all((row.operator, row.codec) == ("cross_entropy", "kept") for row in rows)
    assert all(row.stored_bytes == row.original_bytes for row in rows)
    assert report.gradient_bytes == LOGITS
    assert "The loss is assumed to be the cross entropy of the model's output" in report.caption
    assert "gradient of the model's output, 12.0 KiB, in addition to all saved tensors" in report.caption


def test_the_gradient_is_the_top_of_the_timeline_and_goes():
    report = integrations.forecast(mlp(), X, loss="cross_entropy")
    moments = report.timeline()
    top = max(moments, key=lambda moment: moment.device_bytes)
    assert top.original_bytes == report.original_bytes + LOGITS
    assert top.device_bytes == report.stored_bytes + LOGITS
    assert (moments[-1].original_bytes, moments[-1].device_bytes) == (0, 0)
    # It is there until backward has come through the last layer.
    after = moments[moments.index(top) + len(of_the_loss(report)) + 2]
    assert after.device_bytes < report.stored_bytes - sum(row.stored_bytes for row in of_the_loss(report))


def test_what_the_forward_has_stored_in_few_bits_the_loss_keeps_whole():
    model = nn.Sequential(nn.Linear(64, 64), nn.Softmax(-1))
    report = integrations.forecast(model, X, loss=lambda output: output.square().mean())
    [row] = of_the_loss(report)
    assert (row.operator, row.original_bytes, row.stored_bytes) == ("square", 0, LOGITS)
    assert "The loss is the given function." in report.caption or "the given function. Its" in report.caption
    kept = integrations.forecast(model, X, level="L1", keep=("1",), loss=lambda output: output.square().mean())
    [row] = of_the_loss(kept)
    assert (row.original_bytes, row.stored_bytes) == (0, 0)


def test_a_model_that_returns_its_loss_has_no_other():
    labels = torch.zeros(48, dtype=torch.int64)
    report = integrations.forecast(ReturnsItsLoss(), (X, labels), loss="cross_entropy")
    assert of_the_loss(report) == []
    assert report.loss == "The loss is the model's own"
    assert report.gradient_bytes == LOGITS
    assert integrations.forecast(ReturnsItsLoss(), (X, labels)).gradient_bytes == LOGITS


def test_of_pixels_the_classes_are_the_second_dimension():
    x = normal(2, 3, 8, 8)
    report = integrations.forecast(nn.Conv2d(3, 5, 1), x, loss="cross_entropy")
    assert [row.shape for row in of_the_loss(report) if row.original_bytes > 4] == [(2, 5, 8, 8)]


def test_an_output_without_logits_has_no_loss_that_could_be_assumed():
    class Features(nn.Module):
        def forward(self, x):
            return {"features": x.exp()}

    report = integrations.forecast(Features(), X.clone().requires_grad_(), loss="cross_entropy")
    assert (report.loss, of_the_loss(report)) == ("", [])


@pytest.mark.parametrize(("loss", "error"), [("mse", ValueError), (3, TypeError)])
def test_what_is_no_loss_is_refused(loss, error):
    with pytest.raises(error, match=r"criterion must be .*cross_entropy"):
        integrations.forecast(mlp(), X, loss=loss)


def test_a_file_holds_it(tmp_path):
    report = integrations.forecast(mlp(), X, loss="cross_entropy")
    again = Report.from_json(report.to_json())
    assert (again.loss, again.gradient_bytes, again.caption) == (report.loss, report.gradient_bytes, report.caption)
    report.html(tmp_path / "report.html")
    assert "(loss)" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("loss", ["cross_entropy", "none"])
def test_the_command_assumes_cross_entropy(loss, tmp_path, capsys):
    library_or_skip("timm")
    path = tmp_path / "report.json"
    main(["report", "--timm", "resnet18", "--batch", "2", "--image-size", "32", "--loss", loss, "--json", str(path)])
    rows = json.loads(path.read_text())["rows"]
    assert ("(loss)" in capsys.readouterr().out) is (loss != "none")
    assert any(row["module"] == "(loss)" for row in rows) is (loss != "none")
