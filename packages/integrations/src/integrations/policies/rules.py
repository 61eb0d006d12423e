"""Which operator saved a tensor decides how it may be stored: the table, and the reason for each line.

A linear operator's input enters only the gradient of the other operand, linearly, so an unbiased rounding of it leaves
that gradient unbiased. A nonlinear operator has no such protection: it gets exactly the bits that its gradient needs,
or so many that the error of its derivative is bounded, or is kept. ``docs/operators.md`` is this table for readers,
``docs/internals/adaptive.md`` has the measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from types import MappingProxyType

CHECKPOINT = "checkpoint"
"""In the place of an operator: what ``torch.utils.checkpoint``, or a plan, recomputes something from."""


class Need(Enum):
    """What backward needs of a saved tensor."""

    LINEAR = "enters a gradient linearly: unbiased bits suffice"
    PRODUCT = "factor of a product: unbiased bits, whose error goes on into the gradients below"
    NORM = "input of a normalisation: its error tilts every gradient below"
    MOMENT = "its squares are taken, as normalisations do: its error tilts every gradient below"
    SATURATING = "the derivative changes slowly, and no more beyond a range: bits within it bound the error"
    BOUNDED = "a result of bounded range, in which the derivative is a product: bits bound the error"
    ATTENTION = "query, key or value: backward recomputes attention from the stored ones"
    RECOMPUTED = "input of a checkpoint: backward recomputes the segment from the stored one"
    SIGN = "backward asks only whether it is positive: one exact bit"
    INSIDE = "backward asks only whether it is inside an interval: one exact bit"
    MASK = "two values: one exact bit"
    SHAPE = "backward asks only for its shape: nothing is stored"
    EXACT = "kept exactly"


@dataclass(frozen=True)
class Rule:
    """What backward needs of the tensors that one operator saves, by each tensor's role.

    Attributes:
        input: the first tensor argument.
        other: any other argument.
        result: a tensor that the call computed and gradients flow through; a clone of the input of an operator that
            works in place is one.
        internal: a tensor that the call made for itself, such as a mask or statistics.
        recomputed: an argument from which backward recomputes the call.
        why: the reason why what is kept exactly is.
        jumps: whether backward needs to know on which side of a jump the elements of the exactly kept tensors are.
    """

    input: Need = Need.EXACT
    other: Need = Need.EXACT
    result: Need = Need.EXACT
    internal: Need = Need.EXACT
    recomputed: Need = Need.EXACT
    why: str = ""

    jumps: bool = False

    def need(self, role: str) -> Need:
        need: Need = getattr(self, role)
        return need

    def decides(self, role: str) -> bool:
        """Whether backward needs to know on which side of a jump a tensor's elements are, or only its shape."""
        return self.jumps or self.need(role) in (Need.SIGN, Need.INSIDE, Need.SHAPE)


# Linear in each operand, whatever copies or reshapes the operator makes on the way.
_LINEAR = Rule(Need.LINEAR, Need.LINEAR, Need.LINEAR, Need.LINEAR)
_PRODUCT = Rule(Need.PRODUCT, Need.PRODUCT)
# dy = y dx: a product with the result, and not with something that amplifies its error. In place, the result is the
# input, too.
_OWN_SLOPE = Rule(input=Need.PRODUCT, result=Need.PRODUCT)
# Of a variance 2 (x - mean) / (n - 1). The derivatives of std and norms divide by what may be small: a row of small
# numbers in a group with large ones would be rounded as coarsely as those, and the quotient would make that error
# large.
_MOMENT = Rule(Need.MOMENT, Need.MOMENT)
_NORM = Rule(input=Need.NORM, why="statistics or scale of a normalisation: small, and every gradient uses them")
# Where torch composes it of other operators, it saves its input once more, as that is cast, and as it is normalised.
_RMS_NORM = Rule(input=Need.NORM, result=Need.MOMENT, why=_NORM.why)
_SATURATING = Rule(input=Need.SATURATING, result=Need.SATURATING, internal=Need.SATURATING)
_BOUNDED = Rule(input=Need.BOUNDED, result=Need.BOUNDED)
_SIGN = Rule(input=Need.SIGN, result=Need.SIGN)
_INSIDE = Rule(input=Need.INSIDE, result=Need.INSIDE, internal=Need.INSIDE, why="bounds that are tensors: kept exactly")
_DROPOUT = Rule(internal=Need.MASK, why="dropout needs only its mask")
_POOL = Rule(input=Need.SHAPE, why="indices are exact")
_INDEX = Rule(why="indices are exact")
_ATTENTION = Rule(recomputed=Need.ATTENTION, why="torch's own attention normalises over the exact query and key")
_CHECKPOINT = Rule(Need.RECOMPUTED, why="an input of a checkpoint that is a mask, or may have one in it: kept exactly")
_SKETCH = Rule(why="a random sketch in the place of a linear layer's input: as small as was asked for")
_EXPONENTIAL = Rule(why="exp() and division amplify an error without bound")
_CROSS_ENTROPY = Rule(
    why="backward takes exp() of it, or it is a gradient, which a loss in chunks makes in the forward"
)
_JUMPS = Rule(why="the derivative jumps, or is a product of many: kept exactly", jumps=True)

_OPERATORS = (
    (_LINEAR, "linear matmul mm bmm mv addmm addmv addbmm baddbmm dot vdot inner outer ger addr einsum tensordot kron"),
    (_LINEAR, "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"),
    (_LINEAR, "sparse_mm spmm sspaddmm hspmm smm chain_matmul grouped_mm"),
    (_PRODUCT, "mul multiply addcmul glu"),
    (_OWN_SLOPE, "exp exp2 expm1"),
    (_MOMENT, "square pow var var_mean"),
    (_NORM, "batch_norm layer_norm group_norm instance_norm"),
    (_RMS_NORM, "rms_norm"),
    (_SATURATING, "gelu silu mish softplus elu celu log_sigmoid logsigmoid hardswish erf"),
    (_BOUNDED, "sigmoid tanh softmax softmin tanhshrink"),
    (_SIGN, "relu leaky_relu"),
    (_INSIDE, "relu6 hardtanh hardsigmoid clamp clip clamp_min clamp_max threshold hardshrink softshrink"),
    (_DROPOUT, "dropout dropout1d dropout2d dropout3d feature_dropout native_dropout"),
    (_POOL, "max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices"),
    (_POOL, "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d adaptive_max_pool1d_with_indices"),
    (_POOL, "adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices"),
    (_POOL, "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d"),
    (_INDEX, "index_select gather getitem take take_along_dim index_add scatter scatter_add embedding embedding_bag"),
    (_INDEX, "index_copy index_fill index_put setitem topk sort max min median mode kthvalue cummax cummin"),
    (_ATTENTION, "scaled_dot_product_attention"),
    (_CHECKPOINT, "checkpoint"),
    (_SKETCH, "integrations::linear_randomized"),
    (_CROSS_ENTROPY, "cross_entropy"),
    (_EXPONENTIAL, "log_softmax gumbel_softmax logsumexp nll_loss log log2 log10 log1p logit rpow"),
    (_EXPONENTIAL, "div divide true_divide truediv reciprocal sqrt rsqrt std std_mean norm normalize"),
    (_EXPONENTIAL, "linalg_norm linalg_vector_norm"),
    (_JUMPS, "selu prelu rrelu abs prod cumprod"),
)

_TORCHS = ("torch", "aten", "prims", "prim", "builtins")
_rules = {name: rule for rule, names in _OPERATORS for name in names.split()}
RULES = MappingProxyType(_rules)
"""Rules by operator name (see ``operator_name``)."""


def add_rule(operator: str, rule: Rule) -> None:
    """Has what an operator of one's own saves stored by a rule, from the next model on that is compressed.

    ::

        add_rule("mylib::scaled_linear", Rule(input=Need.LINEAR, other=Need.LINEAR))

    A rule that is wrong makes gradients wrong: take ``Need.LINEAR`` only for what enters a gradient linearly.

    Args:
        operator: as reports name it: the namespace of a custom operator, and its name.
        rule: what backward needs of the tensors that it saves; ``Need.EXACT`` of all that is not named.

    Raises:
        TypeError: an argument, or a part of the rule, has the wrong type.
        ValueError: the operator has another rule, is one of torch's, or has no such name.
    """
    if not isinstance(operator, str):
        raise TypeError(f"operator must be a string, such as 'mylib::scaled_linear', got {operator!r}")
    if not isinstance(rule, Rule):
        raise TypeError(f"rule must be a Rule, such as Rule(input=Need.LINEAR), got {rule!r}")
    for role in ("input", "other", "result", "internal", "recomputed"):
        if not isinstance(rule.need(role), Need):
            raise TypeError(f"rule must have a Need for its {role}, such as Need.LINEAR, got {rule.need(role)!r}")
    library, _, name = operator.partition("::")
    if not library.isidentifier() or not name.isidentifier() or library in _TORCHS:
        raise ValueError(
            f"operator must be of a library of your own, named 'library::operator', got {operator!r}; rules of torch's "
            "operators are in integrations/policies/rules.py"
        )
    if _rules.get(operator, rule) != rule:
        raise ValueError(
            f"operator must have no other rule yet, got {operator!r}, which has one: take another name for yours"
        )
    _rules[operator] = rule


@lru_cache(maxsize=4096)
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
    """The library of a function: a custom operator's namespace or a Python package; empty for torch."""
    module = str(getattr(function, "__module__", None) or "torch").split(".")
    library = module[2] if module[:2] == ["torch", "_ops"] and len(module) > 2 else module[0]
    return "" if library in ("torch", "aten", "builtins") else library
