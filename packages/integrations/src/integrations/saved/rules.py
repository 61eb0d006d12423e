"""Which operator saved a tensor decides how it may be stored: the table, and the reason for each line.

A linear operator's input enters only the gradient of the other operand, linearly, so an unbiased rounding of it leaves
that gradient unbiased. A nonlinear operator has no such protection: it gets exactly the bits that its gradient needs,
or is kept. ``docs/architecture.md`` shows the measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType


class Need(Enum):
    """What backward needs of a saved tensor."""

    LINEAR = "enters a gradient linearly: unbiased bits suffice"
    PRODUCT = "factor of a product: unbiased bits, whose error goes on into the gradients below"
    NORM = "input of a normalisation: 8 bits keep the gradients below it straight"
    SIGN = "backward asks only whether it is positive: one exact bit"
    MASK = "two values: one exact bit"
    EXACT = "kept exactly"


@dataclass(frozen=True)
class Rule:
    """What backward needs of the tensors that one operator saves, by what each is to the operator.

    Attributes:
        input: the first tensor argument.
        other: any other argument.
        result: a tensor that the call computed and gradients flow through.
        internal: one that the call made for itself, such as a mask or statistics.
        why: the reason why what is kept exactly is.
    """

    input: Need = Need.EXACT
    other: Need = Need.EXACT
    result: Need = Need.EXACT
    internal: Need = Need.EXACT
    why: str = ""

    def need(self, role: str) -> Need:
        need: Need = getattr(self, role)
        return need


# Linear in each operand, whatever copies or reshapes it makes on the way.
_LINEAR = Rule(Need.LINEAR, Need.LINEAR, Need.LINEAR, Need.LINEAR)
_PRODUCT = Rule(Need.PRODUCT, Need.PRODUCT)
_NORM = Rule(input=Need.NORM, why="statistics or scale of a normalisation: small, and every gradient uses them")
_SIGN = Rule(input=Need.SIGN, result=Need.SIGN)
_DROPOUT = Rule(internal=Need.MASK, why="dropout needs only its mask")
_INDEX = Rule(why="indices are exact")
_EXPONENTIAL = Rule(why="exp() and division amplify an error without bound")

_OPERATORS = (
    (_LINEAR, "linear matmul mm bmm mv addmm addmv addbmm baddbmm dot vdot inner outer ger addr einsum tensordot kron"),
    (_LINEAR, "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"),
    (_LINEAR, "sparse_mm spmm sspaddmm hspmm smm chain_matmul"),
    (_PRODUCT, "mul multiply addcmul"),
    (_NORM, "batch_norm layer_norm group_norm instance_norm rms_norm"),
    (_SIGN, "relu leaky_relu"),
    (_DROPOUT, "dropout dropout1d dropout2d dropout3d feature_dropout"),
    (_INDEX, "index_select gather getitem take take_along_dim index_add scatter scatter_add embedding embedding_bag"),
    (_EXPONENTIAL, "softmax log_softmax exp cross_entropy nll_loss div true_divide"),
)

RULES = MappingProxyType({name: rule for rule, names in _OPERATORS for name in names.split()})
"""Rules by operator name (see ``operator_name``)."""


def operator_name(function: object) -> str:
    """The name under which a call is looked up: ``torch.relu_``, ``Tensor.relu`` and ``F.relu`` are all ``"relu"``.

    In-place and reflected forms drop their marks: ``__rmul__``, ``__imul__`` and ``mul_`` are ``"mul"``. What is not
    torch's keeps the name of its library, so that ``mylib::relu`` is not taken for ``relu``.
    """
    name = str(getattr(function, "__name__", "") or type(function).__name__).split(".")[0]
    library = _library(function)
    if library:
        return f"{library}::{name}"
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
        if name not in RULES and name[:1] in ("r", "i") and name[1:] in RULES:
            name = name[1:]
    return name.strip("_")


def _library(function: object) -> str:
    """Whose function it is: a custom operator's namespace, a Python package; empty for torch's own."""
    module = str(getattr(function, "__module__", None) or "torch").split(".")
    library = module[2] if module[:2] == ["torch", "_ops"] and len(module) > 2 else module[0]
    return "" if library in ("torch", "aten", "builtins") else library
