"""Faults that are put into a step, and what must be as before when one of them has reached the user."""

import contextlib
import gc
import os
import sys
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import actcore
import integrations
from actcore import stored
from integrations.planner.sensitivity import surroundings
from integrations.runtime.compiled.hooks import session_here
from integrations.runtime.repeating import thread_state
from integrations.runtime.session import Session
from integrations.tracing.storage.regions import Region

from .fault_ways import step
from .long_form import LONG


def places(count, quick):
    """The places of a step's faults, from 1 on: all, or in the quick form about so many, evenly spread."""
    return range(1, count + 1, 1 if LONG else max(1, -(-count // quick)))


# ---- putting faults in ----


class AtOperator(TorchDispatchMode):
    """Raises an error in place of the nth operator, of forward and of backward; counts them."""

    def __init__(self, place=0, error=None):
        super().__init__()
        self.place, self.error, self.seen = place, error, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        if self.seen == self.place:
            raise self.error
        return func(*args, **(kwargs or {}))


class AtFunction(TorchFunctionMode):
    """Raises an error in place of the nth call of a torch function; counts them. The call with which ``torch.no_grad``
    ends is none of them: torch itself leaves gradients off if it fails. Neither are those of a destructor, whose errors
    Python drops."""

    def __init__(self, place=0, error=None):
        super().__init__()
        self.place, self.error, self.seen = place, error, 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        counts = func is not torch._C._set_grad_enabled and sys._getframe(1).f_code.co_name != "__del__"
        self.seen += counts
        if self.seen == self.place and counts:
            raise self.error
        return func(*args, **(kwargs or {}))


_OURS = tuple(str(Path(package.__file__).parent) + os.sep for package in (actcore, integrations))


def is_in_destructor(frame):
    """Whether a frame runs for a ``__del__``, or as a callback of a weak reference: Python drops their errors."""
    while frame is not None and frame.f_code.co_name not in ("__del__", "_died", "_freed"):
        frame = frame.f_back
    return frame is not None


class AtCall:
    """Raises an error where the interpreter may raise a ``KeyboardInterrupt``, in this project's own Python: on entry
    of the nth function, or once a call into C is over; counts both. In a destructor it raises none, but after it."""

    def __init__(self, place=0, error=None):
        self.place, self.error, self.seen, self.where = place, error, 0, ""

    def __enter__(self):
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)

    def _note(self, frame, event, argument):
        if event not in ("call", "c_return") or not frame.f_code.co_filename.startswith(_OURS):
            return
        self.seen += 1
        if self.seen == self.place and is_in_destructor(frame):
            self.place += 1
        elif self.seen == self.place:
            self.where = f"{frame.f_code.co_filename.partition('src/')[2]}:{frame.f_lineno}"
            raise self.error


def interrupted_anywhere(work, make, quick=sys.maxsize):
    """Does something undisturbed, and then with a ``KeyboardInterrupt`` at one of its places after the other. Yields,
    each time it is over, what was made for it, and the fault; if no interrupt was raised, ``where`` is empty.

    Args:
        work: what is done, with what was made and with the fault, which it enters where the places begin.
        make: makes what it is done with, each time anew.
        quick: about how many places the quick form has; all unless given.
    """

    def tried(fault):
        made = make()
        try:
            with contextlib.suppress(KeyboardInterrupt):
                work(made, fault)
        finally:
            fault.__exit__()
        if fault.error is not None:  # it lives on, and its frames would keep tensors alive
            fault.error.__traceback__ = None
        return made, fault

    yield tried(counts := AtCall())
    assert counts.seen
    for place in places(counts.seen, quick):
        yield tried(AtCall(place, KeyboardInterrupt()))


# ---- what must be as before ----


def of_thread():
    """All that a forward sets for its thread while it runs."""
    return {
        "function modes": list(map(id, _get_current_function_mode_stack())),
        "dispatch modes": list(map(id, _get_current_dispatch_mode_stack())),
        "saved-tensor hooks": torch._C._autograd._top_saved_tensors_default_hooks(True),
        "gradients enabled": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()),
        "torch functions": torch._C._is_torch_function_enabled(),
        "keys": (str(torch._C._dispatch_tls_local_include_set()), str(torch._C._dispatch_tls_local_exclude_set())),
        "session": session_here(),
        "listener": (stored._here.listener, stored._here.operator, stored._here.subject),
        "trial": getattr(surroundings._here, "met", None),
        "plan": (thread_state.here.following, thread_state.here.repeating),
    }


_HOOKS = [name for name in vars(torch.nn.Module()) if name.endswith("_hooks")]


def of_model(model):
    """A model's structure: modules, parameters, buffers, hooks, modes, and attributes; and its handle, at rest."""
    found = {}
    for path, module in model.named_modules():
        own = vars(module)
        found[path] = (
            id(module),
            {name: id(one) for kind in ("_parameters", "_buffers", "_modules") for name, one in own[kind].items()},
            {name: list(own[name]) for name in _HOOKS},
            module.training,
            sorted(own),
            id(own.get("forward")),
            [one.requires_grad for one in module.parameters(recurse=False)],
            [one.detach().clone() for one in module.parameters(recurse=False)],
        )
    handle = model.__dict__.get("_integrations_compression")
    if handle is not None:
        found["handle"] = (
            handle._sessions,
            handle._paused,
            handle._trials,
            handle.closed,
            handle._timed,
            handle._redraw,
        )
    return found


def same(one, other):
    """Whether two values of plain containers and tensors are equal, tensors bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return one == other


def differing(before, after):
    """The names of what has changed between two snapshots."""
    return [name for name in before.keys() | after.keys() if not same(before.get(name), after.get(name))]


def held():
    """What holds a tensor for a backward, or runs a forward, and is alive. Sites keep regions that hold nothing."""
    found = [one for one in gc.get_objects() if issubclass(type(one), (Region, Session))]
    return [type(one).__name__ for one in found if type(one) is not Region or one.value or one.sign or one.kept]


@contextlib.contextmanager
def counting_alone():
    """Only what is made in the block is looked through by ``held``, and reference counting alone frees it."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# ---- one fault, and the step after it ----


class Trial:
    """Faults in the steps of one model, each followed by an undisturbed step of it and of an undisturbed twin.

    Args:
        model: the model.
        twin: an equal one.
        interrupts: whether faults are interrupts amid Python, which may leave circles for the garbage collector.
    """

    def __init__(self, model, twin, interrupts=False):
        self.model, self.twin, self.interrupts, self.work = model, twin, interrupts, step
        self.told = []  # what was not as before, in words
        self.compares = True  # whether gradients are bit for bit those of the twin

    def fail(self, place, injected, is_injected):
        """Puts in a fault at a place. Returns the error that reached the user, in words, or ``None``.

        Args:
            place: its number, for words.
            injected: the context that puts it in.
            is_injected: whether an error is the one that was put in.
        """
        before, model = (of_thread(), of_model(self.model)), self.model
        old = {name: one.grad for name, one in model.named_parameters()}
        values = {name: None if grad is None else grad.clone() for name, grad in old.items()}
        whole = self.whole(values)
        caught = None
        try:
            with injected:
                self.work(model)
        except BaseException as error:
            if not is_injected(error):
                self.told.append(f"{place}: another error: {type(error).__name__}: {error}")
            caught = f"{type(error).__name__}: {error}"[:200]
        if (error := getattr(injected, "error", None)) is not None:  # it lives on, and what its frames hold shall not
            error.__traceback__ = error.__context__ = None
        torch.ones(1, requires_grad=True).sum().backward()  # torch's queue holds nodes of a failed one until then
        if self.interrupts:
            gc.collect()
        where = getattr(injected, "where", "")
        changed = differing(before[0], of_thread()) + differing(before[1], of_model(model))
        if changed:
            self.told.append(f"{place} {where}: not as before: {', '.join(changed)}")
        if alive := held():
            self.told.append(f"{place} {where}: alive: {len(alive)}, {alive[:3]}")
        for name, one in model.named_parameters():
            if self.compares and not same(one.grad, values[name]) and not same(one.grad, whole[name]):
                self.told.append(f"{place} {where}: the gradient of {name} is half")
        for name, one in model.named_parameters():
            one.grad = values[name]
        return caught

    def whole(self, values):
        """The gradients that an undisturbed step leaves where these are before."""
        self.align()
        return self.stepped(self.twin, values)

    def align(self):
        """Has the twin's next forward draw the noise that the model's draws."""
        for module, twin in zip(self.model.modules(), self.twin.modules(), strict=True):
            handle = module.__dict__.get("_integrations_compression")
            if handle is not None:
                twin.__dict__["_integrations_compression"].step = handle.step
            precision = getattr(module, "precision", None)
            if precision is not None:  # of a Q-layer, which counts its forwards itself
                twin.precision._forwards = precision._forwards
            buffers = zip(module.buffers(recurse=False), twin.buffers(recurse=False), strict=True)
            for mine, other in buffers:
                other.copy_(mine)

    def stepped(self, model, values=None):
        for name, one in model.named_parameters():
            one.grad = None if values is None or values[name] is None else values[name].clone()
        self.work(model)
        return {name: None if one.grad is None else one.grad.clone() for name, one in model.named_parameters()}

    def go_on(self, place):
        """An undisturbed step of both, which must be the same."""
        self.align()
        expected, state = self.stepped(self.twin), torch.get_rng_state()
        found = self.stepped(self.model)
        if not torch.equal(state, torch.get_rng_state()):
            self.told.append(f"{place}: the generator is elsewhere after the next step")
        if self.compares and (other := differing(expected, found)):
            self.told.append(f"{place}: the next step differs in {', '.join(other)}")
