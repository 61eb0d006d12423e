"""How far a rounded gradient may be off, by the rules of the tensors that it is computed from.

With E(t) for the gradient's error where each saved tensor is the part t of the way to what is restored, and d for the
step of 8 bits over a tensor's range, which is at least that of any group in it, or of one code less where an element is
not finite:

* ``LINEAR``: the gradient is affine in what is stored, as the rule says: E(1) = 2 E(1/2). So rounding that is unbiased
  leaves it unbiased; and no element is stored more than a step from where it was.
* ``QUADRATIC``: a normalisation's, with exact statistics, is of the second degree: E(1) = 3 E(2/3) - 3 E(1/3).
* ``SLOPE``: each element of a pointwise operator's at most 2 d of the gradient that came in there: 2 is the largest
  derivative of a slope among those that have such a rule, tanh's in its result. 1e-4 of it more is what elements beyond
  a clamp cost.
* ``SOFTMAX``: ``d abs(g - s) + (y + d) d sum(abs(g))`` with s = sum(g y) and y up to 1, so at most
  ``d abs(g) + (2 + d) d sum(abs(g))``.
* ``STORED``: attention's is that of query, key and value as they are stored, bit for bit.
* ``SMOOTH``: several rules in one operator, or one that is a polynomial: most of the error is linear in the rounding,
  ``norm(E(1) - 2 E(1/2))`` is at most a quarter of ``norm(E(1))``. It is 0 for a linear one, and above 1 where the
  slope changes as much within a step as it is large.

Sums of float32 are the limit of the first two: each of the four gradients that are added up, or of the eight, is off by
at most ``N eps / 2`` of the sum of its N terms' absolute values, which is taken to be the gradient's norm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from integrations.policies.rules import RULES, Need

from .step import Step, flat, gradients
from .stored import Saves
from .subjects import Applied

LINEAR, QUADRATIC, SLOPE, SOFTMAX = "linear", "quadratic", "slope", "softmax"
STORED, SMOOTH = "at the stored ones", "smooth"
_STEPS, _CLAMPED, _SMOOTHNESS = 255, 1e-4, 0.25
_GATED = frozenset({"glu", "pow"})  # a sigmoid beside the product; powers up to the fourth
_SOFTMAX = frozenset({"softmax", "softmin"})
_BY_NEED = {
    Need.LINEAR: LINEAR,
    Need.PRODUCT: LINEAR,
    Need.MOMENT: LINEAR,
    Need.NORM: QUADRATIC,
    Need.SATURATING: SLOPE,
    Need.BOUNDED: SLOPE,
    Need.ATTENTION: STORED,
}


@dataclass(frozen=True)
class Judged:
    """What a bound says of a sample's gradient.

    Attributes:
        bound: which one.
        error: of the whole gradient, relative to its norm.
        share: of the bound; at most 1 where it holds.
    """

    bound: str
    error: float
    share: float


def bound_for(name: str, rounded: Iterable[tuple[str, str]]) -> str:
    """The bound for an operator.

    Args:
        name: of the operator that was called.
        rounded: operator and role of each tensor that is rounded.
    """
    found = {(operator, RULES[operator].need(role)) for operator, role in rounded}
    operators, kinds = {operator for operator, _ in found}, {_BY_NEED[need] for _, need in found}
    if "rms_norm" in operators:  # of which the normalised input is saved, as what squares are taken of
        kinds = {QUADRATIC}
    if len(kinds) != 1 or operators & _GATED or not all(_is(operator, name) for operator in operators):
        return SMOOTH
    [kind] = kinds
    return SOFTMAX if kind == SLOPE and operators & _SOFTMAX else kind


def judged(bound: str, model: Applied, plain: Step, saves: Saves, results: Sequence[Tensor]) -> Judged:
    """A sample's gradient under a bound.

    Args:
        bound: which one; not ``STORED``.
        model: not compressed. Numbers of its gradient that are not finite are passed over.
        plain: its step.
        saves: of ``results``, with what a compressed step restored.
        results: of a plain forward.
    """

    def at(part: float) -> Tensor:
        saves.part = part
        return flat(gradients(model, results, plain.given)).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)

    exact, given = at(0), flat(plain.given).abs()
    error = at(1) - exact
    if not error.any():  # such as zeros of another sign
        return Judged(bound, 0.0, 0.0)
    norm = float(exact.norm()) or 1.0
    step = max((_step(saved) for saved, _ in saves.pairs()), default=0.0)
    if bound in (SLOPE, SOFTMAX):
        most = 2 * step * given if bound == SLOPE else step * (given + (2 + step) * given.sum())
        # Of a complex number that was cast to a real one first, the gradient has two parts for each that came in.
        each = error.view(given.numel(), -1).norm(dim=1)
        share = float((each / (most + _CLAMPED * given)).max())
        return Judged(bound, float(error.norm()) / norm, share)
    if bound == SMOOTH:
        bent = float((error - 2 * (at(0.5) - exact)).norm())
        return Judged(bound, float(error.norm()) / norm, bent / (_SMOOTHNESS * float(error.norm())))
    if bound == LINEAR:
        left, count = error - 2 * (at(0.5) - exact), 4
    else:
        left, count = error - 3 * (at(2 / 3) - at(1 / 3)), 8
    terms = max(saved.numel() for saved, _ in saves.pairs())
    share = float(left.norm()) / norm / (count * terms * torch.finfo(torch.float32).eps / 2)
    if bound == LINEAR:
        share = max(share, *(_moved(saved, restored) for saved, restored in saves.pairs()))
    return Judged(bound, float(error.norm()) / norm, share)


def _parts(tensor: Tensor) -> Tensor:
    """The real numbers of which a tensor consists."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _step(saved: Tensor) -> float:
    saved = _parts(saved)
    finite = saved[saved.isfinite()]
    if not finite.numel():
        return 0.0
    return float(finite.max() - finite.min()) / (_STEPS - (finite.numel() < saved.numel()))


def _moved(saved: Tensor, restored: Tensor) -> float:
    """The largest distance of an element from where it was, in steps, less what float32 rounds it by."""
    rounding = 2 * torch.finfo(torch.float32).eps * float(saved.abs().max())
    return (float(_parts(restored - saved).abs().max()) - rounding) / _step(saved)


def _is(operator: str, name: str) -> bool:
    """Whether a torch function is the one that an operator is named after, as ``softmin`` is for ``masked.softmin``."""
    plain = operator.replace("_", "")
    return name.split(".")[-1].replace("_", "") in (plain, f"r{plain}")
