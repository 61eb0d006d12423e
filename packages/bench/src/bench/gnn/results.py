"""``Results``: everything ``python -m bench gnn`` found, with what is needed to repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.gnn.training import Curve
from bench.kernels import KernelTime
from bench.machine import Machine
from bench.memory import Memory


@dataclass(frozen=True)
class Results:
    """What a run found: raw values only, from which tables and charts are computed.

    Attributes:
        machine: where and with what.
        dataset: name of the graph.
        data: the graph in words.
        recipe: how the models were trained, by name of the setting.
        curves: of every run; none where nothing was trained.
        memories: of every model and level; none where no memory was measured.
        kernels: times of the codec; empty where they were not measured.
        seconds: that training took, all runs and evaluations together.
        device: ``"cpu"`` or ``"cuda"``.
        measure: of the curves: ``"accuracy"`` or ``"micro-F1"``.
    """

    machine: Machine
    dataset: str
    data: str
    recipe: dict[str, float | str]
    curves: list[Curve] = field(default_factory=list)
    memories: list[Memory] = field(default_factory=list)
    kernels: list[KernelTime] = field(default_factory=list)
    seconds: float = 0.0
    device: str = "cpu"
    measure: str = "accuracy"

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Results:
        """From what ``dataclasses.asdict`` made of one."""
        fields = dict(content)
        return cls(
            machine=Machine(**fields.pop("machine")),
            curves=[Curve(**entry) for entry in fields.pop("curves")],
            memories=[Memory(**entry) for entry in fields.pop("memories")],
            kernels=[KernelTime(**entry) for entry in fields.pop("kernels")],
            **fields,
        )
