"""``Plan``: how the values of a model's forward wait for backward, with what that takes; to be printed and saved."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Self

from integrations._utils.whole_files import write_text
from integrations.planner.accumulation import fresh, only_noted
from integrations.planner.alternatives import accumulating, clearing, within
from integrations.planner.budget import Budget
from integrations.planner.plan_json import of_json, to_json
from integrations.planner.plan_page import write_page
from integrations.planner.plot import plot_front
from integrations.planner.solution import Solution
from integrations.planner.table import make_table


@dataclass(frozen=True)
class Plan(Solution):
    """A choice of how values wait for backward, among those that none other beats. ``str(plan)`` is a table.

    Attributes:
        model: the class of the model.
        graph: the training step of the plain forward, or, for a plan for a level, of the forward at that level.
        choice: what is kept, how, and what is recomputed.
        front: all choices, by rising peak and falling seconds; the last adds the least time.
        peak_bound: no choice has a lower peak.
        exact: whether all choices were tried, so that none is missing from the front.
        bounds: what it was asked to keep to. An error of 0 leaves gradients exact; it is ``None`` in a plan for a
            level. A plan that was asked for neither memory nor time has the least peak of its front.
        objective: the objective of the choice, if nothing was asked for.
        capture_seconds, search_seconds: the time that planning took.
        loss: a function from the model's output to what is differentiated, for plans for other inputs. It is not
            saved: a loaded plan makes plans for other inputs as if none was given, with a warning.
        candidates: the stores that the graph's values may wait in; ``None``: none.
        rounded: the training step in which what backward reads may be rounded, if there are choices for it.
        rounded_candidates: the stores of its values.
        level: the level that stores what the choice has no store for; ``None``: that is kept as it is.
        also: plans of the same call for other inputs. No plan's inputs are within those of another.
        measured: the relative error of the gradient measured under this choice; ``None`` if it was not measured, and
            ``choice.error`` predicts it.
        unmeasured: why measuring it failed, if it was tried.
        chunking: the argument that makes ``compress_model`` compute the model's loss without its logits; empty if no
            such argument is known. It is not saved.
        chunked: the loss in chunks, if the plan has it computed without whole logits; else ``None``. Peaks and times of
            the plain step are then those with whole logits.
        earlier: bytes of the largest plain steps of the model's earlier plans, in the order of ``wholes``: a fraction
            as a budget is of these if they are larger. Empty for a model's first plan.
        others: the plans that were made of the same graphs, for another bound on the error or state of the gradients.
    """

    @property
    def accumulating(self) -> Self:
        """The plan for steps that find gradients and add theirs to them, as all but the first do that accumulate
        gradients.

        It was asked for the same; if that cannot be met, it has the least peak. Its activation peak is all that the
        step takes beyond what was allocated before. The search runs when this is first asked for; planning does so if
        rounding is allowed.
        """
        if not self.graph.standing:
            return self
        return accumulating(self)

    @cached_property
    def clearing(self) -> Self:
        """The plan for steps that find gradients in the forward and clear them before backward, as ``zero_grad`` does
        between the two.

        It is this plan if that keeps to its memory in such steps. Otherwise it is searched for, unless it would round:
        a plan that rounds has to be measured, so ``accumulating`` is followed then, which takes no more memory.
        """
        return clearing(self) if self.graph.standing and not self.graph.clears else self

    def within(self, memory: Budget | None = None, time: float | None = None, error: float | None = None) -> Self:
        """Return the best plan within these bounds: of the least time in the memory; without a memory, of the least
        memory in the time; if both are given, of the least error that was found to fit.

        Args:
            memory: as ``budget`` of ``integrations.checkpoint.plan``, except ``"auto"``; a fraction is one of the peak
                of a step that neither recomputes nor compresses, or of a larger one that the model had before.
            time: of a step over that of the plain one: 1.1 allows a tenth more, by the models of times.
            error: bound on the relative error of the gradient. ``None``: that of this plan.

        The plans of other inputs that it comes with, ``also``, keep to the same. Another error is another search, and
        memory and time together are several, for the least error; all else is in the front. The error of another
        choice is predicted, not measured.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: it is out of range, or no plan is within them. The message names the least that can be had.
        """
        return within(self, memory, time, error)

    def to_json(self) -> str:
        """The plan as JSON."""
        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The plan that ``to_json`` wrote.

        Raises:
            ValueError: the text is not a plan, or of another version, or its numbers contradict each other.
        """
        return of_json(cls, text)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan to a file, for ``compress_model(model, plan=path)`` in another process or on another day.

        The file of an ``accumulating`` plan has the plan that it belongs to as well, so that a model follows both.

        Raises:
            OSError: the file cannot be written.
        """
        write_text(path, fresh(self).to_json())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """The plan that ``save`` wrote.

        Raises:
            OSError: the file cannot be read.
            ValueError: as ``from_json``; the message names the file.
        """
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(
                f"{path} must be a file that Plan.save wrote: {error}; if it is damaged, plan again and save that"
            ) from None

    def plot(self, path: str | PathLike[str]) -> None:
        """Draws the front: activation peak against time, and which choice this is.

        Args:
            path: the file to write; its ending names the type: ``.png``, ``.svg``, ``.pdf``.

        Raises:
            ImportError: matplotlib is not there (``pip install actcore-integrations[plot]``).
            ValueError: the ending is of no type that matplotlib writes.
            OSError: the file cannot be written.
        """
        plot_front(self, path)

    def page(self, path: str | PathLike[str]) -> None:
        """Writes the plan as one page of HTML, with the chart of ``plot`` and what happens to each module's values. It
        needs no other file and no network. Without matplotlib, the page says in place of the chart that it needs it.

        Args:
            path: the file to write, such as ``"plan.html"``.

        Raises:
            OSError: the file cannot be written.
        """
        write_page(self, path)

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled with a model: everything except the user's function and what can be searched again."""
        state = {**self.__dict__, "loss": None, "others": only_noted(self)}
        state.pop("clearing", None)
        return state

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """The plan itself: it never changes, and copies of a model share it."""
        return self

    def __str__(self) -> str:
        return make_table(self)

    def __repr__(self) -> str:
        return f"Plan({self.model}, peak={self.peak}, plain_peak={self.plain_peak}, segments={len(self.segments)})"
