"""``GradientHistory``: whether the steps of a model add to gradients, or clear them between forward and backward."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from functools import partial
from itertools import chain
from typing import Any, Literal

from torch import nn

from integrations._utils.running_module import all_modules
from integrations.tracing.backward_start import at_backward
from integrations.tracing.tensors import get_gradient

GradientState = Literal["fresh", "accumulating", "clearing"]
"""What a step is planned for: ``"fresh"`` finds no gradients, ``"accumulating"`` adds to those that it finds, and
``"clearing"`` has the last step's gradients during the forward and none in backward."""

_ENOUGH = 2
"""So many steps in a row have to clear gradients before the next one is planned for that. After one step, the next may
accumulate, as where ``zero_grad`` is called after the first forward of an accumulation."""


class GradientHistory:
    """Tell what the next step is planned for, from the steps before.

    At the start of a forward nobody knows whether gradients that exist then will be cleared. So the start of each
    backward is observed. Backward may start in any thread.

    Attributes:
        cleared: how many steps in a row have cleared gradients between forward and backward, 2 at most.
        late: whether gradients were cleared between forward and backward when they were last cleared.
        accumulates: whether a backward has found gradients that its forward had found.
    """

    def __init__(self) -> None:
        self.cleared = 0
        self.late = self.accumulates = False
        # Whether the next forward is the first one of a copy or of a resumed run, in which gradients are gone that the
        # run before had.
        self._resumes = False
        self._found: dict[int, bool] = {}  # by thread: whether its forward is planned with gradients
        self._look = GradientLook()

    def before_forward(self, model: nn.Module) -> GradientState:
        """Return what a forward is planned for that starts now in this thread."""
        found = self._look.has_gradients(model) or (self._resumes and self.late)
        self._found[threading.get_ident()] = found
        if not found:
            return "fresh"
        return "clearing" if self.cleared == _ENOUGH else "accumulating"

    def after_forward(self, model: nn.Module, result: Any) -> None:
        """Observe the backward of this thread's forward, which has returned.

        Args:
            model: the model.
            result: what the forward returned. The backward of any tensor in it counts.
        """
        found = self._found.pop(threading.get_ident(), None)
        if found is None:
            return
        self._resumes = False
        if not found:
            self.late = False
            return
        at_backward(result, partial(_observe, weakref.ref(self), weakref.ref(model)))

    def observe(self, model: nn.Module) -> None:
        """Observe a backward that begins, whose forward was planned with gradients."""
        self.note_backward(self._look.has_gradients(model))

    def note_backward(self, finds_gradients: bool) -> None:
        """Note what the backward of a step finds whose forward was planned with gradients."""
        if finds_gradients:
            self.cleared, self.accumulates = 0, True
        else:
            self.cleared, self.late = min(self.cleared + 1, _ENOUGH), True

    def content(self) -> dict[str, Any]:
        """Return the history as plain values."""
        return {"cleared": self.cleared, "late": self.late}

    @classmethod
    def of(cls, content: Any) -> GradientHistory:
        """Return the history of a run that is resumed.

        Args:
            content: what ``content`` returned; ``None`` for a state that has none.

        Raises:
            ValueError: it is something else.
        """
        found = cls()
        if content is None:
            return found
        given = dict(content) if isinstance(content, Mapping) else {}
        cleared, late = given.get("cleared"), given.get("late")
        if set(given) != {"cleared", "late"} or type(cleared) is not int or type(late) is not bool:
            raise ValueError(f"the state's gradients must be what state_dict returned, got {content!r:.80}")
        if not 0 <= cleared <= _ENOUGH:
            raise ValueError(f"the state's cleared must be from 0 to {_ENOUGH}, got {cleared}")
        found.cleared, found.late, found._resumes = cleared, late, True
        return found

    def __getstate__(self) -> dict[str, Any]:
        # A copy of a model has none of its gradients.
        return {**self.__dict__, "_resumes": True, "_found": {}, "_look": GradientLook()}


def _observe(history: weakref.ref[GradientHistory], model: weakref.ref[nn.Module]) -> None:
    """Tell a history whether a backward that begins finds gradients."""
    found, of = history(), model()
    if found is not None and of is not None:
        found.observe(of)


_FEW_LOOKS = 64
"""So many times in a row only large parameters are read. Then all are, since layers may have been exchanged."""


class GradientLook:
    """``has_gradients`` for a model that is asked about in each step.

    Reading all parameters takes as long as a small step. If those that have more than half of the elements all have
    gradients, or none has, the others cannot change the answer, and are not read.
    """

    def __init__(self) -> None:
        # Modules, names and elements of parameters, and whether these are trained.
        self._large: list[tuple[weakref.ref[nn.Module], str, int, bool]] = []
        self._left = 0  # so many times they may be read without the others

    def has_gradients(self, model: nn.Module) -> bool:
        """Return whether more than half of the elements of the trained parameters have gradients."""
        self._left -= 1
        found = self._read_large() if self._left > 0 else None
        if found is None:
            found = has_gradients(model)
            self._large, self._left = _find_large(model), _FEW_LOOKS
        return found

    def _read_large(self) -> bool | None:
        """Return whether all large parameters have gradients; ``None`` if they do not tell, or are not as they were."""
        found: bool | None = None
        for reference, name, count, trained in self._large:
            module = reference()
            parameter = None if module is None else module._parameters.get(name)
            if parameter is None or parameter.requires_grad is not trained or parameter.numel() != count:
                return None
            if not trained:
                continue
            has = get_gradient(parameter) is not None
            if found is not None and has is not found:
                return None
            found = has
        return found


def _find_large(model: nn.Module) -> list[tuple[weakref.ref[nn.Module], str, int, bool]]:
    """Return the largest parameters, each with whether it is trained: those that have more than half of the elements of
    all trained ones, and those that have more than half of the elements of all frozen ones, which may be trained
    later."""
    known = {
        id(parameter): (parameter.numel(), module, name, parameter.requires_grad)
        for module in all_modules(model)
        for name, parameter in module._parameters.items()
        if parameter is not None
    }
    found = []
    for trained in (True, False):
        alike = [one for one in known.values() if one[3] is trained]
        left = sum(count for count, *_ in alike) / 2
        for count, module, name, _ in sorted(alike, key=lambda one: one[0], reverse=True):
            found.append((weakref.ref(module), name, count, trained))
            left -= count
            if left < 0:
                break
    return found


def has_gradients(model: nn.Module) -> bool:
    """Return whether more than half of the elements of the trained parameters have gradients."""
    trained = standing = 0
    values = (module._parameters.values() for module in all_modules(model))
    parameters = {id(one): one for one in chain.from_iterable(values) if one is not None and one.requires_grad}
    for parameter in parameters.values():
        count = parameter.numel()
        trained += count
        standing += count if get_gradient(parameter) is not None else 0
    return 2 * standing > trained
