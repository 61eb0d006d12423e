"""A net's training step under inductor in one way, beside the eager step of the same way: ``compare``."""

import math
import re
import warnings
from dataclasses import asdict, dataclass, field
from functools import cache

import torch
from torch.utils._pytree import tree_leaves

import integrations
from integrations import checkpoint
from integrations.runtime.compiled.partition import JOINT

from .inductor_nets import build
from .nets import profiled_bytes

LEVELS = {"L1": {"level": "L1", "min_bytes": 0}, "lean": {"level": "lean", "min_bytes": 0}}
PLANS = {
    "memory=0.4, error=0": {"memory": 0.4, "error": 0},
    "memory=0.3, error=0.1": {"memory": 0.3, "error": 0.1},
}
WAYS = {**LEVELS, **PLANS}

STEPS = 16
"""Of ways that round: the errors of so many steps are averaged."""


@dataclass
class Compared:
    """What is found of a net in one way. Distances are between whole gradients, relative to the norm of the exact one.

    Attributes:
        net, way: their names.
        plain: the distance of the plain step under inductor from the exact gradient, that of the plain eager step; 0
            where it is not computed.
        eager, compiled: the distances of the way's steps: in eager code and under inductor.
        original_bytes, stored_bytes: the sums of the report.
        alive_bytes: what the forward allocates and leaves.
        other_bytes: the most of these that is no saved tensor: the outputs, and copies with channels last of images and
            of weights of convolutions, which inductor makes.
        unknown: modules that the report names and the model has not.
        changes: whether two steps have different reports.
        told: the plan, as the report has it.
        budget: the bytes that a plan is allowed; 0 at a level.
        peak: the planned activation peak, in bytes; 0 at a level.
        measured: the most bytes that a step allocates beside its gradients, as torch's profiler has it.
        refused: the messages of budgets that did not fit.
        warned: warnings.
    """

    net: str
    way: str
    plain: float = 0.0
    eager: float = 0.0
    compiled: float = 0.0
    original_bytes: int = 0
    stored_bytes: int = 0
    alive_bytes: int = 0
    other_bytes: int = 0
    unknown: list[str] = field(default_factory=list)
    changes: bool = False
    told: str = ""
    budget: int = 0
    peak: int = 0
    measured: int = 0
    refused: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)

    asdict = asdict


class Squares(torch.autograd.Function):
    """Half the sum of squares, which keeps the tensors alone, as their caller does."""

    @staticmethod
    def forward(ctx, *outputs):
        ctx.save_for_backward(*outputs)
        return sum(output.detach().square().sum() / 2 for output in outputs)

    @staticmethod
    def backward(ctx, gradient):
        return tuple(output * gradient for output in ctx.saved_tensors)


def read_loss(output):
    """The model's own loss, or else that of all its outputs."""
    own = getattr(output, "loss", None)
    if own is not None:
        return own
    return Squares.apply(*(tensor for tensor in find_tensors(output) if tensor.requires_grad))


def find_tensors(output):
    parts = output if isinstance(output, (tuple, torch.Tensor, dict)) else vars(output)
    return [one for one in tree_leaves(parts) if isinstance(one, torch.Tensor)]


class Step:
    """A training step of a net: eager, or compiled where ``function`` is.

    Args:
        net: the net, with the arguments of its forward.
        function: what is called in its place.
    """

    def __init__(self, net, function=None):
        self.model, self._args, self._kwargs = net
        self._function = self.model if function is None else function

    def forward(self):
        self.model.zero_grad()
        return self._function(*self._args, **self._kwargs)

    def run(self):
        read_loss(self.forward()).backward()

    def gradients(self):
        self.run()
        return {name: one.grad.clone() for name, one in self.model.named_parameters() if one.grad is not None}

    def measure(self, found):
        """Fills in the most bytes that a step allocates on a CPU beside its gradients, and what a forward leaves."""
        self.model.zero_grad()
        peak, gradients = profiled_bytes(self.run)
        found.measured = peak - gradients
        self.model.zero_grad()
        held = []
        _, found.alive_bytes = profiled_bytes(lambda: held.append(self.forward()))
        outputs = {one.untyped_storage() for one in find_tensors(held[0])}
        images = [one for one in (*self._args, *self._kwargs.values(), *self.model.parameters()) if one.dim() == 4]
        found.other_bytes = sum(one.nbytes() for one in outputs) + sum(one.nbytes for one in images)


def distance(found, exact):
    """The norm of the difference of two gradients, relative to the second one's."""
    assert found.keys() == exact.keys()
    squares = sum((found[name] - one).double().square().sum() for name, one in exact.items())
    return (squares / sum(one.double().square().sum() for one in exact.values())).sqrt().item()


def average(step, exact):
    """The root mean square of the distances of ``STEPS`` steps."""
    return math.sqrt(sum(distance(step.gradients(), exact) ** 2 for _ in range(STEPS)) / STEPS)


@cache
def plain_distance(net):
    """The distance of the plain step under inductor from the plain eager step."""
    model = build(net)
    exact = Step(model).gradients()
    torch.compiler.reset()
    found = distance(Step(model, torch.compile(model[0])).gradients(), exact)
    torch.compiler.reset()
    return found


def compare(net, way):
    """What is found of a net in a way."""
    found, model = Compared(net, way), build(net)
    exact = Step(model).gradients()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if way in LEVELS:
            integrations.compress_model(model[0], **LEVELS[way])
            found.eager = average(Step(model), exact)
            step = Step(model, torch.compile(model[0]))
            found.compiled = average(step, exact)
        else:
            step = _follow_plan(found, model, exact)
        reports = [integrations.compression(model[0]).report()]
        step.measure(found)
        reports.append(integrations.compression(model[0]).report())
    report = reports[0]
    found.changes = len({one.to_json() for one in reports}) > 1
    found.original_bytes, found.stored_bytes, found.told = report.original_bytes, report.stored_bytes, report.recomputed
    known = {path for path, _ in model[0].named_modules()}
    found.unknown = sorted({row.module for row in report.rows} - known)
    found.warned = sorted({str(one.message) for one in caught if issubclass(one.category, UserWarning)})
    return found


def _follow_plan(found, net, exact):
    """The step of a plan within its budget; where that is refused, within the one that the message names."""
    model, options = net[0], dict(PLANS[found.way])
    if not options["error"]:
        found.plain = plain_distance(found.net)
    while True:
        integrations.compress_model(model, **options)
        try:
            found.eager = average(Step(net), exact)
            step = Step(net, torch.compile(model))
            found.compiled = average(step, exact)
            break
        except ValueError as error:
            found.refused.append(str(error))
            named = re.search(r"ass memory=([\d.]+\d)", str(error))
            if named is None or len(found.refused) > 2:
                raise
        options["memory"] = float(named[1]) if "." in named[1] else int(named[1])
        integrations.restore_model(model)
        torch.compiler.reset()
    plan = checkpoint.plan_of(model)
    found.budget = plan.memory if isinstance(plan.memory, int) else int(plan.memory * plan.uncompressed_peak)
    found.peak = plan.others[JOINT].peak if JOINT in plan.others else plan.peak
    return step
