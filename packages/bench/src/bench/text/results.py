"""``TextResults``: everything ``python -m bench text`` found, with what is needed to repeat it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.kernels.clock import median_ratio
from bench.machine import Machine
from bench.statistics import Difference, paired_difference
from bench.systems.ways import PLAIN


@dataclass(frozen=True)
class Run:
    """A network that was trained on a task in one way.

    Attributes:
        model, task, way, seed: which.
        recipe: of the training, by name of the setting.
        losses: of training, means over equal parts of it.
        held_out: the mean loss of what was not trained on, after the last step.
        metrics: of that, by name, in percent.
        original_bytes: of a plain run: what autograd keeps of a batch.
        stored_bytes: of a compressed one: what is kept instead.
        seconds: that it took.
        does_not_apply: why the way is none for this network; empty otherwise.
        failure: what went wrong; empty otherwise.
        commit: that it was made with.
    """

    model: str
    task: str
    way: str
    seed: int
    recipe: dict[str, Any] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    held_out: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    original_bytes: int | None = None
    stored_bytes: int | None = None
    seconds: float = 0.0
    does_not_apply: str = ""
    failure: str = ""
    commit: str = ""

    @property
    def done(self) -> bool:
        """Whether it came to its end."""
        return bool(self.losses)

    @property
    def fine_tuned(self) -> bool:
        """Whether it began with pretrained weights and went through all epochs, as what was published did."""
        return not (self.recipe.get("words") or self.recipe.get("steps"))


@dataclass(frozen=True)
class Facts:
    """What there is to know of a task before anything is trained.

    Attributes:
        task: its name.
        what: its sentences in words.
        majority: the metrics of who answers all alike, with the most frequent label or the mean, in percent.
        frequency_loss: the held-out loss of who knows how frequent the labels are that were trained on, and no more.
        ceiling: of the first metric, in percent; ``None`` where nobody knows it.
    """

    task: str
    what: str
    majority: dict[str, float]
    frequency_loss: float
    ceiling: float | None = None


@dataclass(frozen=True)
class Cell:
    """Memory and time of steps of a network in one way.

    Attributes:
        model, way: which.
        batch, length: of its input, in sentences and tokens.
        original_bytes: of the plain network: what autograd keeps.
        stored_bytes: what is kept instead, as the report says; ``None`` where there is none.
        live_bytes: that live after the forward and did not before.
        peak_bytes: the most during forward and backward, less what was there before, the gradients among it.
        whole_bytes: the same of a step that makes the gradients: with them.
        seconds, plain_seconds: of steps in this way, and of plain ones in turn.
        not_measured: why bytes were not; empty otherwise.
        does_not_apply: why the way is none for this network; empty otherwise.
        failure: what went wrong; empty otherwise.
        commit: that it was measured with.
    """

    model: str
    way: str
    batch: int
    length: int
    original_bytes: int | None = None
    stored_bytes: int | None = None
    live_bytes: int | None = None
    peak_bytes: int | None = None
    whole_bytes: int | None = None
    seconds: list[float] = field(default_factory=list)
    plain_seconds: list[float] = field(default_factory=list)
    not_measured: str = ""
    does_not_apply: str = ""
    failure: str = ""
    commit: str = ""

    @property
    def ratio(self) -> float | None:
        """A step's time over the plain one's of the same round, the median over rounds; ``None`` where not timed."""
        if self.way == PLAIN:  # what plain steps differ by from plain ones is noise
            return 1.0 if self.seconds else None
        return median_ratio(self.seconds, self.plain_seconds) if self.seconds else None

    @property
    def throughput(self) -> float | None:
        """Sentences a second, forward and backward; ``None`` where not timed."""
        return self.batch / median(self.seconds) if self.seconds else None


@dataclass(frozen=True)
class TextResults:
    """What ``python -m bench text`` found; empty lists for the parts that were not run.

    Attributes:
        machine: where and with what.
        device: ``"cpu"`` or ``"cuda"``.
        facts: of each task.
        runs: of training.
        cells: of memory and time.
        skipped: what was left out, and why.
        seconds: that it took, what was taken up included.
    """

    machine: Machine
    device: str
    facts: list[Facts] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def run(self, model: str, task: str, way: str, seed: int) -> Run | None:
        """One of them."""
        wanted = (model, task, way, seed)
        return next((run for run in self.runs if (run.model, run.task, run.way, run.seed) == wanted), None)

    def timed(self, model: str, way: str, length: int, batch: int | None = None) -> Cell | None:
        """A cell whose steps were timed, of a network in a way; of any batch, if none is named."""
        wanted = (model, way, length)
        found = (cell for cell in self.cells if cell.seconds and (cell.model, cell.way, cell.length) == wanted)
        return next((cell for cell in found if batch in (None, cell.batch)), None)

    def of_task(self, task: str) -> Facts | None:
        """What there is to know of a task."""
        return next((facts for facts in self.facts if facts.task == task), None)

    def finished(self, model: str, task: str, way: str) -> list[Run]:
        """The runs that came to their end, by seed."""
        found = [run for run in self.runs if (run.model, run.task, run.way) == (model, task, way) and run.done]
        return sorted(found, key=lambda run: run.seed)

    def difference(self, model: str, task: str, way: str, of: Callable[[Run], float]) -> Difference | None:
        """Of runs in a way from the plain ones of the same seeds; ``None`` where there are no pairs."""
        plain = {run.seed: run for run in self.finished(model, task, PLAIN)}
        pairs = [(of(run), of(plain[run.seed])) for run in self.finished(model, task, way) if run.seed in plain]
        if way == PLAIN or not pairs:
            return None
        return paired_difference(*map(list, zip(*pairs, strict=True)))

    def smaller(self, model: str, task: str, way: str) -> float | None:
        """How many times fewer bytes a batch's activations take than in a plain run; ``None`` where unknown."""
        original = [run.original_bytes for run in self.finished(model, task, PLAIN) if run.original_bytes]
        stored = [run.stored_bytes for run in self.finished(model, task, way) if run.stored_bytes]
        return median(original) / median(stored) if original and stored else None

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> TextResults:
        """From what ``dataclasses.asdict`` made of one."""
        fields = dict(content)
        return cls(
            machine=Machine(**fields.pop("machine")),
            facts=[Facts(**entry) for entry in fields.pop("facts")],
            runs=[Run(**entry) for entry in fields.pop("runs")],
            cells=[Cell(**entry) for entry in fields.pop("cells")],
            **fields,
        )
