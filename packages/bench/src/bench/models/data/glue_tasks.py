"""GLUE's tasks (Wang et al., 2019), with the settings that FewBit's scripts fine-tune RoBERTa-base with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

AUTO, GENERATED = "auto", "generated"


@dataclass(frozen=True)
class Task:
    """What a task asks, and how it is trained.

    Attributes:
        columns: of the sentences, one or two.
        metrics: names in ``bench.suites.text.training.METRICS``, the most important one first.
        classes: of the answer; 1 for a number.
        batch: sentences, or pairs of them.
        rate: the most that the optimizer has.
        source: GLUE's name of the data.
        held_out: the part of the data that is tested on: the labels of GLUE's tests are secret.
    """

    columns: tuple[str, ...]
    metrics: tuple[str, ...] = ("accuracy",)
    classes: int = 2
    batch: int = 16
    rate: float = 1e-5
    source: str = ""
    held_out: str = "validation"


_TWO = ("sentence1", "sentence2")
_MNLI = ("premise", "hypothesis")

TASKS: Mapping[str, Task] = MappingProxyType(
    {
        "cola": Task(("sentence",), ("matthews",), source="cola"),
        "mnli": Task(_MNLI, classes=3, source="mnli", held_out="validation_matched"),
        "mnli-mm": Task(_MNLI, classes=3, source="mnli", held_out="validation_mismatched"),
        "mrpc": Task(_TWO, ("accuracy", "f1"), source="mrpc"),
        "qnli": Task(("question", "sentence"), batch=32, source="qnli"),
        "qqp": Task(("question1", "question2"), ("accuracy", "f1"), batch=32, source="qqp"),
        "rte": Task(_TWO, rate=2e-5, source="rte"),
        "sst2": Task(("sentence",), batch=32, rate=2e-5, source="sst2"),
        "stsb": Task(_TWO, ("pearson", "spearman"), classes=1, source="stsb"),
        "wnli": Task(_TWO, batch=32, source="wnli"),
        GENERATED: Task(("sentence",)),
    }
)
"""By the name that the command line knows."""
