"""``Plan``: how the values of a model's forward wait for backward, with what that takes; to be printed and saved."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Self

from integrations.planning.alternatives import accumulating, within
from integrations.planning.budget import Budget
from integrations.planning.noted import only_noted
from integrations.planning.page import write_page
from integrations.planning.plot import plot_front
from integrations.planning.serial import of_json, to_json
from integrations.planning.solution import Solution
from integrations.planning.table import table_of


@dataclass(frozen=True)
class Plan(Solution):
    """A choice of how values wait for backward, among those that none other beats. ``str(plan)`` is a table.

    Attributes:
        model: the class of the model.
        graph: its training step: of the forward as it is; of a plan for a level, of the forward at that.
        choice: what is kept, how, and what is recomputed.
        front: all choices, by rising peak and falling seconds; the last adds the least time.
        peak_bound: no choice has a lower peak.
        exact: whether all choices were tried, so that none is missing from the front.
        bounds: what it was asked to keep to. An error of 0 makes gradients as they are; ``None`` is that of a plan for
            a level. A plan that was asked for neither memory nor time has the least peak of its front.
        objective: by which the choice was made, where nothing was asked for.
        capture_seconds, search_seconds: that planning took.
        loss: from the model's output to what is differentiated, for plans that are made for other inputs. It is not
            saved, so that those of a plan that was loaded start from what they would without one, with a warning.
        menus: the stores that the graph's values may wait in; ``None``: none.
        rounded: the training step where what backward reads is rounded, if there are choices of that, too.
        rounded_menus: the stores of its values.
        level: the level as which everything is stored that the choice has no store for; ``None``: it is kept as it is.
        also: the plans of the same call for other inputs, none of which are within these or one another.
        measured: the relative error of the gradient that was measured under this choice; ``None``: it was not, and
            ``choice.error`` is what there is.
        unmeasured: why not, if somebody tried.
        others: the plans of the same graphs for another bound on the error or state of the gradients that were made.
    """

    @property
    def accumulating(self) -> Self:
        """The plan for steps that find gradients there, to which they add theirs, as all but the first do that
        accumulate gradients. It was asked for the same; where that cannot be had, for nothing, and has the least peak.
        The activation peak is then all that the step takes beyond what was there. The search is made when this is first
        asked for, which planning does where rounding is allowed."""
        if not self.graph.standing:
            return self
        return accumulating(self)

    def within(self, memory: Budget | None = None, time: float | None = None, error: float | None = None) -> Self:
        """The plan that is best within these bounds: of the least time in the memory; without that, of the least memory
        in the time; where both are given, of the least error that was found to fit.

        Args:
            memory: as ``budget`` of ``integrations.checkpoint.plan``; a fraction is one of the peak of a step that
                neither recomputes nor compresses.
            time: of a step, in those of the plain one: 1.1 allows a tenth more, by the models of times.
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
            ValueError: it is no such text, or of another version, or its numbers contradict each other.
        """
        return of_json(cls, text)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the plan to a file, for another process or day."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

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
            raise ValueError(f"{path} must be a file that Plan.save wrote: {error}") from None

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
        """Writes the plan as one page of HTML, with its front and what happens to each module's values. It needs no
        other file and no network.

        Args:
            path: the file to write, such as ``"plan.html"``.

        Raises:
            OSError: the file cannot be written.
        """
        write_page(self, path)

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled with a model: all but a function of the user's, and what can be found again."""
        return {**self.__dict__, "loss": None, "others": only_noted(self)}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """The plan itself: nobody changes it, and copies of a model share it."""
        return self

    def __str__(self) -> str:
        return table_of(self)

    def __repr__(self) -> str:
        return f"Plan({self.model}, peak={self.peak}, plain_peak={self.plain_peak}, segments={len(self.segments)})"
