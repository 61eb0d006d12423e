"""Defects of Optimal Gradient Checkpointing, each in a test of its name: from its issues, or measured."""

import copy
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from actcore import checkpoint_plans, checkpoint_segments
from integrations.checkpoint import apply, capture, optimal_grad_checkpointing, plan, plan_of
from integrations.planner.problem import training_step

from .nets import mlp, normal
from .recompute_nets import net
from .recompute_reference import outcome


def assert_as_plain(model, *args, **kwargs):
    """The model, with a plan of least peak, does what it does without."""
    model.train()
    twin = copy.deepcopy(model)
    apply(model, plan(model, args, kwargs=kwargs))
    for one, other in zip(outcome(model, model, args, kwargs), outcome(twin, twin, args, kwargs), strict=True):
        assert torch.equal(one, other)
    return model


class With(nn.Module):
    """A forward with modules that it may call."""

    def __init__(self, forward, **modules):
        super().__init__()
        self.function = forward
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x):
        return self.function(self, x)


def layered(forward):
    """A model of two linear layers around a forward's own operators."""
    return With(
        lambda model, x: model.last(forward(model, model.first(x))), first=nn.Linear(8, 8), last=nn.Linear(8, 8)
    )


# ---- the parser ----


def test_a_bare_except_hides_the_parsers_error():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        optimal_grad_checkpointing(mlp(width=8), normal(4, 9))


FORWARDS = {
    "silu in place": lambda model, x: F.silu(x * 1, inplace=True),
    "hardswish in place": lambda model, x: F.hardswish(x * 1, inplace=True),
    "mean": lambda model, x: x - x.mean(1, keepdim=True),
    "chunk into a tuple": lambda model, x: torch.cat([part.tanh() for part in x.chunk(2, 1)], 1),
    "a parameter of its own": lambda model, x: x.sin() * model.first.bias,
    "permute": lambda model, x: x.t().permute(1, 0).exp(),
    "functional relu": lambda model, x: F.relu(x),
    "a - b": lambda model, x: x.tanh() - x.sigmoid(),
    "gelu with a string": lambda model, x: F.gelu(x, approximate="tanh"),
    "squeeze": lambda model, x: x.unsqueeze(0).sin().squeeze(0),
    "constant_pad_nd": lambda model, x: F.pad(x.cos(), (1, 1))[:, 1:-1] * 2,
    "unbind a list": lambda model, x: torch.stack([part.exp() for part in x.unbind(1)], 1),
    "a module twice": lambda model, x: model.first(model.first(x).tanh()),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_operators_that_the_parser_does_not_know(name):
    assert_as_plain(layered(FORWARDS[name]), normal(64, 8))


def test_add_drops_its_alpha():
    assert_as_plain(layered(lambda model, x: torch.add(x.tanh(), x.sin(), alpha=3)), normal(64, 8))


def test_flatten_forgets_where_it_starts():
    forward = layered(lambda model, x: x.view(-1, 2, 2, 2).tanh().flatten(start_dim=2).sin().flatten(1))
    assert_as_plain(forward, normal(64, 8))


def test_a_scalar_factor_is_not_supported():
    assert_as_plain(layered(lambda model, x: x.tanh() * 0.5), normal(64, 8))


class Between(nn.Module):
    """Lists and dictionaries go from module to module, and None among the inputs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Inner(), Inner()

    def forward(self, x, mask=None):
        found = self.second(self.first({"parts": [x, x.sin()], "mask": mask}))
        return found["parts"][0], {"rest": found["parts"][1:]}


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, given):
        if given["mask"] is not None:
            raise ValueError("there should be none")
        return {"parts": [self.linear(sum(given["parts"])).tanh(), given["parts"][0] * 2], "mask": None}


def test_none_lists_dictionaries_and_two_outputs():
    assert_as_plain(Between(), normal(64, 8), None)


def test_one_source_and_one_target_only():
    model, args, kwargs = net("nested")
    assert_as_plain(model, *args, **kwargs)


def test_parsing_updates_the_running_statistics():
    """7 to 22 times for each BatchNorm."""
    model, args, _ = net("resnet")
    before = [buffer.clone() for buffer in model.buffers()]
    plan(model, args)
    assert all(torch.equal(*pair) for pair in zip(before, model.buffers(), strict=True))


def test_dropouts_mode_is_baked_in():
    """What was traced in training stayed random after eval()."""
    model = With(lambda model, x: F.dropout(model.linear(x), 0.5, model.training), linear=nn.Linear(8, 8)).train()
    x = normal(64, 8)
    run_segment = optimal_grad_checkpointing(model, x)
    assert not torch.equal(run_segment(x), run_segment(x))
    run_segment.eval()
    assert torch.equal(run_segment(x), run_segment(x))


# ---- the costs ----


def test_costs_are_elements_whatever_their_type():
    sizes = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = mlp(width=8).train().to(dtype)
        graph = capture(model, normal(64, 8).to(dtype))
        sizes[dtype] = sum(value.nbytes for value in graph.values)
    assert sizes[torch.float32] == 2 * sizes[torch.bfloat16]


def test_indices_of_pooling_and_masks_cost_nothing():
    model = With(lambda model, x: F.max_pool2d(model.conv(x), 2), conv=nn.Conv2d(2, 2, 1)).train()
    graph = capture(model, normal(4, 2, 8, 8))
    [pool] = [op for op in graph.ops if "max_pool" in op.name]
    results, indices = (graph.values[value].nbytes for value in pool.makes)
    assert indices == 2 * results  # int64 beside float32


def test_every_tensor_counts_as_saved():
    """A sum's result is not, and what only an identity hands on is no tensor of its own."""
    model = With(lambda model, x: nn.Identity()(model.linear(x) + 1) + 2, linear=nn.Linear(8, 8)).train()
    graph = capture(model, normal(64, 8))
    assert len(graph.ops) == 3
    assert all(value.saved < 0 for value in graph.values)


# ---- the search ----


def dense(count):
    """Every tensor is made of all before it: no division of the graph is anything but trivial."""
    return [(a, b) for b in range(count) for a in range(b)]


def test_a_dense_graph_crashes_the_search():
    found = checkpoint_segments([0] + [8] * 8 + [0], dense(10))
    assert found.total <= 64
    model, args, _ = net("densenet")
    assert_as_plain(model, *args)


def test_a_single_operator_crashes_the_search():
    assert checkpoint_segments([8, 8], [(0, 1)]).total <= 16
    assert checkpoint_segments([], []).total == 0
    made = plan(mlp(width=8, depth=1).train(), normal(4, 8))
    assert made.peak <= made.plain_peak
    bare = nn.Linear(8, 8)
    made = plan(bare, normal(4, 8))
    assert made.segments == ()
    assert "nothing is recomputed" in str(made)


def test_the_search_starts_at_random_nodes():
    graph = capture(*net("densenet")[:2])
    first, second = (checkpoint_plans(training_step(graph)) for _ in range(2))
    assert first.front == second.front


def test_a_segment_has_one_tensor_at_each_end():
    """Two branches side by side, joined at the end: only a cut through both divides it in the middle."""
    edges, size = [], 40
    for branch in (0, 1):
        row = [0, *range(1 + branch * size, 1 + (branch + 1) * size), 2 * size + 1]
        edges += pairwise(row)
    sizes = [0] + [1] * (2 * size) + [0]
    found = checkpoint_segments(sizes, edges)
    # One branch may be cut into pieces between two tensors; both at once not: they meet only in the ends.
    kept = 2 * found.kept_bytes
    assert found.total < size
    assert kept >= 4


# ---- the execution ----


def test_the_input_must_require_a_gradient():
    x = normal(64, 16)
    model = optimal_grad_checkpointing(mlp(width=16, depth=6), x)
    model(x).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert x.grad is None


def test_autograd_grad_is_unusable():
    model, x = mlp(width=16, depth=6).train(), normal(64, 16).requires_grad_()
    expected = torch.autograd.grad(model(x).sum(), [x, *model.parameters()])
    apply(model, plan(model, x))
    found = torch.autograd.grad(model(x).sum(), [x, *model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))


def test_running_statistics_are_updated_twice():
    model, args, _ = net("resnet")
    assert_as_plain(model, *args)  # which compares the buffers
    counts = [module.num_batches_tracked.item() for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert set(counts) == {1}


def test_the_last_segment_is_recomputed():
    """All of it is there when backward begins: nothing is saved by recomputing it."""
    model, x = mlp(width=16, depth=12).train(), normal(4096, 16)
    made = plan(model, x)
    repeated = [number for number, op in enumerate(made.schedule.ops) if op.segment >= 0]
    assert repeated
    assert max(repeated) < len(made.graph.ops) - 1
    for choice in made.front:
        assert len(made.graph.ops) - 1 not in [
            number for number, op in enumerate(made.within(choice.peak).schedule.ops) if op.segment >= 0
        ]


def test_lone_identities_are_recomputed():
    layers = [layer for _ in range(8) for layer in (nn.Linear(16, 16), nn.Identity(), nn.Tanh())]
    made = plan(nn.Sequential(*layers).train(), normal(1024, 16))
    assert {op.name for op in made.graph.ops} == {"aten.addmm.default", "aten.tanh.default"}


def test_the_result_has_no_parameters_and_no_modes():
    x = normal(64, 16)
    model = mlp(width=16, depth=6)
    run_segment = optimal_grad_checkpointing(model, x)
    assert len(list(run_segment.parameters())) == 12
    assert run_segment.state_dict().keys() == model.state_dict().keys()
    assert not run_segment.eval().training
    run_segment.train().double()
    assert run_segment(x.double()).dtype is torch.float64
    assert plan_of(run_segment).segments


def test_dropouts_differ_between_forward_and_repetition():
    model, args, _ = net("transformer")
    assert_as_plain(model, *args)
