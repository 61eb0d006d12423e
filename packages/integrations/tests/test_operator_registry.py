"""The registry of operators: each name is in one entry, exists in torch, and has what its rule needs."""

import re
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import flop_registry

from integrations import fewbit
from integrations.policies import arguments
from integrations.policies.needs import Need
from integrations.policies.operators import OPERATORS, Aten, Kernel, Operator, pointwise
from integrations.policies.operators.memory import INDEXING, POOLING
from integrations.policies.operators.pointwise import ACTIVATIONS
from integrations.policies.operators.products import PRODUCTS
from integrations.policies.operators.reductions import NORMS
from integrations.policies.rules import RULES, operator_name
from integrations.runtime.formulas.operators import needs_exact

DOCS = Path(__file__).parents[3] / "docs"
ROLES = ("input", "other", "result", "internal", "recomputed")
# Where torch has the functions whose names a call can have.
HOMES = (F, torch, torch.Tensor, torch.ops.aten, torch.sparse, torch._C._sparse, torch._VF, torch.utils.checkpoint)


def with_rule(need):
    """The entries of which backward needs this of a saved tensor."""
    found = [entry for entry in OPERATORS if entry.rule and need in map(entry.rule.need, ROLES)]
    assert found
    return found


def twice(names):
    return [name for name, times in Counter(names).items() if times > 1]


def lacking(entries):
    """The names of functions, ATen operators and autograd nodes that torch does not have."""
    found = [name for entry in entries for name in entry.names if not is_function(name)]
    found += [one.name for entry in entries for one in entry.kernels if not is_aten(one.name)]
    return found + [node for entry in entries for node in entry.nodes.split() if not is_node(node)]


def is_node(name):
    return any(hasattr(torch._C._functions, f"{name}{end}") for end in ("", "Backward0", "Backward1", "Backwards"))


def is_aten(name):
    """Whether there is an operator of this name; in-place operators are named without their underscore."""
    return any(hasattr(library, form) for library in (torch.ops.aten, torch.ops.prims) for form in (name, f"{name}_"))


def is_function(name):
    library, _, own = name.rpartition("::")
    return hasattr(fewbit.functional, own) if library else find_function(name) is not None


def find_function(name):
    """The function of torch that a call of this name runs; ``None`` if there is none."""
    spellings = (name, f"__{name}__", f"_{name}", f"{name}_")
    found = (getattr(home, spelling, None) for home in HOMES for spelling in spellings)
    return next((function for function in found if function is not None), None)


def test_each_name_is_in_one_entry():
    assert twice(name for entry in OPERATORS for name in entry.names) == []
    assert twice(one.name for entry in OPERATORS for one in entry.kernels) == []
    assert twice(node for entry in OPERATORS for node in entry.nodes.split()) == []


def test_each_name_exists():
    assert lacking(OPERATORS) == []


def test_functions_of_torch_special_are_found_by_the_names_of_their_calls():
    assert operator_name(torch.special.ndtr) == "special_ndtr"
    assert find_function("special_ndtr")(torch.zeros(())) == 0.5


@pytest.mark.parametrize(
    "entry",
    [
        Operator("gelo"),
        Operator("gelu", aten=(Aten("gello"),)),
        Operator("gelu", backward=(Aten("gelu_backwards"),)),
        Operator("gelu", nodes="Gello"),
    ],
)
def test_a_misspelt_name_is_found(entry):
    assert len(lacking([entry])) == 1


def test_each_entry_says_something():
    assert [entry.functions for entry in OPERATORS if entry == Operator(entry.functions)] == []


def test_families_whose_operators_save_tensors_have_rules():
    families = (*PRODUCTS, *NORMS, *ACTIVATIONS, *POOLING, *INDEXING)
    assert [entry.functions for entry in families if entry.rule is None] == []
    assert RULES.keys() >= {name for entry in families for name in entry.names}


def test_a_saved_tensor_of_a_backward_operator_has_a_rule():
    """Else compiled code would name a rule that there is not."""
    saving = [(entry, one) for entry in OPERATORS for one in entry.backward if one.saved is not None]
    assert len(saving) > 15
    for entry, one in saving:
        assert entry.rule is not None
        assert entry.rule.need(one.role) is not Need.EXACT, one.name


def test_positions_are_those_of_tensors():
    for one in (one for entry in OPERATORS for one in entry.kernels):
        places = {*one.factors, *one.repeated, *(() if one.saved is None else (one.saved,))}
        if places:
            packet = getattr(torch.ops.aten, one.name)
            [given, *_] = (getattr(packet, overload)._schema.arguments for overload in packet.overloads())
            assert {str(given[place].type) for place in places} == {"Tensor"}, one.name


def test_what_saturates_has_a_range():
    entries = with_rule(Need.SATURATING)
    assert all(entry.saturation is not None for entry in entries)
    assert entries == [entry for entry in OPERATORS if entry.saturation is not None]


def test_the_slope_is_constant_beyond_the_range():
    for entry in with_rule(Need.SATURATING):
        low, high = entry.saturation
        function = find_function(entry.names[0])
        ends = torch.tensor([low - 0.01, high + 0.01], dtype=torch.float64, requires_grad=True)
        far = torch.tensor([low - 10, high + 10], dtype=torch.float64, requires_grad=True)
        slopes = [torch.autograd.grad(function(x).sum(), x)[0] for x in (ends, far)]
        assert (slopes[0] - slopes[1]).abs().max() < 1e-4, entry.functions


def test_what_is_compared_with_bounds_tells_them():
    """``two_valued`` asks for the interval of each."""
    names = {name for entry in with_rule(Need.INSIDE) for name in entry.names}
    assert names == set(arguments._INTERVALS)


def test_smooth_operators_have_no_rule():
    smooth = [entry for entry in OPERATORS if entry.smooth]
    assert smooth
    assert all(entry.rule is None for entry in smooth)


@pytest.mark.parametrize(
    ("function", "exact"), [("exp", True), ("div", True), ("add", False), ("sin", False), ("sort", None)]
)
def test_what_amplifies_is_repeated_from_exact_values(function, exact):
    assert needs_exact(getattr(torch, function)) is exact


def test_what_draws_or_jumps_is_not_repeated():
    assert [entry.functions for entry in OPERATORS if entry.discontinuous and entry.gain is not None] == []


ARITHMETIC = (Kernel.PRODUCT, Kernel.CONVOLUTION, Kernel.CONVOLUTION_BACKWARD)


def test_matrix_products_are_those_that_torch_counts():
    counted = {packet.__name__ for packet in flop_registry}
    products = [one for entry in OPERATORS for one in entry.kernels if one.kernel in ARITHMETIC]
    assert {one.name for one in products} <= counted
    assert all(one.factors or one.repeated for one in products)


def test_the_entry_on_the_page_is_the_one_in_the_registry():
    page = (DOCS / "how-to" / "extend.md").read_text(encoding="utf-8")
    entry = re.search(r"^### An operator of torch\n.*?^```\n(.*?),\n```", page, re.MULTILINE | re.DOTALL).group(1)
    assert eval(entry, dict(vars(pointwise))) in OPERATORS


def listed(section):
    """The words in the first column of a table of ``docs/reference/operators.md``."""
    page = (DOCS / "reference" / "operators.md").read_text(encoding="utf-8")
    table = re.search(rf"^## {section}\n(.*?)^## ", page, re.MULTILINE | re.DOTALL).group(1)
    return set(re.findall(r"\w+", " ".join(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE))))


ROUNDED = {
    *(Need.LINEAR, Need.PRODUCT, Need.NORM, Need.MOMENT),
    *(Need.SATURATING, Need.BOUNDED, Need.ATTENTION, Need.RECOMPUTED),
}


@pytest.mark.parametrize(("section", "rounded"), [("Rounded", True), ("Exact, in few bits", False)])
def test_the_table_for_readers_has_the_rules(section, rounded):
    rules = {name: RULES[name] for name in listed(section) & RULES.keys()}
    assert len(rules) > 15
    found = {name: not ROUNDED.isdisjoint(map(rule.need, ROLES)) for name, rule in rules.items()}
    assert found == dict.fromkeys(rules, rounded)


def test_each_rounded_operator_is_in_the_table_for_readers():
    entries = [entry for need in (Need.NORM, Need.SATURATING, Need.BOUNDED) for entry in with_rule(need)]
    assert {entry.names[0] for entry in entries} <= listed("Rounded")
