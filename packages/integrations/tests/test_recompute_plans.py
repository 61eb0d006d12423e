"""A plan tells what it saves, fits its budget, survives a file, and says no to what cannot be."""

import dataclasses
import json
import re
import runpy

import pytest
import torch
from torch import nn

from actcore import simulate
from integrations.checkpoint import Plan, capture, optimal_grad_checkpointing, plan, plan_of
from integrations.planner.feng_huang_objective import paper_segments
from integrations.planner.problem import training_step

from .forks import Fork
from .nets import mlp, normal
from .recompute_nets import NETS, net


@pytest.fixture(scope="module")
def deep():
    """A model whose activations outweigh its gradients."""
    return mlp(width=16, depth=12).train(), (normal(4096, 16),)


@pytest.fixture(scope="module")
def made(deep):
    return plan(*deep)


def test_what_it_promises_is_what_the_simulation_finds(made):
    values, held = range(len(made.graph.values)), made.choice.held
    assert held is not None  # nested checkpoints have the least peak
    kept = [value in made.kept for value in values]
    usage = simulate(training_step(made.graph), kept, [bool(held >> value & 1) for value in values])
    assert made.peak == usage.peak - made.graph.gradients
    assert made.seconds == pytest.approx(usage.seconds)
    everything = simulate(training_step(made.graph), [True] * len(made.graph.values))
    assert made.plain_peak == everything.peak - made.graph.gradients
    assert made.peak < 0.55 * made.plain_peak


def test_more_budget_takes_no_more_time_and_no_plan_is_beaten(made):
    peaks = [choice.peak for choice in made.front]
    seconds = [choice.seconds for choice in made.front]
    assert peaks == sorted(set(peaks))
    assert seconds == sorted(set(seconds), reverse=True)
    assert seconds[-1] == 0
    assert all(choice.seconds_bound <= choice.seconds for choice in made.front)
    assert made.peak_bound <= peaks[0]


def test_a_choice_is_printed_without_its_mask(made):
    choice = made.front[0]
    assert choice.mask > 10**6
    assert repr(choice) == (
        f"Choice(peak={choice.peak}, seconds={choice.seconds:.3g}, kept={len(choice.kept)} values, "
        f"held={choice.held.bit_count()} values)"
    )
    assert repr(made.front[-1]).endswith(f"kept={len(made.front[-1].kept)} values)")


@pytest.mark.parametrize("budget", [0.6, "2 MB", "2.5MiB", "2400000 B", 2_400_000], ids=str)
def test_a_budget_is_kept(deep, made, budget):
    within = plan(*deep, budget=budget)
    allowed = {0.6: 0.6 * made.plain_peak, "2 MB": 2_000_000, "2.5MiB": 5 << 19, "2400000 B": 2_400_000}
    allowed = allowed.get(budget, budget)
    assert made.peak <= within.peak <= allowed
    assert within == made.within(budget)
    assert within.seconds <= made.seconds


@pytest.mark.parametrize(
    ("budget", "error", "message"),
    [
        (1000, ValueError, r"memory must be at least \d+ bytes .* of the plain step's .*got 1000"),
        ("1KiB", ValueError, r"pass memory=\d+, .*or memory='least', or take a smaller batch"),
        (0.0, ValueError, r"in \(0, 1\] as a fraction of the plain step's peak, got 0.0"),
        (1.5, ValueError, r"got 1.5; bytes are an int"),
        (float("nan"), ValueError, r"in \(0, 1\]"),
        (-1, ValueError, "must be above 0, got -1"),
        ("4 bananas", ValueError, "a number with a unit such as '4GiB'"),
        ("0.5", ValueError, r"must have a unit as a string, .* got '0.5'; .* is a float or a percentage, such as 0.5"),
        ("1024", ValueError, r"must have a unit as a string, such as '4GiB', or '1024B' for bytes, got '1024'"),
        (True, TypeError, "memory must be bytes as an int"),
        ([1], TypeError, "memory must be bytes as an int"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(made, budget, error, message):
    with pytest.raises(error, match=message):
        made.within(budget)


def test_the_least_budget_that_is_named_can_be_met(made):
    """In bytes, also in steps that accumulate gradients."""
    with pytest.raises(ValueError, match="at least") as raised:
        made.within("1B")
    first, second = (int(number) for number in re.findall(r"(\d+) bytes", str(raised.value)))
    assert made.within(first).peak == first
    assert made.within(second).accumulating.peak == second
    with pytest.raises(ValueError, match="at least") as raised:
        made.within(0.001)
    least = int(str(raised.value).split("at least ")[1].split()[0])
    share = float(str(raised.value).split(", ")[1].split(" of the plain step's")[0])
    assert made.within(share).peak == least
    with pytest.raises(ValueError, match="at least"):
        made.within(share - 0.001)


def test_json_round_trip(made, tmp_path):
    assert Plan.from_json(made.to_json()) == made
    made.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == made


@pytest.mark.parametrize("content", [b"{}", b"\xff\xfe"])
def test_a_file_that_holds_no_plan_is_named(content, tmp_path):
    (tmp_path / "weights.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"weights.json must be a file that Plan.save wrote: "):
        Plan.load(tmp_path / "weights.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: "{", "it is not JSON"),
        (lambda content: "[]", "of format 4; got format None"),
        (lambda content: json.dumps({**content, "format": 7}), "got format 7"),
        (lambda content: json.dumps({**content, "format": 1}), "Plan.to_json, of format 4; got format 1"),
        (
            lambda content: json.dumps({k: v for k, v in content.items() if k != "candidates"}),
            "missing, unknown or of another type: 'candidates'",
        ),
        (lambda content: json.dumps({**content, "front": []}), "front must have a choice"),
        (
            lambda content: json.dumps({**content, "choice": {**content["choice"], "kept": "-1"}}),
            "a number from 0, got '-1'",
        ),
        (
            lambda content: json.dumps({**content, "choice": {**content["choice"], "kept": "f" * 999}}),
            "choices name values that the graph lacks",
        ),
        (
            lambda content: json.dumps({k: v for k, v in content.items() if k != "choice"}),
            "missing, unknown or of another type: 'choice'",
        ),
        (lambda content: json.dumps({**content, "more": 1}), "missing, unknown or of another type"),
        (lambda content: json.dumps({**content, "choice": "keep"}), "missing, unknown or of another type"),
        (lambda content: json.dumps({**content, "choice": {**content["choice"], "peak": "1"}}), "peak must be int"),
        (lambda content: json.dumps({**content, "choice": {**content["choice"], "peak": 1 << 50}}), "front ends below"),
        (lambda content: json.dumps({**content, "memory": 2.5}), "memory must be in"),
        (lambda content: json.dumps({**content, "objective": "time"}), "objective must be"),
        (lambda content: json.dumps({**content, "peak_bound": None}), "peak_bound must be int, got None"),
    ],
)
def test_what_is_no_plan_is_refused(made, change, message):
    with pytest.raises(ValueError, match=message):
        Plan.from_json(change(json.loads(made.to_json())))


def test_two_processes_make_the_same_plan(capsys, tmp_path):
    """Ranks plan by themselves: another process makes the plan that this one makes."""
    script = tmp_path / "script.py"
    script.write_text("""
import torch
from torch import nn
from integrations.checkpoint import plan
torch.set_num_threads(1)
torch.manual_seed(5)
layers = [layer for _ in range(12) for layer in (nn.Linear(16, 16), nn.ReLU())]
made = plan(nn.Sequential(*layers).train(), torch.randn(512, 16))
print(made.choice, made.graph.fingerprint, len(made.front))
""")
    other, _ = Fork(script).communicate(timeout=120)
    runpy.run_path(str(script))
    assert capsys.readouterr().out == other


def test_the_table_says_what_is_done(made):
    text = str(made.within(0.6))
    for words in ("activation peak", "recomputed", "kept", "Backward recomputes", "less", "Chosen from the best"):
        assert words in text
    assert "captured on real tensors" not in text
    whole = made.within(1.0)
    assert "everything is kept, and nothing is recomputed." in str(whole)
    assert "segment" not in str(whole)
    assert whole.segments == ()
    assert whole.cut == 0
    assert whole.overhead == 0


def test_a_narrow_terminal_wraps_no_sentence(made, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    first, *lines, last = str(made.within(0.6)).splitlines()
    assert first.startswith("Sequential for inputs 4096x16: activation peak ")
    assert first.endswith("by the operators' modelled times")
    assert last.startswith("Captured in ")
    table = [line for line in lines if not line[0].isalpha()]
    assert table
    assert max(map(len, table)) <= 60
    assert all(line.endswith(".") for line in lines[len(table) :])


def test_segments_are_those_of_the_schedule(made):
    half = made.within(0.6)
    assert half.segments
    assert sum(segment.operators for segment in half.segments) == sum(op.segment >= 0 for op in half.schedule.ops)
    # What nobody needs in the end is not repeated, so segments may hold more than what is.
    assert sum(segment.seconds for segment in half.segments) >= half.seconds - 1e-12


def test_a_chart(made, tmp_path):
    pytest.importorskip("matplotlib")
    made.plot(tmp_path / "front.png")
    assert (tmp_path / "front.png").stat().st_size > 10_000
    made.page(tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    chart = page[page.index("<svg") : page.index("</svg>")]
    for words in ("activation peak, ", "added time, % of a plain step, as modelled", "this plan"):
        assert words in chart


@pytest.mark.parametrize("name", NETS)
def test_the_papers_objective(name):
    model, args, kwargs = net(name)
    graph = capture(model, args, kwargs)
    found = paper_segments(graph)
    assert 0 < found.cut < 1
    made = plan(model, args, kwargs=kwargs, objective="paper")
    assert made.kept == tuple(sorted(found.kept))
    assert made.objective == "paper"


def test_the_papers_objective_has_no_budget():
    with pytest.raises(ValueError, match="memory must be None with objective='paper'"):
        plan(mlp().train(), normal(4, 64), objective="paper", memory=0.5)
    with pytest.raises(ValueError, match="objective must be 'peak' or 'paper', got 'time'"):
        plan(mlp().train(), normal(4, 64), objective="time")


def test_arguments_by_their_older_names(deep):
    found = plan(*deep, memory=0.6, criterion=torch.sum)
    older = plan(*deep, budget=0.6, loss=torch.sum)
    assert (older.peak, older.kept) == (found.peak, found.kept)
    with pytest.raises(TypeError, match="budget is the older name of memory, got both; pass memory alone"):
        plan(*deep, memory=0.6, budget=0.6)
    trained = optimal_grad_checkpointing(*deep, memory=0.6, criterion=torch.sum)
    assert plan_of(trained).kept == found.kept


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, *, scale, bias=None):
        return self.linear(x).tanh() * scale + (0 if bias is None else bias)


def test_inputs_in_all_forms():
    x, scale = normal(8, 4), normal(4)
    positional = plan(Named(), x, kwargs={"scale": scale})
    assert plan(Named(), (x,), kwargs={"scale": scale}).graph == positional.graph
    named = plan(Named(), {"x": x, "scale": scale})
    assert named.graph.ops == positional.graph.ops
    with pytest.raises(ValueError, match="kwargs must be None where inputs is a mapping"):
        plan(Named(), {"x": x}, kwargs={"scale": scale})


def test_what_cannot_be_planned_for_is_refused():
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got builtin"):
        plan(torch.relu_, normal(4))
    with pytest.raises(ValueError, match=r"model must be in training mode; call model.train\(\) first"):
        plan(mlp().eval(), normal(4, 64))
    with pytest.raises(ValueError, match=r"the module that DataParallel wraps: model.module"):
        plan(nn.DataParallel(mlp().train()), normal(4, 64))
    with pytest.raises(ValueError, match="requires a gradient, and Sequential returned none"):
        plan(mlp().train().requires_grad_(False), normal(4, 64))


class Looks(nn.Module):
    """Takes another way where its mask masks, as transformers' models do."""

    def __init__(self):
        super().__init__()
        self.words, self.linear = nn.Embedding(9, 4), nn.Linear(4, 4)

    def forward(self, tokens, mask):
        positions = torch.arange(tokens.shape[1])[None].expand_as(tokens)
        x = self.words(tokens)
        if (positions.diff(dim=-1) != 1).any() or not mask.all():
            x = x.masked_fill(~mask[..., None].bool(), 0.0).tanh()
        return self.linear(x)


@pytest.mark.parametrize("masks", [False, True])
def test_what_integers_decide_is_decided_on_fake_tensors_too(masks):
    model, tokens = Looks().train(), torch.arange(12).reshape(3, 4) % 9
    mask = torch.ones(3, 4, dtype=torch.long)
    mask[1, 2:] = 0 if masks else 1
    graph = capture(model, (tokens, mask))
    assert not graph.note
    assert ("aten.tanh.default" in [op.name for op in graph.ops]) == masks
    real = capture(model, (tokens, mask), real=True)
    assert [dataclasses.astuple(op) for op in graph.ops] == [dataclasses.astuple(op) for op in real.ops]
    assert int(mask[1, 2]) == (not masks)
