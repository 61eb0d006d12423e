"""``Fit``: the answer to whether a training fits, and ``Way``: one way to train, with the memory that it takes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from integrations.estimate.fit.static_memory import Standing
from integrations.estimate.fit.table import make_table


@dataclass(frozen=True)
class Way:
    """One way to train the same model with the same inputs.

    Attributes:
        name: of the way: ``"plain"``, ``"chunked"``, ``"lean"``, ``"recompute"``, ``"plan"``, ``"checkpoint"``.
        code: the line that has the model trained so; empty for ``"plain"``.
        peak: bytes of the whole training at its highest; 0 where it is not known.
        activations: bytes that wait for backward at that moment, the loss's left out.
        loss: bytes of the loss at that moment: logits, their gradient, or what a loss in chunks takes.
        gradients: bytes of the gradients that are there at that moment.
        temporaries: bytes of everything else at that moment.
        gathered: bytes of parameters that FSDP2 has gathered at that moment.
        at_step: whether that moment is in the optimizer's step.
        fits: whether ``peak`` is within the memory.
        time: of a step over that of the same without what costs time, by a model of times; ``None`` if not known.
        error: relative error of the gradient: 0, or the bound of a plan; ``None`` if it rounds and nothing bounds it.
        does: what the line of code has backward and the host do, in words; empty if nothing.
        note: what is to be said of it.
        stage: the stage of the pipeline that takes the most, whose bytes these are.
        stages: the highest bytes of each stage; empty without a pipeline.
    """

    name: str
    code: str
    peak: int = 0
    activations: int = 0
    loss: int = 0
    gradients: int = 0
    temporaries: int = 0
    gathered: int = 0
    at_step: bool = False
    fits: bool = False
    time: float | None = None
    error: float | None = 0.0
    does: str = ""
    note: str = ""
    stage: int = 0
    stages: tuple[int, ...] = ()


@dataclass(frozen=True)
class StageMemory:
    """Bytes of a pipeline's stage that do not depend on the way.

    Attributes:
        standing: of weights, gradients and optimizer states on one rank.
        inputs: of the inputs, and of the buffers for what other stages send.
    """

    standing: Standing
    inputs: int


@dataclass(frozen=True)
class Fit:
    """Whether a training fits into memory, and how. ``str(fit)`` is a table and a bar.

    Attributes:
        model: what is trained, in words.
        memory: bytes that were asked for.
        available: bytes that the training may take: the memory without what is left to what is not counted.
        reserve: the part of the memory that is left to that; for ``memory="auto"``, of the device's memory.
        optimizer: its name.
        ranks: how many processes train together; bytes are those of one of them.
        fsdp, tp, pp: the sizes of their device mesh.
        micro_batches: how many batches a step sends through the pipeline.
        standing: bytes of weights, gradients and optimizer states; of the best way's stage.
        inputs: bytes of the inputs; likewise.
        stages: ``standing`` and ``inputs`` of each stage; empty without a pipeline.
        ways: the ways, the cheapest in time first; those that were not tried have a peak of 0.
        answer: the first of them that fits; ``None`` if none does.
        batch, tokens: of the sample; ``tokens`` is ``None`` for a model of something else.
        largest_batch: the largest batch that fits in the way ``grown``; 0 if not even one does, ``None`` if not known.
        longest: the longest sequences that fit so, in tokens, as far as the model has positions for them; likewise.
            Both are ``None`` if they were not asked for.
        grown: the way in which larger inputs were judged: that of ``answer``; where that is a plan, the one of the
            least memory among the others that fit and have no larger error; where nothing fits, the one of the least
            memory.
        notes: what is assumed.
    """

    model: str
    memory: int
    available: int
    reserve: float
    optimizer: str
    ranks: int
    standing: Standing
    inputs: int
    ways: tuple[Way, ...]
    answer: Way | None
    batch: int | None = None
    tokens: int | None = None
    largest_batch: int | None = None
    longest: int | None = None
    grown: str = ""
    notes: tuple[str, ...] = field(default=())
    fsdp: int = 1
    tp: int = 1
    pp: int = 1
    micro_batches: int = 1
    stages: tuple[StageMemory, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether it fits as it is, without a change."""
        return self.answer is not None and self.answer.name == "plain"

    @property
    def code(self) -> str:
        """The line of code that makes it fit; empty if it fits as it is, or if nothing was found that does."""
        return "" if self.answer is None else self.answer.code

    @property
    def best(self) -> Way:
        """The answer, or else the way of the least memory."""
        known = [way for way in self.ways if way.peak]
        return self.answer or min(known, key=lambda way: way.peak)

    @property
    def weights(self) -> int:
        """Bytes of parameters and buffers."""
        return self.standing.weights

    @property
    def states(self) -> int:
        """Bytes of the optimizer's states."""
        return self.standing.states

    @property
    def gradients(self) -> int:
        """Bytes of all gradients."""
        return self.standing.gradients

    @property
    def total(self) -> int:
        """Bytes of the whole training at its highest, without a change; 0 where that was not tried."""
        return next((way.peak for way in self.ways if way.name == "plain"), 0)

    def way(self, name: str) -> Way:
        """Return a way by its name.

        Raises:
            KeyError: it was not tried. The message says why, or names the ways that were.
        """
        for way in self.ways:
            if way.name == name and way.peak:
                return way
            if way.name == name:
                raise KeyError(f"{name!r} has no peak: {way.note}; pass ways=[{name!r}] to try it alone")
        raise KeyError(f"the name must be one of {', '.join(way.name for way in self.ways if way.peak)}, got {name!r}")

    def to_json(self) -> str:
        """All of it as JSON, in bytes, with ``fits``, ``code`` and ``total``."""
        beside = {"fits": self.fits, "code": self.code, "total": self.total}
        return json.dumps({**asdict(self), **beside})

    def __str__(self) -> str:
        return make_table(self)
