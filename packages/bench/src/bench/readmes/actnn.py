"""ActNN's accuracies in detection, segmentation and self-supervised learning, beside what its layers keep here."""

from __future__ import annotations

from pathlib import Path

from bench.models.dense import DENSE
from bench.readmes.made import NOT_MEASURED, Made, recorded
from bench.results.tables import columns
from bench.suites.vision.dense.results import DenseCell
from bench.suites.vision.published import TRAINED
from bench.ways.conversions import PLAIN

FILE = "vision-dense-cpu.json"
WAY = "Q-layers L3"


def table(folder: Path) -> Made:
    """A row for each of the five. Accuracy takes COCO, Cityscapes, ImageNet and days of a GPU; bytes do not.

    Args:
        folder: of the results.

    Raises:
        BenchError: the file holds something else.
    """
    results = recorded(folder, FILE, "vision")
    made = columns(
        "ResNet-50 in",
        "accuracy",
        "official, %\npublished",
        "ActNN L3, %\npublished",
        "activations\ntimes smaller, measured",
        "peak\ntimes smaller, measured",
        "gradient's error\nmeasured",
        "python -m bench vision --part dense",
        labels=2,
    )
    made.columns[-1].justify = "left"
    for name, published in TRAINED.items():
        made.add_row(
            DENSE[name].title,
            published.metric,
            f"{published.official:.1f}",
            f"{published.compressed:.1f}",
            *_measured([] if results is None else results.of(DenseCell, model=name)),
            f"--model {name} --way '{WAY}'",
        )
    return Made(made, [results] if results is not None else [])


def _measured(cells: list[DenseCell]) -> list[str]:
    cell = next((one for one in cells if one.way == WAY), None)
    plain = next((one for one in cells if cell is not None and (one.way, one.inputs) == (PLAIN, cell.inputs)), None)
    ratio = None if cell is None or plain is None else cell.ratio(plain)
    if cell is None or plain is None or ratio is None:
        return [NOT_MEASURED, "", ""]
    peaks = cell.peak_ratios(plain)
    error = "not comparable" if cell.losses else ""
    return [
        f"{ratio:.1f}",
        "" if peaks is None else f"{peaks[1]:.2f}",
        error if cell.gradient_error is None else f"{cell.gradient_error:.3g}",
    ]
